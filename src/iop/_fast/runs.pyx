# cython: language_level=3
"""The two halves of one normalized run on the link: ordered RunEvents under credit (EXEC-1, WIRE-5).

    node   adapter's events ─▶ RunSource: sequence, credit ─▶ Mux
    edge   Mux ─▶ RunSink.on_frame: sequence, credit ─▶ owner.on_event

What an event means is not known here, but for one thing: the three kinds of delta cost credit, by their encoded size,
and the three terminals end the stream. A run costs a Python call per event: unlike a tunnel's bytes, its events were
made by Python.
"""
from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from iop._fast cimport frame as fr
from iop._fast.out cimport Writer
from iop._fast.streams cimport SourceStream

from iop.errors import ProtocolError

# RunEventKind of the wire
cdef enum:
    DELTA = 2
    TOOL_CALL_DELTA = 4
    COMPLETE = 6
    CANCELLED = 8

# Of one event. An event waits until the credit covers all of it, and credit comes back in steps of half a window: so it
# must stay well under half of the smallest window (32 KiB).
cdef Py_ssize_t TEXT_MAX = 8192


cdef class RunSource(SourceStream):
    """The node's half. ``owner`` hears::

        on_request_body(data, last)       a chunk of the run's input
        resume_source()                   ``ready`` was False and is True again
        on_broken(exception)              one of these raised while a frame was handled

    Events that the credit does not cover are kept, in order; the owner stops reading when ``ready`` is False, so what
    is kept was made of one read. The owner sends exactly one terminal.
    """

    def __init__(self, owner):
        self.owner = owner

    @property
    def ready(self):
        """Whether the owner may read on from its source (WIRE-5)."""
        if self.pending is None and self.send_credit > 0 and not self.blocked:
            return True
        self.waiting = True
        return False

    @property
    def paused(self):
        """True while the source is stopped for lack of credit or a full link: not the provider's fault (LIVE-4)."""
        return self.waiting

    def text(self, unsigned int kind, bytes text not None):
        """A delta that is text alone; a long one travels in several frames."""
        cdef Py_ssize_t at = 0, n, size, left = len(text)
        cdef bytes frame
        while left and not (self.fenced or self.terminal_sent or self.mux.closed):
            n = TEXT_MAX if left > TEXT_MAX else left
            size = fr.run_event_size(self.stream_id, self.next_seq, kind, n)
            if self.pending is None and self.send_credit >= size:
                self.mux.push_run_event(self, self.next_seq, kind, PyBytes_AS_STRING(text) + at, n)
            else:
                frame = PyBytes_FromStringAndSize(NULL, size)
                fr.put_run_event(
                    PyBytes_AS_STRING(frame), self.stream_id, self.next_seq, kind, PyBytes_AS_STRING(text) + at, n)
                self.keep(kind, frame)
            self.next_seq += 1
            at += n
            left -= n

    def event(self, unsigned int kind, bytes frame not None):
        """Any other event, encoded with ``next_seq``; a tool call's text is cut to 8 KiB by the caller. A terminal
        leaves even when fenced, and is the last that does."""
        cdef bint terminal = COMPLETE <= kind <= CANCELLED
        if self.terminal_sent or self.mux.closed or (self.fenced and not terminal):
            return
        self.terminal_sent = terminal
        self.next_seq += 1
        if self.pending is None and (self.send_credit >= len(frame) or not DELTA <= kind <= TOOL_CALL_DELTA):
            self.leave(kind, frame)
        else:
            self.keep(kind, frame)

    cdef int keep(self, unsigned int kind, bytes frame) except -1:
        if self.pending is None:
            self.pending = deque()
        self.pending.append((kind, frame))
        return 0

    cdef int leave(self, unsigned int kind, bytes frame) except -1:
        self.mux.send(frame, self)
        if DELTA <= kind <= TOOL_CALL_DELTA:
            self.send_credit -= len(frame)
        elif kind >= COMPLETE:
            self.mux.forget(self)
            self.owner = None
        return 0

    def fence(self):
        """Nothing but a terminal leaves from now on (LIVE-5)."""
        self.fenced = True
        self.pending = None

    cdef int on_frame(self, fr.Frame* f, object extra) except -1:
        SourceStream.on_frame(self, f, extra)
        return self.settle()  # the owner has it: there is no socket that still has to take it

    cdef int go_on(self) except -1:
        cdef bytes frame
        while self.pending:
            kind, frame = self.pending[0]
            if self.blocked or (DELTA <= kind <= TOOL_CALL_DELTA and self.send_credit < len(frame)):
                return 0
            self.pending.popleft()
            self.leave(kind, frame)
        self.pending = None
        if self.waiting and self.owner is not None and not self.fenced and self.send_credit > 0 and not self.blocked:
            self.waiting = False
            self.owner.resume_source()
        return 0


cdef class RunSink(RequestStream):
    """The edge's half. ``owner`` hears::

        on_event(kind, text, extra)       in order; ``extra`` is the whole event where it is more than text. A terminal
                                          is the last, and the stream is out of the table by then
        on_broken(exception, ended)       on_event raised, which is a fault of ours; ``ended`` after the terminal
        on_lost()                         the link is gone before a terminal came

    A frame out of order is a fault of the node and closes its link. Credit returns when the event was handled, or,
    with ``feeds``, when the writer that it was written to handed it on.
    """

    def __init__(self, owner):
        self.owner = owner

    def feeds(self, Writer writer not None):
        """Credit follows this writer from now on (WIRE-5)."""
        self.writer = writer
        writer.sink = self

    def discard(self):
        """Only the terminal is told from now on."""
        self.dropping = True
        self.pieces = None
        if self.writer is not None:
            (<Writer>self.writer).sink = None
            self.writer = None
            if not self.ended:
                self.settle()  # what that writer still has is nobody's any more, and the terminal may be behind it

    cdef int on_frame(self, fr.Frame* f, object extra) except -1:
        cdef Py_ssize_t size
        cdef bint terminal = COMPLETE <= f.kind <= CANCELLED
        if self.ended or f.payload != fr.P_RUN_EVENT:
            raise ProtocolError("wrong_state", f"stream {self.stream_id}")
        if f.seq != self.next_seq:
            raise ProtocolError("sequence", f"stream {self.stream_id}: {f.seq} instead of {self.next_seq}")
        if f.kind == 0 or f.kind > CANCELLED:
            raise ProtocolError("unknown_kind", str(f.kind))
        self.next_seq += 1
        self.progress_at = self.mux.hub.now
        if DELTA <= f.kind <= TOOL_CALL_DELTA:
            size = fr.run_event_size(f.stream_id, f.seq, f.kind, f.body_n) if extra is None else <Py_ssize_t>f.number
            self.received(size)
        if terminal:
            self.ended = True
            self.pieces = None
            self.mux.forget(self)
        if terminal or not self.dropping:
            self.owner.on_event(f.kind, PyBytes_FromStringAndSize(f.body, f.body_n), extra)
        if terminal:
            self.owner = None
            if self.writer is not None and (<Writer>self.writer).sink is self:
                (<Writer>self.writer).sink = None
        elif self.writer is None:
            self.settle()
        return 0

    def lost(self):
        """The link is gone, and with it the stream: tells the owner. No-op after the terminal."""
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.on_lost()

    cdef int broken(self, object exc) except -1:
        owner = self.owner
        if self.ended:
            self.owner = None
        owner.on_broken(exc, self.ended)
        return 0
