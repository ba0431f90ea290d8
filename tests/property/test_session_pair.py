"""Edge and node sessions joined by transports that do whatever a network may do (WIRE-4 … WIRE-7).

A failing seed is printed; ``IOP_SIM_SEED=n`` replays it alone, ``IOP_SIM_SEEDS`` sets how many each plan runs.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.support.pair import Plan, World

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
