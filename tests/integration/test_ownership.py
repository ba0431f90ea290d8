"""Who owns a node: duplicates, takeovers, losses and goodbyes on a real node port (REG-2, REG-5, SUP-5)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from iop._fast import frame
from iop._fast.mux import MAX_STREAM_ID, Stream
from iop.edge.nodes import connection as nodes
from iop.pool import Refused, Revoked, Ticket, registry
from iop.wire import codec, limits
from iop.wire import messages as m
from tests.support.aio import async_test, until
from tests.support.nodeport import GROUP, TOKEN, NodePort
from tests.support.rawlink import RawLink

BEAT = frame.encode_heartbeat(1)


def fields(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The fields of the log lines of this event."""
    return [record.fields for record in caplog.records if record.getMessage() == event]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="iop")


async def answering(link: RawLink) -> None:
    """A live owner: each heartbeat is answered."""
    while True:
        envelope = await link.frame()
        beat = frame.decode(envelope)
        if beat is not None and beat["payload"] == frame.HEARTBEAT:
            link.send(frame.encode_heartbeat(beat["seq"], ack=True))


@pytest.mark.req("REG-2")
@pytest.mark.parametrize("held", [{}, {"n1-p": 1}], ids=["fresh", "with slots of before"])
@async_test()
async def test_a_duplicate_never_disturbs_a_live_owner(held: dict[str, int]) -> None:
    async with NodePort() as port:
        owner = await RawLink.connect(port.address)
        await owner.ready(TOKEN, held)
        generation = port.pool.registry.nodes["n1"].generation
        alive = asyncio.ensure_future(answering(owner))
        for _ in range(3):
            newcomer = await RawLink.connect(port.address)
            answer = await newcomer.register(TOKEN)
            assert (answer.accepted, answer.reason) == (False, m.RejectReason.DUPLICATE_CONNECTION)
            await newcomer.closed()
            await newcomer.close()
        assert port.pool.registry.nodes["n1"].generation == generation
        assert port.server.session("n1", generation) is not None
        assert not alive.done()
        assert port.rejections() == {"duplicate_connection": 3}
        alive.cancel()
        await asyncio.wait({alive})
        await owner.close()


@pytest.mark.req("REG-2", "REG-5")
def test_a_silent_owner_is_superseded_under_a_new_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PROBE_TIMEOUT_S", 0.4)

    @async_test()
    async def body() -> None:
        async with NodePort() as port:
            silent = await RawLink.connect(port.address)
            await silent.ready(TOKEN)
            before = port.pool.registry.nodes["n1"].generation
            held = Ticket("r1", "alice", GROUP, 1, object())
            lease = port.pool.submit(held, port.now)
            assert lease is not None
            newcomer = await RawLink.connect(port.address)
            started_at = asyncio.get_running_loop().time()
            await newcomer.ready(TOKEN)
            waited_s = asyncio.get_running_loop().time() - started_at
            assert 0.35 <= waited_s <= 1.5, "the answer is withheld while the owner is probed"
            assert port.pool.registry.nodes["n1"].generation == before + 1
            revoked = [action for action in port.actions if isinstance(action, Revoked)]
            assert [action.lease for action in revoked] == [lease]
            await silent.closed()
            await silent.close()
            assert port.connected()["n1"], "the late disconnect of the old generation changes nothing"
            assert not port.pool.holds(lease)
            assert port.server.session("n1", before) is None
            assert port.server.session("n1", before + 1) is not None
            await newcomer.close()

    body()


@pytest.mark.req("REG-2")
def test_an_owner_whose_socket_fails_while_it_is_probed_gives_way_at_once(caplog: pytest.LogCaptureFixture) -> None:
    @async_test()
    async def body() -> None:
        async with NodePort() as port:
            owner = await RawLink.connect(port.address)
            await owner.ready(TOKEN)
            newcomer = await RawLink.connect(port.address)
            newcomer.send(codec.encode(m.RegisterRequest(TOKEN, "1", limits.PROTOCOL_VERSION)))
            await owner.frame()  # the probe
            started_at = asyncio.get_running_loop().time()
            await owner.close()
            answer = await newcomer.message()
            assert isinstance(answer, m.RegisterResponse)
            assert answer.accepted
            assert asyncio.get_running_loop().time() - started_at < 1.0
            (line,) = fields(caplog, "node_disconnected")
            assert line["reason"] == "peer_closed"
            assert fields(caplog, "node_superseded") == []
            await newcomer.close()

    body()


@pytest.mark.req("REG-2")
@async_test()
async def test_a_newcomer_that_gives_up_while_it_waits_leaves_nothing() -> None:
    async with NodePort() as port:
        owner = await RawLink.connect(port.address)
        await owner.ready(TOKEN)
        newcomer = await RawLink.connect(port.address)
        newcomer.send(codec.encode(m.RegisterRequest(TOKEN, "1", limits.PROTOCOL_VERSION)))
        await owner.frame()
        await newcomer.close()
        await until(lambda: len(port.server.links) == 1)
        owner.send(BEAT)
        assert await owner.frame()
        gone_at = port.now
        await until(lambda: port.now > gone_at + 3 * nodes.PROBE_TICK_S)
        assert port.rejections() == {}
        assert port.connected()["n1"]
        await owner.close()


