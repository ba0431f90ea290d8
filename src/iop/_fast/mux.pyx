# cython: language_level=3
"""One link's framing, stream table, send lanes and credit, for either end (WIRE-1, WIRE-4, WIRE-5, WIRE-6, WIRE-9).

Bytes come in by ``feed`` and leave through the transport that was attached; there is no socket, loop or clock in here.
Hot frames go straight to their stream. Everything else is handed, whole and in order, to ``on_message``: at most 64
such cold messages a poll round, behind which the link is not read until the next round (WIRE-10).

Sending. While the link keeps up, frames are appended to one buffer in the order they come and leave once per poll
round. When 128 KiB wait for the kernel the link is *congested*: then each stream queues in its own lane, and the lanes
take turns of 16 KiB. Control frames (heartbeats, credit, goodbye) always go first.

The file is long because receiving, lanes and credit share one state per link, and a call between two extension modules
would cost as much as what they do for an event.

              room()                            flush(), once a round, while < 128 KiB are unsent
   stream ──┬─ not congested ──▶ bulk ─────────┐
            └─ congested ──▶ its lane ─ ring ──┼──▶ transport
   control ─────────────────▶ control ─────────┘ (first)
"""
from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from iop._fast cimport frame as fr

from iop.errors import ProtocolError

MAX_STREAM_ID = 0x7FFFFFFF

cdef unsigned int _MAX_STREAM_ID = 0x7FFFFFFF
cdef Py_ssize_t SEND_HIGH = 131072       # unsent bytes at which a link is congested
cdef Py_ssize_t QUANTUM = 16384          # a lane's turn
cdef Py_ssize_t QUEUE_HIGH = 1048576     # queued bytes at which sources pause
cdef Py_ssize_t QUEUE_LOW = 524288
cdef Py_ssize_t CONTROL_MAX = 1048576
cdef Py_ssize_t BODY_MAX = 65536         # of one data frame
cdef Py_ssize_t HOLD_STEP = 65536        # what is allocated at most for a frame before its bytes are there
cdef long long CREDIT_MAX = 1 << 31
cdef int COLD_MAX = 64                   # messages of one link a round that are not plain hot ones (WIRE-10)
# The end of a round is awaited from here on only: a callback for each request would cost more than its message. What
# came in rounds before counts until then, so a round handles at least half of COLD_MAX and never more than all.
cdef int COLD_WATCHED = COLD_MAX // 2


# By payload, the kinds of frames of an open stream that its end or its credit bounds, as bits: they are no flood.
cdef unsigned int[16] _BOUNDED
_BOUNDED[fr.P_TUNNEL_FRAME] = 1 << fr.K_BODY | 1 << fr.K_END | 1 << fr.K_ERROR
_BOUNDED[fr.P_RUN_EVENT] = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 8  # deltas and terminals


