"""When a silent provider has stalled, and when that can be reported; the same for tunnels and runs (LIVE-3, LIVE-5).

    FIRST ──progress──▶ FLOWING
      └────silence─────────┴────silence──▶ CLAIMED ──probed, and closed or grace over──▶ REPORTED
    QUIET ──first byte──▶ FLOWING             ▲
      └──── its probes, or enough of them ────┘

A call begins in FIRST, or in QUIET: an answer that comes whole says nothing before it comes, so that its silence is no
evidence (LIVE-2b). Then the provider is probed at each interval, and the probes decide.

It owns no clock and no timer. The call brings the time now and then; an event of the answer costs no more than the
timestamp that its stream stores. A stall is claimed once. From then on the watchdog waits for two things that go on at
the same time: the provider's call closes, or takes longer than the grace; and a probe says how the provider is. Neither
lifts the claim (LIVE-7).
"""

from __future__ import annotations

from enum import StrEnum

from iop.execution.failure import ExecutionFailure, ProviderHealth, stalled
from iop.machine import Transitions

__all__ = ["INTERVALS", "STALL_MS", "Do", "Phase", "Watchdog"]

INTERVALS = 6  # of silence of an answer that comes whole; the last one ends it (LIVE-2b)
TWICE = 2  # running, a probe has to say that it knows nothing, or an engine that it is idle
STALL_MS = 300_000  # what 0 means on the wire (LIVE-1)


class Do(StrEnum):
    """What is to be done now: ``claim`` the stall that was just found, or ``probe`` the provider and tell
    :meth:`Watchdog.looked`."""

    CLAIM = "claim"
    PROBE = "probe"


class Phase(StrEnum):
    QUIET = "quiet"
    FIRST = "first"
    FLOWING = "flowing"
    CLAIMED = "claimed"
    REPORTED = "reported"


# By their bare names: looking a member up on its Enum class takes five times as long as a global.
QUIET, FIRST, FLOWING, CLAIMED, REPORTED = Phase


class Event(StrEnum):
    PROGRESS = "progress"
    SILENCE = "silence"
    KNOWN = "known"  # how the provider is, and whether the call has closed


TRANSITIONS = Transitions(
    "watchdog",
    (QUIET, FIRST),
    {
        (QUIET, Event.PROGRESS): FLOWING,
        (FIRST, Event.PROGRESS): FLOWING,
        (QUIET, Event.SILENCE): CLAIMED,
        (FIRST, Event.SILENCE): CLAIMED,
        (FLOWING, Event.SILENCE): CLAIMED,
        (CLAIMED, Event.KNOWN): REPORTED,
    },
)


