# cython: language_level=3
"""Output that is gathered during one poll round and leaves in one write per socket.

``Hub`` is the round: whatever was written to a ``Flushable`` is flushed once, after every read of the round was handled
(``call_soon`` runs after them), or at the end of a link's feed. ``OutBuffer`` builds a ``bytes`` object in place, so
that a body byte is copied once between the buffer it was received in and the object that the transport writes (WIRE-3).
``Writer`` is one client or provider socket.
"""
from cpython.bytes cimport PyBytes_AS_STRING
from libc.string cimport memcpy

cdef extern from "Python.h":
    PyObject* _new_bytes "PyBytes_FromStringAndSize"(const char* v, Py_ssize_t n) except NULL
    int _resize "_PyBytes_Resize"(PyObject** o, Py_ssize_t n) except -1
    char* _bytes_base "PyBytes_AS_STRING"(PyObject* o)
    void _decref "Py_XDECREF"(PyObject* o)

# A piece of at least this size is passed on as it is instead of being copied behind its neighbours.
cdef Py_ssize_t BIG_PIECE = 16384
cdef Py_ssize_t HINT_MAX = 131072


cdef class OutBuffer:
    """A bytes object that grows at its end. ``take`` hands it over and starts the next one."""

    def __dealloc__(self):
        _decref(self.obj)

    cdef char* reserve(self, Py_ssize_t k) except NULL:
        """Room for exactly ``k`` more bytes, which the caller must fill at once; counted as written."""
        cdef Py_ssize_t need = self.n + k
        cdef char* at
        if need > self.cap:
            if self.obj == NULL:
                # The first piece fits exactly unless recent rounds were larger: the usual round is one event.
                self.cap = need if need > self.hint else self.hint
                self.obj = _new_bytes(NULL, self.cap)
            else:
                self.cap = need if need > 2 * self.cap else 2 * self.cap
                try:
                    _resize(&self.obj, self.cap)
                except BaseException:
                    self.cap = self.n = 0  # _PyBytes_Resize has freed it
                    raise
            self.base = _bytes_base(self.obj)
        at = self.base + self.n
        self.n = need
        return at

    cdef bytes take(self):
        """The bytes written so far; the buffer is empty afterwards."""
        cdef object result
        if self.obj == NULL:
            return b""
        if self.n != self.cap:
            _resize(&self.obj, self.n)
        result = <object>self.obj
        _decref(self.obj)
        self.obj = NULL
        self.hint = self.n if self.n < HINT_MAX else HINT_MAX
        self.n = self.cap = 0
        return <bytes>result

    cdef void clear(self) noexcept:
        _decref(self.obj)
        self.obj = NULL
        self.n = self.cap = 0

    def append(self, bytes data not None):
        """Python face, for tests."""
        memcpy(self.reserve(len(data)), PyBytes_AS_STRING(data), len(data))

    def taken(self):
        """Python face of ``take``, for tests."""
        return self.take()


cdef class Flushable:
    """Something that is flushed at the end of the poll round in which it was marked."""

    cdef int flush(self) except -1:
        return 0


cdef class Hub:
    """The poll round of one event loop.

    ``call_soon`` is the loop's; ``on_error(exception)`` hears what a flush raised, so that one broken socket never
    keeps the others from being written. ``now`` is the loop's coarse time in seconds, set by whoever ticks.
    ``buffered_bytes`` counts body bytes that were received and not yet credited back (WIRE-5).
    """

    def __init__(self, call_soon, on_error):
        self.call_soon = call_soon
        self.on_error = on_error
        self.runner = self.run
        self.dirty = []
        self.spare = []

    cdef int mark(self, Flushable item) except -1:
        if not item.marked:
            item.marked = True
            self.dirty.append(item)
            if not self.armed and not self.holding:
                self.armed = True
                self.call_soon(self.runner)
        return 0

    cdef int hold(self) except -1:
        """A link's bytes are being fed. What they cause to be written belongs to sockets that only this link feeds, so
        it can leave at the end of the feed: waiting for the round's end would cost another turn of the loop."""
        self.holding = True
        return 0

    cdef int release(self) except -1:
        self.holding = False
        if self.dirty and not self.armed:
            self.run()
        return 0

    def run(self):
        """Flushes everything marked so far; what is marked meanwhile waits for the next round."""
        cdef list batch = self.dirty
        cdef Flushable item
        self.dirty = self.spare
        self.armed = False
        for item in batch:
            item.marked = False
            try:
                item.flush()
            except Exception as exc:
                self.on_error(exc)
        batch.clear()
        self.spare = batch


cdef class Sink:
    """Whoever feeds a ``Writer`` and wants to know when its bytes were handed to the transport."""

    cdef int drained(self) except -1:
        return 0


cdef class Writer(Flushable):
    """The outgoing side of one HTTP socket.

    ``attach`` takes a transport (``write``, ``writelines``); the protocol forwards ``pause_writing`` and
    ``resume_writing`` to ``pause`` and ``resume``. Nothing is written before ``attach`` or after ``detach``.
    """

    def __init__(self, Hub hub not None):
        self.hub = hub
        self.out = OutBuffer()

    def attach(self, transport):
        self.transport = transport
        self.transport_write = transport.write
        if self.out.n or self.parts is not None:
            self.hub.mark(self)

    def detach(self):
        """Forgets the transport and whatever was not flushed."""
        self.transport = self.transport_write = None
        self.sink = None
        self.parts = None
        self.parts_bytes = 0
        self.out.clear()

    @property
    def pending_bytes(self):
        """Bytes written here and not yet handed to the transport."""
        return self.out.n + self.parts_bytes

    @property
    def unsent(self):
        """Whether the kernel has yet to take something of what was written here, before a ``detach``."""
        if self.out.n + self.parts_bytes > 0:
            return True
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    cdef int touch(self) except -1:
        return self.hub.mark(self)

    def write(self, bytes data not None):
        """Appends ``data``; it leaves with this round's write. A big piece is referenced, not copied."""
        cdef Py_ssize_t n = len(data)
        if n == 0:
            return
        if n >= BIG_PIECE:
            if self.parts is None:
                self.parts = []
            if self.out.n:
                self.parts_bytes += self.out.n
                self.parts.append(self.out.take())
            self.parts.append(data)
            self.parts_bytes += n
        else:
            memcpy(self.out.reserve(n), PyBytes_AS_STRING(data), n)
        self.hub.mark(self)

    def flush_now(self):
        """Hands everything to the transport at once: before a close."""
        self.flush()

    cdef int flush(self) except -1:
        cdef list parts
        if self.transport is None:
            return 0
        if self.parts is not None:
            parts = self.parts
            self.parts = None
            if self.out.n:
                self.parts_bytes += self.out.n
                parts.append(self.out.take())
            self.handed += self.parts_bytes
            self.parts_bytes = 0
            self.transport.writelines(parts)
        elif self.out.n:
            self.handed += self.out.n
            self.transport_write(self.out.take())
        if self.sink is not None and not self.paused:
            self.sink.drained()
        return 0

    def pause(self):
        self.paused = True

    def resume(self):
        self.paused = False
        if self.sink is not None:
            self.sink.drained()
