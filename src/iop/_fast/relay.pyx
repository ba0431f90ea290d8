# cython: language_level=3
"""The two halves of one raw tunnel: what happens to a body byte between a provider's socket and a client's (TUN-1).

    node   provider bytes ─▶ ProviderStream.feed: de-chunk, split, classify ─▶ one frame per read ─▶ Mux
    edge   Mux ─▶ ClientStream.on_frame: gate, chunk head + body + CRLF ─▶ the client's Writer

Per event there is no task, queue, timer, dict, log or protobuf object, and no Python call. Owners are called back once
per request at each step of its life (head, commit, terminal). The gate holds what came before the commit (API-7). The
time is a field of the hub that somebody else ticks. The file is long because both halves obey one order of frames, and
are read against each other.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcmp, memcpy

from iop._fast cimport body as bd
from iop._fast cimport frame as fr
from iop._fast cimport sse
from iop._fast.streams cimport CONGESTED_MAX, DATA_MAX, RequestStream, SourceStream

from iop.errors import IopError, ProtocolError

# How a client's answer is framed.
CHUNKED = 0
LENGTH = 1
RAW = 2     # close-delimited
BODILESS = 3

cdef enum:
    M_CHUNKED = 0
    M_LENGTH = 1
    M_RAW = 2
    M_BODILESS = 3

# ClientStream states
cdef enum:
    S_WAITING = 0       # no head yet
    S_HELD = 1          # head seen, nothing committed
    S_OPEN = 2          # committed
    S_DISCARD = 3       # the client left or the answer is not wanted; only the terminal counts
    S_ENDED = 4         # the terminal was seen

cdef bytes BOM = b"\xef\xbb\xbf"
cdef unsigned int COMMITTING = sse.SEMANTIC | sse.FINISH | sse.ERROR_4XX
cdef Py_ssize_t HELD_MAX = 16384
cdef Py_ssize_t COLLECTED_MAX = 65536
cdef enum:
    SPANS = 64          # body spans gathered into one frame


cdef class ClientStream(RequestStream):
    """The edge's half. ``owner`` hears::

        on_head(status, header_block)     answer with respond(); or discard()
        on_commit()                       the first byte is on its way to the client: no way back
        on_held_end()                     the answer has ended and all of it is held: true keeps it, for take_held() in
                                          on_terminal; false commits it
        on_terminal(kind, usage, failure) END or ERROR, after which the stream is out of the table;
                                          usage is a tuple of token counts or None, failure a message or None

        on_broken(exception, ended)       an owner's method raised, which is a fault of ours; ``ended`` after the
                                          terminal. The owner ends its request; the other streams go on

    A frame out of order is a fault of the node and closes its link.
    """

    def __init__(self, Writer writer not None, owner):
        self.writer = writer
        self.owner = owner
        self.at_boundary = True

    # ---- response ---------------------------------------------------------------------------------------------------

    @property
    def committed(self):
        return self.state == S_OPEN

    @property
    def held_bytes(self):
        return self.held.n if self.held is not None else 0

    def respond(self, bytes head not None, int mode, long long length, bint gated, bint collected=False):
        """The client's response head, and how its body is framed: CHUNKED, LENGTH (``length`` bytes), RAW, BODILESS.

        ``gated`` holds head and preamble until a committing event (API-7); otherwise the first body byte commits.
        ``collected`` commits by itself in no case: the start of the body is held, what is beyond that is dropped.
        """
        if self.state != S_HELD:
            return
        self.head = head
        self.mode = mode
        self.remaining = length
        self.gated = gated
        self.collected = collected
        self.writer.sink = self

    def discard(self):
        """Drops what is held and all that follows; the terminal is still reported. No-op after the terminal."""
        if self.state < S_DISCARD:
            self.state = S_DISCARD
        self.pieces = None
        self.held = None
        if self.writer.sink is self:
            self.writer.sink = None

    def take_held(self):
        """The body so far, which then is held no more."""
        cdef OutBuffer held = self.held
        self.held = None
        return held.take() if held is not None else b""

    def commit(self):
        """Sends the head and what is held. No-op if nothing is held."""
        cdef OutBuffer held = self.held
        cdef bytes body
        if self.head is None or self.state != S_HELD:
            return
        self.held = None
        body = held.take() if held is not None else b""
        self.open_with(PyBytes_AS_STRING(body), len(body))

    def finish(self):
        """After the terminal END: completes the client's body. False if its length is not what the head promised."""
        if self.writer.sink is self:
            self.writer.sink = None
        if self.mode == M_CHUNKED:
            memcpy(self.writer.out.reserve(5), b"0\r\n\r\n", 5)
            self.writer.touch()
        return self.mode != M_LENGTH or self.remaining == 0

    def inject(self, bytes data not None):
        """Body bytes of the edge's own (an error event), behind what the provider sent. Only after the commit."""
        if self.state == S_OPEN or self.state == S_ENDED:
            self.emit(PyBytes_AS_STRING(data), len(data))

    cdef int on_frame(self, fr.Frame* f, object extra) except -1:
        cdef int before = self.state
        cdef Py_ssize_t n
        if before == S_ENDED or f.payload != fr.P_TUNNEL_FRAME:
            raise ProtocolError("wrong_state", f"stream {self.stream_id}")
        if f.seq != self.next_seq:
            raise ProtocolError("sequence", f"stream {self.stream_id}: {f.seq} instead of {self.next_seq}")
        self.next_seq += 1
        if f.kind == fr.K_BODY:
            if before == S_WAITING or f.body_n == 0:
                raise ProtocolError("wrong_state", f"stream {self.stream_id}: body")
            self.received(f.body_n)
            self.body_bytes += f.body_n
            self.progress_at = self.mux.hub.now
            if before == S_DISCARD:
                return 0
            self.flags_seen |= f.flags
            self.at_boundary = f.flags & sse.BOUNDARY != 0
            if before == S_OPEN:
                return self.emit(f.body, f.body_n)
            if self.held is None:
                if self.head is not None and not self.collected and (not self.gated or f.flags & COMMITTING):
                    return self.open_with(f.body, f.body_n)  # nothing came before it: it goes straight out (WIRE-3)
                self.held = OutBuffer()
            n = f.body_n
            if self.collected:
                n = min(n, COLLECTED_MAX - self.held.n)  # what fits, so that what is held has no hole
            memcpy(self.held.reserve(n), f.body, n)
            if self.collected:
                return self.settle()
            if not self.gated or f.flags & COMMITTING or self.held.n > HELD_MAX:
                self.commit()
            return 0
        if f.kind == fr.K_HEAD:
            if f.seq != 0:
                raise ProtocolError("wrong_state", f"stream {self.stream_id}: head")
            self.progress_at = self.mux.hub.now
            if before == S_WAITING:
                self.state = S_HELD
                self.owner.on_head(f.status, PyBytes_FromStringAndSize(f.head, f.head_n))
            return 0
        if f.kind == fr.K_USAGE:
            self.progress_at = self.mux.hub.now
            return 0
        if f.kind == fr.K_END or f.kind == fr.K_ERROR:
            if f.kind == fr.K_END and before == S_WAITING:
                raise ProtocolError("wrong_state", f"stream {self.stream_id}: end before head")
            self.pieces = None
            self.flags_seen |= f.flags  # of an event that ended with the body
            try:
                if f.flags & COMMITTING and not self.collected:
                    self.commit()
                if self.state == S_HELD and f.kind == fr.K_END and not self.owner.on_held_end():
                    self.commit()
            finally:  # whatever the owner does: the node will say no more
                self.state = S_ENDED
                self.mux.forget(self)
            usage = fr.tokens_as_tuple(&f.usage) if f.has_usage else None
            self.owner.on_terminal(f.kind, usage, extra)
            self.owner = None  # no cycle is left for the collector
            return 0
        raise ProtocolError("unknown_kind", str(f.kind))

    cdef int broken(self, object exc) except -1:
        cdef bint ended = self.state == S_ENDED
        owner = self.owner
        if ended:
            self.owner = None
        owner.on_broken(exc, ended)
        return 0

    cdef int open_with(self, const char* p, Py_ssize_t n) except -1:
        """The commit, and the first bytes of the body behind the head."""
        cdef bytes head = self.head
        self.state = S_OPEN
        self.head = None
        self.owner.on_commit()
        self.writer.write(head)
        if not head and n >= 3 and memcmp(p, PyBytes_AS_STRING(BOM), 3) == 0:
            p += 3  # the client has had comments: it would be a part of a field's name now
            n -= 3
        return self.emit(p, n)

    cdef int emit(self, const char* p, Py_ssize_t n) except -1:
        """Appends body bytes to the client's output, framed. Bound: reserve() gives exactly the bytes filled here."""
        cdef char* at
        cdef Py_ssize_t v
        cdef int digits = 0, i
        if self.mode == M_BODILESS:
            return self.settle()  # nobody will take it
        if n == 0:
            return 0
        if self.mode == M_CHUNKED:
            v = n
            while v:
                v >>= 4
                digits += 1
            at = self.writer.out.reserve(digits + n + 4)
            v = n
            for i in range(digits - 1, -1, -1):
                at[i] = (<const char*>b"0123456789abcdef")[v & 15]
                v >>= 4
            at += digits
            at[0] = c"\r"
            at[1] = c"\n"
            memcpy(at + 2, p, n)
            at[n + 2] = c"\r"
            at[n + 3] = c"\n"
        else:
            if self.mode == M_LENGTH:
                if n > self.remaining:
                    raise ProtocolError("body_too_long", f"stream {self.stream_id}")
                self.remaining -= n
            memcpy(self.writer.out.reserve(n), p, n)
        return self.writer.touch()


