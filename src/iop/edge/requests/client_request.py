"""The life of one client request, from its whole body to the return of its lease (API-5, API-7c, API-8b, API-10).

A machine driven by callbacks: the pool's answers, the stream's frames, the client's departure, one deadline. It awaits
nothing, and per event of a stream it does nothing at all: those bytes pass below it. Its states and its ways through
the pool are those of :mod:`iop.edge.requests.attempts`; OPEN begins with the commit (API-7), and what fails before that
may be sent again (API-8). What its client hears meanwhile and at the end is :mod:`iop.edge.requests.response`'s.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from iop._fast.relay import RAW, ClientStream
from iop._fast.sse import ERROR, FINISH
from iop.edge.api.errors import error_of, says_why
from iop.edge.api.headers import frame_answer, read_answer, rest_of, to_provider
from iop.edge.api.routes import Endpoint
from iop.edge.requests.attempts import CANCELLED, CANCELLING, OPEN, SENT, SHOWN, State
from iop.edge.requests.outcome import write_outcome
from iop.edge.requests.response import Answered
from iop.edge.requests.retry import ELIGIBLE, REFUSED_STATUSES, RETRIED_STATUSES, OwnAnswer
from iop.edge.requests.trace import Outline
from iop.errors import (
    ClientGone,
    ClientIdle,
    HeadError,
    InternalError,
    IopError,
    ProviderProtocolError,
    ProviderTruncated,
    RouteNotFound,
)
from iop.net.http.exchange import Exchange
from iop.observability.events import RunStarted
from iop.pool.lease import Lease, ReleaseCause, Ticket
from iop.wire import codec, limits
from iop.wire import messages as m
from iop.wire.session import EdgeSession

if TYPE_CHECKING:
    from iop._fast.relay import Tokens
    from iop.edge.api.body import Intake
    from iop.edge.keys.limits import Permit
    from iop.edge.requests.dispatcher import Dispatcher

__all__ = ["ClientRequest", "State"]

log = logging.getLogger("iop.edge.requests.client_request")

FINISH_GRACE_S = 0.5
NO_ENDPOINT = frozenset({404, 405})  # statuses of a server that may not have what was asked for

_TERMINAL, _CANCEL_CONFIRMED = ReleaseCause.TERMINAL, ReleaseCause.CANCEL_CONFIRMED
_END = int(m.TunnelFrameKind.END)
_GONE: dict[str, type[IopError]] = {"client_idle": ClientIdle}


class ClientRequest(Answered):
    """One request. ``intake`` holds what was learnt while its body came in."""

    __slots__ = (
        "_block",
        "_provider_status",
        "_usage",
        "body_bytes",
        "group_id",
        "intake",
        "principal",
    )

    def __init__(  # noqa: PLR0917 - a keyword costs more than all that is done here
        self,
        dispatcher: Dispatcher,
        ex: Exchange,
        endpoint: Endpoint,
        principal: str,
        intake: Intake,
        permit: Permit | None = None,
    ) -> None:
        Answered.__init__(self, dispatcher, ex, endpoint, permit)
        self.principal = principal
        self.intake = intake
        self.group_id = ""
        self.body_bytes = 0
        self._provider_status = 0
        self._block = b""  # field lines of an answer that is held
        self._usage: Tokens | None = None

    # ---- admission ---------------------------------------------------------------------------------------------------

    def start(self, group_id: str, timeout_s: float, weight: int = 1) -> None:
        """The body is here and its model is known: ask the pool. ``weight`` is the principal's (POOL-5)."""
        d, intake = self._dispatcher, self.intake
        self.group_id = group_id
        self.timeout_s = timeout_s
        self.body_bytes = intake.received_bytes
        now = d.runtime.loop.time()
        self._timer = d.wheel.arm(max(0.0, timeout_s - (now - self._ex.accepted_at)), self._deadline)
        self.ticket = Ticket(self.request_id, self.principal, group_id, intake.estimated_tokens, self, weight)
        d.live.add(self)
        if intake.streaming:
            self._start_beating()
        try:
            lease = self._ask(self.ticket, now)
        except IopError as exc:
            self._answer(exc)
            self._end()
            return
        if lease is not None:
            self._dispatch(lease)

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _send(self, session: EdgeSession, lease: Lease) -> None:
        d, ex, intake, endpoint = self._dispatcher, self._ex, self.intake, self.endpoint
        head = ex.head
        self._session = session
        self._provider_status = 0
        pieces, total = intake.body_for(lease.target)
        provider = self.settings = d.providers[lease.provider_id]
        stream = self.stream = ClientStream(ex.writer, self)
        window = d.answer_window_bytes()
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
                to_provider(head, form=intake.form is not None, streaming=intake.streaming),
                b"".join(pieces) if inline else b"",
                total,
                b"",
                not inline,
                endpoint.dialect,
                provider.first_response_timeout_ms,
                intake.streaming,
                self._replay(retryable=True) is not ELIGIBLE,  # on a fresh connection (TUN-5b)
            )
        )
        session.mux.send(frame, stream, True)
        if not inline:
            stream.send_body(pieces)
        if d.watched:
            d.events.publish(
                RunStarted(
                    time.time(), self.request_id, endpoint.name, self.group_id, lease.node_id, lease.provider_id,
                    self.attempts, intake.streaming,
                )
            )  # fmt: skip

    # ---- the stream's callbacks --------------------------------------------------------------------------------------

    def on_head(self, status: int, header_block: bytes) -> None:
        """Status and fields of the provider's answer: made into the client's head, which the gate holds."""
        stream, ex = self.stream, self._ex
        assert stream is not None
        self._provider_status = status
        try:
            # Anything else would be read as something other than the answer (TUN-9), and a redirect leads nowhere.
            if not 200 <= status <= 599 or (300 <= status < 400 and status != 304):
                raise HeadError("status")
            self._sse, total, block, retry_after = read_answer(header_block)
        except IopError:
            self._cancel(m.CancelReason.PROTOCOL)
            self._give_up(ProviderProtocolError())
            return None
        if self._permit is not None:
            block = self._permit.without_rates(block)
        self._block = block
        if retry_after and status in REFUSED_STATUSES:
            self._let_rest(rest_of(retry_after, time.time()))
        held_bytes = self.intake.held_bytes
        if held_bytes is None or held_bytes > self._dispatcher.recovery.max_body_bytes or not self.endpoint.computes:
            self.intake.release()  # it has arrived, and will not be sent again
            ex.release_body()
        if self._told:
            return self._go_on(stream, status)
        # A stream's own length would leave no room for an error event, and a short one would look complete (API-8b).
        mode, framing = frame_answer(ex.head, status, -1 if self._sse else total)
        if mode == RAW:
            ex.keep_alive = False
        gated = (self._sse and status == 200) or status in RETRIED_STATUSES or status in NO_ENDPOINT
        stream.respond(ex.head_bytes(status, block + self._story(), framing), mode, total, gated)
        return None

    def _head_replaced(self) -> None:
        stream = self.stream
        if stream is not None and self._provider_status:
            self._go_on(stream, self._provider_status)

    def _go_on(self, stream: ClientStream, status: int) -> None:
        """The client has the head of a stream: a stream goes on behind it, any other answer becomes an event."""
        mode, _ = frame_answer(self._ex.head, 200, -1)
        goes_on = self._sse and status == 200
        stream.respond(b"", mode, -1, gated=True, collected=not goes_on)

    def on_held_end(self) -> bool:
        """The whole answer is held: keep it so if another attempt may be made, or it cannot go out as it is."""
        stream = self.stream
        assert stream is not None
        status = self._provider_status
        if status in RETRIED_STATUSES or status in NO_ENDPOINT or bool(stream.flags_seen & ERROR):
            return True
        return self._told and not (self._sse and status == 200)

    def on_commit(self) -> None:
        """The first byte goes to the client: from here on there is no other answer."""
        stream = self.stream
        assert stream is not None
        self._move(SHOWN)
        self.status = self._provider_status
        self.commit_bytes = stream.body_bytes
        self.first_at = self._dispatcher.runtime.loop.time()
        self.intake.release()
        self._ex.release_body()

    def on_terminal(self, kind: int, usage: Tokens | None, failure: Any) -> None:
        """The node's terminal of this attempt."""
        self._usage = usage if usage is None else self._dispatcher.possible(usage)
        if kind == _END:
            self._completed()
        else:
            lease, failure = self.lease, failure or m.ExecutionFailure(m.ErrorCode.INTERNAL)
            assert lease is not None
            error = error_of(failure, lease.provider_id)
            self._attempt_over(failure, error, answered=self._provider_status != 0)

    def _completed(self) -> None:
        stream, state = self.stream, self.state
        if state is OPEN:
            assert stream is not None
            if stream.finish():
                self._ex.finish()
            else:
                self._fail(ProviderProtocolError())
        elif state is SENT and self._held_answer():
            return
        self._end(_TERMINAL if state is not CANCELLING else _CANCEL_CONFIRMED)

    # ---- another attempt (API-8) -------------------------------------------------------------------------------------

    def _repeated(self) -> tuple[bool, int | None]:
        intake, provider = self.intake, self.settings
        if not self.endpoint.computes:
            return True, intake.held_bytes
        stores = provider is not None and provider.stores_responses and self.endpoint.name == "responses"
        side_effects = (stores or not intake.ordinary) and not intake.replayable(stores_by_default=stores)
        return side_effects, intake.held_bytes

    @property
    def client_request_id(self) -> str:
        return self.intake.client_request_id

    def _withdrawn(self) -> None:
        self._sse = False

    def _held_answer(self) -> bool:
        """The provider's whole answer is held: it is the client's, unless another attempt is made (True)."""
        stream, status, lease = self.stream, self._provider_status, self.lease
        assert stream is not None
        assert lease is not None
        self._note_failure("provider_error" if status >= 400 or self._sse else "no_stream", status=status)
        own = OwnAnswer(status, self._block, stream.take_held(), self._sse)
        if self._elsewhere(status, ProviderTruncated(), own=own) or (
            own.event_stream
            and status not in RETRIED_STATUSES
            and self._recover(ProviderTruncated(), avoid=lease.provider_id, own=own)
        ):
            return True
        if status in NO_ENDPOINT and b"content-encoding:" not in own.block.lower() and not says_why(own.body):
            missing = f"provider {lease.provider_id}: this server has no /v1{self.endpoint.provider_path.decode()}"
            self._answer(RouteNotFound(missing))
            return False
        if status < 400 and not own.event_stream:
            self.error = self.error or ProviderProtocolError("the provider answered without a stream")
        if self._recovery is not None:
            self._recovery.answer = own
            self._give_up(ProviderTruncated())
        else:
            self._answer_own(own)
        return False

    def _give_up(self, error: IopError) -> None:
        """What the provider that was asked last has answered comes before how the first one failed."""
        own = self._recovery.answer if self._recovery is not None else None
        if own is not None:
            self._answer_own(own)
        else:
            super()._give_up(error)

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
        self._move(CANCELLED)
        if self._permit is not None:
            self._permit.free()
        self._timer.cancel()
        self._timer = self._dispatcher.wheel.arm(FINISH_GRACE_S, lambda: self._cancel(m.CancelReason.CLIENT_GONE))

    def outline(self) -> Outline:
        lease = self.lease
        node_id, provider_id = (lease.node_id, lease.provider_id) if lease is not None else ("", "")
        return Outline(
            self.request_id, self.endpoint.name, self.state.value, self.principal, self.group_id, node_id, provider_id,
            self.attempts, self._ex.accepted_at,
        )  # fmt: skip

    def _over(self) -> None:
        self.intake.release()
        self._stop_beating()
        if self._permit is not None:
            self._permit.end(self._dispatcher.runtime.loop.time(), self._usage)
        self._write_outcome()
        self._ex.context = None  # it refers to us, and we to it: nothing is left for the collector to find

    def _write_outcome(self) -> None:
        error, lease, stream = self.error, self.lease, self.stream
        in_event = stream is not None and stream.flags_seen & ERROR  # which stands in an answer with status 200
        failed = in_event or self.status >= 400 or self._provider_status >= 400
        write_outcome(
            self._dispatcher,
            self,
            self.endpoint.name,
            error.code if error is not None else "provider_error" if failed else "ok",
            self.status,
            self._ex.accepted_at,
            self.intake.client_request_id,
            self.principal,
            self.group_id,
            lease.node_id if lease is not None else "",
            lease.provider_id if lease is not None else "",
            self._sse,
            self.body_bytes,
            stream.body_bytes if stream is not None else 0,
            self._usage,
        )
