"""Edge and node sessions joined by transports that do whatever a network may do (WIRE-4 … WIRE-7).

A failing seed is printed; ``IOP_SIM_SEED=n`` replays it alone, ``IOP_SIM_SEEDS`` sets how many each plan runs.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from iop.wire import limits
from iop.wire.session import State
from tests.support.pair import World
from tests.support.traffic import Plan

SEEDS = int(os.environ.get("IOP_SIM_SEEDS", "80"))
ONLY = os.environ.get("IOP_SIM_SEED")

PLANS = {
    "calm": Plan(streams=4, leaves=0.2),
    "busy": Plan(streams=12, link_bytes=20_000, windows=(262144,), answer_bytes=600_000, request_bytes=600_000),
    "stalls": Plan(streams=6, stalls=True),
    "breaks": Plan(breaks=0.1),
}
# What the seeds of a plan, together, must have come across: otherwise they prove nothing.
MUST_SEE = {
    "calm": {"END", "ERROR", "late frames", "cancel came too late", "source paused"},
    "busy": {"END", "ERROR", "link paused", "withdrawn", "congested steps", "blocked steps", "opened while congested"},
    "stalls": {"END", "source paused"},
    "breaks": {"END", "lost", "reset"},
}


def simulate(seed: int, plan: Plan, steps: int = 500) -> World:
    world = World(seed, plan)
    try:
        world.run(steps)
        world.settle()
        if not plan.breaks:
            assert not world.broken, (world.edge_side.reason, world.node_side.reason)
    except BaseException as error:
        error.add_note(f"replay with IOP_SIM_SEED={seed}")
        raise
    return world


@pytest.mark.req("WIRE-4", "WIRE-5", "WIRE-6")
@pytest.mark.parametrize("name", PLANS)
def test_any_schedule(name: str) -> None:
    seen: Counter[str] = Counter()
    for seed in [int(ONLY)] if ONLY is not None else range(SEEDS):
        seen += simulate(seed, PLANS[name]).seen
    if ONLY is None and SEEDS >= 80:
        assert MUST_SEE[name] <= seen.keys(), seen


@pytest.mark.req("WIRE-7")
@pytest.mark.parametrize("seed", range(10))
def test_a_cut_that_nobody_is_told_of(seed: int) -> None:
    """Power loss: no byte moves and no socket fails. Both ends notice 45 s after the last frame, not sooner."""
    world = World(seed, PLANS["busy"])
    world.run(200)
    world.cut = True
    cut_at = world.now
    ends: dict[str, float] = {}
    while len(ends) < 2:
        world.now += 0.25
        for name, session, side in (("edge", world.edge, world.edge_side), ("node", world.node, world.node_side)):
            session.tick(world.now)
            if side.reason:
                ends.setdefault(name, world.now)
        assert world.now - cut_at < 60
    reasons = {side.reason.partition(":")[0] for side in (world.edge_side, world.node_side)}
    assert reasons <= {"heartbeat_timeout", "write_stalled"}
    assert all(44 <= at - cut_at <= 46 for at in ends.values()), ends
    world.lose()
    world.check_quiet()


@pytest.mark.req("WIRE-5", "WIRE-6", "WIRE-7")
def test_e6_200_streams_through_a_slow_link_to_clients_that_do_not_read() -> None:
    """4 MB/s. Heartbeats are answered on time, one healthy stream is served, memory stays at the windows."""
    step_s, bytes_per_step = 0.01, 40_000
    timing = limits.Timing(heartbeat_interval_s=0.25, response_wait_s=1.0, write_stall_s=1.0)
    world = World(1, Plan(streams=200, windows=(262144,), answer_bytes=900_000, leaves=0), timing)

    def step() -> None:
        world.now += step_s
        for pipe, to in ((world.down, world.node), (world.up, world.edge)):
            pipe.leave(bytes_per_step)
            pipe.arrive(len(pipe.wire), to)
        for call in list(world.calls):
            call.produce(65536)
        for ready in (world.edge_ready, world.node_ready):
            world.round(ready)
        world.edge.tick(world.now)
        world.node.tick(world.now)
        assert not world.broken, (world.edge_side.reason, world.node_side.reason)
        world.validate()

    while world.edge.state is not State.READY:
        step()
    for _ in range(200):
        world.open_stream()
    healthy = max(world.live, key=lambda request: (request.dies_at < 0, len(request.answer)))
    waits, sent_at, acks = [], 0.0, 0
    progress, quiet_s = 0, 0.0
    for _ in range(2000):
        if not sent_at:
            sent_at, acks = world.now, world.edge.mux.last_ack
            world.edge.probe()
        step()
        if world.edge.mux.last_ack != acks:
            waits.append(world.now - sent_at)
            sent_at = 0.0
        healthy.client.read(1 << 20)
        if healthy.terminal:
            break
        quiet_s = 0.0 if healthy.delivered != progress else quiet_s + step_s
        progress = healthy.delivered
        assert quiet_s < 2.0, "the healthy stream starves"
    assert healthy.finished
    assert len(waits) > 20
    assert max(waits) <= 0.2, "a heartbeat waited behind bulk"
    assert world.edge_hub.buffered_bytes <= 200 * 262144
    assert max(len(world.up.buffer), len(world.down.buffer)) <= 256 * 1024
    world.settle()
