# cimported by relay.pyx; body.pyi describes the Python face.

cpdef enum:
    FRAMING_NONE = 0     # no body
    FRAMING_LENGTH = 1   # content-length
    FRAMING_CHUNKED = 2  # transfer-encoding: chunked
    FRAMING_EOF = 3      # a response that the end of the connection ends

cpdef enum:
    BODY_NEED = 0  # every byte was taken, more are wanted
    BODY_DATA = 1  # a span of body bytes
    BODY_DONE = 2  # the body is complete; the bytes not taken belong to the next message


cdef class BodyDecoder:
    cdef int framing
    cdef int state
    cdef int digits
    cdef unsigned long long left
    cdef unsigned long long max_bytes
    cdef Py_ssize_t line_bytes
    cdef Py_ssize_t extension_bytes
    cdef Py_ssize_t trailer_bytes
    cdef str fault
    cdef readonly unsigned long long body_bytes
    cdef readonly bint done

    cdef int step(self, const char* p, Py_ssize_t n, Py_ssize_t* used, const char** out, Py_ssize_t* out_n) except -1
    cdef int _line(self, const unsigned char* p, Py_ssize_t n, Py_ssize_t* used) except -1
    cdef int _extension(self, Py_ssize_t n) except -1
    cdef int _size_line_ended(self) except -1
    cdef int _trailer(self, unsigned char c) except -1
    cdef int _fail(self, str reason) except -1
    cdef int _over(self) except -1


cdef class HeadFinder:
    cdef int state
    cdef int empty_lines
    cdef Py_ssize_t max_bytes
    cdef readonly Py_ssize_t pending_bytes
    cdef bytearray held
    cdef object error

    cdef int _scan(self, const unsigned char* p, Py_ssize_t n, Py_ssize_t* start, Py_ssize_t* end) except -1
    cdef int _fail(self, error) except -1
