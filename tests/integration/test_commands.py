"""Commands from an edge to a node, over a real link, with a scripted model server behind the node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from iop.edge.nodes.connection import NodeLink
from iop.errors import IopError
from iop.node.commands.runner import MAX_RUNNING, Commands
from iop.node.providers.allowance import Allowance
from iop.node.providers.registry import Backends
from iop.node.uplink.agent import Agent
from iop.observability.metrics import NodeMetrics
from iop.wire import messages as m
from tests.support.aio import async_test, until
from tests.support.http import Client, chat, post
from tests.support.nodeport import TOKEN, NodePort
from tests.support.programs import edge_config, edge_program, node_config, node_program
from tests.support.provider import Call, ScriptedProvider, listening_socket
from tests.support.stack import TOKEN_ENV, model

CAPABILITIES, STATUS, OLLAMA = m.NodeCommand.CAPABILITIES, m.NodeCommand.TRANSPORT_STATUS, m.NodeCommand.OLLAMA_API
METRICS = b'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_waiting{engine="0"} 1.0\n'


class World:
    """An edge's node port, a node, and its model server, in one loop. The node's providers are all the same server."""

    def __init__(self, port: NodePort, agent: Agent, provider: ScriptedProvider) -> None:
        self.port = port
        self.agent = agent
        self.provider = provider

    @property
    def link(self) -> NodeLink:
        return self.port.server.owners["n1"]

    def start(self, command: m.NodeCommand, **fields: Any) -> tuple[int, asyncio.Future[Any]]:
        heard: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        fields.setdefault("timeout_s", 10.0)
        return self.link.commands.start(command, heard.set_result, self.port.now, **fields), heard

    async def ask(self, command: m.NodeCommand, **fields: Any) -> m.NodeCommandResponse | str:
        """The answer, or the code of the error."""
        answer = await self.start(command, **fields)[1]
        return answer.code if isinstance(answer, IopError) else answer


@asynccontextmanager
async def world(
    *providers: tuple[str, str],
    answer: Callable[[Call], None] | None = None,
    health_path: str = "/health",
    health_timeout_ms: int = 3000,
) -> AsyncIterator[World]:
    """``providers``: ids and kinds. The first is the one that the pool knows, ``n1-p``."""
    sock = listening_socket()
    port_number = sock.getsockname()[1]
    try:
        async with NodePort() as port, ScriptedProvider(sock) as provider:
            provider.answer = answer
            port.payloads["n1"] = m.NodeConfigPayload(
                "n1",
                1,
                [
                    m.ProviderConfig(
                        name, kind, f"http://127.0.0.1:{port_number}/{name}/v1", 1, 1000, 1000,
                        health_path=health_path, health_timeout_ms=health_timeout_ms, enabled=True,
                    )
                    for name, kind in providers
                ],
            )  # fmt: skip
            backends = Backends(port.runtime, Allowance())
            agent = Agent(port.runtime, backends, NodeMetrics(), TOKEN, lambda: None)
            await asyncio.get_running_loop().create_connection(lambda: agent.link, *port.address)
            await until(lambda: port.connected()["n1"])
            try:
                yield World(port, agent, provider)
            finally:
                agent.link.abort("done")
                await agent.done
                backends.close()
    finally:
        sock.close()


def engine(call: Call) -> None:
    if call.path.endswith(b"/metrics"):
        call.respond(METRICS)
    elif call.path.endswith(b"/slots"):
        call.respond(b'[{"is_processing":true}]')
    else:
        call.respond(b"{}", 404)


@pytest.mark.req("EXEC-8", "POOL-13")
@async_test()
async def test_what_the_engines_say_comes_with_the_transport_status() -> None:
    async with world(("n1-p", "vllm"), ("l", "llama_cpp"), ("o", "openai_compat"), answer=engine) as w:
        await until(lambda: "n1-p" in w.port.server.engine_figures())  # asked without anybody's word
        slot = w.agent.backends.gate.try_acquire("l")  # a full provider answers as an idle one does
        assert slot is not None
        answer = await w.ask(STATUS)
        assert isinstance(answer, m.NodeCommandResponse)
        assert answer.transports == [
            m.ProviderTransport("n1-p", 0, 1, 0, True, 3, 1, True),
            m.ProviderTransport("l", 1, 1, 0, True, 1, None, True),
            m.ProviderTransport("o", 0, 1, 0),
        ]
        slot.release()
        one = await w.ask(STATUS, provider_id="l")
        assert isinstance(one, m.NodeCommandResponse)
        assert [transport.provider_id for transport in one.transports] == ["l"]
        assert await w.ask(STATUS, provider_id="nobody") == "unknown_provider"


@pytest.mark.req("EXEC-8")
@async_test()
async def test_an_engine_that_is_silent_or_odd_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iop.node.providers.engine_load.ENGINE_S", 0.3)

    def answer(call: Call) -> None:
        if call.path.endswith(b"/metrics"):
            call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n")
        elif call.path.endswith(b"/slots"):
            engine(call)

    async with world(("n1-p", "vllm"), ("l", "llama_cpp"), ("o", "ollama"), answer=answer) as w:
        status = await w.ask(STATUS)
        assert isinstance(status, m.NodeCommandResponse)
        assert [(t.provider_id, t.engine_tells, t.engine_running) for t in status.transports] == [
            ("n1-p", True, None),
            ("l", True, 1),
            ("o", True, None),
        ]


@pytest.mark.req("EXEC-6", "EXEC-8")
@async_test()
async def test_the_session_id_of_a_command_comes_back_with_each_answer() -> None:
    async with world(("n1-p", "vllm"), answer=engine) as w:
        told: list[m.NodeCommandResponse] = []
        answered = w.link.commands.answered
        w.link.commands.answered = lambda response: (told.append(response), answered(response))[1]  # type: ignore[method-assign]
        for session_id, command in ((b"one", STATUS), (b"\xff", m.NodeCommand.UNSPECIFIED), (b"", STATUS)):
            await w.ask(command, session_id=session_id)
            assert told[-1].session_id == session_id


@pytest.mark.req("EXEC-8", "EXEC-10")
@async_test()
async def test_anything_else_is_unsupported() -> None:
    async with world(("n1-p", "vllm"), answer=engine) as w:
        assert await w.ask(m.NodeCommand.UNSPECIFIED) == "unsupported_command"


@pytest.mark.req("EXEC-8")
@async_test()
async def test_ollama_is_asked_what_only_tells_and_nothing_else() -> None:
    asked: list[tuple[bytes, bytes, bytes]] = []

    def answer(call: Call) -> None:
        if not call.path.endswith(b"/api/ps"):  # the poll's
            asked.append((call.method, call.target, call.body))
        call.respond(b'{"models":[]}', 200)

    async with world(("n1-p", "ollama"), ("v", "vllm"), answer=answer) as w:
        tags = await w.ask(OLLAMA, provider_id="n1-p", argument=b"/api/tags")
        assert isinstance(tags, m.NodeCommandResponse)
        assert (tags.status, tags.result) == (200, b'{"models":[]}')
        shown = await w.ask(OLLAMA, provider_id="n1-p", adapter="ollama", argument=b"/api/show", body=b'{"model":"m"}')
        assert isinstance(shown, m.NodeCommandResponse)
        assert asked == [(b"GET", b"/n1-p/api/tags", b""), (b"POST", b"/n1-p/api/show", b'{"model":"m"}')]
        for path in (
            b"/api/generate",
            b"/api/chat",
            b"/api/embed",
            b"/api/pull",
            b"/api/tags?",
            b"/api/tags HTTP/1.1\r\n",
        ):
            assert await w.ask(OLLAMA, provider_id="n1-p", argument=path) == "forbidden"
        assert await w.ask(OLLAMA, provider_id="n1-p", argument=b"/api/tags", body=b"x") == "invalid_argument"
        assert await w.ask(OLLAMA, provider_id="v", argument=b"/api/tags") == "forbidden"
        assert await w.ask(OLLAMA, provider_id="n1-p", adapter="vllm", argument=b"/api/tags") == "unknown_provider"
        assert len([one for one in asked if not one[1].endswith(b"/metrics")]) == 2


@pytest.mark.req("EXEC-8")
@async_test()
async def test_a_command_that_is_cancelled_late_or_cut_off_closes_its_own_connection() -> None:
    async with world(("n1-p", "ollama")) as w:
        command, cancelled = w.start(OLLAMA, provider_id="n1-p", argument=b"/api/tags")
        call = await w.provider.call()
        w.link.commands.cancel(command)
        assert (await cancelled).code == "cancelled"
        await asyncio.wait_for(call.gone.wait(), 5)

        _, late = w.start(OLLAMA, provider_id="n1-p", argument=b"/api/tags", timeout_s=0.3)
        call = await w.provider.call()
        assert (await late).code == "deadline_exceeded"
        await asyncio.wait_for(call.gone.wait(), 5)

        _, lost = w.start(OLLAMA, provider_id="n1-p", argument=b"/api/tags")
        call = await w.provider.call()
        w.link.link.abort("test")
        assert (await lost).code == "node_disconnected"
        await asyncio.wait_for(call.gone.wait(), 5)


@pytest.mark.req("EXEC-8")
@async_test()
async def test_a_node_runs_so_many_at_once_and_answers_each_once() -> None:
    async with world(("n1-p", "ollama")) as w:
        answers: list[m.NodeCommandResponse] = []
        commands = Commands(w.port.runtime, w.agent.backends, w.agent.health, answers.append)
        for number in range(1, MAX_RUNNING + 2):
            commands.received(m.NodeCommandRequest(number, OLLAMA, "n1-p", timeout_ms=9000, argument=b"/api/tags"))
        assert [(a.command_id, a.code) for a in answers] == [(MAX_RUNNING + 1, m.ErrorCode.CAPACITY_EXCEEDED)]
        for _ in range(2):
            commands.received(m.NodeCommandRequest(1, OLLAMA, cancel=True))
        await until(lambda: len(answers) == 2)
        assert (answers[1].command_id, answers[1].code) == (1, m.ErrorCode.CANCELLED)
        commands.received(m.NodeCommandRequest(MAX_RUNNING + 2, m.NodeCommand.UNSPECIFIED))
        await until(lambda: len(answers) == 3)
        commands.close()
        await until(lambda: all(c.closed.is_set() for c in w.provider.connections))
        assert len(answers) == 3  # the session is over: not a word more


@pytest.mark.req("EXEC-8", "HEALTH-5")
@pytest.mark.parametrize(
    ("status", "health"),
    [
        (200, "AVAILABLE"),
        (204, "AVAILABLE"),
        (503, "UNAVAILABLE"),
        (404, "UNKNOWN"),
        (0, "UNAVAILABLE"),  # it takes the connection and says nothing
        (-1, "UNAVAILABLE"),
    ],
)
def test_a_provider_s_capabilities_are_its_health(status: int, health: str) -> None:
    def answer(call: Call) -> None:
        if call.path != b"/health":
            call.respond(b"", 404)
        elif status > 0:
            call.respond(b"", status)
        elif status < 0:
            call.reset()

    @async_test()
    async def ask() -> None:
        async with world(("n1-p", "vllm"), answer=answer, health_timeout_ms=200) as w:
            for seq in (1, 2):
                got = await w.ask(CAPABILITIES, provider_id="n1-p", adapter="vllm", target="t")
                assert isinstance(got, m.NodeCommandResponse)
                assert (got.provider_id, got.adapter, got.target) == ("n1-p", "vllm", "t")
                assert (got.provider_health.name, got.health_observation_seq) == (health, seq)
            assert await w.ask(CAPABILITIES, provider_id="n1-p", adapter="echo") == "unknown_provider"

    ask()


@pytest.mark.req("HEALTH-5")
@async_test()
async def test_the_built_in_provider_is_well() -> None:
    async with world(("n1-p", "echo"), health_path="") as w:
        got = await w.ask(CAPABILITIES, provider_id="n1-p", adapter="echo", target="any")
        assert isinstance(got, m.NodeCommandResponse)
        assert got.provider_health is m.ProviderHealth.AVAILABLE


@pytest.mark.req("POOL-13", "OBS-1")
@async_test()
async def test_status_and_metrics_show_engines_beside_leases(tmp_path: Path) -> None:
    sock = listening_socket()
    port = sock.getsockname()[1]
    provider_row = {"id": "v", "kind": "vllm", "base_url": f"http://127.0.0.1:{port}/v/v1", "capacity": 4}
    nodes = [{"id": "n1", "token_env": "IOP_TOKEN", "providers": [provider_row]}]
    config = edge_config(nodes=nodes, models=[model("v")])

    def answer(call: Call) -> None:
        if call.path.endswith(b"/metrics"):
            call.respond(METRICS)

    with sock, edge_program(tmp_path, config, env=TOKEN_ENV) as edge:
        async with ScriptedProvider(sock) as provider:
            provider.answer = answer
            client = await Client.connect(edge.address("http"))
            client.send(post("/v1/chat/completions", chat("v")))
            with node_program(tmp_path, node_config(edge.address("nodes")), env=TOKEN_ENV) as node:
                await asyncio.to_thread(node.wait_event, "edge_connected")
                (row,) = await engines(edge.address("admin"))
                assert (row["engine_running"], row["engine_waiting"]) == (3, 1)
                text = await fetch(edge.address("admin"), "/metrics")
                assert 'iop_edge_engine_requests_running{provider="v"} 3.0' in text
                drift = {line.split()[1] for line in text.splitlines() if line.startswith("iop_edge_engine_drift{")}
                assert drift & {"2.0", "3.0"}  # one of its three may be the request that came meanwhile
            await client.close()


async def fetch(admin: tuple[str, int], path: str) -> str:
    client = await Client.connect(admin)
    try:
        client.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        return (await client.answer()).body.decode()
    finally:
        await client.close()


async def engines(admin: tuple[str, int]) -> list[dict[str, Any]]:
    """The status of all providers, once a figure of an engine is there."""
    async with asyncio.timeout(10):
        while True:
            status = json.loads(await fetch(admin, "/admin/status"))
            rows = [row for node in status["nodes"] for row in node["providers"]]
            if any(row["engine_running"] is not None for row in rows):
                return rows
