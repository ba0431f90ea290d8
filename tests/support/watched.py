"""Runs ``iop-edge`` or ``iop-node`` so that a test can ask how many tasks and objects it has.

    python -m tests.support.watched iop-edge serve -c edge.yaml

On SIGUSR2 the program writes one line to stderr: ``{"event": "watched", "tasks": …, "objects": …}``. Before that it
forgets the requests in its trace, which keeps thousands of objects, has bounds of its own, and is empty at the start.
Nothing else about it differs, so growth that a test sees is growth of the program itself.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import signal
import sys
from types import FrameType

from iop.edge.requests.trace import Trace

ROOMS = {"iop-edge": "iop.cli.edge", "iop-node": "iop.cli.node"}


TRACES: list[Trace] = []


def watch_traces() -> None:
    """Know each trace that is made: objects from before an edge serves are frozen, and the collector lists them not."""
    begin = Trace.__init__

    def known(self: Trace) -> None:
        begin(self)
        TRACES.append(self)

    setattr(Trace, "__init__", known)  # noqa: B010


def tell(number: int, frame: FrameType | None) -> None:
    """Handlers run between two callbacks of the loop, in its thread."""
    for trace in TRACES:
        trace.clear()
    gc.collect()
    line = {"event": "watched", "tasks": len(asyncio.all_tasks()), "objects": len(gc.get_objects())}
    os.write(2, json.dumps(line).encode() + b"\n")


def main() -> None:
    watch_traces()
    signal.signal(signal.SIGUSR2, tell)
    program, *arguments = sys.argv[1:]
    sys.argv = [program, *arguments]
    sys.exit(importlib.import_module(ROOMS[program]).main(arguments))


if __name__ == "__main__":
    main()