@pytest.mark.req("REG-2")
@async_test()
async def test_ten_newcomers_at_once_and_one_of_them_wins() -> None:
    async with NodePort() as port:
        links = [await RawLink.connect(port.address) for _ in range(10)]
        answers = asyncio.gather(*(link.register(TOKEN) for link in links))
        await until(lambda: "n1" in port.server.owners)

        async def answer_probes() -> None:
            owner = port.server.owners["n1"]
            while not answers.done():
                owner.session.mux.feed(BEAT)  # the owner, whichever it is, is heard of
                await asyncio.sleep(0)

        alive = asyncio.ensure_future(answer_probes())
        results = await answers
        assert sorted(answer.accepted for answer in results) == [False] * 9 + [True]
        assert port.rejections() == {"duplicate_connection": 9}
        await alive
        for link in links:
            await link.close()


# ---- losing the owner -----------------------------------------------------------------------------------------------


@pytest.mark.req("REG-5")
def test_the_loss_of_an_owner_returns_its_leases_once_and_looks_at_the_waiters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @async_test()
    async def body() -> None:
        async with NodePort() as port:
            link = await RawLink.connect(port.address)
            await link.ready(TOKEN)
            tickets = [Ticket(f"r{n}", "alice", GROUP, 1, object()) for n in range(3)]
            leases = [port.pool.submit(ticket, port.now) for ticket in tickets]
            await link.close()
            await until(lambda: not port.connected()["n1"])
            revoked = [action.lease for action in port.actions if isinstance(action, Revoked)]
            assert revoked == leases[:2]
            refused = [action.ticket for action in port.actions if isinstance(action, Refused)]
            assert refused == tickets[2:], "no candidate is left for the waiter"
            assert port.pool.leases_in_use == 0
            (line,) = fields(caplog, "node_disconnected")
            assert (line["node"], line["reason"]) == ("n1", "peer_closed")

    body()


@pytest.mark.req("SUP-5", "REG-5")
def test_goodbye_takes_effect_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """What follows it in the same segment is not looked at, and nothing is dispatched to that node any more."""

    @async_test()
    async def body() -> None:
        async with NodePort() as port:
            link = await RawLink.connect(port.address)
            await link.ready(TOKEN)
            goodbye = codec.encode(m.Goodbye(m.GoodbyeReason.CONFIG_REJECTED, code="config_rejected", ref="n1-p"))
            link.send(goodbye + frame.encode_tunnel_frame(7, 0, 2, b"x"))
            await link.closed()
            await link.close()
            assert port.errors() == {}
            (line,) = fields(caplog, "node_goodbye")
            assert (line["reason"], line["code"], line["ref"]) == ("config_rejected", "config_rejected", "n1-p")
            (line,) = fields(caplog, "node_disconnected")
            assert line["reason"] == "goodbye"

    body()


@pytest.mark.req("SUP-5")
@async_test()
async def test_a_draining_node_gets_no_new_lease() -> None:
    async with NodePort() as port:
        link = await RawLink.connect(port.address)
        await link.ready(TOKEN)
        link.send(codec.encode(m.EdgeNodeEvent(draining=m.Draining(1000))), BEAT)
        await link.frame()
        assert port.pool.registry.nodes["n1"].draining
        other = await RawLink.connect(port.address)
        await other.ready("token-n2")
        leases = [port.pool.submit(Ticket(f"r{n}", "alice", GROUP, 1, object()), port.now) for n in range(3)]
        assert [lease.node_id if lease else None for lease in leases] == ["n2", "n2", None]
        await link.close()
        await other.close()


@pytest.mark.req("SUP-5")
@async_test()
async def test_an_edge_that_leaves_says_goodbye_and_takes_nobody_new() -> None:
    async with NodePort() as port:
        link, late = await RawLink.connect(port.address), await RawLink.connect(port.address)
        await link.ready(TOKEN)
        port.server.stop_accepting()
        answer = await late.register("token-n2")
        assert (answer.accepted, answer.reason) == (False, m.RejectReason.SHUTTING_DOWN)
        port.server.close(grace_ms=1500)
        assert await link.message() == m.Goodbye(m.GoodbyeReason.SHUTDOWN, 1500)
        await link.closed()
        await link.close()
        await late.close()


@pytest.mark.req("WIRE-4")
@async_test()
async def test_when_the_stream_ids_run_out_the_node_has_to_come_again() -> None:
    async with NodePort() as port:
        link = await RawLink.connect(port.address)
        await link.ready(TOKEN)
        generation = port.pool.registry.nodes["n1"].generation
        session = port.server.session("n1", generation)
        assert session is not None
        session.mux.adopt(Stream(), MAX_STREAM_ID - (1 << 20) + 1, 1, 1)
        assert await link.message() == m.Goodbye(m.GoodbyeReason.STREAM_IDS_EXHAUSTED)
        await link.closed()
        await link.close()
        again = await RawLink.connect(port.address)
        await again.ready(TOKEN)
        session = port.server.session("n1", generation + 1)
        assert session is not None
        assert session.mux.highest_id == 0
        await again.close()
