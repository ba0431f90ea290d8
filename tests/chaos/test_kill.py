"""E12: the node is killed under load, again and again, and the ledger of all requests stays exact.

Clients ask without a pause, whole and streamed, each request with a number of its own; the provider's answer repeats
the number, so a wrong, mixed or doubled answer shows. For each request exactly one of these is written down: one
complete answer, or one typed error. While nobody serves, the edge says so at once; it is never touched.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.aio import async_test, until
from tests.support.http import Broken, Client, chat, post
from tests.support.programs import Program, command, edge_config, edge_program, node_config
from tests.support.provider import DONE, Call, ScriptedProvider, chat_answer, chat_delta, chat_event, listening_socket
from tests.support.stack import Scene, Stack, fds, model, rss_bytes

CHAT = "/v1/chat/completions"
KILLS = 20
CLIENTS = 24
CAPACITY = 16  # fewer than clients: some always wait
EVENTS = 12
SERVED_BETWEEN = 60  # complete answers that each new node has to give before it is killed
ENV = {"IOP_TOKEN": "t0", "IOP_OTHER_TOKEN": "t1", "IOP_NODE_TOKEN": "t0"}

# What a client may be told when its node dies: lost under way, or nobody there. Anything else is a fault.
TYPED = {"node_disconnected", "unavailable"}


@dataclass
class Ledger:
    """One entry for each request that was sent."""

    entries: dict[int, str] = field(default_factory=dict)

    def enter(self, number: int, outcome: str) -> None:
        assert number not in self.entries, f"request {number} ended twice: {self.entries[number]}, {outcome}"
        self.entries[number] = outcome

    @property
    def complete(self) -> int:
        return sum(outcome == "complete" for outcome in self.entries.values())


def expected(number: int) -> bytes:
    words = [chat_delta(f"{number}:{i} ") for i in range(EVENTS)]
    return b"".join([*words, chat_event({}, "stop"), DONE])


class Answers:
    """The provider's side: whole answers at once, streams event by event, one a turn of the loop."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def __call__(self, call: Call) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(call))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answer(self, call: Call) -> None:
        number = int(call.json["messages"][0]["content"])
        if not call.json.get("stream"):
            call.respond(chat_answer(str(number)))
            return
        call.start_stream()
        for i in range(EVENTS):
            if call.gone.is_set():
                return
            call.event(chat_delta(f"{number}:{i} "))
            await asyncio.sleep(0.002)  # a stream takes its time, or there is nothing to kill
        call.event(chat_event({}, "stop") + DONE)
        call.end_stream()


async def one_request(client: Client, number: int) -> str:
    """Sends request ``number`` and tells how it ended; the bytes are checked here. Broken streams end the client."""
    stream = number % 3 != 0
    client.send(post(CHAT, chat("m", stream=stream, text=str(number))))
    head = await client.head()
    if head.status != 200:
        error = json.loads(await client.body())["error"]
        assert error["code"] in TYPED, error
        assert head.get("x-request-id")
        return str(error["code"])
    try:
        body = await client.body()
    except Broken as broken:
        assert stream, "a whole answer was cut"
        whole = expected(number)
        sent, _, tail = broken.body.partition(b'data: {"error"')
        assert whole.startswith(sent), "bytes that the provider did not send"
        assert sent != whole or tail
        if tail:
            error = json.loads(b'{"error"' + tail)["error"]
            assert error["code"] in TYPED, error
            return f"broken, {error['code']}"
        return "broken"
    assert body == (expected(number) if stream else chat_answer(str(number)))
    return "complete"


