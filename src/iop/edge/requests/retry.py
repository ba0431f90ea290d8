"""Whether a request that failed before anything was shown is sent again (API-8).

The decision is pure. What speaks against it is looked at in one order, so that each refusal has one name. A request
without another attempt is told what its provider said, or how its first attempt failed, never that nobody was left.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from iop.errors import IopError
from iop.wire import messages as m

__all__ = [
    "ELIGIBLE",
    "REFUSED_STATUSES",
    "RETRIED_CODES",
    "RETRIED_STATUSES",
    "Decision",
    "Limits",
    "OwnAnswer",
    "Recovery",
    "decide",
]

#: A provider's answers behind which another provider may do better. Every other answer is passed on.
RETRIED_STATUSES = frozenset({429, 502, 503})

#: Of these, the ones with which a provider refuses a request. That request is not sent there again (HEALTH-9).
REFUSED_STATUSES = frozenset({429, 503})

#: Failures of an attempt behind which another may succeed, beside a stall, which has rules of its own. ``CANCELLED``
#: without our asking is a node that stops; a run whose answer was no completion is a ``PROVIDER_PROTOCOL_ERROR``, and
#: one whose answer ended early ``ADAPTER_NO_TERMINAL``. One that was refused with a status follows that status.
RETRIED_CODES = frozenset(
    {
        m.ErrorCode.PROVIDER_UNREACHABLE,
        m.ErrorCode.PROVIDER_CONNECTION_LOST,
        m.ErrorCode.PROVIDER_PROTOCOL_ERROR,
        m.ErrorCode.PROVIDER_TRUNCATED,
        m.ErrorCode.PROVIDER_REDIRECTED,
        m.ErrorCode.NODE_EXHAUSTED,
        m.ErrorCode.ADAPTER_NO_TERMINAL,
        m.ErrorCode.CANCELLED,
    }
)


class Decision(StrEnum):
    """``no_snapshot``: the client's body is no longer held, or too large to have been."""

    ELIGIBLE = "eligible"
    COMMITTED = "committed"
    CANCELLED = "cancelled"
    SIDE_EFFECTS = "side_effects"
    NO_SNAPSHOT = "no_snapshot"
    BUDGET = "budget"
    DEADLINE = "deadline"
    NOT_RETRYABLE = "not_retryable"
    NO_CANDIDATE = "no_candidate"


ELIGIBLE = Decision.ELIGIBLE  # a global is found five times as fast as a member of an Enum


@dataclass(frozen=True, slots=True)
class Limits:
    """``max_attempts`` re-admissions of one request over all causes; a body above ``max_body_bytes`` is not kept."""

    max_attempts: int = 2
    max_body_bytes: int = 8_388_608


@dataclass(frozen=True, slots=True)
class OwnAnswer:
    """A provider's whole answer that was held back: status, field lines for the client, body, and whether it is a plain
    event stream."""

    status: int
    block: bytes
    body: bytes
    event_stream: bool


class Recovery:
    """What a request remembers of its failed attempts, from the first of them on.

    If no attempt succeeds, the caller of a request is told ``answer``, the last answer of a provider, and without one
    ``error``, how the first attempt failed. A run passes no answer on: its ``error`` is that of the last answer.
    """

    __slots__ = ("answer", "error", "readmissions")

    def __init__(self, error: IopError) -> None:
        self.error = error
        self.answer: OwnAnswer | None = None  # of the provider that was asked last, if it answered
        self.readmissions = 0


def decide(  # noqa: PLR0917 - every request calls it when it is sent, and keywords cost
    side_effects: bool,
    held_bytes: int | None,
    readmissions: int,
    limits: Limits,
    left_s: float,
    retryable: bool,
) -> Decision:
    """Before the commit, of a request that nobody has cancelled. ``held_bytes`` is the size of the client's body, None
    when it is gone; ``left_s`` what is left of the request's time; ``retryable`` whether this failure allows it."""
    if side_effects:
        return Decision.SIDE_EFFECTS
    if held_bytes is None or held_bytes > limits.max_body_bytes:
        return Decision.NO_SNAPSHOT
    if readmissions >= limits.max_attempts:
        return Decision.BUDGET
    if left_s <= 0:
        return Decision.DEADLINE
    if not retryable:
        return Decision.NOT_RETRYABLE
    return ELIGIBLE
