"""The whole system under seeded schedules of everything that may go wrong (ADVERSARIAL family E)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter, deque
from pathlib import Path

import pytest

from iop.pool.queue import Queue
from tests.simulation.runner import replay_command, simulate
from tests.simulation.world import MUST_SEE

SEEDS, LIFECYCLES = 40, 500


@pytest.mark.req("REG-2", "REG-5", "POOL-4", "POOL-5", "POOL-7", "POOL-8", "POOL-12", "EXEC-3", "EXEC-7", "TUN-1")
def test_e10_any_schedule_of_faults() -> None:
    seen: Counter[str] = Counter()
    lifecycles = 0
    for seed in range(1, SEEDS + 1):
        result = simulate(seed, LIFECYCLES)
        assert not result.violation, f"seed {seed}: {result.violation}\n{replay_command(seed, LIFECYCLES)}"
        seen += result.seen
        lifecycles += result.lifecycles
    assert lifecycles >= 20_000
    assert [name for name in MUST_SEE if not seen[name]] == [], "a fault that never happens proves nothing"


def test_a_seed_means_one_thing_only() -> None:
    traces = []
    for _ in range(2):
        lines: deque[str] = deque()
        simulate(7, 200, lines)
        traces.append([re.sub("req_[0-9a-f]+", "req", line) for line in lines])
    assert traces[0] == traces[1]
    assert len(traces[0]) > 500


def test_a_violation_is_told_with_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Queue, "expire", lambda self, now: [])
    result = next(result for seed in range(1, 20) if (result := simulate(seed, LIFECYCLES)).violation)
    assert "waits for ever" in result.violation
    assert f"--seed {result.seed} --lifecycles 500 --trace" in replay_command(result.seed, LIFECYCLES)


def test_the_program_tells_what_happened() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "2", "--lifecycles", "50", "--jobs", "1"]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[2]
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"^2 seeds, \d+ lifecycles, \d+ steps, .* 0 violations$", run.stdout, re.MULTILINE)
    assert re.search(r"^ +\d+  refresh$", run.stdout, re.MULTILINE)
