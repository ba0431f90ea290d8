"""One timer for all clocks of all requests: a wheel with a coarse tick.

A request carries half a dozen clocks (queue, deadline, idle, keepalive ...) and nearly always ends before any of them
fires. ``loop.call_later`` and cancel cost 1.7 µs each time; here arming and cancelling are one dict operation each. A
cancelled timer is forgotten at once: at thousands of requests a second, those of the last turn would be 100 000 objects
for the garbage collector to walk.

A timer fires at the first tick at or after its instant: never early, at most one tick late.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["TICK_S", "Timer", "Wheel"]

TICK_S = 0.05
_SLOTS = 512  # 25.6 s in one turn; longer timers stay in their slot for further turns


class Timer:
    """One armed clock. ``cancel`` is idempotent and allowed at any time, from a callback too."""

    __slots__ = ("_slot", "at", "callback")

    def __init__(self, at: float, callback: Callable[[], None], slot: dict[Timer, None]) -> None:
        self.at = at
        self.callback: Callable[[], None] | None = callback
        self._slot = slot

    def cancel(self) -> None:
        self.callback = None
        self._slot.pop(self, None)


class Wheel:
    """Sans-IO: ``advance(now)`` runs what is due. ``every(callback)`` hears each tick."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._slots: list[dict[Timer, None]] = [{} for _ in range(_SLOTS)]
        self._start = now
        self._tick = 0  # ticks done since _start
        self._every: list[Callable[[float], None]] = []

    def arm(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Calls ``callback`` once, ``delay_s`` seconds from ``now`` (the last tick's time), unless cancelled."""
        at = self.now + delay_s
        tick = int((at - self._start) / TICK_S) + 1
        if tick <= self._tick:
            tick = self._tick + 1
        slot = self._slots[tick % _SLOTS]
        timer = Timer(at, callback, slot)
        slot[timer] = None
        return timer

    def every(self, callback: Callable[[float], None]) -> None:
        """Calls ``callback(now)`` at each tick, for ever."""
        self._every.append(callback)

    def advance(self, now: float) -> None:
        """Moves time forward and runs what fell due; a callback that raises does not keep the others from running,
        the first exception is raised at the end."""
        if now < self.now:
            return
        self.now = now
        failure: Exception | None = None
        last = int((now - self._start) / TICK_S)
        # After a long pause one turn visits every slot; more would find nothing new.
        for tick in range(max(self._tick + 1, last - _SLOTS + 1), last + 1):
            slot = self._slots[tick % _SLOTS]
            if not slot:
                continue
            self._tick = tick
            for timer in list(slot):
                callback = timer.callback
                if callback is None or timer.at > now:
                    continue  # cancelled by one before it, or due in a later turn
                del slot[timer]
                timer.callback = None
                try:
                    callback()
                except Exception as exc:
                    failure = failure or exc
        self._tick = max(self._tick, last)
        for tick_callback in self._every:
            try:
                tick_callback(now)
            except Exception as exc:
                failure = failure or exc
        if failure is not None:
            raise failure
