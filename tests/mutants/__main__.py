"""``make mutants``: plants known bugs, one at a time, in a copy of this tree. The simulation or a test must notice.

    python -m tests.mutants            all of mutants.toml but the slow ones
    python -m tests.mutants --all      the slow ones, too
    python -m tests.mutants NAME …     some of them

The copy takes the kernels as they are built. A bug in a kernel rebuilds them in the copy, once with and once without
the bug. Exit code 1 if one survives, or does not apply any more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.catalog import ROOT, Mutant, read_mutants

SIMULATION = ["-m", "tests.simulation", "--seeds", "12", "--lifecycles", "1000", "--stop"]
BUILD = ["setup.py", "-q", "build_ext", "--inplace"]
SIMULATION_S = 180.0
TESTS_S = 300.0
BUILD_S = 600.0
PARTS = ("src", "tests", "docs", "configs", "proto", "pyproject.toml", "setup.py", "README.md", "LICENSE")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="of mutants; all but the slow ones when absent")
    parser.add_argument("--all", action="store_true", help="the slow ones, too")
    arguments = parser.parse_args()
    names = arguments.names
    mutants = read_mutants()
    unknown = sorted(set(names) - {mutant.name for mutant in mutants})
    if unknown:
        parser.error(f"there is no mutant {', '.join(unknown)}")
    chosen = [m for m in mutants if (m.name in names if names else arguments.all or not m.slow)]
    with tempfile.TemporaryDirectory(prefix="iop-mutants-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        if any(m.simulated for m in chosen) and (fault := _run(tree, SIMULATION, SIMULATION_S)) is not None:
            print(f"the simulation fails without any mutant:\n{fault}")
            return 1
        survived = [mutant.name for mutant in chosen if not _killed(mutant, tree)]
    print(f"{len(chosen) - len(survived)} of {len(chosen)} mutants killed")
    if survived:
        print(f"not killed: {', '.join(survived)}")
    return int(bool(survived))


def copy_tree(to: Path) -> None:
    """The present sources and built kernels; edits that are not committed are part of it."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, to / part, ignore=shutil.ignore_patterns("__pycache__", "*.c", "*.egg-info"))
        else:
            shutil.copy(source, to / part)


def _killed(mutant: Mutant, tree: Path) -> bool:
    path = tree / mutant.file
    before = path.read_text(encoding="utf-8")
    started_at = time.monotonic()
    try:
        path.write_text(mutant.applied(before), encoding="utf-8")
    except ValueError as exc:
        print(f"BROKEN    {mutant.name}: {exc}", flush=True)
        return False
    try:
        if mutant.native and (fault := _run(tree, BUILD, BUILD_S)) is not None:
            print(f"BROKEN    {mutant.name}: it does not compile: {fault}", flush=True)
            return False
        fault = _run(tree, SIMULATION, SIMULATION_S) if mutant.simulated else None
        by = "simulation"
        if fault is None:
            by = "tests"
            fault = _run(tree, ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.tests], TESTS_S)
    finally:
        path.write_text(before, encoding="utf-8")
        if mutant.native and (failure := _run(tree, BUILD, BUILD_S)) is not None:
            raise RuntimeError(f"the kernels do not compile without the mutant: {failure}")
    passed_s = time.monotonic() - started_at
    if fault is None:
        print(f"SURVIVED  {mutant.name} ({passed_s:.0f} s): {mutant.bug}", flush=True)
        return False
    print(f"killed    {mutant.name} by the {by} ({passed_s:.0f} s): {fault}", flush=True)
    return True


def _run(tree: Path, command: list[str], limit_s: float) -> str | None:
    """Runs Python in the copy. What it says about a failure, in a line; None if there is none."""
    env = os.environ | {"PYTHONPATH": f"{tree / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=tree,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return f"it does not end within {limit_s:.0f} s"
    if process.returncode == 0:
        return None
    telling = [line for line in output.splitlines() if line.startswith(("seed ", "E  ", "FAILED", "ERROR"))]
    return (telling or output.splitlines() or ["?"])[0][:200]


if __name__ == "__main__":
    sys.exit(main())