cdef class StreamTable:
    """Streams by id: open addressing, linear probing, at most half full. Holds a reference to each stream."""

    def __cinit__(self):
        self.size = 64
        self.slots = <Slot*>calloc(self.size, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.slots != NULL:
            for i in range(self.size):
                if self.slots[i].stream_id:
                    Py_DECREF(<object>self.slots[i].stream)
            free(self.slots)

    cdef PyObject* get(self, unsigned int stream_id) noexcept nogil:
        """The stream (borrowed) or NULL. Bound: the index is masked by a power-of-two size."""
        cdef Py_ssize_t i = stream_id & (self.size - 1)
        if stream_id == 0:
            return NULL
        while self.slots[i].stream_id:
            if self.slots[i].stream_id == stream_id:
                return self.slots[i].stream
            i = (i + 1) & (self.size - 1)
        return NULL

    cdef int add(self, unsigned int stream_id, object stream) except -1:
        cdef Slot* old = self.slots
        cdef Py_ssize_t i, j, old_size = self.size
        if 2 * (self.used + 1) > self.size:
            self.slots = <Slot*>calloc(2 * old_size, sizeof(Slot))
            if self.slots == NULL:
                self.slots = old
                raise MemoryError
            self.size = 2 * old_size
            for i in range(old_size):
                if old[i].stream_id:
                    j = old[i].stream_id & (self.size - 1)
                    while self.slots[j].stream_id:
                        j = (j + 1) & (self.size - 1)
                    self.slots[j] = old[i]
            free(old)
        i = stream_id & (self.size - 1)
        while self.slots[i].stream_id:
            i = (i + 1) & (self.size - 1)
        self.slots[i].stream_id = stream_id
        self.slots[i].stream = <PyObject*>stream
        Py_INCREF(stream)
        self.used += 1
        return 0

    cdef int drop(self, unsigned int stream_id) except -1:
        """Removes the stream; what probed past it moves back, so that lookups need no tombstones."""
        cdef Py_ssize_t mask = self.size - 1
        cdef Py_ssize_t i = stream_id & mask, j, home
        cdef PyObject* gone
        if stream_id == 0:
            return 0
        while self.slots[i].stream_id != stream_id:
            if self.slots[i].stream_id == 0:
                return 0
            i = (i + 1) & mask
        gone = self.slots[i].stream
        j = i
        while True:
            j = (j + 1) & mask
            if self.slots[j].stream_id == 0:
                break
            home = self.slots[j].stream_id & mask
            if (j - home) & mask >= (j - i) & mask:
                self.slots[i] = self.slots[j]
                i = j
        self.slots[i].stream_id = 0
        self.slots[i].stream = NULL
        self.used -= 1
        Py_DECREF(<object>gone)
        return 1

    def streams(self):
        """A list of what is in the table."""
        cdef Py_ssize_t i
        return [<object>self.slots[i].stream for i in range(self.size) if self.slots[i].stream_id]


cdef class Stream(Sink):
    """One stream's flow-control state; what it does with frames is its subclass's business."""

    cdef int on_frame(self, Frame* f, object extra) except -1:
        """A data frame of this stream. Pointers in f die with the call. extra: a failure, or None."""
        return 0

    cdef int broken(self, object exc) except -1:
        """A fault of ours came up while a frame was handled: it may cost this stream, not the link with all others."""
        raise exc

    cdef int on_credit(self) except -1:
        """The peer returned credit: sending may go on."""
        return 0

    cdef int on_unblocked(self) except -1:
        """The link is below its bound again."""
        return 0

    cdef int received(self, Py_ssize_t n) except -1:
        """Counts n body bytes against the window that was given to the peer (WIRE-5)."""
        if n > self.allowed:
            raise ProtocolError("credit_exceeded", f"stream {self.stream_id}")
        self.allowed -= n
        self.owed += n
        self.mux.hub.buffered_bytes += n
        return 0

    cdef int drained(self) except -1:
        """The writer that this stream feeds handed its bytes on and is not paused."""
        return self.settle()

    cdef int settle(self) except -1:
        """Returns all owed bytes to the peer if they make up half a window."""
        if self.owed * 2 >= self.window and self.owed and self.mux is not None:
            self.mux.credit(self, <unsigned int>self.owed)
        return 0

    cdef int released(self) except -1:
        """The stream left the table: what it still owed is no longer buffered on its behalf."""
        self.mux.hub.buffered_bytes -= self.owed
        self.owed = 0
        return 0


cdef class Mux(Flushable):
    """See the module. ``on_message(envelope: bytes)`` hears every frame that is not a plain hot one;
    ``on_fault(ProtocolError)`` hears, once, why the link must close: nothing is fed or sent afterwards.

    The owner sets ``max_frame_bytes`` as the handshake proceeds (WIRE-9), opens ``heartbeat_open`` and ``data_open``
    (frames that come earlier are faults), and forwards the transport's pause and resume.
    """

    def __init__(self, Hub hub not None, bint edge, on_message, on_fault, Py_ssize_t max_frame_bytes):
        self.hub = hub
        self.edge = edge
        self.on_message = on_message
        self.on_fault = on_fault
        self.max_frame_bytes = max_frame_bytes
        self.table = StreamTable()
        self.control = OutBuffer()
        self.bulk = OutBuffer()
        self.system = Stream()
        self.ring = deque()
        self.blocked_streams = []
        self.round_over = self.next_round

    def __dealloc__(self):
        free(self.held)

    # ---- life -------------------------------------------------------------------------------------------------------

    def attach(self, transport):
        """``transport``: write, writelines, get_write_buffer_size."""
        self.transport = transport
        self.unsent = transport.get_write_buffer_size
        self.hub.mark(self)

    def close(self):
        """Fences the link: later input is ignored, queued output is dropped, streams leave the table. Returns them."""
        cdef list streams = self.table.streams()
        cdef Stream s
        self.closed = True
        self.transport = self.unsent = None
        self.control.clear()
        self.bulk.clear()
        self.ring.clear()
        self.blocked_streams = []
        self.lanes_bytes = 0
        free(self.held)
        self.held = NULL
        self.held_n = self.held_cap = 0
        self.backlog = None
        self.on_reading = self.round_over = None
        for s in streams:
            self.table.drop(s.stream_id)
            s.released()
        return streams

    def pause(self):
        self.paused = self.congested = True

    def resume(self):
        self.paused = False
        self.hub.mark(self)

    @property
    def stream_count(self):
        return self.table.used

    @property
    def queued_bytes(self):
        """Bytes that wait here, before the transport."""
        return self.control.n + self.bulk.n + self.lanes_bytes

    @property
    def bytes_left(self):
        """Bytes that the kernel has taken so far."""
        return self.bytes_handed - (self.unsent() if self.unsent is not None else 0)

    @property
    def unsent_bytes(self):
        """Bytes that wait here or in the transport."""
        return self.queued_bytes + (self.unsent() if self.unsent is not None else 0)

    def find(self, unsigned int stream_id):
        """The stream with this id, or None."""
        cdef PyObject* s = self.table.get(stream_id)
        return <object>s if s != NULL else None

    def open(self, Stream s not None, long long window, long long send_credit):
        """Edge: gives ``s`` the next id (WIRE-4). Raises OverflowError when the ids of this connection are used up."""
        if self.highest_id >= _MAX_STREAM_ID:
            raise OverflowError("stream ids exhausted")
        self.adopt(s, self.highest_id + 1, window, send_credit)

    def adopt(self, Stream s not None, unsigned int stream_id, long long window, long long send_credit):
        """Node: takes the stream that the edge opened as ``stream_id``; an id that went backwards is a fault."""
        if stream_id <= self.highest_id or stream_id > _MAX_STREAM_ID:
            raise ProtocolError("stream_id_reused", str(stream_id))
        s.mux = self
        s.stream_id = stream_id
        s.window = s.allowed = window
        s.send_credit = send_credit
        self.table.add(stream_id, s)
        self.highest_id = stream_id

    def forget(self, Stream s not None):
        """The stream has had its terminal. Frames that it still has in its lane are sent."""
        if self.table.drop(s.stream_id):
            s.released()

    def withdraw(self, Stream s not None):
        """True if the stream's opening had not left yet and was taken back, with all that followed it (WIRE-6)."""
        if not s.opening_in_lane:
            return False
        self.lanes_bytes -= s.lane_bytes
        s.lane_bytes = 0
        s.lane.clear()
        s.opening_in_lane = False
        self.forget(s)
        return True

    # ---- receiving --------------------------------------------------------------------------------------------------

    def feed(self, bytes data not None):
        """Bytes from the peer, however they were cut. Never raises: a fault goes to ``on_fault``."""
        cdef const char* p = PyBytes_AS_STRING(data)
        cdef Py_ssize_t n = len(data), take, want
        if self.closed:
            return
        self.bytes_in += n
        if self.backlog is not None:
            self.backlog += data
            return
        self.hub.hold()
        try:
            while self.held_n and n:
                if self.cold_now >= COLD_MAX:
                    self.wait(p, n)
                    return
                if self.held_n < 4:
                    want = 4
                else:
                    want = 4 + self.frame_length(self.held)
                take = want - self.held_n
                if take > n:
                    take = n
                self.hold(p, take)
                p += take
                n -= take
                if self.held_n >= 4 and self.held_n == 4 + self.frame_length(self.held):
                    # Handlers see a copy that is theirs for the call: they may close the link and free `held`.
                    held = PyBytes_FromStringAndSize(self.held, self.held_n)
                    self.held_n = 0
                    if self.held_cap > HOLD_STEP:
                        free(self.held)
                        self.held = NULL
                        self.held_cap = 0
                    self.envelope(PyBytes_AS_STRING(held) + 4, len(held) - 4)
                    if self.closed:
                        return
            if n:
                self.parse(p, n)
        except ProtocolError as exc:
            self.fault(exc)
        finally:
            self.hub.release()

    def next_round(self):
        """The loop has been to its other sockets since the last cold message came: what waited is looked at."""
        cdef bytes data = self.backlog
        self.cold_now = 0
        if data is None or self.closed:
            return
        self.backlog = None
        self.bytes_in -= PyBytes_GET_SIZE(data)  # they were counted when they came
        try:
            self.feed(data)
        except BaseException:  # a fault of ours; the transport, which would close for it, does not see it here
            self.fault(ProtocolError("internal", "a message could not be handled"))
            raise
        if self.backlog is None and self.on_reading is not None:
            self.on_reading(True)

    cdef int wait(self, const char* p, Py_ssize_t n) except -1:
        """The rest waits for the next round."""
        self.backlog = PyBytes_FromStringAndSize(p, n)
        if self.on_reading is not None:
            self.on_reading(False)
        return 0

    def fault(self, exc):
        """The peer broke the contract, or the link is beyond its bounds."""
        if not self.closed:
            self.closed = True
            self.on_fault(exc)

    cdef Py_ssize_t frame_length(self, const char* p) except -1:
        """The length prefix at p[:4], checked before a byte of the frame is stored (WIRE-9)."""
        cdef const unsigned char* u = <const unsigned char*>p
        cdef Py_ssize_t n = (<Py_ssize_t>u[0] << 24) | (<Py_ssize_t>u[1] << 16) | (<Py_ssize_t>u[2] << 8) | u[3]
        if n == 0 or n > self.max_frame_bytes:
            if u[1] == 3 and u[0] in (0x15, 0x16):  # a record of TLS: said by name, since two settings do not match
                raise ProtocolError("frame_length", "the peer speaks TLS, and this end does not")
            raise ProtocolError("frame_length", f"{n} bytes; 1 to {self.max_frame_bytes} are allowed here")
        return n

    cdef int hold(self, const char* p, Py_ssize_t n) except -1:
        """Keeps n bytes of a frame that is not whole. Allocation follows the bytes that are there, never the prefix."""
        cdef Py_ssize_t cap
        cdef char* grown
        if self.held_n + n > self.held_cap:
            cap = self.held_cap if self.held_cap else 1024
            while cap < self.held_n + n:
                cap *= 2
            grown = <char*>realloc(self.held, cap)
            if grown == NULL:
                raise MemoryError
            self.held = grown
            self.held_cap = cap
        memcpy(self.held + self.held_n, p, n)
        self.held_n += n
        return 0

    cdef int parse(self, const char* p, Py_ssize_t n) except -1:
        """Whole frames in p[:n], then the rest is held. Bound: `length` is checked against what is left."""
        cdef Py_ssize_t length
        while n >= 4:
            if self.cold_now >= COLD_MAX:
                return self.wait(p, n)
            length = self.frame_length(p)
            if n - 4 < length:
                break
            self.envelope(p + 4, length)
            if self.closed:
                return 0
            p += 4 + length
            n -= 4 + length
        if n:
            self.hold(p, n)
        return 0

    cdef int envelope(self, const char* p, Py_ssize_t n) except -1:
        cdef Frame f
        if fr.decode_plain(<const unsigned char*>p, n, &f):
            self.frames_in += 1
            return self.dispatch(&f, None)
        self.cold_frames += 1
        self.cold_now += 1
        if self.cold_now == COLD_WATCHED:
            self.hub.call_soon(self.round_over)
        self.on_message(PyBytes_FromStringAndSize(p, n))
        self.frames_in += 1  # counted once it proved valid: the heartbeat looks at this
        return 0

    cdef int dispatch(self, Frame* f, object extra) except -1:
        cdef PyObject* found
        cdef Stream s
        if f.payload >= fr.P_HEARTBEAT:
            if not self.heartbeat_open:
                raise ProtocolError("wrong_state", "heartbeat before registration")
            if f.payload == fr.P_HEARTBEAT:
                self.heartbeat(f.number, True)
            else:
                self.last_ack = f.number
            return 0
        if not self.data_open:
            raise ProtocolError("wrong_state", "data before ready")
        if f.payload != fr.P_CREDIT:
            if self.edge == (f.payload == fr.P_TUNNEL_BODY):
                raise ProtocolError("wrong_role", "this message only travels the other way")
            if f.body_n > BODY_MAX:
                raise ProtocolError("data_frame_too_large", f"{f.body_n} bytes; at most {BODY_MAX}")
        found = self.table.get(f.stream_id)
        if found == NULL:
            if f.stream_id == 0 or f.stream_id > self.highest_id:
                raise ProtocolError("unknown_stream", str(f.stream_id))
            self.late_frames += 1
            return 0
        s = <Stream>found
        if f.payload == fr.P_CREDIT:
            s.send_credit += f.number
            if f.number == 0 or s.send_credit > CREDIT_MAX:
                raise ProtocolError("credit_overflow", f"stream {f.stream_id}")
            return s.on_credit()
        try:
            return s.on_frame(f, extra)
        except ProtocolError:
            raise
        except Exception as exc:
            return s.broken(exc)

    def deliver(self, int payload, unsigned int stream_id, unsigned int seq=0, unsigned int kind=0, bytes body=b"",
                unsigned int flags=0, unsigned int status=0, bytes header_block=b"", unsigned long long number=0,
                bint last=False, tuple usage=None, extra=None):
        """A hot message that the official runtime decoded, because it was not plain or carried usage or a failure."""
        cdef Frame f
        f.payload = payload
        f.stream_id = stream_id
        f.seq = seq
        f.kind = kind
        f.flags = flags
        f.status = status
        f.number = number
        f.last = last
        f.body = PyBytes_AS_STRING(body)
        f.body_n = len(body)
        f.head = PyBytes_AS_STRING(header_block)
        f.head_n = len(header_block)
        f.has_usage = usage is not None
        if usage is not None:
            fr.tokens_from(usage, &f.usage)
        if payload < 16 and kind < 32 and self.table.get(stream_id) != NULL and _BOUNDED[payload] >> kind & 1:
            self.cold_frames -= 1
        self.dispatch(&f, extra)

    # ---- sending ----------------------------------------------------------------------------------------------------

    cdef char* room(self, Stream s, Py_ssize_t n) except NULL:
        """Where to write the next n bytes of stream s: the caller fills all of them at once."""
        cdef bytes piece
        if self.closed:
            raise ConnectionResetError("the link is closed")
        if not self.congested and self.bulk.n + n > SEND_HIGH and self.bulk.n:
            self.congested = True
        self.hub.mark(self)
        self.frames_out += 1
        if not self.congested:
            return self.bulk.reserve(n)
        piece = PyBytes_FromStringAndSize(NULL, n)
        if s.lane is None:
            s.lane = deque()
        s.lane.append(piece)
        s.lane_bytes += n
        self.lanes_bytes += n
        if not s.in_ring:
            s.in_ring = True
            s.deficit = 0
            self.ring.append(s)
        if self.lanes_bytes > QUEUE_HIGH and not s.blocked and s is not self.system:
            s.blocked = True
            self.blocked_streams.append(s)
        return PyBytes_AS_STRING(piece)

    def send(self, bytes frame not None, Stream s=None, bint opening=False):
        """A whole frame that the official runtime encoded, length prefix included; with ``s`` in that stream's order.

        Raises ConnectionResetError on a closed link.
        """
        if s is None:
            s = self.system
        memcpy(self.room(s, len(frame)), PyBytes_AS_STRING(frame), len(frame))
        if opening:
            s.opening_in_lane = s.lane_bytes > 0

    def send_control(self, bytes frame not None):
        """As send, in the control lane."""
        if self.closed:
            return
        memcpy(self.control.reserve(len(frame)), PyBytes_AS_STRING(frame), len(frame))
        self.control_grew()

    def heartbeat(self, unsigned long long seq, bint ack=False):
        if self.closed:
            return
        cdef int payload = fr.P_HEARTBEAT_ACK if ack else fr.P_HEARTBEAT
        fr.put_heartbeat(self.control.reserve(fr.heartbeat_size(seq)), payload, seq)
        self.control_grew()

    cdef int control_grew(self) except -1:
        self.frames_out += 1
        self.hub.mark(self)
        if self.control.n > CONTROL_MAX:
            self.fault(ProtocolError("control_lane_full", "the peer does not read"))
        return 0

    cdef int credit(self, Stream s, unsigned int n) except -1:
        """Returns n bytes of credit to the peer of stream s."""
        s.owed -= n
        s.allowed += n
        self.hub.buffered_bytes -= n
        if self.closed:
            return 0
        fr.put_credit(self.control.reserve(fr.credit_size(s.stream_id, n)), s.stream_id, n)
        return self.control_grew()

    cdef int push_body(self, Stream s, const char* body, Py_ssize_t n, bint last) except -1:
        fr.put_tunnel_body(self.room(s, fr.tunnel_body_size(s.stream_id, n, last)), s.stream_id, body, n, last)
        s.send_credit -= n
        return 0

    cdef int push_run_event(
            self, Stream s, unsigned int seq, unsigned int kind, const char* text, Py_ssize_t n) except -1:
        cdef Py_ssize_t size = fr.run_event_size(s.stream_id, seq, kind, n)
        fr.put_run_event(self.room(s, size), s.stream_id, seq, kind, text, n)
        s.send_credit -= size
        return 0

    def flush_now(self):
        """Flushes outside a round: before a close."""
        self.flush()

    cdef int flush(self) except -1:
        """One write of what may go now: control first, then bulk, then the lanes in turn (WIRE-6)."""
        cdef list parts
        cdef Py_ssize_t budget, n
        cdef Stream s
        cdef bytes piece
        if self.transport is None:
            return 0
        if not self.congested and not self.control.n:
            if self.bulk.n:
                self.bytes_handed += self.bulk.n
                self.transport.write(self.bulk.take())
            return 0
        if self.paused:
            return 0
        budget = SEND_HIGH - <Py_ssize_t>self.unsent()
        if budget <= 0:
            return 0  # the transport is about to say pause, and will say resume
        parts = []
        if self.control.n:
            self.bytes_handed += self.control.n
            budget -= self.control.n
            parts.append(self.control.take())
        if self.bulk.n:
            self.bytes_handed += self.bulk.n
            budget -= self.bulk.n
            parts.append(self.bulk.take())
        while self.ring and budget > 0:
            s = <Stream>self.ring[0]
            s.deficit += QUANTUM
            while s.lane and s.deficit > 0 and budget > 0:
                piece = s.lane.popleft()
                n = len(piece)
                s.lane_bytes -= n
                self.lanes_bytes -= n
                s.deficit -= n
                budget -= n
                s.opening_in_lane = False
                self.bytes_handed += n
                parts.append(piece)
            if not s.lane:
                self.ring.popleft()
                s.in_ring = False
            elif s.deficit <= 0:
                self.ring.rotate(-1)
            else:
                s.deficit -= QUANTUM  # the budget cut this turn short: it goes on where it stopped
        if len(parts) == 1:
            self.transport.write(parts[0])
        elif parts:
            self.transport.writelines(parts)
        if not self.ring:
            self.congested = self.paused
        elif not self.paused:
            self.hub.mark(self)
        if self.lanes_bytes < QUEUE_LOW and self.blocked_streams:
            freed, self.blocked_streams = self.blocked_streams, []
            for s in freed:
                s.blocked = False
            for s in freed:
                if self.table.get(s.stream_id) == <PyObject*>s:  # not one that ended or was withdrawn meanwhile
                    s.on_unblocked()
        return 0
