"""Runs ``iop-edge`` or ``iop-node`` so that a test can ask how many tasks and objects it has.

    python -m tests.support.watched iop-edge serve -c edge.yaml

On SIGUSR2 the program writes one line to stderr: ``{"event": "watched", "tasks": …, "objects": …}``. Nothing else
about it differs, so growth that a test sees is growth of the program itself.
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

ROOMS = {"iop-edge": "iop.cli.edge", "iop-node": "iop.cli.node"}


def tell(number: int, frame: FrameType | None) -> None:
    """Handlers run between two callbacks of the loop, in its thread."""
    gc.collect()
    line = {"event": "watched", "tasks": len(asyncio.all_tasks()), "objects": len(gc.get_objects())}
    os.write(2, json.dumps(line).encode() + b"\n")


def main() -> None:
    signal.signal(signal.SIGUSR2, tell)
    program, *arguments = sys.argv[1:]
    sys.argv = [program, *arguments]
    sys.exit(importlib.import_module(ROOMS[program]).main(arguments))


if __name__ == "__main__":
    main()