cdef class ProviderSocket:
    """Receives for one provider connection: while ``body`` is set, bytes go straight to its ``feed``, without a Python
    frame between the socket and the relay; else the subclass's ``outside_body(data)`` hears them."""

    def data_received(self, bytes data not None):
        self.bytes_in += len(data)
        if self.body is not None:
            self.body.feed(data)
        else:
            self.outside_body(data)


cdef class ProviderStream(SourceStream):
    """The node's half. ``owner`` hears::

        on_request_body(data, last)       a chunk of the request body, to be written to the provider
        on_body_end(extra_bytes)          the provider's body is complete; extra_bytes came behind it (0 is healthy)
        on_body_error(IopError)           the provider's body is malformed
        pause_source() / resume_source()  stop and start reading from the provider
        on_broken(exception)              one of these raised while a frame was handled

    The owner then sends exactly one terminal: ``end()``, or a frame of its own through ``send_terminal``.
    """

    def __init__(self, owner):
        self.owner = owner

    def head(self, unsigned int status, bytes header_block not None):
        """Sends status and header lines: frame 0."""
        cdef Py_ssize_t n = len(header_block)
        cdef char* at
        if self.fenced or self.mux.closed:
            return
        at = self.mux.room(self, fr.tunnel_frame_size(self.stream_id, self.next_seq, fr.K_HEAD, 0, 0, status, n))
        at = fr.put_tunnel_frame_head(at, self.stream_id, self.next_seq, fr.K_HEAD, 0, 0, status, n)
        fr.put_tunnel_frame_tail(at, 0, status, PyBytes_AS_STRING(header_block), n)
        self.next_seq += 1
        self.progress_at = self.mux.hub.now

    def begin(self, BodyDecoder decoder not None, EventSplitter splitter=None, FieldScanner fields=None):
        """How to read the body that follows. ``splitter`` for event streams in identity coding, ``fields`` for JSON."""
        self.decoder = decoder
        self.splitter = splitter
        self.fields = fields

    def feeds(self, Writer writer):
        """The provider socket that takes the request body: its credit returns when that socket took the bytes. None
        when there is none any more."""
        if self.into is not None and self.into.sink is self:
            self.into.sink = None
        self.into = writer
        if writer is not None:
            writer.sink = self

    @property
    def paused(self):
        """True while the source is stopped for lack of credit or a full link: not the provider's fault (LIVE-4)."""
        return self.stopped

    @property
    def finished(self):
        """True unless this is an event stream that has not shown its API's last event."""
        return self.splitter is None or self.splitter.finished

    def usage(self):
        """Raw JSON pieces of the usage that the provider reported, oldest first; () if it reported none (EXEC-5)."""
        cdef list out = []
        if self.splitter is not None:
            out = [self.splitter.usage_start(), self.splitter.usage()]
        elif self.fields is not None:
            out = [self.fields.value()]
        return tuple([piece for piece in out if piece is not None])

    def feed(self, bytes data not None):
        """Bytes from the provider, at or behind the start of the body."""
        cdef Py_ssize_t n = len(data), used
        if self.fenced or self.mux.closed:
            self.dropped_bytes += n
            return
        if self.body_ended:
            return
        if self.pending is not None:
            self.pending.append(data)  # a transport may deliver what it had read before it paused
            return
        used = self.pump(PyBytes_AS_STRING(data), n)
        if used < n and not self.body_ended:
            self.pending = [data[used:] if used else data]
            if not self.stopped:
                self.stopped = True
                self.owner.pause_source()

    def eof(self):
        """The provider closed. Ends a close-delimited body; cuts any other, which on_body_error hears."""
        if self.fenced or self.body_ended or self.mux.closed:
            return
        if self.pending is not None:
            self.eof_pending = True
        elif self.decoder.eof():
            self.body_whole(0)
        else:
            self.fail_body(None)

    cdef int fail_body(self, object exc) except -1:
        self.body_ended = True
        self.pending = None
        self.owner.on_body_error(exc)
        return 0

    def fence(self):
        """Nothing but a terminal leaves from now on (LIVE-5): later output is dropped and counted."""
        self.fenced = True
        self.pending = None

    def end(self, tuple usage=None):
        """The terminal END: the stream is over. ``usage`` is what the provider reported, as (input, output, reasoning,
        cached input) tokens, each or all of it None where it said nothing (TUN-3)."""
        cdef fr.Tokens tokens
        cdef fr.Tokens* given = NULL
        cdef char* at
        if self.terminal_sent:
            return
        self.terminal_sent = True
        if not self.mux.closed:
            if usage is not None:
                fr.tokens_from(usage, &tokens)
                given = &tokens
            at = self.mux.room(self, fr.tunnel_end_size(self.stream_id, self.next_seq, self.last_flags, given))
            fr.put_tunnel_end(at, self.stream_id, self.next_seq, self.last_flags, given)
            self.mux.forget(self)
        self.owner = None

    def send_terminal(self, bytes frame not None):
        """An ERROR that the caller encoded with ``next_seq``. At most one terminal counts."""
        if self.terminal_sent:
            return
        self.terminal_sent = True
        if not self.mux.closed:
            self.mux.send(frame, self)
            self.mux.forget(self)
        self.owner = None

    cdef int go_on(self) except -1:
        """Credit or room came back: first what was kept, then the source."""
        cdef bytes data
        cdef Py_ssize_t used
        if self.fenced:
            return 0
        while self.pending is not None:
            if self.send_credit <= 0 or self.blocked:
                return 0
            data = <bytes>self.pending[0]
            used = self.pump(PyBytes_AS_STRING(data), len(data))
            if self.body_ended:
                return 0
            if used < len(data):
                self.pending[0] = data[used:]
                return 0
            self.pending.pop(0)
            if not self.pending:
                self.pending = None
        if self.stopped and self.send_credit > 0 and not self.blocked:
            self.stopped = False
            if self.eof_pending:
                self.eof()
            else:
                self.owner.resume_source()
        return 0

    cdef Py_ssize_t pump(self, const char* p, Py_ssize_t n) except -1:
        """Decodes and sends what credit allows; the number of bytes used. Bound: step() is never given more than is
        left of p[:n], nor more than one frame may carry, and spans has room for SPANS entries."""
        cdef const char* spans[SPANS]
        cdef Py_ssize_t sizes[SPANS]
        cdef Py_ssize_t i = 0, total = 0, give, used
        cdef int count = 0, what
        cdef const char* spare
        cdef Py_ssize_t spare_n
        cdef bint ended = False
        if self.blocked:
            return 0
        try:
            while i < n:
                give = (CONGESTED_MAX if self.mux.congested else DATA_MAX) - total
                if give > self.send_credit - total:
                    give = <Py_ssize_t>(self.send_credit - total)
                if count == SPANS or give <= 0:
                    if total == 0:
                        break
                    self.push(spans, sizes, count, total)
                    count = 0
                    total = 0
                    if self.blocked:
                        break
                    continue
                if give > n - i:
                    give = n - i
                what = self.decoder.step(p + i, give, &used, &spans[count], &sizes[count])
                i += used
                if what == bd.BODY_DATA:
                    total += sizes[count]
                    count += 1
                elif what == bd.BODY_DONE:
                    ended = True
                    break
            if i == n and not ended:
                # A body of known length is complete with its last byte, which only the next step tells.
                ended = self.decoder.step(p + n, 0, &used, &spare, &spare_n) == bd.BODY_DONE
        except IopError as exc:
            if total:
                self.push(spans, sizes, count, total)
            self.fail_body(exc)
            return n
        if total:
            self.push(spans, sizes, count, total)
        if ended:
            self.body_whole(n - i)
        return i

    cdef int body_whole(self, Py_ssize_t extra) except -1:
        """All of the body is here. Its end also ends an event that has no blank line behind it (API-8b)."""
        self.body_ended = True
        if self.splitter is not None:
            self.last_flags = self.splitter.end()
        self.owner.on_body_end(extra)
        return 0

    cdef int push(self, const char** spans, Py_ssize_t* sizes, int count, Py_ssize_t total) except -1:
        """One BODY frame made of the spans; classified on the way (TUN-10). Bound: the spans add up to total."""
        cdef unsigned int flags = 0
        cdef int i
        cdef char* at
        cdef unsigned long long progress
        if self.splitter is not None:
            for i in range(count):
                flags |= self.splitter.feed_span(spans[i], sizes[i])
            if self.splitter.at_boundary:
                flags |= sse.BOUNDARY
            progress = self.splitter.progress_events
            if progress != self.progress_seen:
                self.progress_seen = progress
                self.progress_at = self.mux.hub.now
        else:
            if self.fields is not None:
                for i in range(count):
                    self.fields.feed_span(spans[i], sizes[i])
            self.progress_at = self.mux.hub.now
        at = self.mux.room(
            self, fr.tunnel_frame_size(self.stream_id, self.next_seq, fr.K_BODY, total, flags, 0, 0))
        at = fr.put_tunnel_frame_head(at, self.stream_id, self.next_seq, fr.K_BODY, total, flags, 0, 0)
        for i in range(count):
            memcpy(at, spans[i], sizes[i])
            at += sizes[i]
        fr.put_tunnel_frame_tail(at, flags, 0, NULL, 0)
        self.next_seq += 1
        self.send_credit -= total
        self.body_bytes += total
        return 0
