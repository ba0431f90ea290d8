"""A real edge and a real node around scripted providers, started once and used by many tests.

    @async_test()
    async def test_x(stack: Stack) -> None:
        async with stack.scene() as scene:
            client = await scene.send(post("/v1/chat/completions", chat("m")))
            call = await scene.provider.call()

Every provider of the node is the same scripted server under a path of its own, so a call tells whom it was meant for
(``call.provider``). When a scene ends, its sockets are closed and the edge must have no lease and no waiter left.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tests.support.aio import until
from tests.support.caretaker import Caretaker
from tests.support.http import Address, Answer, Client, post
from tests.support.programs import Line, Program, edge_config, edge_program, node_config, node_program
from tests.support.provider import Call, ScriptedProvider, listening_socket

TOKEN_ENV = {"IOP_TOKEN": "t0", "IOP_OTHER_TOKEN": "t1", "IOP_NODE_TOKEN": "t0"}
QUIET_S = 5.0

Providers = Mapping[str, Mapping[str, Any]]


class Scene:
    """One test's provider and clients."""

    def __init__(self, stack: Stack, provider: ScriptedProvider) -> None:
        self.stack = stack
        self.provider = provider
        self.clients: list[Client] = []

    async def client(self, *, receive_bytes: int | None = None) -> Client:
        client = await Client.connect(self.stack.http, receive_bytes=receive_bytes)
        self.clients.append(client)
        return client

    async def send(self, request: bytes) -> Client:
        """A new connection with this request on it."""
        client = await self.client()
        client.send(request)
        return client

    async def run(self, **asked: Any) -> Client:
        """A new connection to the admin listener with this run on it."""
        client = await Client.connect(self.stack.admin)
        self.clients.append(client)
        client.send(post("/admin/runs", json.dumps(asked).encode()))
        return client

    async def passed_on(self, fail: Callable[[Call], None]) -> Call:
        """``a`` is asked, and fails like that; ``b`` is asked the same, but for the model's name there. Its call."""
        first = await self.provider.call()
        assert (first.provider, first.json["model"]) == ("a", "on-a")
        fail(first)
        second = await self.provider.call()
        assert (second.provider, second.json["model"]) == ("b", "on-b")
        assert {**second.json, "model": ""} == {**first.json, "model": ""}
        return second

    async def status(self) -> Any:
        """The body of /admin/status."""
        client = await Client.connect(self.stack.admin)
        try:
            client.send(b"GET /admin/status HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            answer = await client.answer()
        finally:
            await client.close()
        assert answer.status == 200
        return answer.json

    async def healthy(self, *, also: Collection[str] = (), timeout_s: float = QUIET_S) -> None:
        """Waits until no provider of the scripted server is out of the choice for what was done to it: the edge asks
        again after a second (HEALTH-4), and later and later if nobody is there to answer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while lowered := [
            p["id"]
            for node in (await self.status())["nodes"]
            for p in node["providers"]
            if p["lowered"] and p["id"] in {*self.stack.scripted, *also}
        ]:
            assert loop.time() < deadline, f"{lowered} stay lowered"
            await asyncio.sleep(0.05)

    async def metrics(self) -> str:
        client = await Client.connect(self.stack.admin)
        try:
            client.send(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return (await client.answer()).body.decode()
        finally:
            await client.close()

    async def samples(self, metric: str) -> dict[str, float]:
        """The edge's samples of one metric, by their labels as they are written."""
        rows = [line.rpartition(" ") for line in (await self.metrics()).splitlines() if line.startswith(metric)]
        return {name[len(metric) :]: float(value) for name, _, value in rows if name[len(metric) :][:1] in ("", "{")}

    async def settled(self) -> None:
        """Waits until nothing goes on, and every counter of what goes on says so. No lease came back twice."""
        await self.in_use(0)
        for name in ("leases_in_use", "queue_depth", "requests_in_flight", "lease_returns_ignored_total"):
            assert set((await self.samples(f"iop_edge_{name}")).values()) == {0}, name

    async def in_use(self, leases: int, waiting: int = 0, *, timeout_s: float = QUIET_S) -> None:
        """Waits until the edge shows so many leases and waiters."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            status = await self.status()
            seen = status["leases_in_use"], status["waiting"]
            if seen == (leases, waiting):
                return
            assert loop.time() < deadline, f"leases and waiters are {seen}, not {(leases, waiting)}"

    async def outcome(self, request_id: str | None) -> Line:
        """The edge's one line about a request, by the id that it minted or by the client's own."""
        found: list[Line] = []

        def look() -> bool:
            for line in self.stack.edge.lines:
                if request_id in (line.get("request_id"), line.get("client_request_id")):
                    found.append(line)
            return bool(found)

        await until(look, what=f"an outcome line of {request_id}")
        assert len(found) == 1, found
        return found[0]

    async def close(self) -> None:
        for client in self.clients:
            await client.close()


class Stack:
    """A running pair; ``http`` and ``admin`` are the edge's addresses, ``nodes`` is its node port."""

    def __init__(
        self, edge: Program, node: Program, sock: socket.socket, caretaker: Caretaker, scripted: frozenset[str]
    ) -> None:
        self.scripted = scripted  # the providers that are the scripted server
        self.silent: dict[
            str, socket.socket
        ] = {}  # those that take connections and say nothing, until a test closes them
        self.edge = edge
        self.node = node
        self.http: Address = edge.address("http")
        self.admin: Address = edge.address("admin")
        self.nodes: Address = edge.address("nodes")
        self._sock = sock
        self._caretaker = caretaker

    @asynccontextmanager
    async def scene(self) -> AsyncIterator[Scene]:
        with self._caretaker.absent:
            async with self._scene() as scene:
                yield scene

    @asynccontextmanager
    async def _scene(self) -> AsyncIterator[Scene]:
        async with ScriptedProvider(self._sock) as provider:
            scene = Scene(self, provider)
            try:
                yield scene
                await scene.close()
            except BaseException as exc:
                exc.add_note("the edge's last lines: " + "\n".join(map(str, self.edge.lines[-5:])))
                raise
            finally:
                await scene.close()
                for connection in provider.open_connections:
                    if not connection.asks_for_health:  # those are answered first, or the next test has no provider
                        connection.transport.abort()
            await scene.in_use(0)
            await scene.healthy()


def run_of(answer: Answer) -> tuple[str, str]:
    """The id and the text of a run that is told event by event, and that has one end, a good one."""
    said = [json.loads(line[6:]) for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    (run_id,) = {event["run_id"] for event in said if "run_id" in event}
    ends = [event["event"] for event in said if event.get("event") in ("complete", "error", "cancelled")]
    assert ends == ["complete"]
    return run_id, "".join(event["text"] for event in said if event.get("event") == "delta")


def fds(program: Program) -> list[str]:
    """What descriptors a process has open, without those that come and go by themselves (Linux)."""
    folder = f"/proc/{program.pid}/fd"
    found = []
    for name in os.listdir(folder):
        try:
            found.append(os.readlink(f"{folder}/{name}"))
        except FileNotFoundError:
            continue
    return sorted(target.partition(":")[0] for target in found)


def rss_bytes(program: Program) -> int:
    """Resident memory of a process (Linux)."""
    text = Path(f"/proc/{program.pid}/statm").read_text()
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def running_stack(
    folder: Path,
    providers: Providers,
    models: list[dict[str, Any]],
    *,
    other_providers: Providers | None = None,
    http: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    node: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Iterator[Stack]:
    """Starts an edge and a node ``n1`` with ``providers``, whose ``base_url`` defaults to the scripted server.

    ``node`` is laid over that section of its file. ``other_providers`` belong to a node ``n2`` that is configured and
    not started.
    """
    sock = listening_socket()
    caretaker = Caretaker(sock)
    port = sock.getsockname()[1]

    def entries(rows: Providers) -> list[dict[str, Any]]:
        base = {"kind": "openai_compat", "capacity": 100}
        return [{"id": i, "base_url": f"http://127.0.0.1:{port}/{i}/v1", **base, **row} for i, row in rows.items()]

    nodes: list[dict[str, Any]] = [{"id": "n1", "token_env": "IOP_TOKEN", "providers": entries(providers)}]
    nodes.append({"id": "n2", "token_env": "IOP_OTHER_TOKEN", "providers": entries(other_providers or {})})
    config = edge_config(http=dict(http or {}), nodes=nodes, models=models, **sections)
    environment = {**TOKEN_ENV, **(env or {})}
    try:
        with edge_program(folder, config, env=environment) as edge:
            node_file = node_config(edge.address("nodes"), node=dict(node or {}))
            with node_program(folder, node_file, env=environment) as running:
                edge.wait_line(lambda line: str(line.get("event", "")).startswith("node_connected"))
                running.wait_event("edge_connected")
                scripted = frozenset(name for name, row in providers.items() if "base_url" not in row)
                yield Stack(edge, running, sock, caretaker, scripted)
    finally:
        caretaker.close()
        sock.close()


def model(name: str, provider: str | None = None, *, node: str = "n1", **more: Any) -> dict[str, Any]:
    """A model group with one candidate."""
    provider = provider or name
    candidate = {"node": node, "provider": provider, "target": f"real-{name}"}
    return {"id": name, "candidates": [candidate], **more}
