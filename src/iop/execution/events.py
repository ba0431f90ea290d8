"""The events of a normalized run, and which of them count as activity (EXEC-1, LIVE-2)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from iop.execution.failure import ExecutionFailure
from iop.execution.usage import Usage

__all__ = ["TERMINAL_KINDS", "Activity", "RunEvent", "RunEventKind", "activity_of"]


class RunEventKind(enum.StrEnum):
    START = "start"
    DELTA = "delta"
    REASONING_DELTA = "reasoning_delta"
    TOOL_CALL_DELTA = "tool_call_delta"
    USAGE = "usage"
    COMPLETE = "complete"
    ERROR = "error"
    CANCELLED = "cancelled"


TERMINAL_KINDS = frozenset({RunEventKind.COMPLETE, RunEventKind.ERROR, RunEventKind.CANCELLED})


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run. ``text`` is what a delta adds (argument text for a tool call); ``usage`` may come on its own
    or with the terminal; ``failure`` comes with ``error`` and ``cancelled``. Text is the provider's, hence bytes."""

    kind: RunEventKind
    text: bytes = b""
    tool_index: int = 0
    tool_call_id: bytes = b""
    tool_name: bytes = b""
    usage: Usage | None = None
    failure: ExecutionFailure | None = None
    finish_reason: bytes = b""

    @property
    def terminal(self) -> bool:
        return self.kind in TERMINAL_KINDS


class Activity(enum.StrEnum):
    """What an event means to the stall watchdog: only progress resets it (LIVE-3)."""

    NONE = "none"
    PROGRESS = "progress"
    TERMINAL = "terminal"


def activity_of(event: RunEvent) -> Activity:
    """LIVE-2 for normalized runs: a terminal is terminal whatever it carries; start and usage are progress; a delta is
    if it adds something (the first piece of a tool call may carry only an id or a name)."""
    if event.kind in TERMINAL_KINDS:
        return Activity.TERMINAL
    if event.kind in {RunEventKind.START, RunEventKind.USAGE}:
        return Activity.PROGRESS
    return Activity.PROGRESS if event.text or event.tool_call_id or event.tool_name else Activity.NONE
