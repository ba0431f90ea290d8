from iop._fast.streams cimport RequestStream, SourceStream


cdef class RunSource(SourceStream):
    cdef bint waiting           # the owner was told that it may not go on
    cdef object pending         # deque of (kind, frame) that wait for credit, or None
    cdef int keep(self, unsigned int kind, bytes frame) except -1
    cdef int leave(self, unsigned int kind, bytes frame) except -1


cdef class RunSink(RequestStream):
    cdef object owner
    cdef object writer
    cdef unsigned int next_seq
    cdef bint dropping
    cdef bint ended
    cdef readonly double progress_at
