"""``python -m tests.oracle``: see the package. Exit code 1 if an answer through IOP was another than the direct one."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.oracle.stand import STANDS, replay, run, stand
from tests.oracle.visits import visit
from tests.support.aio import run as run_async


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("--exchanges", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--visit", type=int, default=None, help="the number of one visit, which is made alone")
    chosen = parser.parse_args()
    one = visit(chosen.visit, len(STANDS)) if chosen.visit is not None else None
    numbers = [one.stand] if one is not None else range(len(STANDS))
    seed = chosen.seed if chosen.seed is not None else random.SystemRandom().getrandbits(32)
    with ExitStack() as opened, tempfile.TemporaryDirectory(prefix="iop-oracle-") as folder:
        stands = {}
        for number in numbers:
            (at := Path(folder) / str(number)).mkdir()
            stands[number] = opened.enter_context(stand(at, number))
        if one is not None:
            told = run_async(replay(stands, one), timeout_s=120)
            print(told or "no difference")
            return int(bool(told))
        began_at = time.monotonic()
        report = run_async(run(stands, seed, chosen.exchanges), timeout_s=7200)
        passed_s = time.monotonic() - began_at
    print(
        f"seed {seed}: {report.exchanges} exchanges in {report.visits} visits, {report.body_bytes / 1e6:.0f} MB, "
        f"{passed_s:.0f} s, {len(report.differences)} differences"
    )
    for found in report.differences:
        print(found)
    return int(bool(report.differences))


if __name__ == "__main__":
    sys.exit(main())
