"""A node says that a provider is dead: who is served where, and how the provider comes back (HEALTH-1 … HEALTH-6).

The node is a bare socket with a test in its place; the edge is real, and so are its clients.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from iop.config.load import parse_edge
from iop.edge.app import Edge
from iop.edge.requests.normalized_run import RunResult, RunSpec, submit_run
from iop.net.loop import Runtime
from iop.wire import codec
from iop.wire import messages as m
from tests.integration.test_contained_fault import CHAT, Quiet
from tests.support.aio import async_test, until
from tests.support.edge import get
from tests.support.http import Client, chat, post
from tests.support.rawlink import RawLink

AVAILABLE, UNAVAILABLE, UNKNOWN = m.ProviderHealth.AVAILABLE, m.ProviderHealth.UNAVAILABLE, m.ProviderHealth.UNKNOWN
STALLED, UNHEALTHY, UNSURE = list(m.LivenessClassification)[1:]
DEAD = {"provider_health": UNAVAILABLE, "liveness_classification": UNHEALTHY, "health_observation_seq": 1}
LOCAL = {"listen": "127.0.0.1:0"}


def configured(**transport: Any) -> Any:
    def node(node_id: str, provider_id: str) -> dict[str, Any]:
        provider = {"id": provider_id, "kind": "openai_compat", "base_url": "http://127.0.0.1:1/v1", "capacity": 1}
        return {
            "id": node_id,
            "token_sha256": hashlib.sha256(node_id.encode()).hexdigest(),
            "providers": [provider],
        }

    def way(node_id: str, provider_id: str, priority: int = 0) -> dict[str, Any]:
        return {"node": node_id, "provider": provider_id, "target": f"t-{provider_id}", "priority": priority}

    config = {
        "http": LOCAL,
        "transport": {**LOCAL, **transport},
        "admin": LOCAL,
        "nodes": [node("n1", "p"), node("n2", "q")],
        "models": [
            {"id": "alone", "candidates": [way("n1", "p")]},
            {"id": "both", "candidates": [way("n1", "p"), way("n2", "q", 1)]},
        ],
    }
    return parse_edge(json.dumps(config), source="test")


class Scene:
    """An edge with two nodes, of which n1 has the provider p and n2 the provider q."""

    def __init__(self, edge: Edge, one: RawLink, two: RawLink) -> None:
        self.edge = edge
        self.one = one
        self.two = two
        self.clients: list[Client] = []
        self.seq = 0

    async def ask(self, model: str) -> Client:
        client = await Client.connect(("127.0.0.1", self.edge.http_port))
        self.clients.append(client)
        client.send(post(CHAT, chat(model)))
        return client

    async def refused(self, model: str) -> str:
        answer = await (await self.ask(model)).answer()
        return str(answer.json["error"]["code"])

    async def request(self, link: RawLink) -> m.ProviderTunnelRequest:
        request = await link.message()
        assert isinstance(request, m.ProviderTunnelRequest)
        return request

    async def run(self) -> tuple[_Hears, m.RunRequest]:
        """A run that p has taken up."""
        hears = _Hears()
        submit_run(self.edge.dispatcher, RunSpec(b"{}", model="alone"), hears, "operator")
        request = await self.one.message()
        assert isinstance(request, m.RunRequest)
        return hears, request

    async def stall(self, **evidence: Any) -> None:
        """A run on p that stalls, with that evidence."""
        hears, request = await self.run()
        self.run_stalled(request, **evidence)
        await until(lambda: hears.code == "response_stalled")

    def run_stalled(self, request: m.RunRequest, **evidence: Any) -> None:
        failure = m.ExecutionFailure(m.ErrorCode.RESPONSE_STALLED, idle_ms=1000, close_confirmed=True, **evidence)
        self.one.send(codec.run_event(request.stream_id, 0, m.RunEvent(m.RunEventKind.ERROR, failure=failure)))

    def end(self, link: RawLink, request: m.ProviderTunnelRequest, **failure: Any) -> None:
        """The terminal of a call."""
        fields = {"code": m.ErrorCode.INTERNAL, "close_confirmed": True, **failure}
        link.send(codec.tunnel_error(request.stream_id, 0, m.ExecutionFailure(**fields)))

    def observe(self, health: m.ProviderHealth, seq: int, *, link: RawLink | None = None, **other: Any) -> None:
        fields = {"provider_id": "p", "adapter": "openai_compat", "target": "t-p", **other}
        seen = m.HealthObservation(provider_health=health, health_observation_seq=seq, **fields)
        (link or self.one).send(codec.encode(m.EdgeNodeEvent(health_observation=seen)))

    async def restore(self, seq: int) -> None:
        question = await self.one.question()
        assert (question.provider_id, question.adapter, question.target) == ("p", "openai_compat", "t-p")
        self.one.send(codec.encode(_answer(question, AVAILABLE, seq)))
        await until(lambda: self.health == "available")

    @property
    def health(self) -> str:
        nodes = self.edge.status()["nodes"]
        return str(nodes[0]["providers"][0]["health"])

    @property
    def evidence(self) -> dict[str, int]:
        return {"/".join(labels): int(n) for labels, n in self.edge.metrics.health_evidence.read() if n}


def _answer(question: m.NodeCommandRequest, health: m.ProviderHealth, seq: int) -> m.NodeCommandResponse:
    return m.NodeCommandResponse(
        question.command_id,
        provider_id=question.provider_id,
        adapter=question.adapter,
        target=question.target,
        provider_health=health,
        health_observation_seq=seq,
    )


@asynccontextmanager
async def scene(**transport: Any) -> AsyncIterator[Scene]:
    """``transport`` is laid over that section of the configuration."""
    runtime = Runtime(asyncio.get_running_loop())
    runtime.start()
    edge = Edge(configured(**transport), runtime, Quiet())
    await edge.start()
    links = [await RawLink.connect(("127.0.0.1", edge.node_port)) for _ in range(2)]
    at = Scene(edge, *links)
    try:
        for link, token in zip(links, ("n1", "n2"), strict=True):
            await link.ready(token)
            await link.seen(provider_health=AVAILABLE)
        await until(lambda: at.health == "available")
        yield at
        await until(lambda: edge.pool.leases_in_use == 0 and not edge.dispatcher.live)
        assert edge.pool.stats.returned_twice == edge.pool.stats.returned_unknown == 0
        edge.pool.validate()
        edge.nodes.health.overlay.validate()
    finally:
        for client in at.clients:
            await client.close()
        for link in {*links, at.one}:
            await link.close()
        await until(lambda: not edge.nodes.links)
        edge.close()
        edge.http.close()
        await until(lambda: not edge.http.connections)
        runtime.close()


@pytest.mark.req("HEALTH-2", "HEALTH-3", "HEALTH-4", "HEALTH-5", "POOL-4")
@async_test()
async def test_a_dead_provider_is_avoided_at_once_and_comes_back_by_capabilities() -> None:
    async with scene() as at:
        _, stalled = await at.run()
        waiting = await at.ask("alone")
        await until(lambda: at.edge.pool.waiting == 1)
        at.run_stalled(stalled, **DEAD)
        assert (await waiting.answer()).json["error"]["code"] == "unavailable", "nobody waits for a dead provider"
        assert await at.refused("alone") == "unavailable"
        await at.ask("both")
        elsewhere = await at.request(at.two)
        assert elsewhere.provider_id == "q"
        at.end(at.two, elsewhere)

        admin = ("127.0.0.1", at.edge.admin_port)
        shown = (await get(admin, "/admin/status")).json["nodes"][0]["providers"][0]
        assert (shown["status"], shown["health"]) == ("unavailable", "unavailable")
        assert {key: shown["lowered"][key] for key in ("source", "classification")} == {
            "source": "terminal", "classification": "provider_unhealthy",
        }  # fmt: skip
        scraped = (await get(admin, "/metrics")).body.decode()
        assert 'health_transitions_total{from="available",to="unavailable"} 1.0' in scraped

        await at.restore(2)
        await at.ask("alone")
        back = await at.request(at.one)
        at.end(at.one, back)
        assert at.evidence == {"terminal/unavailable/applied": 1, "capabilities/available/applied": 1}


@pytest.mark.req("HEALTH-1", "HEALTH-2", "POOL-7", "LIVE-7")
@pytest.mark.parametrize(
    ("health", "meaning", "seq", "result"),
    [
        (AVAILABLE, STALLED, 7, "available/noop"),
        (UNKNOWN, UNSURE, 7, "unknown/noop"),
        (UNAVAILABLE, UNHEALTHY, 5, "unavailable/ambiguous"),
        (UNAVAILABLE, UNHEALTHY, 4, "unavailable/stale"),
        (UNAVAILABLE, UNHEALTHY, 0, "unavailable/stale"),
        (UNAVAILABLE, STALLED, 7, "unknown/malformed"),
        (AVAILABLE, UNHEALTHY, 7, "unknown/malformed"),
        (m.ProviderHealth.UNSPECIFIED, UNHEALTHY, 7, "unknown/malformed"),
    ],
)
def test_a_stall_ends_its_lease_once_whatever_its_evidence_is_worth(
    health: m.ProviderHealth, meaning: m.LivenessClassification, seq: int, result: str
) -> None:
    @async_test()
    async def body() -> None:
        async with scene() as at:
            at.observe(AVAILABLE, 5)
            await at.stall(provider_health=health, liveness_classification=meaning, health_observation_seq=seq)
            await until(lambda: at.edge.pool.leases_in_use == 0)
            assert at.health == "available"
            assert at.evidence == {"observation/available/noop": 1, f"terminal/{result}": 1}
            await at.ask("alone")
            at.end(at.one, await at.request(at.one))

    body()


@pytest.mark.req("HEALTH-6", "HEALTH-1")
@async_test()
async def test_only_an_observation_of_what_is_configured_there_lowers_a_provider() -> None:
    async with scene() as at:
        for other in ({"provider_id": "q", "target": "t-q"}, {"target": "t-q"}, {"adapter": "vllm"}, {"target": ""}):
            at.observe(UNAVAILABLE, 9, **other)
        at.observe(UNAVAILABLE, 9, link=at.two)  # n2 has no p
        at.observe(m.ProviderHealth.UNSPECIFIED, 9)
        at.observe(UNKNOWN, 1)
        await until(lambda: sum(at.evidence.values()) == 7)
        assert at.evidence == {
            "observation/unavailable/foreign": 5, "observation/unknown/malformed": 1, "observation/unknown/noop": 1,
        }  # fmt: skip
        assert at.health == "available"
        at.observe(UNAVAILABLE, 2)
        await until(lambda: at.health == "unavailable")
        assert await at.refused("alone") == "unavailable"


@pytest.mark.req("HEALTH-3", "HEALTH-5", "REG-5")
@async_test()
async def test_a_node_that_comes_back_starts_clean_and_answers_of_before_count_for_nothing() -> None:
    async with scene() as at:
        at.observe(UNAVAILABLE, 50)
        await until(lambda: at.health == "unavailable")
        old = await at.one.question()
        await at.one.close()
        await until(lambda: at.health == "offline")
        at.one = await RawLink.connect(("127.0.0.1", at.edge.node_port))
        await at.one.ready("n1")
        assert at.health == "unknown", "it was not looked at"
        await at.one.seen(provider_health=AVAILABLE)
        await until(lambda: at.health == "available")
        at.observe(UNAVAILABLE, 1)
        await until(lambda: at.health == "unavailable")
        at.one.send(codec.encode(_answer(old, AVAILABLE, 51)))  # its id is that of no question here
        at.observe(UNKNOWN, 2)
        await until(lambda: at.evidence.get("observation/unknown/noop") == 1)
        assert at.health == "unavailable"
        await at.restore(3)


@pytest.mark.req("HEALTH-6")
@async_test()
async def test_a_flood_of_observations_holds_nobody_up() -> None:
    async with scene() as at:
        await at.ask("both")
        request = await at.request(at.one)
        for i in range(5000):
            kind: dict[str, Any] = [{}, {"target": f"t{i}"}, {"provider_id": f"p{i}"}, {"adapter": f"a{i}"}][i % 4]
            at.observe([UNAVAILABLE, AVAILABLE, UNKNOWN, m.ProviderHealth.UNSPECIFIED][i // 4 % 4], i, **kind)
        at.end(at.one, request)
        await until(lambda: sum(at.evidence.values()) == 5000)
        assert len(at.edge.nodes.health.overlay._nodes["n1"].records) == 1
        assert at.health == "unavailable"
        await at.restore(6000)


class _Hears:
    """The listener of a run."""

    writer = None

    def __init__(self) -> None:
        self.code = ""

    def run_event(self, event: m.RunEvent) -> None: ...

    def run_ended(self, result: RunResult) -> None:
        self.code = result.error.code if result.error is not None else "ok"


@pytest.mark.req("HEALTH-1", "HEALTH-2")
@pytest.mark.parametrize("queued", [True, False], ids=["queued", "direct"])
def test_a_stalled_run_is_evidence_if_it_has_a_lease(queued: bool) -> None:
    @async_test()
    async def body() -> None:
        async with scene() as at:
            spec = RunSpec(b"{}", model="alone") if queued else RunSpec(b"{}", node="n1", adapter="p", target="t-p")
            hears = _Hears()
            submit_run(at.edge.dispatcher, spec, hears, "operator")
            request = await at.one.message()
            assert isinstance(request, m.RunRequest)
            at.run_stalled(request, **DEAD)
            await until(lambda: hears.code == "response_stalled")
            assert at.health == ("unavailable" if queued else "available")
            assert at.evidence == ({"terminal/unavailable/applied": 1} if queued else {})

    body()


@pytest.mark.req("TUN-5d", "POOL-12")
@async_test()
async def test_a_unit_whose_engine_goes_on_is_lent_again_when_the_node_says_so() -> None:
    async with scene() as at:
        client = await at.ask("alone")
        left = await at.request(at.one)
        await client.close()
        assert isinstance(await at.one.message(), m.CancelRequest)
        at.end(at.one, left, code=m.ErrorCode.CANCELLED, engine_lingers=True)
        await until(lambda: at.edge.pool.leases_in_use == 0)
        await at.ask("alone")
        await until(lambda: at.edge.pool.waiting == 1)
        at.one.send(codec.encode(m.EdgeNodeEvent(call_closed=m.CallClosed("p", left.stream_id))))
        at.end(at.one, await at.request(at.one))


@pytest.mark.req("LIVE-2b", "POOL-11", "API-8")
@pytest.mark.parametrize("busy", [False, True])
def test_whoever_stalled_is_asked_again_unless_its_engine_works_on_what_is_abandoned(busy: bool) -> None:
    @async_test()
    async def body() -> None:
        async with scene() as at:
            client = await at.ask("alone")
            found = {**DEAD, "provider_health": AVAILABLE, "liveness_classification": STALLED}
            stalled = {"code": m.ErrorCode.RESPONSE_STALLED, "retryable": True, "engine_busy": busy, **found}
            at.end(at.one, await at.request(at.one), **stalled)
            if not busy:
                at.end(at.one, await at.request(at.one))
            answer = await client.answer()
            assert answer.json["error"]["code"] == "response_stalled"

    body()
