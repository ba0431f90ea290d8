"""One edge, one node and one scripted provider, each of which may be killed, frozen and started again under load.

    async with Site(folder) as site:
        site.load.start()
        await site.kill_node()
        await site.start_node()
        print(await site.load.served(timeout_s=10, what="serving again"))
        await site.rest()                       # everything ends, both books agree, counters are 0

An edge that is started again listens where the first one did. The node dials the edge, or what stands between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.aio import until
from tests.support.http import Address, Client
from tests.support.ledger import Answers, Load
from tests.support.programs import Line, Program, edge_config, node_config
from tests.support.provider import ScriptedProvider, listening_socket
from tests.support.stack import TOKEN_ENV, fds, model, rss_bytes

__all__ = ["LOST", "EdgeBook", "Footprint", "Site", "figures"]

ROOT = Path(__file__).resolve().parents[2]
REST_S = 10.0
KEPT_S = 0.2  # for which the node keeps idle connections to the model server
LOOKS = 5

#: What a client may be told when its node is lost: lost under way, or nobody there.
LOST = frozenset({"node_disconnected", "unavailable"})


@dataclass(frozen=True)
class Footprint:
    """What a process holds while nothing is going on."""

    fds: int
    rss_bytes: int
    tasks: int
    objects: int

    @classmethod
    async def of(cls, program: Program) -> Footprint:
        """The program runs under tests/support/watched.py."""
        before = len(program.lines)
        program.signal(signal.SIGUSR2)
        line = await asyncio.to_thread(program.wait_event, "watched", after=before)
        return cls(len(fds(program)), rss_bytes(program), line["tasks"], line["objects"])

    def least(self, other: Footprint) -> Footprint:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Footprint(*(min(pair) for pair in pairs))

    def __str__(self) -> str:
        return f"{self.fds} fds, {self.rss_bytes / 2**20:.1f} MiB, {self.tasks} tasks, {self.objects} objects"

    def holds(self, later: Footprint) -> bool:
        """``later`` shows no growth."""
        return (
            later.fds <= self.fds
            and later.tasks <= self.tasks
            and later.objects - self.objects < 500
            and later.rss_bytes - self.rss_bytes < 16 << 20
        )


class EdgeBook:
    """The edge's own request lines, counted as they come: they are too many to keep."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self._ids: set[str] = set()
        self.twice: list[str] = []

    def __call__(self, line: Line) -> bool:
        if line.get("event") != "request":
            return False
        self.outcomes[str(line["outcome"])] += 1
        name = str(line["request_id"])
        if name in self._ids:
            self.twice.append(name)
        self._ids.add(name)
        return True

    @property
    def total(self) -> int:
        return sum(self.outcomes.values())


