"""What the node reports to its edge, in the wire's words."""

from __future__ import annotations

from iop.execution.events import RunEvent
from iop.execution.failure import ExecutionFailure
from iop.wire import messages as m

__all__ = ["event_on_wire", "on_wire"]


def event_on_wire(event: RunEvent, session_id: bytes) -> m.RunEvent:
    """An event of a run as RunEvent of the wire; the kinds are the same, by name."""
    u = event.usage
    return m.RunEvent(
        m.RunEventKind[event.kind.name],
        event.text,
        event.tool_index,
        event.tool_call_id,
        event.tool_name,
        (u.input_tokens, u.output_tokens, u.reasoning_tokens, u.cached_input_tokens) if u is not None else None,
        on_wire(event.failure) if event.failure is not None else None,
        event.finish_reason,
        session_id,
    )


def on_wire(failure: ExecutionFailure) -> m.ExecutionFailure:
    """A failure as ExecutionFailure of the wire (LIVE-6); the members of the enums are the same, by name."""
    health, liveness = failure.provider_health, failure.liveness_classification
    return m.ExecutionFailure(
        m.ErrorCode[failure.code.upper()],
        retryable=failure.retryable,
        provider_health=m.ProviderHealth[health.name] if health else m.ProviderHealth.UNSPECIFIED,
        liveness_classification=(
            m.LivenessClassification[liveness.name] if liveness else m.LivenessClassification.UNSPECIFIED
        ),
        health_observation_seq=failure.health_observation_seq,
        idle_ms=failure.idle_ms,
        close_confirmed=failure.close_confirmed,
        slots_held=failure.slots_held,
        connection_reused=failure.connection_reused,
        response_started=failure.response_started,
        message=failure.message,
        engine_lingers=failure.engine_lingers,
        engine_busy=failure.engine_busy,
        provider_status=failure.provider_status,
        retry_after=failure.retry_after,
    )
