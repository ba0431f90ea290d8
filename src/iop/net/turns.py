"""Work that is too long for one turn of the loop, shared out: a step of each in turn, and some milliseconds a turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

__all__ = ["Turns"]

TURN_S = 0.002  # after which no step is begun; a step is to be shorter than that


class Turns:
    """Call what was added, round-robin, until it returns False. However much was added, the loop gets back to its
    sockets after one step beyond :data:`TURN_S`."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._waiting: deque[Callable[[], bool]] = deque()

    def add(self, step: Callable[[], bool]) -> None:
        """Take in ``step``, which does a bounded part of its work and says whether there is more.

        One that raises is not called again; its exception ends the turn, and so goes to the loop's exception handler.
        The others go on in the next turn.
        """
        self._waiting.append(step)
        if len(self._waiting) == 1:
            self._call_soon(self._turn)

    def _turn(self) -> None:
        waiting = self._waiting
        ends_at = self._clock() + TURN_S
        try:
            while True:
                more = False
                try:
                    more = waiting[0]()
                finally:
                    step = waiting.popleft()  # only now: whatever the step adds finds that a turn is due
                    if more:
                        waiting.append(step)
                if not waiting or self._clock() >= ends_at:
                    return
        finally:
            if waiting:
                self._call_soon(self._turn)
