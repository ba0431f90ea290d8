from iop._fast.mux cimport Stream

cdef enum:
    DATA_MAX = 65536            # body bytes of one frame
    CONGESTED_MAX = 16384       # a lane's turn: larger frames would make every other stream wait longer


cdef class RequestStream(Stream):
    cdef list pieces
    cdef Py_ssize_t piece
    cdef Py_ssize_t offset

    cdef int pump(self) except -1


cdef class SourceStream(Stream):
    cdef object owner
    cdef readonly unsigned int next_seq
    cdef readonly bint fenced
    cdef readonly bint terminal_sent

    cdef int go_on(self) except -1
