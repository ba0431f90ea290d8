"""One seed, run to its end: what it came to, and how to run it again."""

from __future__ import annotations

import logging
import sys
from collections import Counter, deque
from dataclasses import dataclass, field

from tests.simulation.world import World, listen_to_logs

__all__ = ["Result", "replay_command", "simulate"]


@dataclass
class Result:
    """What one seed came to."""

    seed: int
    lifecycles: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    violation: str = ""


def simulate(seed: int, lifecycles: int, trace: deque[str] | None = None) -> Result:
    """Runs one world; a violation, or anything else that is raised, is in the result."""
    undo = listen_to_logs(logging.ERROR if trace is None else logging.INFO)
    world = World(seed, lifecycles, trace=None if trace is None else trace.append)
    try:
        world.run()
        violation = ""
    except Exception as exc:
        violation = str(exc) or type(exc).__name__
    finally:
        undo()
    steps, passed = world.kernel.steps, world.kernel.now - 1000
    return Result(seed, world.done, steps, passed, world.seen, world.outcomes, violation)


def replay_command(seed: int, lifecycles: int) -> str:
    return f"{sys.executable} -m tests.simulation --seed {seed} --lifecycles {lifecycles} --trace"
