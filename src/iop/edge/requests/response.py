"""What the client of a request is told, when, and in which form (API-5, API-7b, API-8b).

Until the commit everything can still be said: an error with its status, or what a provider answered. A streaming
request that has seen nothing for a while gets the head of an event stream and comments meanwhile, which is no commit;
from then on an error, a provider's other answer included, is an event of the API's own, and the end is unclean.
"""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any

from iop._fast.relay import ClientStream
from iop._fast.sse import EVENT_ID, FINISH
from iop.edge.api.errors import error_body, error_event, error_headers, provider_event
from iop.edge.api.routes import Endpoint, Shape
from iop.edge.requests.attempts import CANCELLING, DONE, OPEN, SENT, Dispatched
from iop.edge.requests.retry import OwnAnswer
from iop.errors import IopError
from iop.net.http.exchange import Exchange
from iop.wire.messages import EventDialect

if TYPE_CHECKING:
    from iop.edge.keys.limits import Permit
    from iop.edge.requests.dispatcher import Dispatcher

__all__ = ["Answered"]

_UNSPECIFIED = EventDialect.UNSPECIFIED
_COMMENT = b": keepalive\n\n"
_COMMENT_BEHIND_ID = b": keepalive\n"  # decoders that keep the id dispatch at every blank line
_QUEUED, _PREFILLING, _RECOVERING = (
    b": keepalive queued\n\n",
    b": keepalive prefilling\n\n",
    b": keepalive recovering\n\n",
)
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_EVENTS = b"content-type: text/event-stream\r\nx-request-id: %b\r\n"


class Answered(Dispatched, ABC):
    """A dispatched request with a client behind it. ``beats`` is between the opening by :meth:`_start_beating` and the
    end; ``_told`` says that the head of a stream has gone out before there was an answer."""

    __slots__ = ("_beat", "_ex", "_permit", "_sse", "_told", "endpoint", "status")

    path = "tunnel"
    stream: ClientStream | None

    def __init__(self, dispatcher: Dispatcher, ex: Exchange, endpoint: Endpoint, permit: Permit | None) -> None:
        Dispatched.__init__(self, dispatcher)  # super() shows on the path of every request
        self._ex = ex
        self.endpoint = endpoint
        self.status = 0  # what the client was told
        self._permit = permit  # of a key that has limits
        self._sse = False  # the answer is an event stream that can be read
        self._told = False
        self._beat: Any = None

    # ---- errors ------------------------------------------------------------------------------------------------------

    def _fail(self, error: IopError) -> None:
        """Tells the client: an error answer before the commit, an error event and an unclean end after it."""
        stream = self.stream
        if self.state is not OPEN or stream is None:
            self._answer(error)
            return
        self.error = self.error or error
        if self._sse and stream.at_boundary:
            stream.inject(self._event_of(error))
        self._ex.cut(reset=self._ex.head.http10)

    def _answer(self, error: IopError) -> None:
        """The whole answer is this error. No-op once the exchange is over."""
        ex = self._ex
        self.error = self.error or error
        if ex.done:
            return
        self._drop_stream()
        if self._told:
            self._end_stream(self._event_of(error))
            return
        self.status = error.status
        ex.respond(
            error.status, self._story() + error_headers(error), error_body(error, self.endpoint.shape, self.request_id)
        )

    def _answer_own(self, own: OwnAnswer) -> None:
        """The whole answer is what a provider said. No-op once the exchange is over."""
        ex = self._ex
        if ex.done:
            return
        self._drop_stream()
        if self._told:
            # The head of a stream is out: what it says is said as an event; its own events, if any, as they are.
            said = own.body if own.event_stream and own.body else self._event_of_provider(own)
            self._end_stream(said)
            return
        self.status = own.status
        ex.respond(own.status, own.block + self._story(), own.body)

    def _event_of(self, error: IopError) -> bytes:
        return error_event(error, self.endpoint.shape, self.endpoint.name, self.request_id)

    def _event_of_provider(self, own: OwnAnswer) -> bytes:
        return provider_event(own.status, own.body, self.endpoint.shape, self.endpoint.name, self.request_id)

    def _end_stream(self, event: bytes) -> None:
        """The last event of a stream that has had a head and comments only, and an unclean end (API-8b)."""
        ex = self._ex
        ex.send(event)
        ex.cut(reset=ex.head.http10)

    def _story(self) -> bytes:
        """What happened, in response headers (API-5, API-9)."""
        lease, ticket = self.lease, self.ticket
        waited_ms = int(ticket.waited_s * 1000) if ticket is not None else 0
        provider = f"x-iop-provider: {lease.provider_id}\r\n" if lease is not None else ""
        text = (
            f"x-request-id: {self.request_id}\r\n"
            f"x-iop-attempts: {self.attempts}\r\n"
            f"x-iop-queue-ms: {waited_ms}\r\n"
            f"{provider}"
        )
        if self._permit is not None:
            return text.encode() + self._permit.fields(self._dispatcher.runtime.loop.time())
        return text.encode()

    # ---- keepalives (API-7b) -----------------------------------------------------------------------------------------

    def _start_beating(self) -> None:
        """Of a streaming request: from here on its client hears something at least every ``keepalive_s``."""
        interval_s = self._dispatcher.keepalive_s
        if interval_s and self.endpoint.dialect is not _UNSPECIFIED:
            self._beat = self._dispatcher.wheel.arm(interval_s, self._beaten)

    def _stop_beating(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def _beaten(self) -> None:
        """Nothing may have been sent for a while."""
        d, ex, stream = self._dispatcher, self._ex, self.stream
        self._beat = None
        if self.state in (CANCELLING, DONE) or ex.done:
            return
        interval_s = d.keepalive_s
        if not interval_s:
            return  # switched off since
        wait_s = interval_s
        if self.state is not OPEN:
            if not self._told:
                self._open_stream()
            ex.send(self._sign_of_life())
        else:
            assert stream is not None
            if not self._sse:
                return
            silent_s = d.runtime.hub.now - stream.progress_at
            if silent_s + 0.1 < interval_s:
                wait_s = interval_s - silent_s
            elif stream.at_boundary and not stream.flags_seen & FINISH and not ex.writer.paused:
                after_id = stream.flags_seen & EVENT_ID and self.endpoint.shape is not Shape.ANTHROPIC
                stream.inject(_COMMENT_BEHIND_ID if after_id else self._sign_of_life())
        self._beat = d.wheel.arm(wait_s, self._beaten)

    def _open_stream(self) -> None:
        """Write the head of an event stream that is yet to come, with no other fields: nothing else is known yet."""
        self._note("keepalive")
        self._told = True
        self.status = 200
        self._ex.begin_stream(_EVENTS % self.request_id.encode())
        self._head_replaced()

    def _head_replaced(self) -> None:
        """The client has been given the head of an event stream. A provider's head that is held must not follow it."""

    def _sign_of_life(self) -> bytes:
        """Return a ping, or a comment that says what the client waits for and nothing else."""
        if self.endpoint.shape is Shape.ANTHROPIC:
            return _PING
        if self.state is OPEN:
            return _COMMENT
        if self._recovery is not None:
            return _RECOVERING
        return _PREFILLING if self.state is SENT else _QUEUED
