from cpython.object cimport PyObject


cdef class OutBuffer:
    cdef PyObject* obj      # the bytes object under construction, owned; NULL when empty
    cdef char* base
    cdef Py_ssize_t cap
    cdef Py_ssize_t hint    # size of the last one taken: what the next is likely to need
    cdef readonly Py_ssize_t n

    cdef char* reserve(self, Py_ssize_t k) except NULL
    cdef bytes take(self)
    cdef void clear(self) noexcept


cdef class Flushable:
    cdef Hub hub
    cdef bint marked
    cdef int flush(self) except -1


cdef class Hub:
    cdef public double now
    cdef public long long buffered_bytes
    cdef list dirty
    cdef list spare
    cdef bint armed
    cdef bint holding
    cdef object call_soon
    cdef object runner
    cdef object on_error
    cdef int mark(self, Flushable item) except -1
    cdef int hold(self) except -1
    cdef int release(self) except -1


cdef class Sink:
    cdef int drained(self) except -1


cdef class Writer(Flushable):
    cdef OutBuffer out
    cdef list parts         # big pieces in front of `out`, or None
    cdef Sink sink
    cdef object transport
    cdef object transport_write
    cdef readonly bint paused
    cdef readonly unsigned long long handed
    cdef Py_ssize_t parts_bytes
    cdef int touch(self) except -1
