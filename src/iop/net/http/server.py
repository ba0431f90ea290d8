"""The edge's HTTP/1.1 server: connections, exchanges, and the clocks of both (API-6).

One request at a time per connection. ``HttpConnection`` finds heads and decodes bodies, ``Exchange`` is one request and
the way to answer it; what a request means is the :class:`App`'s business, which is called back synchronously.

    IDLE ─part of a head→ HEAD ─rest→ BODY ─body complete→ BUSY ─response done→ IDLE
      └──────── whole head ─────────▶ │
                                      └─ answered while the body comes ──▶ DISCARD ─body gone→ IDLE
    any ─fault, clock, peer gone, close→ CLOSED

An answer reaches its client whole. One that comes while the body is being sent is followed by reading and dropping
the rest of it: a client that is refused in the middle of its body and finds the connection reset loses the answer
(API-6b). How a connection ends is in :mod:`iop.net.http.closing`.

Each connection keeps one deadline as a number and one lazy timer on the shared wheel; nothing is armed per request.
The file is long because reading, answering and the clocks all act on the one state of a connection.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from enum import StrEnum
from typing import cast

from iop._fast.body import FRAMING_CHUNKED, FRAMING_NONE, BodyDecoder, HeadFinder
from iop._fast.out import Writer
from iop.errors import HeadError, InvalidRequest, IopError, Overloaded, PayloadTooLarge, RequestTimeout
from iop.ids import new_request_id
from iop.machine import Step, Transitions
from iop.net import flow
from iop.net.http.closing import CUT, DELIVER, LINGER_S, REFUSE, Closing, Way
from iop.net.http.exchange import App, Exchange, ServerLimits, ServerStats
from iop.net.http.head import RequestHead, parse_request, status_line
from iop.net.loop import Runtime
from iop.net.tls import HandshakeFailures, TlsListener, listen
from iop.net.turns import Turns
from iop.net.wheel import Timer
from iop.tls.contexts import Served

__all__ = ["HttpConnection", "HttpServer"]

PIPELINE_BYTES = 65536  # of the next requests, kept while one is being answered
# Of a refused body so many times the largest that is taken is read and dropped, so that the refusal is not lost to a
# reset.
REFUSED_BODIES = 2
REFUSED_BODY_S = 30.0
BODY_FLOOR_BYTES_PER_S = 8192
WINDOW_PARTS = 8  # in which the window of the body's clock moves on
WRITE_HIGH_BYTES = 65536
RDHUP_S = 0.25
TOLD_ABOVE = 64


class State(StrEnum):
    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    BUSY = "busy"
    DISCARD = "discard"
    CLOSED = "closed"


# By their bare names: looking a member up on its Enum class takes five times as long as a global.
IDLE, HEAD, BODY, BUSY, DISCARD, CLOSED = State


class Event(StrEnum):
    BYTES = "bytes"
    PARSED = "head parsed"
    COMPLETE = "complete"
    REFUSED = "answered early"
    NEXT = "next request"
    CLOSE = "close"


TRANSITIONS = Transitions(
    "HTTP connection",
    (IDLE,),
    {
        (IDLE, Event.BYTES): HEAD,
        (IDLE, Event.PARSED): BODY,
        (HEAD, Event.PARSED): BODY,
        (BODY, Event.COMPLETE): BUSY,
        (BODY, Event.REFUSED): DISCARD,
        (BUSY, Event.NEXT): IDLE,
        (DISCARD, Event.NEXT): IDLE,
        **{(state, Event.CLOSE): CLOSED for state in State},
    },
)
BYTES, PARSED, COMPLETE, REFUSED, NEXT, CLOSE = map(TRANSITIONS.step, Event)


class HttpConnection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.writer = Writer(server.runtime.hub)
        self.state = IDLE
        self._transport: asyncio.Transport | None = None
        self._finder = HeadFinder(server.limits.max_header_bytes)
        self._decoder: BodyDecoder | None = None
        self._exchange: Exchange | None = None
        self._pieces: Iterator[bytes] = iter(())  # of the body, decoded and not handed over yet
        self._step: Callable[[], bool] | None = None  # what the app does with the piece before them
        self._waiting: list[bytes] = []  # pipelined bytes, or the body behind a piece that is worked on
        self._waiting_bytes = 0
        self._reading = True
        self._deadline_at = 0.0
        self._timer: Timer | None = None
        self._polling = False  # one timer each, however often reading or writing stops and goes on
        self._watching = False
        self._discarded = 0
        self._closing: Closing | None = None
        self._discard_until = 0.0
        self._keep = False  # once the body is gone that is being discarded
        self._asked = True  # the client has no reason to wait with its body
        self._progress: list[int] = []  # bytes of the body so far, at each part of the clock's window
        self._left = 0  # bytes the client had taken when it was last seen to take some
        self._left_at = 0.0

    # ---- transport --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)
        server = self.server
        server.connections.add(self)
        server.stats.accepted += 1
        flow.tune(transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_HIGH_BYTES // 4)
        self.writer.attach(transport)
        if len(server.connections) > server.limits.max_connections or server.closing:
            self._refuse(Overloaded("too many connections; try again"))
            return
        self._set_deadline(server.limits.idle_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        self.server.stats.bytes_out += self.writer.handed
        self._transport = None
        self.writer.detach()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._move(CLOSE)
        self._abandon("client_gone")

    def eof_received(self) -> None:
        """FIN. During a request it means that the client is gone: nobody half-closes and waits (API-7c)."""
        if self._exchange is not None:
            self._client_gone()

    def pause_writing(self) -> None:
        self.writer.pause()
        self._left = self._taken()
        self._left_at = self.server.runtime.wheel.now
        if not self._watching:
            self._watching = True
            self._watch_writing()

    def resume_writing(self) -> None:
        self.writer.resume()
        if self._waiting:
            self.server.runtime.loop.call_soon(self._resume)

    def data_received(self, data: bytes) -> None:
        self.server.stats.bytes_in += len(data)
        if self.state is CLOSED:
            self._drop(len(data))
            return
        state = self.state
        if state is BUSY or self._waiting or self._step is not None or (state is IDLE and self.writer.paused):
            self._wait(data)
        else:
            self._consume(data)

    # ---- input ------------------------------------------------------------------------------------------------------

    def _wait(self, data: bytes) -> None:
        """Keeps pipelined bytes up to a bound, then stops reading (API-6)."""
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > PIPELINE_BYTES:
            self._stop_reading()

    def _stop_reading(self) -> None:
        if self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()
            if not self._polling:
                self._polling = True
                self._poll_peer()

    def _read_on(self) -> None:
        if not self._reading and self._waiting_bytes <= PIPELINE_BYTES and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()

    def _poll_peer(self) -> None:
        """While reading is paused neither FIN nor RST is reported: ask the socket (API-7c). Between two pipelined
        requests the FIN says only that no more of them come."""
        if self._reading or self._transport is None:
            self._polling = False
            return
        sock = self._transport.get_extra_info("socket")
        if self._exchange is not None and sock is not None and flow.peer_closed(sock.fileno()):
            self._client_gone()
        else:
            self.server.runtime.wheel.arm(RDHUP_S, self._poll_peer)

    def _resume(self) -> None:
        """The next request may start, or the body go on: first from what was kept."""
        state = self.state
        if self._transport is None or self._step is not None or state is BUSY or state is CLOSED:
            return
        if state is IDLE and self.writer.paused:
            return  # a client that does not read its answers gets no more of them: resume_writing goes on
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        if data:
            self._consume(data)
        if self._step is None:
            self._read_on()

    def _consume(self, data: bytes) -> None:
        """Feeds bytes to whatever part of a request is due. What belongs to the next request waits."""
        try:
            offset, size = 0, len(data)
            while offset < size:
                state = self.state
                if self._step is not None:
                    self._wait(data[offset:])
                    return
                if state is IDLE or state is HEAD:
                    offset += self._feed_head(data, offset)
                elif state is BODY or state is DISCARD:
                    offset += self._feed_body(data[offset:] if offset else data)
                elif state is BUSY:
                    self._wait(data[offset:])
                    return
                else:
                    return
                if self.state is IDLE and offset < size:
                    # Answered at once. What follows gets a turn of its own, with those of other clients between.
                    self._wait(data[offset:])
                    self.server.runtime.loop.call_soon(self._resume)
                    return
        except HeadError as exc:
            self._refuse(exc)

    def _feed_head(self, data: bytes, offset: int) -> int:
        block, used = self._finder.feed(data, offset)
        if block is not None:
            self._begin(parse_request(block))
        elif self.state is IDLE:
            self._move(BYTES)
            self._set_deadline(self.server.limits.header_timeout_s)
        return used

    def _begin(self, head: RequestHead) -> None:
        server = self.server
        limits, framing, length = server.limits, head.framing, head.content_length
        self._exchange = exchange = Exchange(self, head, server.runtime.loop.time())
        self._move(PARSED)
        self._asked = True
        self._set_deadline(limits.body_timeout_s / WINDOW_PARTS)
        if self._progress:
            self._progress.clear()
        if server.closing:
            exchange.keep_alive = False
        if framing == FRAMING_NONE:
            self._decoder = None
            server.app.head_received(exchange)
            if not exchange.done:
                self._complete(exchange)
            return
        too_large = length > limits.max_body_bytes
        if too_large:
            exchange.keep_alive = False
        self._decoder = BodyDecoder(framing, length, limits.max_body_bytes if framing == FRAMING_CHUNKED else 0)
        if not head.expect_continue:
            server.app.head_received(exchange)
            if too_large and not exchange.done:
                server.app_error(exchange, PayloadTooLarge())
            return
        # Answered at once, no body was asked for: the client need not send it, so nobody knows what comes next.
        keep_alive, exchange.keep_alive = exchange.keep_alive, False
        self._asked = False
        server.app.head_received(exchange)
        if exchange.done:
            return
        exchange.keep_alive = keep_alive
        if too_large:
            server.app_error(exchange, PayloadTooLarge())
        else:
            self._asked = True
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _feed_body(self, data: bytes) -> int:
        decoder, exchange = self._decoder, self._exchange
        assert decoder is not None
        lost = False  # where the body ends is not known any more
        try:
            pieces, used = decoder.feed(data)
        except IopError as exc:
            lost, pieces, used = True, [], len(data)
            if exchange is not None:
                exchange.keep_alive = False
                self.server.app_error(exchange, exc)
            self._keep = False
            if not isinstance(exc, PayloadTooLarge):
                self.close(reset=False, refused=True)
        if self.state is not BODY:
            self._discard_more(used, decoder, lost=lost)
            return used
        self._hand_over(iter(pieces))
        return used

    def _hand_over(self, pieces: Iterator[bytes]) -> None:
        """Gives pieces to the app until one takes more than this turn, and keeps the others; behind the last one the
        request may be whole."""
        exchange, decoder, server = self._exchange, self._decoder, self.server
        assert exchange is not None
        assert decoder is not None
        stats, most = server.stats, server.limits.max_buffered_body_bytes
        for piece in pieces:
            total = stats.buffered_body_bytes + len(piece)
            if exchange.principal or total > most:
                try:
                    exchange.hold(len(piece))
                except IopError as exc:
                    server.app_error(exchange, exc)
                    return
            else:  # as most requests, of which hold() would say the same
                exchange.buffered_bytes += len(piece)
                stats.buffered_body_bytes = total
            server.app.body_piece(exchange, piece)
            if exchange.done:
                return
            if self._step is not None:
                self._pieces = pieces
                return
        if decoder.done:
            self._complete(exchange)

    def work(self, step: Callable[[], bool]) -> None:
        """The app goes on with a piece in later turns, in steps, until one returns False or answers."""
        self._step = step
        self._stop_reading()  # the body's next piece would only wait here, and nothing counts what waits
        self.server.turns.add(self._work)

    def _work(self) -> bool:
        try:
            return self._take_step()
        except BaseException:  # the loop is told; it would close the connection if this were data_received
            self._step = None
            self.close(reset=True)
            raise

    def _take_step(self) -> bool:
        step, exchange = self._step, self._exchange
        assert step is not None
        if exchange is not None and step():
            return True
        self._step = None
        pieces, self._pieces = self._pieces, iter(())
        if exchange is not None and not exchange.done:  # else the client left, or has its answer
            self._hand_over(pieces)
        if self._step is None and self._waiting:
            self._resume()
        if self._step is None:  # the bytes that waited may have begun the next step
            self._read_on()
        return False

    def _discard_more(self, count: int, decoder: BodyDecoder, *, lost: bool) -> None:
        """Bytes of a refused body were dropped. If its end is ``lost``, it is taken to be where the client pauses, and
        so it is if the client cannot be told that there is no more."""
        if self.state is not DISCARD:
            return
        self._discarded += count
        if decoder.done and self._keep:
            self._go_idle()
        elif decoder.done or self._discarded > REFUSED_BODIES * self.server.limits.max_body_bytes:
            self.close(reset=False)
        elif lost or not (self._keep or (self._transport is not None and self._transport.can_write_eof())):
            self._set_deadline(min(LINGER_S, self._discard_until - self.server.runtime.wheel.now))

    def _complete(self, exchange: Exchange) -> None:
        self._move(COMPLETE)
        self._deadline_at = 0.0
        self.server.app.request_complete(exchange)

    # ---- output -----------------------------------------------------------------------------------------------------

    def response_done(self, keep_alive: bool) -> None:
        """The exchange's response is written: on to the next request, or close."""
        self._exchange = None
        if self.state is BODY and self._decoder is not None and not self._decoder.done:
            # Answered before the body came: the next request is behind it, unless there is to be none.
            if self._asked:
                self._discard(keep=keep_alive and not self.server.closing)
            else:
                self.close(reset=False, refused=True)
            return
        if self.state is BODY:
            self._move(COMPLETE)
        if self.state is not BUSY:
            return
        if not keep_alive:
            self.close(reset=False)
            return
        self._go_idle()

    def _discard(self, *, keep: bool) -> None:
        """Reads and drops what is left of the body; then the next request may come, or the connection closes. The
        client is told at once that there is no more, if it can be."""
        self._move(REFUSED)
        self._keep = keep
        self._discarded = 0
        self._discard_until = self.server.runtime.wheel.now + REFUSED_BODY_S
        self._set_deadline(REFUSED_BODY_S)
        transport = self._transport
        if not keep and transport is not None:
            self.writer.flush_now()
            if transport.can_write_eof():
                transport.write_eof()
            else:
                self._set_deadline(LINGER_S)

    def _go_idle(self) -> None:
        self._move(NEXT)
        self._decoder = None
        self._set_deadline(self.server.limits.idle_timeout_s)
        if self._waiting:
            self.server.runtime.loop.call_soon(self._resume)

    def _refuse(self, error: IopError, more: bytes = b"") -> None:
        """Answers what never became an exchange, and closes; nothing behind it is looked at."""
        self.writer.write(self.server.refusal(error, more))
        if self.state is BODY:
            self._discard(keep=False)
        else:
            self.close(reset=False, refused=True)

    def cut(self) -> None:
        """End with RST, once the client has been given what came before: a reset drops what is still on its way."""
        if self._transport is not None and self.state is not CLOSED:
            self._end(CUT)
            self._exchange = None

    def close(self, *, reset: bool, reason: str = "client_gone", refused: bool = False) -> None:
        """Flush and close, as fast as the client reads; with ``reset`` the client sees RST at once.

        ``refused``: the client may be sending still, and does not know yet that nobody reads it.
        """
        transport = self._transport
        if transport is None:
            return
        if self.state is CLOSED:
            if reset and self._closing is not None:  # there is no time for the rest any more
                self._closing.give_up()
            return
        if reset:
            self._move(CLOSE)
            flow.abort(transport, reset=True)
        else:
            self._waiting.clear()
            if not self._reading:
                self._reading = True
                transport.resume_reading()
            self._end(REFUSE if refused else DELIVER)
        self._abandon(reason)

    def _end(self, way: Way) -> None:
        transport = self._transport
        assert transport is not None
        self._move(CLOSE)
        self.writer.flush_now()
        server = self.server
        self._closing = Closing(way, transport, server.runtime.wheel.now, server.limits.client_idle_timeout_s)
        self._look_again_in(self._closing.begin())

    def _look_again_in(self, seconds: float | None) -> None:
        if seconds is None:
            self._deadline_at = 0.0
        else:
            self._set_deadline(seconds)

    def _drop(self, count: int) -> None:
        """Bytes of the client came behind the end."""
        transport, closing = self._transport, self._closing
        if transport is None or closing is None:
            return
        if not closing.dropped(count, self.server.runtime.wheel.now):
            transport.pause_reading()  # a reset now would take the answer with it
            self._reading = False

    @property
    def unfinished(self) -> bool:
        """Whether a request or an answer is under way: it is being received, answered, or taken by its client."""
        transport = self._transport
        if transport is None or self.state in {HEAD, BODY, BUSY, DISCARD}:
            return transport is not None
        return self.writer.pending_bytes > 0 or flow.untaken(transport) > 0

    def _client_gone(self) -> None:
        """The client has closed: there is nobody to whom the rest could be sent. It may have closed one direction only,
        and see the end: where only that delimits the body, the end is a reset (API-8b)."""
        exchange, transport = self._exchange, self._transport
        assert exchange is not None
        assert transport is not None
        self._move(CLOSE)
        flow.abort(transport, reset=exchange.head.http10)
        self._abandon("client_gone")

    def _abandon(self, reason: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None and not exchange.done:
            exchange.done = True
            exchange.release_body()
            self.server.app.client_gone(exchange, reason)

    # ---- clocks -----------------------------------------------------------------------------------------------------

    def _set_deadline(self, delay_s: float) -> None:
        wheel = self.server.runtime.wheel
        self._deadline_at = at = wheel.now + delay_s
        timer = self._timer
        if timer is None or timer.callback is None or timer.at > at:
            if timer is not None:
                timer.cancel()
            self._timer = wheel.arm(delay_s, self._expired)

    def _expired(self) -> None:
        now = self.server.runtime.wheel.now
        self._timer = None
        if self._deadline_at == 0.0 or self._transport is None:
            return
        if now < self._deadline_at:
            self._timer = self.server.runtime.wheel.arm(self._deadline_at - now, self._expired)
            return
        if self.state is CLOSED:
            if self._closing is not None:
                self._look_again_in(self._closing.look(now))
            return
        if self.state is BODY and not self._too_slow():
            self._set_deadline(self.server.limits.body_timeout_s / WINDOW_PARTS)
            return
        if self.state in (HEAD, BODY):
            more = self._exchange.more_fields if self._exchange is not None else b""
            self._abandon("body_timeout")
            self._refuse(RequestTimeout(), more)
        else:
            self.close(reset=False)

    def _too_slow(self) -> bool:
        """Whether in the last ``body_timeout_s`` fewer bytes of the body came than have to (API-10). Asked at each part
        of that time."""
        limits, progress, decoder = self.server.limits, self._progress, self._decoder
        seen = decoder.body_bytes if decoder is not None else 0
        if self._step is not None or not self._reading:
            progress[:] = [seen]  # what is there is worked on, and the client waits for us
            return False
        if not progress:
            progress.append(0)
        progress.append(seen)
        if len(progress) <= WINDOW_PARTS:
            return False
        return seen - progress.pop(0) < BODY_FLOOR_BYTES_PER_S * limits.body_timeout_s

    def _taken(self) -> int:
        """Bytes that the kernel has taken for this client so far."""
        transport = self._transport
        return self.writer.handed - (transport.get_write_buffer_size() if transport is not None else 0)

    def _watch_writing(self) -> None:
        """A client that accepts nothing for client_idle_timeout_s while output waits is given up (API-10)."""
        if self._transport is None or not self.writer.paused or self.state is CLOSED:
            self._watching = False
            return
        limit, wheel = self.server.limits.client_idle_timeout_s, self.server.runtime.wheel
        taken = self._taken()
        if taken != self._left:
            self._left, self._left_at = taken, wheel.now
        elif wheel.now - self._left_at >= limit:
            self.close(reset=True, reason="client_idle")
            return
        wheel.arm(min(limit / 4, 5.0), self._watch_writing)

    def _move(self, step: Step[State]) -> None:
        self.state = step[self.state]


class HttpServer:
    """A listener and its connections. ``start`` binds; ``stop_accepting`` closes the listener and lets exchanges go on
    (the next request on a kept connection is still handed to the app, which refuses it, and is the last one there);
    ``close`` ends everything."""

    def __init__(
        self, runtime: Runtime, app: App, app_error: Callable[[Exchange, IopError], None], limits: ServerLimits
    ) -> None:
        self.runtime = runtime
        self.app = app
        self.app_error = app_error
        self.limits = limits
        self.stats = ServerStats()
        self.turns = Turns(runtime.loop.call_soon)
        self.connections: set[HttpConnection] = set()
        self.closing = False
        self.tls: Served | None = None  # what new connections are shown
        self.handshakes = HandshakeFailures(runtime, "http")
        self._server: asyncio.Server | TlsListener | None = None
        self._date = (0, b"")

    async def start(self, host: str, port: int) -> int:
        """Binds and listens, with TLS if ``tls`` is set by now; returns the port. Raises OSError."""
        self._server, port = await listen(
            self.runtime,
            lambda: HttpConnection(self),
            host,
            port,
            served=lambda: self.tls,
            # Some above the limit get in, to be told so.
            room=lambda arriving: len(self.connections) + arriving < self.limits.max_connections + TOLD_ABOVE,
            handshake_s=lambda: self.limits.header_timeout_s,
            plain_answer=self._speaks_tls,
            failures=self.handshakes,
            shutdown_s=lambda: self.limits.client_idle_timeout_s,
        )
        return port

    def refusal(self, error: IopError, more: bytes = b"") -> bytes:
        """A whole answer for what never became an exchange, and the last one of its connection. The object has OpenAI's
        shape: no API was asked yet."""
        self.app.rejected(error.code)
        kind = "invalid_request_error" if error.status < 500 else error.code
        told = {"message": error.message, "type": kind, "param": None, "code": error.code}
        body = json.dumps({"error": told}, separators=(",", ":")).encode()
        fields = b"x-request-id: %b\r\ncontent-type: application/json\r\n" % new_request_id().encode()
        if error.retry_after_s is not None:
            fields += b"retry-after: %d\r\n" % error.retry_after_s
        end = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        return b"".join((status_line(error.status), self.date_line(), fields, more, end, body))

    def _speaks_tls(self) -> bytes:
        """For a client that does not."""
        return self.refusal(InvalidRequest("this port speaks TLS; use https://"))

    def date_line(self) -> bytes:
        """RFC 9110 section 6.6.1, made once a second."""
        second = int(self.runtime.wheel.now)
        if second != self._date[0]:
            self._date = (second, b"date: %b\r\n" % formatdate(time.time(), usegmt=True).encode("ascii"))
        return self._date[1]

    def stop_accepting(self) -> None:
        """No new connection. Those that are kept stay: a FIN now would cross the request that a client is sending,
        and cut it unread instead of refusing it (SUP-5)."""
        self.closing = True
        if self._server is not None:
            self._server.close()

    def close(self) -> None:
        """End all connections at once; idle ones without a reset."""
        self.stop_accepting()
        for connection in list(self.connections):
            connection.close(reset=connection.state is not IDLE)

    @property
    def unfinished(self) -> bool:
        """Whether a connection has a request or an answer under way."""
        return any(connection.unfinished for connection in self.connections)

    async def wait_closed(self) -> None:
        if self._server is not None:
            await self._server.wait_closed()
