"""The end of a request, written down once: counters, the log line and the trace (OBS-1, OBS-2, OBS-7)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from iop.observability.logs import RequestOutcome, times_ms

if TYPE_CHECKING:
    from iop._fast.relay import Tokens
    from iop.edge.requests.attempts import Dispatched
    from iop.edge.requests.dispatcher import Dispatcher

__all__ = ["write_outcome"]

_NO_TOKENS: Tokens = (None, None, None, None)


def write_outcome(  # noqa: PLR0917 - every request ends here, and keywords cost
    d: Dispatcher,
    request: Dispatched,
    api: str,
    outcome: str,
    status: int,
    accepted_at: float,
    client_request_id: str,
    principal: str,
    model: str,
    node_id: str,
    provider_id: str,
    stream: bool,
    bytes_in: int,
    bytes_out: int,
    usage: Tokens | None,
) -> None:
    """Count and log how ``request`` ended, and keep its trace.

    Args:
        d: Whose metrics, log and trace.
        request: What it went through: its ticket, attempts, lease, times and notes.
        api: The API that was asked, as metrics have it; ``outcome`` likewise.
        status: What the client was answered with.
        accepted_at: When it came, in the loop's time.
        client_request_id: The id that its client gave it, if any.
        model: The model group.
        node_id: Where its last attempt went, with ``provider_id``; empty if nowhere.
        stream: Whether the answer was streamed.
        bytes_in: Body bytes as the client sent them; ``bytes_out`` those that it was given.
        usage: Tokens as the provider reported them.
    """
    now, ticket, first_at, metrics = d.runtime.loop.time(), request.ticket, request.first_at, d.metrics
    duration_s = now - accepted_at
    first_s = first_at - accepted_at if first_at else 0.0
    counted = principal if d.count_principals else ""
    metrics.requests[api, outcome, model, node_id, provider_id, counted].value += 1
    metrics.duration[api, model].observe(duration_s)
    waited_s = 0.0
    if ticket is not None:  # else it did not ask for a slot
        waited_s = ticket.waited_s
        metrics.queue_wait[model].observe(waited_s)
    if stream and first_s:
        metrics.first_token[api, model].observe(first_s)
    tokens_in, tokens_out, reasoning, cached = usage if usage is not None else _NO_TOKENS
    tokens = metrics.tokens
    if tokens_in:
        tokens["input", model, node_id, provider_id, counted].value += tokens_in
    if tokens_out:
        tokens["output", model, node_id, provider_id, counted].value += tokens_out
    if reasoning:
        tokens["reasoning", model, node_id, provider_id, counted].value += reasoning
    if cached:
        tokens["cached_input", model, node_id, provider_id, counted].value += cached
    duration_ms, queue_ms, first_ms = times_ms(duration_s, waited_s, first_s)
    # By position, in the order of its fields: twenty keywords cost as much as all the rest of this.
    record = RequestOutcome(
        time.time(),
        request.request_id,
        api,
        outcome,
        status,
        duration_ms,
        client_request_id,
        principal,
        model,
        node_id,
        provider_id,
        stream,
        request.attempts,
        queue_ms,
        first_ms,
        bytes_in,
        bytes_out,
        tokens_in or 0,
        tokens_out or 0,
    )
    d.outcome(record)
    notes = request.notes
    row = (
        record, accepted_at, request.sent_at, request.commit_bytes, request.lease, request.released, request.timeout_s,
        d.pool.queue.limits.timeout_s, request.settings, request.at_once, notes,
    )  # fmt: skip
    if notes is None:
        d.trace.straight(row)
    else:
        d.trace.noted(row)