class Load:
    """Clients that ask without a pause until ``stop``."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._numbers = iter(range(1, 1 << 30))
        self._stopping = False
        self.ledger = Ledger()

    def stop(self) -> None:
        self._stopping = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._client())

    async def _client(self) -> None:
        client = await Client.connect(self._scene.stack.http)
        while not self._stopping:
            number = next(self._numbers)
            outcome = await one_request(client, number)
            self.ledger.enter(number, outcome)
            if outcome.startswith("broken"):
                await client.close()
                client = await Client.connect(self._scene.stack.http)
            elif outcome != "complete":
                await asyncio.sleep(0.005)  # as a client would, on a 502 or 503
        await client.close()


def start_node(edge: Program, folder: Path) -> Program:
    file = folder / "node.yaml"
    config: dict[str, Any] = node_config(edge.address("nodes"), reconnect={"interval_sec": 0.1})
    file.write_text(json.dumps(config))
    return Program(command("iop-node", "serve", "-c", str(file), "--log-format", "json"), env=ENV)


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors and memory in /proc")
@pytest.mark.req("REG-5", "API-8b", "POOL-7", "POOL-12", "EXEC-7")
@async_test(timeout_s=300)
async def test_E12_the_node_is_killed_20_times_under_load(tmp_path: Path) -> None:
    sock = listening_socket()
    provider = {
        "id": "m",
        "kind": "openai_compat",
        "capacity": CAPACITY,
        "base_url": f"http://127.0.0.1:{sock.getsockname()[1]}/m/v1",
    }
    nodes = [{"id": "n1", "token_env": "IOP_TOKEN", "providers": [provider]}]
    with sock, edge_program(tmp_path, edge_config(nodes=nodes, models=[model("m")]), env=ENV) as edge:
        await _chaos(edge, sock, tmp_path)


async def _chaos(edge: Program, sock: Any, folder: Path) -> None:
    node = start_node(edge, folder)
    try:
        stack = Stack(edge, node, sock)
        async with ScriptedProvider(sock) as provider:
            answers = Answers()
            provider.answer = answers
            scene = Scene(stack, provider)
            load = Load(scene)
            running = asyncio.ensure_future(load.run())
            first: tuple[int, int] | None = None
            try:
                for kill in range(KILLS + 1):
                    wanted = load.ledger.complete + SERVED_BETWEEN
                    await until(
                        lambda wanted=wanted: load.ledger.complete >= wanted or running.done(),  # type: ignore[misc]
                        timeout_s=20,
                        what=f"serving again after kill {kill}",
                    )
                    if running.done():
                        running.result()
                    if first is None and kill == 3:
                        first = len(fds(edge)), rss_bytes(edge)
                    if kill < KILLS:
                        await asyncio.to_thread(node.kill)
                        node.close()
                        node = start_node(edge, folder)
            finally:
                load.stop()
                await running
            await scene.in_use(0)
            status = await scene.status()
            assert [n["connected"] for n in status["nodes"]] == [True]
            assert status["nodes"][0]["providers"][0]["capacity"] == CAPACITY
            assert "iop_edge_lease_returns_ignored_total 0.0" in await scene.metrics()
            await _settled(scene, load.ledger)
            assert first is not None
            await until(lambda: len(fds(edge)) <= first[0], what="as few descriptors as before")
            assert rss_bytes(edge) - first[1] < 16 << 20
            while answers.tasks:
                await asyncio.wait(answers.tasks)
    finally:
        node.close()


async def _settled(scene: Scene, ledger: Ledger) -> None:
    """The edge's own book agrees: one line for each request, with the same count of each outcome."""
    counts = Counter(ledger.entries.values())
    print("\nledger:", dict(counts))
    edge = scene.stack.edge

    def lines() -> list[dict[str, Any]]:
        return [line for line in edge.lines if line.get("event") == "request"]

    await until(lambda: len(lines()) >= len(ledger.entries), what="an outcome line for each request")
    said = lines()
    assert len(said) == len(ledger.entries)
    assert len({line["request_id"] for line in said}) == len(said)
    outcomes = Counter(str(line["outcome"]) for line in said)
    assert outcomes["ok"] == counts["complete"]
    assert set(outcomes) <= TYPED | {"ok"}
    assert all(re.fullmatch("complete|broken|(broken, )?[a-z_]+", outcome) for outcome in counts)
    assert counts["complete"] >= KILLS * SERVED_BETWEEN
    assert outcomes["node_disconnected"] > 0, "the kills hit nothing"
