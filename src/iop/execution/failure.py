"""How an execution failed, in closed vocabulary (LIVE-6, LIVE-7, POOL-12, TUN-5).

An :class:`ExecutionFailure` mirrors the wire message of that name. It carries no payload, URL or secret; ``message`` is
ours, and bounded.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from iop.errors import WIRE_CODES, CapacityExceeded, InternalError, IopError, ResponseStalled, from_code
from iop.wire import limits

__all__ = [
    "MAX_MESSAGE_BYTES",
    "ExecutionFailure",
    "HealthReason",
    "ListFault",
    "LivenessClassification",
    "ProviderHealth",
    "capacity_exceeded",
    "failure_of",
    "normalise_evidence",
    "stalled",
]

MAX_MESSAGE_BYTES = 512


class ProviderHealth(enum.StrEnum):
    """What an independent probe of the exact target said."""

    AVAILABLE = "available"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown"


class LivenessClassification(enum.StrEnum):
    """What a stall means, given the probe."""

    REQUEST_STALLED = "request_stalled"
    PROVIDER_UNHEALTHY = "provider_unhealthy"
    HEALTH_UNKNOWN = "health_unknown"


class HealthReason(enum.StrEnum):
    """Why a provider, or one of its targets, is unavailable (HEALTH-8).

    ``refused``: it does not answer. ``failing``: it answers with errors of its own. ``not_listed``: it no longer lists
    the target. ``stalled``: a call made no progress, and a probe found the provider unavailable.
    """

    REFUSED = "refused"
    FAILING = "failing"
    NOT_LISTED = "not_listed"
    STALLED = "stalled"


class ListFault(enum.StrEnum):
    """Why a server that is well has no list of models to compare its targets with (HEALTH-10).

    ``failing``: the question for the list is answered with 5xx, or not at all. ``too_large``: the list is larger than
    the node reads.
    """

    FAILING = "failing"
    TOO_LARGE = "too_large"


#: The only pairs of evidence that exist (LIVE-7).
CLASSIFICATION_OF: dict[ProviderHealth, LivenessClassification] = {
    ProviderHealth.AVAILABLE: LivenessClassification.REQUEST_STALLED,
    ProviderHealth.UNAVAILABLE: LivenessClassification.PROVIDER_UNHEALTHY,
    ProviderHealth.UNKNOWN: LivenessClassification.HEALTH_UNKNOWN,
}


def normalise_evidence(health: str | None, classification: str | None) -> tuple[ProviderHealth, LivenessClassification]:
    """The evidence pair that these two values stand for; whatever is odd is unknown (LIVE-7)."""
    for known, meaning in CLASSIFICATION_OF.items():
        if known == health and meaning == classification:
            return known, meaning
    return ProviderHealth.UNKNOWN, LivenessClassification.HEALTH_UNKNOWN


@dataclass(frozen=True, slots=True)
class ExecutionFailure:
    """Why an execution did not complete.

    ``code`` is one of :data:`iop.errors.WIRE_CODES`, anything else becomes ``internal``. ``provider_health`` and
    ``liveness_classification`` come with a stall only, and then as a pair; ``health_observation_seq`` is 0 where no
    observation is bound (LIVE-8). ``close_confirmed`` says that the provider call has really ended: without it the
    lease leaves a lingering unit (POOL-12). ``slots_held`` comes with ``capacity_exceeded``; ``connection_reused`` and
    ``response_started`` with ``provider_connection_lost`` (TUN-5). ``idle_ms`` is the silence that ended in a stall.
    ``engine_lingers``: the call is closed, and its engine still works on it (TUN-5d). ``engine_busy`` comes with a
    stall: the engine works on more than the node has calls open there (LIVE-2b). ``provider_status`` is the status with
    which a provider refused a run, and ``retry_after`` the value of that answer's Retry-After (HEALTH-9).
    """

    code: str
    retryable: bool = False
    provider_health: ProviderHealth | None = None
    liveness_classification: LivenessClassification | None = None
    health_observation_seq: int = 0
    idle_ms: int = 0
    close_confirmed: bool = True
    slots_held: int = 0
    connection_reused: bool = False
    response_started: bool = False
    message: bytes = b""
    engine_lingers: bool = False
    engine_busy: bool = False
    provider_status: int = 0
    retry_after: bytes = b""

    def __post_init__(self) -> None:
        if self.code not in WIRE_CODES:
            object.__setattr__(self, "code", InternalError.code)
        if len(self.message) > MAX_MESSAGE_BYTES:
            object.__setattr__(self, "message", self.message[:MAX_MESSAGE_BYTES])
        if len(self.retry_after) > limits.MAX_RETRY_AFTER_BYTES:
            object.__setattr__(self, "retry_after", b"")
        if self.provider_health is not None or self.liveness_classification is not None:
            health, classification = normalise_evidence(self.provider_health, self.liveness_classification)
            object.__setattr__(self, "provider_health", health)
            object.__setattr__(self, "liveness_classification", classification)

    def error(self) -> IopError:
        """The error that a client sees for this failure (API-5)."""
        return from_code(self.code, self.message.decode("utf-8", "replace") or None)


def failure_of(
    error: IopError,
    *,
    close_confirmed: bool = True,
    connection_reused: bool = False,
    response_started: bool = False,
    engine_lingers: bool = False,
) -> ExecutionFailure:
    """The failure that reports ``error`` to the edge. Its message travels, so it must be one of ours."""
    return ExecutionFailure(
        code=error.code,
        retryable=error.retryable,
        close_confirmed=close_confirmed,
        connection_reused=connection_reused,
        response_started=response_started,
        message=error.message.encode(),
        engine_lingers=engine_lingers,
    )


def capacity_exceeded(slots_held: int) -> ExecutionFailure:
    """The gate is full (EXEC-3). Nothing was started, so nothing can linger."""
    return ExecutionFailure(code=CapacityExceeded.code, retryable=True, slots_held=slots_held)


def stalled(
    health: ProviderHealth,
    *,
    seq: int,
    idle_ms: int,
    close_confirmed: bool,
    retryable: bool,
    engine_lingers: bool = False,
    engine_busy: bool = False,
) -> ExecutionFailure:
    """A provider that made no progress (LIVE-6). ``retryable``: its call was seen to close within the grace; one that
    closed later is confirmed all the same, so that nothing lingers. The probe's verdict grants nothing (LIVE-7)."""
    return ExecutionFailure(
        code=ResponseStalled.code,
        retryable=retryable and close_confirmed,
        provider_health=health,
        liveness_classification=CLASSIFICATION_OF[health],
        health_observation_seq=seq,
        idle_ms=idle_ms,
        close_confirmed=close_confirmed,
        engine_lingers=engine_lingers,
        engine_busy=engine_busy,
    )
