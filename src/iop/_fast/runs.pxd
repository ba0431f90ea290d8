from iop._fast.mux cimport Stream
from iop._fast.relay cimport RequestStream


cdef class RunSource(Stream):
    cdef object owner
    cdef readonly unsigned int next_seq
    cdef readonly bint fenced
    cdef readonly bint terminal_sent
    cdef bint waiting           # the owner was told that it may not go on
    cdef object pending         # deque of (kind, frame) that wait for credit, or None
    cdef int keep(self, unsigned int kind, bytes frame) except -1
    cdef int leave(self, unsigned int kind, bytes frame) except -1
    cdef int go_on(self) except -1


cdef class RunSink(RequestStream):
    cdef object owner
    cdef object writer
    cdef unsigned int next_seq
    cdef bint dropping
    cdef bint ended
    cdef readonly double progress_at
