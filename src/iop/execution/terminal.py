"""The terminal rule: every run ends in exactly one terminal, and nothing follows it (EXEC-1, EXEC-2, TUN-1).

::

             start            complete | error | cancelled, or the adapter ended
    opened ─────────► started ─────────────────────────────────────────────────► ended
       │               ▲  │ delta, reasoning_delta, tool_call_delta, usage         │ anything: dropped, counted
       │               └──┘                                                        └─┘
       └────────────────────────── error | cancelled, or the adapter ended ──────► ended

An adapter that breaks the order (a delta before start, a second start, complete before start) is at fault: the run ends
in ``error`` with code ``internal``, never in something that looks complete.
"""

from __future__ import annotations

import enum

from iop.errors import AdapterNoTerminal, InternalError
from iop.execution.events import RunEvent, RunEventKind
from iop.execution.failure import failure_of
from iop.machine import Transitions

__all__ = ["TRANSITIONS", "RunState", "TerminalRule"]


class RunState(enum.StrEnum):
    OPENED = "opened"
    STARTED = "started"
    ENDED = "ended"


_K = RunEventKind
TRANSITIONS = Transitions(
    "run",
    (RunState.OPENED,),
    {
        (RunState.OPENED, _K.START): RunState.STARTED,
        (RunState.OPENED, _K.ERROR): RunState.ENDED,
        (RunState.OPENED, _K.CANCELLED): RunState.ENDED,
        (RunState.STARTED, _K.DELTA): RunState.STARTED,
        (RunState.STARTED, _K.REASONING_DELTA): RunState.STARTED,
        (RunState.STARTED, _K.TOOL_CALL_DELTA): RunState.STARTED,
        (RunState.STARTED, _K.USAGE): RunState.STARTED,
        (RunState.STARTED, _K.COMPLETE): RunState.ENDED,
        (RunState.STARTED, _K.ERROR): RunState.ENDED,
        (RunState.STARTED, _K.CANCELLED): RunState.ENDED,
    },
)


class TerminalRule:
    """Filters one run's events. ``dropped`` counts what came after the terminal."""

    __slots__ = ("dropped", "state")

    def __init__(self) -> None:
        self.state = RunState.OPENED
        self.dropped = 0

    @property
    def ended(self) -> bool:
        return self.state is RunState.ENDED

    def admit(self, event: RunEvent) -> RunEvent | None:
        """The event to emit for what the adapter said: itself, nothing, or the error that its fault ends the run in."""
        if self.ended:
            self.dropped += 1
            return None
        state = TRANSITIONS.get((self.state, event.kind))
        if state is None:
            fault = InternalError(f"the adapter sent {event.kind} while the run was {self.state}")
            event, state = RunEvent(RunEventKind.ERROR, failure=failure_of(fault)), RunState.ENDED
        self._enter(state)
        return event

    def close(self) -> RunEvent | None:
        """The adapter ended: the terminal that it owes, or None if it gave one (EXEC-2)."""
        if self.ended:
            return None
        self._enter(RunState.ENDED)
        return RunEvent(RunEventKind.ERROR, failure=failure_of(AdapterNoTerminal()))

    def _enter(self, state: RunState) -> None:
        self.state = state
