"""Fuzzes requests for so many seconds: ``python -m tests.fuzz --seconds 600``; ``make fuzz`` does it under ASan.

Prints the seed and the number of inputs as it goes. A failure ends it with the input, which belongs into the corpus.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.fuzz.fuzzer import fuzz
from tests.fuzz.pipeline import SEEDS, TOKENS, requests

TOLD_EVERY_S = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="default: another one each time")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    begun = time.monotonic()
    told, total = begun, 0
    while (now := time.monotonic()) - begun < options.seconds:
        total += fuzz(requests, SEEDS, TOKENS, seed)
        seed += 1
        if now - told >= TOLD_EVERY_S:
            told = now
            print(f"{now - begun:.0f} s: {total} inputs, each whole and in pieces; next seed {seed}", flush=True)
    print(f"{total} inputs in {time.monotonic() - begun:.0f} s, {2 * total} executions, no fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())