class Watchdog:
    """See the module. ``stall_ms`` and ``first_ms`` are the request's, as they come on the wire: 0 is the default for
    the one, "the deadline alone" for the other, and None means that it is as long as the one (LIVE-1). ``whole``: the
    answer comes in one piece, unless ``first_ms`` says how long that may take. ``lingers``: the call is closed, and its
    engine may go on with it (TUN-5d)."""

    __slots__ = (
        "_busy",
        "_first_s",
        "_health",
        "_idles",
        "_in_grace",
        "_intervals",
        "_probed_at",
        "_probing",
        "_seq",
        "_stall_s",
        "_unknowns",
        "closed",
        "grace_over",
        "idle_s",
        "lingers",
        "phase",
    )

    def __init__(self, stall_ms: int, first_ms: int | None, *, whole: bool = False) -> None:
        self._stall_s = (stall_ms or STALL_MS) / 1000
        self._first_s = self._stall_s if first_ms is None else first_ms / 1000 or None
        self.phase = QUIET if whole and first_ms is None else FIRST
        self._intervals = self._unknowns = self._idles = 0  # of a quiet call
        self._probed_at = 0.0
        self._probing = False
        self._busy = False
        self.lingers = False
        self.idle_s = 0.0
        self.closed = False
        self.grace_over = False
        self._in_grace = False
        self._health: ProviderHealth | None = None
        self._seq = 0

    def look(self, now: float, since: float, *, progressed: bool, held: bool) -> float | Do:
        """What is to be done, each time once; else when to look again, at the latest.

        ``since``: the last progress, or when the provider had the request; time that does not count has moved it on.
        ``progressed``: whether there was any progress; of a quiet call, whether a byte of its answer's body has come.
        ``held``: it is we who hold the provider up just now, for lack of credit or because the rest of the request has
        not come (LIVE-4).
        """
        if self.phase is QUIET and not progressed:
            return self._look_quietly(now, since, held)
        if progressed and self.phase in (QUIET, FIRST):
            self._move(Event.PROGRESS)
        first = self.phase is FIRST
        limit_s = self._first_s if first else self._stall_s
        if held:
            return now
        if limit_s is None:
            return now + self._stall_s  # progress may come at once, and the other clock begin
        left_s = since + limit_s - now
        if left_s > 0:
            return now + (min(left_s, self._stall_s) if first else left_s)
        self._claim(now, since)
        return Do.CLAIM

    def _look_quietly(self, now: float, since: float, held: bool) -> float | Do:
        if held or self._probing:
            return now
        left_s = max(since, self._probed_at) + self._stall_s - now
        if left_s > 0:
            return now + left_s
        self._intervals += 1
        if self._intervals == INTERVALS:
            self._claim(now, since)
            return Do.CLAIM
        self._probing, self._probed_at = True, now
        return Do.PROBE

    def looked(self, now: float, since: float, health: ProviderHealth, *, idle: bool, progressed: bool) -> bool:
        """What the probe of a quiet call has found; ``idle``: its engine runs nothing. True if the call has stalled:
        of a provider that is unavailable this probe is the evidence (:meth:`probed`), else another one is to be made as
        for any stall."""
        self._probing = False
        if self.phase is not QUIET or progressed:
            return False
        self._unknowns = self._unknowns + 1 if health is ProviderHealth.UNKNOWN else 0
        self._idles = self._idles + 1 if idle else 0
        if health is not ProviderHealth.UNAVAILABLE and self._unknowns < TWICE and self._idles < TWICE:
            return False
        self._claim(now, since)
        return True

    def slept(self, lost_s: float) -> None:
        """The node did not run for so long."""
        self._probed_at += lost_s

    def _claim(self, now: float, since: float) -> None:
        self._move(Event.SILENCE)
        self.idle_s = now - since

    # ---- after the claim; each says whether the report is due now, which is said once --------------------------------

    def call_closed(self) -> bool:
        """The provider's call has really ended."""
        self.closed = True
        self._in_grace = not self.grace_over
        return self._due()

    def grace_ended(self) -> bool:
        """The provider's call was given its time to close."""
        self.grace_over = True
        return self._due()

    def probed(self, health: ProviderHealth, seq: int, *, busy: bool = False) -> bool:
        """What the probe found, and its number among this connection's observations: 0 where none is bound (LIVE-8).
        ``busy``: the engine runs more than the node has calls open there. Only the first finding counts."""
        if self._health is None:
            self._health, self._seq, self._busy = health, seq, busy
        return self._due()

    @property
    def awaits_probe(self) -> bool:
        """Whether a claim has yet to hear of its probe."""
        return self.phase is CLAIMED and self._health is None

    def _due(self) -> bool:
        if self.phase is not CLAIMED or self._health is None or not (self.closed or self.grace_over):
            return False
        self._move(Event.KNOWN)
        return True

    def failure(self) -> ExecutionFailure:
        """What to report (LIVE-6). Retryable only if the call was seen to close within the grace, whatever the probe
        said."""
        return stalled(
            self._health or ProviderHealth.UNKNOWN,
            seq=self._seq,
            idle_ms=int(self.idle_s * 1000),
            close_confirmed=self.closed,
            retryable=self._in_grace,
            engine_lingers=self.lingers,
            engine_busy=self._busy,
        )

    def _move(self, event: Event) -> None:
        self.phase = TRANSITIONS[self.phase, event]
