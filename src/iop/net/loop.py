"""The event loop of both programs: uvloop, tuned for many long streams, and the runtime that hangs on it."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from iop._fast.out import Hub
from iop.net.wheel import TICK_S, Wheel

__all__ = ["Runtime", "raise_file_limit", "run"]

log = logging.getLogger("iop.net")

LISTEN_BACKLOG = 4096  # uvloop's default of 100 resets bursts of connections


class Runtime:
    """What hangs on one loop: the hub (one flush a poll round) and the wheel (all clocks).

    ``start`` and ``close`` are called by the owner of the loop; after ``close`` no tick runs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.hub = Hub(loop.call_soon, self._flush_failed)
        self.hub.now = loop.time()
        self.wheel = Wheel(loop.time())
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self.loop.call_later(TICK_S, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self.loop.call_later(TICK_S, self._tick)
        self.hub.now = now = self.loop.time()
        self.wheel.advance(now)

    def _flush_failed(self, exc: Exception) -> None:
        log.error("a socket could not be written: %s", type(exc).__name__)


def raise_file_limit() -> None:
    """Raises the soft limit of open files to the hard one: each stream takes one at the edge and one at the node."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if sys.platform == "darwin" and hard == resource.RLIM_INFINITY:
        hard = 24576  # above it setrlimit refuses, whatever the hard limit says
    if soft < hard or hard == resource.RLIM_INFINITY:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            log.warning("could not raise the limit of open files above %d", soft)


def run(main: Callable[[Runtime], Coroutine[Any, Any, int]]) -> int:
    """Runs ``main`` on a fresh uvloop and returns its exit code."""
    raise_file_limit()

    async def body() -> int:
        runtime = Runtime(asyncio.get_running_loop())
        runtime.start()
        try:
            return await main(runtime)
        finally:
            runtime.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # What start-up made lives for ever; a full collection over it costs milliseconds in the middle of a stream.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)
        return runner.run(body())


def on_signals(loop: asyncio.AbstractEventLoop, callback: Callable[[int], None], *, hangup: bool = False) -> None:
    """Calls ``callback(signum)`` for SIGTERM and SIGINT, and with ``hangup`` for SIGHUP, unless whoever started the
    program had it ignored, as nohup does."""
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, callback, signum)
    if hangup and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, callback, signal.SIGHUP)
