"""An edge and its nodes under load while the configuration changes again and again, and the book of what happened.

    with Rig(folder) as rig:
        async with rig.load(clients=24) as load:
            await load.refresh("p1 grows")
        load.settle()

The scripted providers count their calls, so a grant above the capacity in force shows where it would hurt: at the model
server. What is in force is known from outside: an edge that has answered a reload grants no more than the new capacity,
and what it had granted before (its status says how much) only shrinks, by one with every call that ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.aio import until
from tests.support.http import Answer, Broken, Client, chat, post
from tests.support.programs import Program, command, edge_config, edge_program, node_config
from tests.support.provider import DONE, Call, ScriptedProvider, chat_answer, chat_delta, chat_event, listening_socket

__all__ = ["Load", "Rig"]

CHAT = "/v1/chat/completions"
EVENTS = 6
ENV = {"IOP_TOKEN": "t0", "IOP_OTHER_TOKEN": "t1"}
MALFORMED = (
    "http: {listen: '127.0.0.1:0'",
    "nodes: [{id: n1, token_env: IOP_TOKEN, providers: [{id: p1, kind: vllm, capacity: -1}]}]",
    "nodes: []\nmodels: [{id: m, candidates: [{node: n1, provider: p1, target: t}]}]",
    "queue: {timeout: 5}",
)


class Rig:
    """The processes and the file that changes. Node ``n1`` has ``p1`` and now and then ``p2``, node ``n2`` has
    ``p3``; model ``m`` is served by whichever there are."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.capacity = {"p1": 6, "p3": 4}
        self.variant = {"p1": "a", "p2": "a", "p3": "a"}  # what stands behind them: a path of its own
        self.extra: dict[str, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Rig:
        self.sock = self._stack.enter_context(listening_socket())
        self.edge = self._stack.enter_context(edge_program(self.folder, self.config(), env=ENV))
        self.nodes = {
            name: self._stack.enter_context(self._node(name, variable))
            for name, variable in (("n1", "IOP_TOKEN"), ("n2", "IOP_OTHER_TOKEN"))
        }
        for name in self.nodes:
            self.edge.wait_event("node_connected", node=name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _node(self, name: str, variable: str) -> Program:
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps(node_config(self.edge.address("nodes"), node={"token_env": variable})))
        return Program(command("iop-node", "serve", "-c", str(file), "--log-format", "json"), env=ENV)

    def config(self) -> dict[str, Any]:
        port = self.sock.getsockname()[1]

        def rows(*names: str) -> list[dict[str, Any]]:
            return [
                {
                    "id": name,
                    "kind": "openai_compat",
                    "base_url": f"http://127.0.0.1:{port}/{name}/{self.variant[name]}/v1",
                    "capacity": self.capacity[name],
                }
                for name in names
                if name in self.capacity
            ]

        nodes: list[dict[str, Any]] = [
            {"id": "n1", "token_env": "IOP_TOKEN", "providers": rows("p1", "p2")},
            {"id": "n2", "token_env": "IOP_OTHER_TOKEN", "providers": rows("p3")},
        ]
        candidates = [
            {"node": node["id"], "provider": p["id"], "target": f"{p['id']}-{self.variant[p['id']]}"}
            for node in nodes
            for p in node["providers"]
        ]
        return edge_config(nodes=nodes, models=[{"id": "m", "candidates": candidates}], **self.extra)

    def write(self, text: str | None = None) -> None:
        """The file as it is to be, or these words; whoever reads it meanwhile sees the old or the new one."""
        fresh = self.folder / "edge.yaml.new"
        fresh.write_text(json.dumps(self.config()) if text is None else text)
        os.replace(fresh, self.folder / "edge.yaml")

    @asynccontextmanager
    async def load(self, clients: int) -> AsyncIterator[Load]:
        """Clients that ask without a pause until the block ends; then everything has to come to rest."""
        async with ScriptedProvider(self.sock) as provider:
            load = Load(self, provider)
            running = asyncio.ensure_future(load.run(clients))
            try:
                yield load
            finally:
                load.stopping = True
                await running
            await load.rest()


class Load:
    """The clients' side, the providers' side, and the comparison of both with what is configured."""

    def __init__(self, rig: Rig, provider: ScriptedProvider) -> None:
        self.rig = rig
        self.stopping = False
        self.outcomes: Counter[str] = Counter()
        self.refreshes: Counter[str] = Counter()
        self.refresh_ms: list[float] = []
        self.calls: Counter[str] = Counter()  # at work now, by provider
        self.peaks: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.bound: dict[str, int | Draining] = {**rig.capacity}  # what may be at work, at most
        self.faults: list[str] = []
        self.revision = 1
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = iter(range(1, 1 << 30))
        self._progress = asyncio.Event()
        provider.answer = self._arrived

    # ---- clients -----------------------------------------------------------------------------------------------------

    async def run(self, clients: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(self._client())

    async def _client(self) -> None:
        """One connection for the whole time: a second one would hide that the first was dropped."""
        client = await Client.connect(self.rig.edge.address("http"))
        while not self.stopping:
            number = next(self._numbers)
            stream = number % 3 != 0
            client.send(post(CHAT, chat("m", stream=stream, text=str(number))))
            try:
                answer = await client.answer()
            except Broken as broken:
                self.faults.append(f"request {number} was cut: {broken}")
                return
            self.outcomes[self._judge(answer, number, stream)] += 1
            self._progress.set()
        await client.close()

    async def answered(self, more: int) -> None:
        """So many more answers have come to clients."""
        wanted = self.outcomes.total() + more
        while self.outcomes.total() < wanted and not self.faults:
            self._progress.clear()
            await self._progress.wait()

    def _judge(self, answer: Answer, number: int, stream: bool) -> str:
        if answer.status == 200 and answer.body == (whole_stream(number) if stream else chat_answer(str(number))):
            return "complete"
        self.faults.append(f"request {number}: {answer.status} {answer.body[:300]!r}")
        return f"{answer.status}"

    # ---- providers ---------------------------------------------------------------------------------------------------

    def _arrived(self, call: Call) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: Call) -> None:
        name, variant = call.provider, call.target.split(b"/")[2].decode()
        if call.json["model"] != f"{name}-{variant}":
            self.faults.append(f"{call.json['model']} was asked of {name}/{variant}")
        self.calls[name] += 1
        self.peaks[name] = max(self.peaks[name], self.calls[name])
        if self.calls[name] > self._bound_of(name):
            self.faults.append(f"{name} has {self.calls[name]} calls of {self._bound_of(name)}")
        try:
            number = int(call.json["messages"][0]["content"])
            if not call.json.get("stream"):
                await asyncio.sleep(self.rig.random.uniform(0.0, 0.02))
                rest = chat_answer(str(number))
            else:
                call.start_stream()
                for i in range(EVENTS):
                    call.event(chat_delta(f"{number}:{i} "))
                    await asyncio.sleep(self.rig.random.uniform(0.0, 0.01))
                rest = chat_event({}, "stop") + DONE
        finally:
            # Before the last byte leaves: from then on the slot may be somebody else's.
            self.calls[name] -= 1
            self.ended[name] += 1
        if call.json.get("stream"):
            call.event(rest)
            call.end_stream()
        else:
            call.respond(rest)

    def _bound_of(self, name: str) -> int:
        bound = self.bound.get(name)
        if isinstance(bound, Draining):
            return bound.now(self.ended[name])
        return bound or 0

    # ---- refreshes ---------------------------------------------------------------------------------------------------

    async def refresh(self) -> str:
        """Changes the file at random, lets the edge read it, and checks what it says. Returns what was done."""
        rig, rng = self.rig, self.rig.random
        what = rng.choices([name for name, _ in _CHANGES], [weight for _, weight in _CHANGES])[0]
        if what == "malformed":
            rig.write(rng.choice(MALFORMED))
            status, said = await self._reload()
            self._expect(status == 400 and bool(said["error"]["faults"]), f"a malformed file gave {status} {said}")
            seen = await self.status()
            self._expect(seen["edge"]["revision"] == self.revision, "a malformed file made a revision")
            self._expect(bool(seen["edge"]["config"]["faults"]), "the status does not say what was refused")
            rig.write()
        else:
            before = rig.config()
            _DO[what](rig)
            for name, capacity in rig.capacity.items():  # more counts from the moment when the edge may know of it
                self.bound[name] = max(self._bound_of(name), capacity)
            rig.write()
            status, said = await self._reload()
            changed = rig.config() != before
            self._expect(status == 200, f"{what}: {status} {said}")
            self._expect(said.get("result") == ("applied" if changed else "unchanged"), f"{what}: {said}")
            self.revision += changed
            self._expect(said.get("revision") == self.revision, f"{what}: revision {self.revision}, not {said}")
            await self._tighten()
        self.refreshes[what] += 1
        return what

    async def _tighten(self) -> None:
        """The edge has taken over the lower capacities: what is above them ends, and nothing comes to it."""
        used = {p["id"]: p["in_use"] + p["lingering"] for n in (await self.status())["nodes"] for p in n["providers"]}
        for name in ("p1", "p2", "p3"):
            allowed = self.rig.capacity.get(name, 0)
            self.bound[name] = Draining(allowed, used.get(name, 0), self.ended[name])

    async def _reload(self) -> tuple[int, Any]:
        started = time.perf_counter()
        answer = await self._ask(b"POST", "/admin/reload")
        self.refresh_ms.append((time.perf_counter() - started) * 1000)
        return answer.status, answer.json

    async def status(self) -> Any:
        return (await self._ask(b"GET", "/admin/status")).json

    async def metrics(self) -> str:
        return (await self._ask(b"GET", "/metrics")).body.decode()

    async def _ask(self, method: bytes, path: str) -> Answer:
        client = await Client.connect(self.rig.edge.address("admin"))
        try:
            client.send(b"%b %b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n" % (method, path.encode()))
            return await client.answer()
        finally:
            await client.close()

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.faults.append(what)

    # ---- the end -----------------------------------------------------------------------------------------------------

    async def rest(self) -> None:
        """Everything has come to its end, and both sides agree on the configuration."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        deadline = time.monotonic() + 10
        while True:
            seen = await self.status()
            busy = seen["leases_in_use"], seen["waiting"]
            late = [n["id"] for n in seen["nodes"] if n["applied_revision"] != n["revision"]]
            if busy == (0, 0) and not late:
                break
            assert time.monotonic() < deadline, f"leases and waiters {busy}, behind: {late}; {self.faults[:3]}"
        shown = {p["id"]: p["capacity"] for n in seen["nodes"] for p in n["providers"]}
        assert shown == self.rig.capacity
        assert [n["config_refused"] for n in seen["nodes"]] == [None, None]
        lines = self.rig.edge.lines
        assert not [line for line in lines if line.get("event") in ("node_disconnected", "request_broken")]
        await until(lambda: self._lines() == sum(self.outcomes.values()), what="an outcome line for each request")

    def _lines(self) -> int:
        return sum(line.get("event") == "request" for line in self.rig.edge.lines)

    def figures(self) -> str:
        """What happened, in a few lines."""
        times = sorted(self.refresh_ms)
        readmitted = [line for line in self.rig.edge.lines if line.get("event") == "request" and line["attempts"] > 1]
        return "\n".join(
            [
                f"requests: {dict(self.outcomes)}, {len(readmitted)} of them sent more than once",
                f"refreshes: {sum(self.refreshes.values())} {dict(self.refreshes)}, revision {self.revision}",
                f"refresh ms: median {times[len(times) // 2]:.1f}, max {times[-1]:.1f}",
                f"calls at a time, at most: {dict(sorted(self.peaks.items()))}",
                f"faults: {len(self.faults)}",
            ]
        )


class Draining:
    """What may still be at work: the capacity, or what was at work beyond it and has not ended."""

    def __init__(self, allowed: int, used: int, ended: int) -> None:
        self._allowed, self._used, self._ended = allowed, used, ended

    def now(self, ended: int) -> int:
        return max(self._allowed, self._used - (ended - self._ended))


def whole_stream(number: int) -> bytes:
    words = [chat_delta(f"{number}:{i} ") for i in range(EVENTS)]
    return b"".join([*words, chat_event({}, "stop"), DONE])


# ---- what may change ------------------------------------------------------------------------------------------------


def _grow(rig: Rig) -> None:
    name = rig.random.choice(sorted(rig.capacity))
    rig.capacity[name] = min(12, rig.capacity[name] + rig.random.randint(1, 6))


def _shrink(rig: Rig) -> None:
    name = rig.random.choice(sorted(rig.capacity))
    rig.capacity[name] = max(1, rig.capacity[name] - rig.random.randint(1, 6))


def _come_or_go(rig: Rig) -> None:
    if rig.capacity.pop("p2", None) is None:
        rig.capacity["p2"] = rig.random.randint(1, 6)


def _another_backend(rig: Rig) -> None:
    name = rig.random.choice(sorted(rig.capacity))
    rig.variant[name] = "b" if rig.variant[name] == "a" else "a"


def _edge_only(rig: Rig) -> None:
    rig.extra = {"queue": {"max_waiters": rig.random.randint(5_000, 10_000)}}


_DO: dict[str, Callable[[Rig], None]] = {
    "grow": _grow,
    "shrink": _shrink,
    "provider comes or goes": _come_or_go,
    "another backend": _another_backend,
    "edge only": _edge_only,
    "nothing": lambda rig: None,
}
_CHANGES = (
    ("grow", 6),
    ("shrink", 6),
    ("provider comes or goes", 4),
    ("another backend", 3),
    ("edge only", 1),
    ("nothing", 1),
    ("malformed", 2),
)
