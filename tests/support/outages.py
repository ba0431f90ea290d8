"""What happens to edges and nodes in tests/chaos, for as long as the caller says; the short runs are in
tests/integration/test_outages.py. Each function prints one line of figures and asserts that the ledger is exact."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.support.aio import until
from tests.support.faultproxy import HARSH, MILD, FaultProxy, Weather
from tests.support.http import Address
from tests.support.ledger import Load
from tests.support.programs import Program
from tests.support.site import LOST, EdgeBook, Footprint, Site, figures

__all__ = ["edge_restarts", "link_faults", "node_restarts"]

RECOVERY_S = 15.0  # a bound that a starved machine keeps as well; what is usual is printed
USUAL_RECOVERY_S = 2.0  # half of all restarts
SERVED_BETWEEN = 15  # complete answers between two faults
PROBE_S = 2.0  # REG-2: so long the edge waits for a word of an owner that somebody wants to replace

#: What a client may be told while the edge leaves and comes back.
LEAVING = LOST | {"shutting_down", "node_draining"}


async def growth(site: Site, program: Program, before: Footprint | None) -> str:
    """A program that lived all the time holds what it held before; says what that is."""
    assert before is not None
    after = await site.footprint(program, before)
    return f"\n  before: {before}\n  after:  {after}"


def usual(times_s: list[float]) -> None:
    median = sorted(times_s)[len(times_s) // 2]
    assert median <= USUAL_RECOVERY_S, f"half of all restarts took {median:.2f} s or more: {times_s}"


# ---- the node -------------------------------------------------------------------------------------------------------


async def node_restarts(folder: Path, cycles: int, *, takeovers: int, seed: int = 1) -> str:
    """E12: ``cycles`` times the node is killed under load, ``takeovers`` times of them frozen and superseded."""
    rng, loop = random.Random(seed), asyncio.get_running_loop()
    frozen = set(rng.sample(range(1, cycles), takeovers))
    warm = max(2, cycles // 20)
    before: Footprint | None = None
    times_s: list[float] = []
    async with Site(folder) as site:
        load = site.load
        load.start()
        for cycle in range(cycles):
            if cycle == warm:
                await site.rest()
                before = await site.footprint(site.edge)
                load.start()
            what = f"serving again in cycle {cycle}"
            await load.served(SERVED_BETWEEN, timeout_s=RECOVERY_S, what=what)
            await asyncio.sleep(rng.uniform(0.0, 0.03))
            if cycle in frozen:
                await takeover(site, rng)
                continue
            await site.kill(site.node)
            since = loop.time()
            await site.start_node()
            times_s.append(await load.served(since=since, timeout_s=RECOVERY_S, what=what))
        await site.all_slots_work()
        await site.rest()
        assert site.book.outcomes["node_disconnected"] > 0, "the kills hit nothing"
        told = figures(f"node: {cycles} cycles, {takeovers} of them takeovers", load, times_s)
        told += await growth(site, site.edge, before)
    usual(times_s)
    return told


async def takeover(site: Site, rng: random.Random) -> None:
    """REG-2, REG-4, REG-5: the owner freezes for longer than the probe, another process takes over, the old one wakes
    up: the one that serves is not disturbed. Then one of the two dies, and the other serves or goes on serving."""
    load, edge = site.load, site.edge
    frozen = site.node
    lines = len(edge.lines)
    site.answers.capacity *= 2  # what the frozen one had asked for is still at work
    frozen.signal(signal.SIGSTOP)
    other = site.another_node(store=False)
    taken_s = await load.served(timeout_s=RECOVERY_S, what="a newcomer takes over")
    gone = await asyncio.to_thread(edge.wait_event, "node_disconnected", after=lines)
    story = f"the owner was given up after {taken_s:.2f} s: {edge.lines[lines:]}, {frozen.lines[-3:]}, {other.lines}"
    assert taken_s >= PROBE_S - 0.2, story
    assert gone["reason"] == "superseded", story
    frozen.signal(signal.SIGCONT)
    await asyncio.to_thread(edge.wait_event, "node_rejected", after=lines, reason="duplicate_connection")
    await load.served(2 * SERVED_BETWEEN, timeout_s=RECOVERY_S, what="served while the old owner knocks")
    losses = [line for line in edge.lines[lines:] if line.get("event") == "node_disconnected"]
    assert losses == [gone], f"the return of the old owner cost the new one: {losses}"
    if rng.random() < 0.5:
        await site.kill(frozen)
        site.node = other
        await load.served(SERVED_BETWEEN, timeout_s=RECOVERY_S, what="served after the old owner's death")
        losses = [line for line in edge.lines[lines:] if line.get("event") == "node_disconnected"]
        assert losses == [gone], f"the death of the old owner cost the new one: {losses}"
    else:
        await site.kill(other)
        await load.served(timeout_s=RECOVERY_S, what="the old owner takes over again")
    site.answers.capacity = site.capacity


# ---- the edge -------------------------------------------------------------------------------------------------------


async def edge_restarts(folder: Path, restarts: int, *, seed: int = 1) -> str:
    """E9: the edge is killed or terminated ``restarts`` times under load, and the node returns by itself.

    Nothing that a client takes for an end is none, and the model server never has more at work than its capacity,
    whatever the node still ran when its edge was gone. After SIGTERM every request that the edge took is answered whole
    or typed; only one that crosses the very end of the edge may be cut, unread.
    """
    rng, loop = random.Random(seed), asyncio.get_running_loop()
    warm = max(2, restarts // 20)
    before: Footprint | None = None
    times_s: list[float] = []
    kills, crossed = 0, 0
    async with Site(folder, typed=LEAVING, edge_dies=True) as site:
        load, book = site.load, site.book
        load.start()
        taken, answered = 0, 0  # by edges of before
        for restart in range(restarts):
            if restart == warm:
                await site.rest(whole_book=False)
                before = await site.footprint(site.node)
                load.start()
            what = f"serving again after restart {restart}"
            await load.served(SERVED_BETWEEN, timeout_s=RECOVERY_S, what=what)
            await asyncio.sleep(rng.uniform(0.0, 0.03))
            broken = load.broken - load.counts["cut"]
            cut = load.counts["cut"]
            if kill := rng.random() < 0.5:
                await site.kill(site.edge)
                kills += 1
            else:
                code = await site.terminate(site.edge)
                assert code == 0, f"SIGTERM ended the edge with {code}"
            await until(lambda: load.connected == 0, what="every client has noticed")
            if not kill:
                crossed += load.counts["cut"] - cut
                assert load.broken - load.counts["cut"] == broken, "SIGTERM cut what had all the time to finish"
                story = f"it took {_taken(book) - taken} requests and answered {_answered(load) - answered}"
                assert _taken(book) - taken == _answered(load) - answered, story
            taken, answered = _taken(book), _answered(load)
            if rng.random() < 0.3:  # for longer than what is at work takes
                await asyncio.sleep(0.2)
            since = loop.time()
            await site.start_edge()
            times_s.append(await load.served(since=since, timeout_s=RECOVERY_S, what=what))
        assert crossed <= max(1, restarts // 10), f"SIGTERM cut {crossed} requests unread in {restarts} restarts"
        await site.all_slots_work()
        await site.rest(whole_book=False)
        told = figures(
            f"edge: {restarts} restarts, {kills} of them by SIGKILL",
            load,
            times_s,
            **{
                "of these by SIGTERM": crossed,
                "found nobody": load.unconnected,
                "most at work": f"{site.answers.peak} of {site.capacity}",
                "calls": dict(await site.runs()),
            },
        )
        told += await growth(site, site.node, before)
    usual(times_s)
    return told


def _taken(book: EdgeBook) -> int:
    """Without those that an edge refused because it was leaving: it has no line for one whose body it did not read."""
    return book.total - book.outcomes["shutting_down"]


def _answered(load: Load) -> int:
    return load.answered - load.counts["shutting_down"]


# ---- the link -------------------------------------------------------------------------------------------------------

HEARTBEAT_S, SILENCE_S = 0.2, 1.0  # IOP_TEST_TIMING: between heartbeats; until a silent peer is given up
NOTICED_S = SILENCE_S + 1.5

#: Beside those of the proxy: nothing comes up for longer than the edge waits; nobody takes a connection; SIGSTOP.
FAULTS = (*MILD, *HARSH, "silence", "refusing", "frozen node", "frozen edge")


async def link_faults(
    folder: Path,
    steps: int,
    *,
    hold_s: float,
    seed: int = 1,
    faults: Sequence[str] = FAULTS,
    measured: bool = True,
) -> str:
    """WIRE-7, REG-5, SUP-1: each of ``faults`` in turn, then ``steps`` of them at random, each
    for about ``hold_s``. Weather costs time and no request; what ends the connection ends typed, and it comes back.
    ``measured``: and neither program grows."""
    rng, times_s = random.Random(seed), list[float]()
    async with FaultProxy(("127.0.0.1", 0), seed=seed) as proxy:

        def through(nodes: Address) -> Address:
            proxy.target = nodes
            return proxy.address

        timing = f"{HEARTBEAT_S},{SILENCE_S}"
        async with Site(folder, timing=timing, through=through) as site:
            load = site.load
            load.start()
            for name in faults:
                if name in MILD:
                    await _mild(site, proxy, name, MILD[name](rng), hold_s)
            lived = (site.edge, site.node)
            before: list[Footprint] = []
            if measured:
                await site.rest()
                before = [await site.footprint(program) for program in lived]
                load.start()
            for name in faults:
                if name not in MILD:
                    times_s.append(await _harsh(site, proxy, name))
            for step in range(steps):
                weather = rng.choice(list(MILD.values()))
                proxy.weather = rng.choice((Weather(), weather(rng)))
                await asyncio.sleep(rng.uniform(0.0, hold_s))
                if rng.random() < 0.7:
                    HARSH[rng.choice(list(HARSH))](proxy)
                    await asyncio.sleep(rng.uniform(0.0, hold_s / 4))
                if rng.random() < 0.5:
                    continue  # another one on top of it
                proxy.weather = Weather()
                times_s.append(await load.served(timeout_s=RECOVERY_S, what=f"serving again after step {step}"))
            proxy.weather = Weather()
            await site.all_slots_work()
            await site.rest()
            more = {
                "connections": proxy.connections,
                "passed": f"{proxy.passed_bytes / 1e6:.1f} MB",
                "calls": dict(await site.runs()),
            }
            told = figures(
                f"link: {len(faults)} faults in turn, {steps} at random (seed {seed})", load, times_s, **more
            )
            told += "".join([await growth(site, *pair) for pair in zip(lived, before, strict=False)])
    return told


async def _mild(site: Site, proxy: FaultProxy, name: str, weather: Weather, hold_s: float) -> None:
    load = site.load
    proxy.weather = weather
    failed = sum(load.counts.values()) - load.counts["complete"]
    await asyncio.sleep(hold_s)
    await load.served(SERVED_BETWEEN, timeout_s=RECOVERY_S, what=f"served in spite of {name}")
    proxy.weather = Weather()
    await load.served(timeout_s=RECOVERY_S, what=f"served after {name}")
    assert sum(load.counts.values()) - load.counts["complete"] == failed, f"{name} cost requests: {dict(load.counts)}"


async def _harsh(site: Site, proxy: FaultProxy, name: str) -> float:
    """Seconds from the end of the fault until a request is complete again."""
    load, edge, node, loop = site.load, site.edge, site.node, asyncio.get_running_loop()
    edge_lines, node_lines = len(edge.lines), len(node.lines)
    began = loop.time()

    async def lost(program: Program, event: str, lines: int) -> str:
        line = await asyncio.to_thread(program.wait_event, event, after=lines, timeout_s=RECOVERY_S)
        return str(line["reason"])

    def noticed(reason: str, who: str) -> None:
        story = f"{name}: the {who} noticed it after {loop.time() - began:.2f} s, as {reason}"
        assert reason == "heartbeat_timeout", story
        assert loop.time() - began <= NOTICED_S, story

    since = began
    if name in HARSH:
        HARSH[name](proxy)
        reason = await lost(edge, "node_disconnected", edge_lines)
        if name == "half-open":
            noticed(reason, "edge")
            noticed(await lost(node, "edge_lost", node_lines), "node")
    elif name == "silence":
        proxy.weather = Weather(up_delay_s=2 * SILENCE_S)
        noticed(await lost(edge, "node_disconnected", edge_lines), "edge")
        since, proxy.weather = loop.time(), Weather()
    elif name == "refusing":
        proxy.refusing = True
        proxy.reset()
        await asyncio.to_thread(node.wait_event, "edge_unreachable", after=node_lines, timeout_s=RECOVERY_S)
        since, proxy.refusing = loop.time(), False
    elif name == "frozen node":
        node.signal(signal.SIGSTOP)
        noticed(await lost(edge, "node_disconnected", edge_lines), "edge")
        node.signal(signal.SIGCONT)
        since = loop.time()
    elif name == "frozen edge":
        edge.signal(signal.SIGSTOP)
        noticed(await lost(node, "edge_lost", node_lines), "node")
        edge.signal(signal.SIGCONT)
        since = loop.time()
    recovered_s = await load.served(since=since, timeout_s=RECOVERY_S, what=f"serving again after {name}")
    await load.served(SERVED_BETWEEN, timeout_s=RECOVERY_S, what=f"served after {name}")
    return recovered_s
