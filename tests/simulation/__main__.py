"""``make sim``: many seeds over all cores, with progress and a summary; or one seed again, with its trace.

python -m tests.simulation --seeds 1000 --lifecycles 1000
python -m tests.simulation --seed 17 --lifecycles 1000 --trace
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.runner import Result, replay_command, simulate
from tests.simulation.world import MUST_SEE

TRACE_LINES = 2000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--lifecycles", type=int, default=1000, help="requests per seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--stop", action="store_true", help="at the first violation")
    parser.add_argument("--seed", type=int, help="this one alone, in this process")
    parser.add_argument("--trace", action="store_true", help=f"with --seed: print its last {TRACE_LINES} events")
    args = parser.parse_args()
    if args.seed is not None:
        return _one(args.seed, args.lifecycles, args.trace)
    return _many(range(args.first, args.first + args.seeds), args.lifecycles, args.jobs, stop=args.stop)


def _one(seed: int, lifecycles: int, trace: bool) -> int:
    lines: deque[str] | None = deque(maxlen=TRACE_LINES) if trace else None
    result = simulate(seed, lifecycles, lines)
    for line in lines or ():
        print(line)
    _summary([result])
    if result.violation:
        print(f"\nseed {seed}: {result.violation}")
    return int(bool(result.violation))


def _many(seeds: range, lifecycles: int, jobs: int, *, stop: bool) -> int:
    started_at = told_at = time.monotonic()
    results: list[Result] = []
    with ProcessPoolExecutor(min(jobs, len(seeds)), multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(simulate, seed, lifecycles) for seed in seeds]):
            results.append(result := future.result())
            if result.violation:
                print(
                    f"seed {result.seed}: {result.violation}\n  {replay_command(result.seed, lifecycles)}", flush=True
                )
                if stop:
                    pool.shutdown(wait=False, cancel_futures=True)
                    return 1
            now = time.monotonic()
            if now - told_at >= 10:
                told_at = now
                done = sum(r.lifecycles for r in results)
                rate = done / (now - started_at)
                print(f"{len(results)} of {len(seeds)} seeds, {done} lifecycles, {rate:.0f} per second", flush=True)
    _summary(results)
    lacking = [] if len(seeds) < 20 else [name for name in MUST_SEE if not any(r.seen[name] for r in results)]
    if lacking:
        print(f"never seen: {', '.join(lacking)}")
    print(f"took {time.monotonic() - started_at:.0f} s")
    return int(bool(lacking) or any(r.violation for r in results))


def _summary(results: list[Result]) -> None:
    seen: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for result in results:
        seen += result.seen
        outcomes += result.outcomes
    print("\nwhat happened")
    for name in sorted(set(seen) | set(MUST_SEE)):
        print(f"  {seen[name]:>9}  {name}")
    print("what became of the requests")
    for name, count in outcomes.most_common():
        print(f"  {count:>9}  {name}")
    print(
        f"{len(results)} seeds, {sum(r.lifecycles for r in results)} lifecycles, {sum(r.steps for r in results)} steps,"
        f" {sum(r.virtual_s for r in results) / 3600:.1f} hours of virtual time,"
        f" {sum(bool(r.violation) for r in results)} violations"
    )


if __name__ == "__main__":
    sys.exit(main())
