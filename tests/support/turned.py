"""Runs ``iop-edge`` so that a test can ask how long the longest turn of its loop was.

    python -m tests.support.turned iop-edge serve -c edge.yaml

On SIGUSR2 the program writes one line to stderr: ``{"event": "turned", "longest_ms": …}``, of the time since the last
one. A timer of a millisecond looks at the CPU time of the loop's thread: what it finds between two looks is one turn
and less than a millisecond more. CPU time, since a machine that has something else to do makes no turn longer.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from types import FrameType

from iop.net.loop import Runtime

ROOMS = {"iop-edge": "iop.cli.edge", "iop-node": "iop.cli.node"}
LOOK_S = 0.001


class Turns:
    longest_s = 0.0


def watch(runtime: Runtime) -> None:
    last = time.thread_time()

    def look() -> None:
        nonlocal last
        now = time.thread_time()
        Turns.longest_s = max(Turns.longest_s, now - last)
        last = now
        runtime.loop.call_later(LOOK_S, look)

    look()


def tell(number: int, frame: FrameType | None) -> None:
    line = {"event": "turned", "longest_ms": round(Turns.longest_s * 1000, 2)}
    Turns.longest_s = 0.0
    os.write(2, json.dumps(line).encode() + b"\n")


def main() -> None:
    signal.signal(signal.SIGUSR2, tell)
    program, *arguments = sys.argv[1:]
    sys.argv = [program, *arguments]
    start = Runtime.start

    def start_watched(self: Runtime) -> None:
        start(self)
        watch(self)

    Runtime.start = start_watched  # type: ignore[method-assign]
    sys.exit(importlib.import_module(ROOMS[program]).main(arguments))


if __name__ == "__main__":
    main()
