"""The load test as it is run: a small load goes through without a fault, and its processes end with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.aio import run, until
from tests.support.programs import Program

ROOT = Path(__file__).parents[2]


def load(*arguments: str) -> Program:
    return Program([sys.executable, "benchmarks/tunnel_load.py", *arguments], cwd=ROOT)


def measured(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    out = tmp_path / "out.json"
    with load(*arguments, "--json", str(out)) as program:
        assert program.wait(timeout_s=60) == 0, (program.lines, program.output)
    assert "errors: none" in program.output
    result = json.loads(out.read_text())
    assert result["errors"] == {}
    assert set(result["through"]["cpu_us_per_event"]) == {"edge", "node", "provider", "client"}
    assert all(value > 0 for value in result["through"]["cpu_us_per_event"].values())
    return dict(result)


def test_streams_go_through_whole_and_in_order(tmp_path: Path) -> None:
    result = measured(tmp_path, "--streams", "20", "--seconds", "1", "--rate", "20")
    through = result["through"]
    assert through["open"] == 20
    assert through["provider"] == {"skipped": 0, "aborted": 0, "late_ms": through["provider"]["late_ms"]}
    assert through["events"] > 200
    assert 0 < through["latency_ms"]["p50"] <= through["latency_ms"]["p99"] <= through["latency_ms"]["max"]
    assert result["outcomes"] == {"ok": 10 + 20}  # the warm-up's and the test's


def test_whole_answers_go_through(tmp_path: Path) -> None:
    result = measured(tmp_path, "--non-stream", "--streams", "4", "--seconds", "0.5")
    assert result["through"]["events"] > 20
    assert set(result["outcomes"]) == {"ok"}


def processes(word: str) -> dict[int, int]:
    """Processes whose command line has this word, with their parents."""
    listed = subprocess.run(["ps", "-axwwo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return {int(pid): int(parent) for pid, parent, arguments in rows if word in arguments}


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_its_processes_end_with_it(how: str) -> None:
    with load("--streams", "2", "--seconds", "60", "--rate", "5") as program:
        program.wait_line(lambda line: "direct: 2 open" in line.get("text", ""), timeout_s=40)
        mine = {pid for pid, parent in processes("python").items() if parent == program.pid}
        assert len(mine) == 4
        getattr(program.process, how)()
        program.process.wait()
        run(until(lambda: not mine & processes("python").keys(), timeout_s=20), leaks=False)
