"""The life of one client request, from its whole body to the return of its lease (API-5, API-7c, API-8b, API-10).

A machine driven by callbacks: the pool's answers, the stream's frames, the client's departure, one deadline. It awaits
nothing, and per event of a stream it does nothing at all: those bytes pass below it. Its states and its ways through
the pool are those of :mod:`iop.edge.dispatched`; OPEN begins with the first byte to the client.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from iop._fast.relay import RAW, ClientStream
from iop._fast.sse import FINISH
from iop.edge.api.errors import error_body, error_event, error_headers, error_of
from iop.edge.api.routes import Endpoint
from iop.edge.dispatched import CANCELLING, OPEN, SENT, WAITING, Dispatched, Outline, State
from iop.edge.headers import frame_answer, read_answer, to_provider
from iop.errors import (
    ClientGone,
    ClientIdle,
    HeadError,
    InternalError,
    IopError,
    ProviderProtocolError,
)
from iop.net.http.exchange import Exchange
from iop.observability.logs import RequestOutcome
from iop.observability.metrics import TOKEN_KINDS
from iop.pool.lease import Lease, ReleaseCause, Ticket
from iop.wire import codec, limits
from iop.wire import messages as m
from iop.wire.session import EdgeSession

if TYPE_CHECKING:
    from iop._fast.relay import Tokens
    from iop.edge.dispatch import Dispatcher, ProviderSettings
    from iop.edge.intake import Intake
    from iop.edge.keys import Permit

__all__ = ["ClientRequest", "State"]


log = logging.getLogger("iop.edge.request")

FINISH_GRACE_S = 0.5

_TERMINAL, _CANCEL_CONFIRMED = ReleaseCause.TERMINAL, ReleaseCause.CANCEL_CONFIRMED
_END = int(m.TunnelFrameKind.END)

_GONE: dict[str, type[IopError]] = {"client_idle": ClientIdle}


class ClientRequest(Dispatched):
    """One request. ``intake`` holds what was learnt while its body came in."""

    __slots__ = (
        "_ex",
        "_first_at",
        "_lost_once",
        "_permit",
        "_provider",
        "_provider_status",
        "_sse",
        "_usage",
        "body_bytes",
        "endpoint",
        "error",
        "group_id",
        "intake",
        "principal",
        "status",
    )

    stream: ClientStream | None

    def __init__(
        self,
        dispatcher: Dispatcher,
        ex: Exchange,
        endpoint: Endpoint,
        principal: str,
        intake: Intake,
        *,
        permit: Permit | None = None,
    ) -> None:
        super().__init__(dispatcher)
        self._ex = ex
        self.endpoint = endpoint
        self.principal = principal
        self.intake = intake
        self.group_id = ""
        self.status = 0  # what the client was told
        self.error: IopError | None = None
        self.body_bytes = 0
        self._lost_once = False
        self._permit = permit  # of a key that has limits
        self._provider: ProviderSettings | None = None  # as it was configured when we were sent there
        self._provider_status = 0
        self._first_at = 0.0
        self._sse = False
        self._usage: Tokens | None = None

    # ---- admission ---------------------------------------------------------------------------------------------------

    def start(self, group_id: str, timeout_s: float) -> None:
        """The body is here and its model is known: ask the pool."""
        d, intake = self._dispatcher, self.intake
        self.group_id = group_id
        self.body_bytes = intake.received_bytes
        now = d.wheel.now
        self._timer = d.wheel.arm(max(0.0, timeout_s - (now - self._ex.accepted_at)), self._deadline)
        self.ticket = Ticket(self.request_id, self.principal, group_id, intake.estimated_tokens, self)
        d.live.add(self)
        try:
            lease = d.pool.submit(self.ticket, now)
        except IopError as exc:
            self._answer(exc)
            self._end()
            return
        if lease is None:
            self._move(WAITING)
            d.watch_queue()
        else:
            self._dispatch(lease)

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _send(self, session: EdgeSession, lease: Lease) -> None:
        d, ex, intake, endpoint = self._dispatcher, self._ex, self.intake, self.endpoint
        head = ex.head
        self._session = session
        self._provider_status = 0
        pieces, total, encoded = intake.body_for(lease.target)
        provider = self._provider = d.providers[lease.provider_id]
        stream = self.stream = ClientStream(ex.writer, self)
        window = d.window_bytes if d.runtime.hub.buffered_bytes < d.max_buffered_bytes else limits.SMALL_WINDOW_BYTES
        inline = total <= limits.INLINE_BODY_BYTES
        session.mux.open(stream, window, session.request_window_bytes)
        frame = codec.encode(
            m.ProviderTunnelRequest(
                stream.stream_id,
                self.request_id,
                lease.adapter,
                lease.provider_id,
                lease.target,
                window,
                max(1, int((self._timer.at - d.wheel.now) * 1000)),
                provider.response_stall_timeout_ms,
                m.LeaseBinding(lease.lease_id, lease.long, self.attempts),
                head.method,
                endpoint.provider_path,
                head.query,
                to_provider(head, encoded=encoded, streaming=intake.streaming),
                b"".join(pieces) if inline else b"",
                total,
                body_follows=not inline,
                dialect=endpoint.dialect,
                first_response_timeout_ms=provider.first_response_timeout_ms,
                streaming=intake.streaming,
            )
        )
        session.mux.send(frame, stream, True)
        if not inline:
            stream.send_body(pieces)
        if d.watched:
            d.run_started(self, lease)

    # ---- the stream's callbacks --------------------------------------------------------------------------------------

    def on_head(self, status: int, header_block: bytes) -> None:
        """Status and fields of the provider's answer: made into the client's head, which the gate holds."""
        stream, ex = self.stream, self._ex
        assert stream is not None
        self._provider_status = status
        try:
            if not 200 <= status <= 599:  # anything else would be read as something other than the answer (D15)
                raise HeadError("status")
            self._sse, total, block = read_answer(header_block)
        except IopError:
            self._cancel(m.CancelReason.PROTOCOL)
            self._answer(ProviderProtocolError())
            return
        if self._permit is not None:
            block = self._permit.without_rates(block)
        mode, framing = frame_answer(ex.head, status, total)
        if mode == RAW:
            ex.keep_alive = False
        stream.respond(ex.head_bytes(status, block + self._story(), framing), mode, total, self._sse and status == 200)

    def on_commit(self) -> None:
        """The first byte goes to the client: from here on there is no other answer."""
        self._move(OPEN)
        self.status = self._provider_status
        self._first_at = self._dispatcher.runtime.loop.time()
        self.intake.release()
        self._ex.release_body()

    def on_terminal(self, kind: int, usage: Tokens | None, failure: Any) -> None:
        """The node's last word on this attempt."""
        self._usage = usage
        if kind == _END:
            self._completed()
        else:
            self._failed(failure if failure is not None else m.ExecutionFailure(m.ErrorCode.INTERNAL))

    def _completed(self) -> None:
        stream, state = self.stream, self.state
        if state is OPEN:
            assert stream is not None
            if stream.finish():
                self._ex.finish()
            else:
                self._fail(ProviderProtocolError())
        self._end(_TERMINAL if state is not CANCELLING else _CANCEL_CONFIRMED)

    def _failed(self, failure: m.ExecutionFailure) -> None:
        code = failure.code
        lingering = not failure.close_confirmed and code is not m.ErrorCode.CAPACITY_EXCEEDED
        if self.state is SENT:
            if self._provider_status == 0 and self._turned_away(failure):
                return None
            if (
                code is m.ErrorCode.PROVIDER_CONNECTION_LOST
                and failure.connection_reused
                and not failure.response_started
                and not self._lost_once
                and self.endpoint.computes
                and self.intake.replayable(stores_by_default=self._stores_by_default())
            ):
                # A kept connection that the provider had given up: nothing was answered, once more (TUN-5).
                self._lost_once = True
                return self._again(_TERMINAL)
        if self.state in (SENT, OPEN):
            assert self.lease is not None
            self._fail(error_of(failure, self.lease.provider_id))
        cause = _CANCEL_CONFIRMED if self.state is CANCELLING else _TERMINAL
        return self._end(cause, lingering=lingering)

    def _stores_by_default(self) -> bool:
        provider = self._provider
        return self.endpoint.name == "responses" and provider is not None and provider.stores_responses

    def on_broken(self, exc: Exception, ended: bool) -> None:
        """A fault of ours in one of the callbacks above: it ends this request, and no other."""
        log.error("request_broken", extra={"fields": {"api": self.endpoint.name}}, exc_info=exc)
        self._fail(InternalError())
        if ended:
            self._end(_TERMINAL)
        elif self.state in (SENT, OPEN):
            self._cancel(m.CancelReason.PROTOCOL)

    # ---- endings -----------------------------------------------------------------------------------------------------

    def client_gone(self, reason: str) -> None:
        """The client left or was given up, in whatever state (API-7c): cancel, and keep the lease until that is
        confirmed (EXEC-7)."""
        stream = self.stream
        if self.state is OPEN and stream is not None and stream.flags_seen & FINISH:
            self._let_finish(stream)
            return
        self.error = self.error or _GONE.get(reason, ClientGone)()
        self.status = self.status or 499
        wire_reason = m.CancelReason.CLIENT_IDLE if reason == "client_idle" else m.CancelReason.CLIENT_GONE
        self._abandon(wire_reason)

    def _let_finish(self, stream: ClientStream) -> None:
        """The client closed behind the last event, as SDKs do: the provider is about to end, too, and its connection
        is worth keeping. If it does not end soon, it is cancelled after all."""
        stream.discard()
        self._move(CANCELLING)
        if self._permit is not None:
            self._permit.free()
        self._timer.cancel()
        self._timer = self._dispatcher.wheel.arm(FINISH_GRACE_S, lambda: self._cancel(m.CancelReason.CLIENT_GONE))

    def _fail(self, error: IopError) -> None:
        """Tells the client: an error answer before the commit, an error event and an unclean end after it."""
        stream = self.stream
        if self.state is not OPEN or stream is None:
            self._answer(error)
            return
        self.error = self.error or error
        ex = self._ex
        if self._sse and stream.at_boundary:
            stream.inject(error_event(error, self.endpoint.shape, self.endpoint.name, self.request_id))
        ex.cut(reset=ex.head.http10)

    def _answer(self, error: IopError) -> None:
        """The whole answer is this error. No-op once the exchange is over."""
        ex = self._ex
        self.error = self.error or error
        if ex.done:
            return
        self._drop_stream()
        self.status = error.status
        ex.respond(
            error.status, self._story() + error_headers(error), error_body(error, self.endpoint.shape, self.request_id)
        )

    def _story(self) -> bytes:
        """What happened, in response headers (API-5, API-9)."""
        lease, ticket = self.lease, self.ticket
        waited_ms = int(ticket.waited_s * 1000) if ticket is not None else 0
        text = f"x-request-id: {self.request_id}\r\nx-iop-attempts: {self.attempts}\r\nx-iop-queue-ms: {waited_ms}\r\n"
        if lease is not None:
            text += f"x-iop-provider: {lease.provider_id}\r\n"
        if self._permit is not None:
            return text.encode() + self._permit.fields(self._dispatcher.runtime.loop.time())
        return text.encode()

    def outline(self) -> Outline:
        lease = self.lease
        node_id, provider_id = (lease.node_id, lease.provider_id) if lease is not None else ("", "")
        return Outline(
            self.request_id, self.endpoint.name, self.state.value, self.principal, self.group_id, node_id, provider_id,
            self.attempts, self._ex.accepted_at,
        )  # fmt: skip

    def _over(self) -> None:
        self.intake.release()
        if self._permit is not None:
            self._permit.end(self._dispatcher.runtime.loop.time(), self._usage)
        self._log()
        self._ex.context = None  # it refers to us, and we to it: nothing is left for the collector to find

    def _log(self) -> None:
        d, error, lease, usage, stream = self._dispatcher, self.error, self.lease, self._usage, self.stream
        outcome = error.code if error is not None else "ok" if self.status < 400 else "provider_error"
        accepted_at, api = self._ex.accepted_at, self.endpoint.name
        duration_s = d.runtime.loop.time() - accepted_at
        waited_s = self.ticket.waited_s if self.ticket is not None else 0.0
        first_s = self._first_at - accepted_at if self._first_at else 0.0
        metrics = d.metrics
        metrics.requests[api, outcome].value += 1
        metrics.duration[api].observe(duration_s)
        metrics.queue_wait.observe(waited_s)
        if self._sse and first_s:
            metrics.first_token[api].observe(first_s)
        if usage is not None:
            for kind, count in zip(TOKEN_KINDS, usage, strict=True):
                if count:
                    metrics.tokens[kind].value += count
        d.outcome(
            # By position, in the order of its fields: twenty keywords cost as much as all the rest of this.
            RequestOutcome(
                time.time(),
                self.request_id,
                api,
                outcome,
                self.status,
                int(duration_s * 10_000) / 10,
                self.intake.client_request_id,
                self.principal,
                self.group_id,
                lease.node_id if lease is not None else "",
                lease.provider_id if lease is not None else "",
                self._sse,
                self.attempts,
                int(waited_s * 10_000) / 10,
                int(first_s * 10_000) / 10,
                self.body_bytes,
                stream.body_bytes if stream is not None else 0,
                (usage[0] or 0) if usage is not None else 0,
                (usage[1] or 0) if usage is not None else 0,
            )
        )
