"""When a silent provider has stalled, and when that can be reported; the same for tunnels and runs (LIVE-3, LIVE-5).

    FIRST ──progress──▶ FLOWING
      └────silence─────────┴────silence──▶ CLAIMED ──probed, and closed or grace over──▶ REPORTED

It owns no clock and no timer. Whoever looks after the call brings the time now and then; an event of the answer costs
no more than the timestamp that its stream stores. A stall is claimed once. From then on the watchdog waits for two
things that go on at the same time: the provider's call closes, or takes longer than the grace; and a probe says how the
provider is. Neither lifts the claim (LIVE-7).
"""

from __future__ import annotations

from enum import StrEnum

from iop.errors import InvalidTransition
from iop.execution.failure import ExecutionFailure, ProviderHealth, stalled

__all__ = ["STALL_MS", "Phase", "Watchdog"]

STALL_MS = 300_000  # what 0 means on the wire (LIVE-1)


class Phase(StrEnum):
    FIRST = "first"
    FLOWING = "flowing"
    CLAIMED = "claimed"
    REPORTED = "reported"


# By their bare names: looking a member up on its Enum class takes five times as long as a global.
FIRST, FLOWING, CLAIMED, REPORTED = Phase

TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    FIRST: frozenset({FLOWING, CLAIMED}),
    FLOWING: frozenset({CLAIMED}),
    CLAIMED: frozenset({REPORTED}),
    REPORTED: frozenset(),
}


class Watchdog:
    """See the module. ``stall_ms`` and ``first_ms`` are the request's, as they come on the wire: 0 is the default for
    the one, "the deadline alone" for the other, and None means that it is as long as the one (LIVE-1)."""

    __slots__ = ("_first_s", "_health", "_in_grace", "_seq", "_stall_s", "closed", "grace_over", "idle_s", "phase")

    def __init__(self, stall_ms: int, first_ms: int | None) -> None:
        self._stall_s = (stall_ms or STALL_MS) / 1000
        self._first_s = self._stall_s if first_ms is None else first_ms / 1000 or None
        self.phase = FIRST
        self.idle_s = 0.0
        self.closed = False
        self.grace_over = False
        self._in_grace = False
        self._health: ProviderHealth | None = None
        self._seq = 0

    def look(self, now: float, since: float, *, progressed: bool, held: bool) -> float | None:
        """None: the call has stalled, which is said once. Else when to look again, at the latest.

        ``since``: the last progress, or when the provider had the request; time that does not count has moved it on.
        ``progressed``: whether there was any progress. ``held``: it is we who hold the provider up just now, for lack
        of credit or because the rest of the request has not come (LIVE-4).
        """
        if progressed and self.phase is FIRST:
            self._move(FLOWING)
        first = self.phase is FIRST
        limit_s = self._first_s if first else self._stall_s
        if held:
            return now
        if limit_s is None:
            return now + self._stall_s  # progress may come at once, and the other clock begin
        left_s = since + limit_s - now
        if left_s > 0:
            return now + (min(left_s, self._stall_s) if first else left_s)
        self._move(CLAIMED)
        self.idle_s = now - since
        return None

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

    def probed(self, health: ProviderHealth, seq: int) -> bool:
        """The probe's word, and its number among this connection's observations: 0 where none is bound (LIVE-8)."""
        if self._health is None:
            self._health, self._seq = health, seq
        return self._due()

    def _due(self) -> bool:
        if self.phase is not CLAIMED or self._health is None or not (self.closed or self.grace_over):
            return False
        self._move(REPORTED)
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
        )

    def _move(self, to: Phase) -> None:
        if to not in TRANSITIONS[self.phase]:
            raise InvalidTransition(type(self).__name__, self.phase.value, to.value)
        self.phase = to
