"""What an edge makes of a node's word on a changed configuration, on a real node port (CONF-2, REG-3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from iop.edge.nodes import config_sync as refresh_module
from iop.pool import Candidate, Granted, GroupSpec, ProviderSpec, QueueLimits, Refused, Ticket
from iop.wire import codec, limits
from iop.wire import messages as m
from tests.support.aio import async_test, until
from tests.support.nodeport import GROUP, TOKEN, NodePort
from tests.support.rawlink import RawLink


def change(
    port: NodePort, revision: int, capacity: int, *, new: bool = False, without: str = "", drain_s: float = 30
) -> list[str]:
    """Node n1's provider gets this capacity, and with ``new`` a second provider; ``without`` names a node that goes.
    Returns the nodes that were sent something."""
    before = port.payloads["n1"]
    providers = [replace(before.providers[0], max_concurrency=capacity)]
    specs = [ProviderSpec("n1", "n1-p", "echo", capacity), ProviderSpec("n2", "n2-p", "echo", 2)]
    candidates = [Candidate("n1", "n1-p", "t"), Candidate("n2", "n2-p", "t")]
    groups = []
    if new:
        providers.append(replace(before.providers[0], id="n1-q", max_concurrency=1))
        specs.append(ProviderSpec("n1", "n1-q", "echo", 1))
        groups.append(GroupSpec("fresh", [Candidate("n1", "n1-q", "t")]))
    port.payloads["n1"] = m.NodeConfigPayload("n1", revision, providers)
    payloads = {node_id: p for node_id, p in port.payloads.items() if node_id != without}
    specs = [spec for spec in specs if spec.node_id != without]
    groups.append(GroupSpec(GROUP, [c for c in candidates if c.node_id != without]))
    tokens = {key: node_id for key, node_id in port.tokens.items() if node_id != without}
    acked = port.server.configure(tokens, payloads, drain_s=drain_s)
    actions = port.pool.configure(
        nodes=list(payloads), providers=specs, groups=groups, limits=QueueLimits(), now=port.now, acked=acked
    )
    port.server.perform(actions)
    port.pool.validate()
    return port.server.refresh()


async def cold(link: RawLink) -> m.Message:
    """The next message that is no command."""
    while isinstance(message := await link.message(), m.NodeCommandRequest):
        pass
    return message


def say(link: RawLink, revision: int, applied: bool = True, ref: str = "") -> None:
    link.send(codec.encode(m.ConfigRefreshResponse(revision, applied, "" if applied else "config_rejected", ref)))


def results(port: NodePort) -> dict[str, int]:
    return {labels[0]: int(n) for labels, n in port.metrics.config_refreshes.read() if n}


def shown(port: NodePort) -> tuple[Any, Any]:
    seen = port.server.config_of("n1")
    return seen["revision"], seen["applied_revision"]


@pytest.mark.req("CONF-2")
@async_test()
async def test_only_the_answer_to_what_was_sent_last_counts_and_the_newest_wins() -> None:
    async with NodePort() as port:
        link = await RawLink.connect(port.address)
        await link.ready(TOKEN)
        assert change(port, 2, capacity=5) == ["n1"]
        assert await cold(link) == m.ConfigRefreshRequest(port.payloads["n1"])
        assert change(port, 3, capacity=7) == [], "one at a time"
        assert change(port, 4, capacity=9) == []
        assert shown(port) == (4, 1)
        for stale in (1, 3, 4, 99):  # none of these was sent
            say(link, stale)
        say(link, 2)
        refresh = await cold(link)
        assert refresh == m.ConfigRefreshRequest(port.payloads["n1"])
        assert isinstance(refresh, m.ConfigRefreshRequest)
        assert refresh.config.revision == 4, "3 is of no interest any more"
        assert port.provider("n1")["capacity"] == 2, "the word on 2 says nothing about 4"
        say(link, 2)  # once more
        say(link, 4)
        await until(lambda: port.provider("n1")["capacity"] == 9)
        assert shown(port) == (4, 4)
        assert results(port) == {"sent": 2, "applied": 2, "stale": 5}
        await link.close()


@pytest.mark.req("CONF-2")
@async_test()
async def test_a_node_whose_part_is_the_same_is_left_alone() -> None:
    async with NodePort() as port:
        links = [await RawLink.connect(port.address) for _ in range(2)]
        await links[0].ready(TOKEN)
        await links[1].ready("token-n2")
        assert change(port, 2, capacity=3) == ["n1"]
        assert port.server.out_of_date() == 1
        say(links[0], 2)
        await until(lambda: port.server.out_of_date() == 0)
        assert port.server.config_of("n2") == {"revision": 1, "applied_revision": 1, "config_refused": None}
        for link in links:
            await link.close()


@pytest.mark.req("CONF-2", "POOL-4")
@async_test()
async def test_a_refusal_ends_the_wait_for_what_was_new_and_the_next_change_asks_again() -> None:
    async with NodePort() as port:
        link = await RawLink.connect(port.address)
        await link.ready(TOKEN)
        change(port, 2, capacity=2, new=True)
        await cold(link)
        waiter = Ticket("r1", "alice", "fresh", 0)
        assert port.pool.submit(waiter, port.now) is None
        say(link, 2, applied=False, ref="n1-q")
        await until(lambda: bool(port.actions))
        (refusal,) = port.actions
        assert isinstance(refusal, Refused)
        assert (refusal.ticket, refusal.error.code) == (waiter, "unavailable")
        assert port.server.config_of("n1") == {
            "revision": 2,
            "applied_revision": 1,
            "config_refused": {"revision": 2, "code": "config_rejected", "ref": "n1-q"},
        }
        assert port.pool.submit(Ticket("r2", "alice", GROUP, 0), port.now) is not None, "what it has goes on"
        # The same file again: its owner may have allowed it meanwhile.
        again = Ticket("r3", "alice", "fresh", 0)
        assert change(port, 2, capacity=2, new=True) == ["n1"]
        assert port.pool.submit(again, port.now) is None
        await cold(link)
        say(link, 2)
        await until(lambda: len(port.actions) > 1)
        granted = port.actions[1]
        assert isinstance(granted, Granted)
        assert granted.ticket is again
        assert port.server.config_of("n1")["config_refused"] is None
        assert results(port) == {"sent": 2, "refused": 1, "applied": 1}
        await link.close()


@pytest.mark.req("CONF-2")
def test_a_node_that_never_answers_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh_module, "REFRESH_S", 0.1)

    @async_test()
    async def body() -> None:
        async with NodePort() as port:
            link = await RawLink.connect(port.address)
            await link.ready(TOKEN)
            change(port, 2, capacity=4, new=True)
            waiter = Ticket("r1", "alice", "fresh", 0)
            assert port.pool.submit(waiter, port.now) is None
            await until(lambda: bool(port.actions))
            assert isinstance(port.actions[0], Refused)
            refused = port.server.config_of("n1")["config_refused"]
            assert refused == {"revision": 2, "code": "timeout", "ref": ""}
            say(link, 2)  # late, and true nevertheless
            await until(lambda: port.provider("n1")["capacity"] == 4)
            assert port.server.config_of("n1")["config_refused"] is None
            assert results(port) == {"sent": 1, "overdue": 1, "applied": 1}
            await link.close()

    body()


@pytest.mark.req("CONF-2", "REG-3")
@async_test()
async def test_a_change_while_a_node_gets_ready_is_acked_before_it_is() -> None:
    async with NodePort() as port:
        link = await RawLink.connect(port.address)
        await link.register(TOKEN)
        assert change(port, 2, capacity=5) == [], "pending nodes are refreshed when they say ready"
        link.send(codec.encode(m.NodeReadyRequest("n1", 1)))
        await cold(link)
        change(port, 3, capacity=6)
        say(link, 2)
        refresh = await cold(link)
        assert isinstance(refresh, m.ConfigRefreshRequest)
        assert refresh.config.revision == 3
        assert port.connected()["n1"] is False
        say(link, 3)
        assert await cold(link) == m.NodeReadyResponse(True)
        assert (port.provider("n1")["capacity"], shown(port)) == (6, (3, 3))
        await link.close()


@pytest.mark.req("CONF-2", "REG-3")
@async_test()
async def test_a_revision_of_an_earlier_edge_is_just_another_one() -> None:
    """The numbers begin again with each edge: a higher one means nothing, and wedges nothing."""
    async with NodePort(revision=3) as port:
        link = await RawLink.connect(port.address)
        await link.register(TOKEN)
        link.send(codec.encode(m.NodeReadyRequest("n1", 4711)))
        assert await cold(link) == m.ConfigRefreshRequest(port.payloads["n1"])
        say(link, 4711)
        say(link, 3)
        assert await cold(link) == m.NodeReadyResponse(True)
        assert shown(port) == (3, 3)
        assert change(port, 4, capacity=5) == ["n1"]
        await cold(link)
        say(link, 4)
        await until(lambda: port.provider("n1")["capacity"] == 5)
        await link.close()


@pytest.mark.req("CONF-2", "REG-1")
@async_test()
async def test_a_removed_node_says_nothing_more_and_comes_back_only_if_it_is_back() -> None:
    async with NodePort() as port:
        ready, pending, late = [await RawLink.connect(port.address) for _ in range(3)]
        await ready.ready(TOKEN)
        lease = port.pool.submit(Ticket("r1", "alice", GROUP, 0), port.now)
        assert lease is not None
        change(port, 2, capacity=2, without="n1")
        assert shown(port) == (None, 1)
        answer = await late.register(TOKEN)
        assert answer.reason is m.RejectReason.UNKNOWN_TOKEN
        change(port, 1, capacity=2)  # back, with what it had: it was not even asked
        assert port.connected()["n1"] is True
        change(port, 2, capacity=2, without="n1", drain_s=0.05)
        assert await cold(ready) == m.Goodbye(m.GoodbyeReason.SHUTDOWN, code="removed")
        await ready.closed()
        assert "n1" not in port.connected()
        change(port, 3, capacity=2)
        again = await RawLink.connect(port.address)
        assert (await again.ready(TOKEN)).revision == 3
        for link in (ready, pending, late, again):
            await link.close()


@pytest.mark.req("CONF-2", "REG-2")
@async_test()
async def test_a_token_that_is_taken_back_does_not_outlive_the_probe_of_the_owner() -> None:
    """The newcomer was known when it came, and waits for the owner's silence; then the file takes its token back."""
    async with NodePort() as port:
        owner, newcomer = [await RawLink.connect(port.address) for _ in range(2)]
        await owner.ready(TOKEN)
        newcomer.send(
            codec.encode(m.RegisterRequest(TOKEN, "0", limits.PROTOCOL_VERSION, m.Capabilities(["openai_compat"])))
        )
        await until(lambda: any(link.node_id == "n1" and not link.generation for link in port.server.links))
        change(port, 2, capacity=2, without="n1", drain_s=0)
        answer = await cold(newcomer)
        assert isinstance(answer, m.RegisterResponse)
        assert (answer.accepted, answer.reason) == (False, m.RejectReason.UNKNOWN_TOKEN)
        for link in (owner, newcomer):
            await link.close()