class Site:
    """See the module. ``timing`` is IOP_TEST_TIMING; ``typed`` what clients may be told; ``drain_s`` of both programs.

    ``through`` gets the edge's node address and returns the one that the node dials.
    """

    def __init__(
        self,
        folder: Path,
        *,
        capacity: int = 8,
        clients: int = 16,
        timing: str | None = None,
        typed: frozenset[str] = LOST,
        edge_dies: bool = False,
        drain_s: float = 10.0,
        through: Callable[[Address], Address] | None = None,
    ) -> None:
        self.folder = folder
        self.capacity = capacity
        self.book = EdgeBook()
        self._env = {**TOKEN_ENV, **({"IOP_TEST_TIMING": timing} if timing is not None else {})}
        self._drain_s = drain_s
        self._listen: Mapping[str, str] = {}
        self._through = through or (lambda address: address)
        self.load = Load(lambda: self.http, clients=clients, typed=typed, edge_dies=edge_dies)
        self._programs: list[Program] = []
        self.edge: Program
        self.node: Program
        self.http: Address
        self.admin: Address
        self.nodes: Address

    async def __aenter__(self) -> Site:
        self._sock = listening_socket()
        self.provider = ScriptedProvider(self._sock)
        await self.provider.__aenter__()
        self.answers = Answers(self.provider, self.capacity)
        try:
            await self.start_edge()
            await self.start_node()
            await asyncio.to_thread(self.edge.wait_event, "node_connected")
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.load.stop()
        finally:
            await self.load.abandon()
            for program in self._programs:
                program.process.kill()
            for program in list(self._programs):
                await self._gone(program)
            await self.answers.rest()
            await self.provider.__aexit__()
            self._sock.close()

    # ---- programs ----------------------------------------------------------------------------------------------------

    async def start_edge(self) -> Program:
        """Where the first one listened, so that nodes and clients find it."""
        port = self._sock.getsockname()[1]
        row = {
            "id": "m",
            "kind": "openai_compat",
            "capacity": self.capacity,
            "base_url": f"http://127.0.0.1:{port}/m/v1",
            "idle_sec": KEPT_S,
        }
        nodes = [{"id": "n1", "token_env": "IOP_TOKEN", "providers": [row]}]
        listen = {name: {"listen": address} for name, address in self._listen.items()}
        drain = {"drain_timeout_sec": self._drain_s}
        config = edge_config(nodes=nodes, models=[model("m")], edge=drain, **listen)
        self.edge = self._spawn("iop-edge", config, self.book)
        self.http = await self._listening("http")
        self.nodes = await self._listening("nodes")
        self.admin = await self._listening("admin")
        addresses = {"http": self.http, "transport": self.nodes, "admin": self.admin}
        self._listen = {name: f"{host}:{port}" for name, (host, port) in addresses.items()}
        return self.edge

    async def _listening(self, listener: str) -> Address:
        return await asyncio.to_thread(self.edge.address, listener)

    async def start_node(self) -> Program:
        self.node = self.another_node()
        return self.node

    def another_node(self, *, store: bool = True) -> Program:
        """A process with the same token, and a run store of its own or none."""
        sections: dict[str, Any] = {"reconnect": {"interval_sec": 0.1}}
        if not store:
            sections["store"] = {"url": None}
        config = node_config(self._through(self.nodes), node={"drain_timeout_sec": self._drain_s}, **sections)
        return self._spawn("iop-node", config, None)

    def _spawn(self, name: str, config: dict[str, Any], take: Callable[[Line], bool] | None) -> Program:
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps(config))
        arguments = [name, "serve", "-c", str(file), "--log-format", "json"]
        command = [sys.executable, "-m", "tests.support.watched", *arguments]
        program = Program(command, env=self._env, cwd=ROOT, take=take)
        self._programs.append(program)
        return program

    async def kill(self, program: Program) -> None:
        """SIGKILL."""
        program.process.kill()
        await self._gone(program)

    async def terminate(self, program: Program) -> int:
        """SIGTERM; returns the exit code."""
        program.signal(signal.SIGTERM)
        code = await asyncio.to_thread(program.wait, timeout_s=self._drain_s + 10)
        await self._gone(program)
        return code

    async def _gone(self, program: Program) -> None:
        await asyncio.to_thread(program.wait)
        program.close()
        self._programs.remove(program)

    # ---- what is going on --------------------------------------------------------------------------------------------

    async def ask(self, path: str) -> bytes:
        """Something of the admin listener."""
        client = await Client.connect(self.admin)
        try:
            client.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            answer = await client.answer()
        finally:
            await client.close()
        assert answer.status == 200, answer
        return answer.body

    async def status(self) -> Any:
        return json.loads(await self.ask("/admin/status"))

    async def rest(self, *, whole_book: bool = True) -> None:
        """Ends the load, waits for counters of 0 and compares the books.

        ``whole_book``: the edge has lived all the time, so it has a line for each request.
        """
        await self.load.stop()
        await self.answers.rest()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REST_S
        while True:
            status = await self.status()
            (node,) = status["nodes"]
            (provider,) = node["providers"]
            held = status["leases_in_use"], status["waiting"], provider["in_use"], provider["lingering"]
            if held == (0, 0, 0, 0) and node["connected"] and self.answers.busy() == 0:
                break
            assert loop.time() < deadline, f"leases, waiters, in use, lingering {held}, {node}, {self.answers.busy()}"
            await asyncio.sleep(0.01)
        assert provider["capacity"] == self.capacity, provider
        metrics = (await self.ask("/metrics")).decode()
        assert "iop_edge_lease_returns_ignored_total 0.0" in metrics, "a lease came back twice"
        assert self.answers.faults == [], self.answers.faults[:5]
        counts, book = self.load.counts, self.book
        assert book.twice == [], f"two ends of one request: {book.twice[:5]}"
        if whole_book:
            await until(lambda: book.total >= len(self.load.ledger.entries), what="a line for each request")
            assert book.total == len(self.load.ledger.entries), f"{book.outcomes} and {counts}"
            assert book.outcomes["ok"] == counts["complete"], f"{book.outcomes} and {counts}"
            assert set(book.outcomes) <= self.load.typed | {"ok"}, book.outcomes

    async def footprint(self, program: Program, before: Footprint | None = None) -> Footprint:
        """What it holds at rest: the least of many looks, since its own clocks go on. Raises if that is more than
        ``before``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REST_S
        least = await Footprint.of(program)
        for _ in range(LOOKS):
            await asyncio.sleep(4 * KEPT_S / LOOKS)
            least = least.least(await Footprint.of(program))
        while before is not None and not before.holds(least):
            assert loop.time() < deadline, f"{before} before, {least} after: {sorted(fds(program))}"
            least = least.least(await Footprint.of(program))
        return least

    async def runs(self) -> Counter[str]:
        """The node's own book (EXEC-9) at rest: every call that it ever took has one row, and has ended."""
        with contextlib.closing(sqlite3.connect(f"file:{self.folder}/iop.db?mode=ro", uri=True)) as db:

            def ended() -> bool:
                return not db.execute("SELECT count(*) FROM runs WHERE status = 'running'").fetchone()[0]

            await until(ended, what="every row of the run store has its end")
            twice = db.execute("SELECT run_id, attempt FROM runs GROUP BY 1, 2 HAVING count(*) > 1").fetchall()
            assert twice == [], f"one attempt, several calls: {twice[:5]}"
            rows = db.execute("SELECT status, count(*) FROM runs GROUP BY 1").fetchall()
        # A call that was cancelled before its request had left has a row, and the provider never heard of it.
        asked, taken = self.answers.asked, sum(n for _, n in rows)
        assert taken - dict(rows).get("cancelled", 0) <= asked <= taken, f"{rows}, and {asked} calls came"
        return Counter(dict(rows))

    async def all_slots_work(self) -> None:
        """None was lost on the way: as many calls as the capacity are at work at a time."""
        self.answers.peak = 0
        reached = until(lambda: self.answers.peak >= self.capacity, timeout_s=15.0, what="all slots at work")
        await self.load.within(reached, 20.0, "all slots at work")


def figures(title: str, load: Load, times_s: list[float], **more: object) -> str:
    """One summary line."""
    ordered = sorted(times_s)
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * q))] if ordered else 0.0 for q in (0.5, 0.99))
    counts = load.counts
    typed = sum(n for outcome, n in counts.items() if outcome in load.typed)
    rows = {
        "requests": sum(counts.values()),
        "complete": counts["complete"],
        "typed errors": typed,
        "visibly broken": load.broken - counts["cut"],
        "cut before an answer": counts["cut"],
        "recovery": f"p50 {p50:.2f} s, p99 {p99:.2f} s, max {max(times_s, default=0.0):.2f} s",
        **more,
    }
    return f"{title}: " + "; ".join(f"{name} {value}" for name, value in rows.items()) + f"  {dict(counts)}"
