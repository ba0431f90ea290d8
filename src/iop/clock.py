"""Time as a value that is passed in.

Machines never read a clock; whoever drives them does, once per event, and hands the instant over. Instants (``_at``)
are seconds as floats on one monotonic scale whose zero means nothing.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Anything that tells the time: the real clock, or a test's."""

    def __call__(self) -> float:
        """Seconds on a monotonic scale."""


monotonic: Clock = time.monotonic


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self.now += seconds
        return self.now
