# cython: language_level=3
"""Header fields of one message, gathered without a Python frame per field (API-6, TUN-9).

``Fields`` is what httptools calls back into while it parses a head, and what a header block from the wire is read into.
Names become lower case; order and repeats are kept.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr

from iop._fast.body import check_header_block


cdef bytes _lower(bytes name):
    """ASCII lower case; the same object if nothing changes. Bound: both buffers have n bytes."""
    cdef Py_ssize_t n = PyBytes_GET_SIZE(name), i
    cdef const char* p = PyBytes_AS_STRING(name)
    cdef char* q
    cdef bytes out
    for i in range(n):
        if c"A" <= p[i] <= c"Z":
            break
    else:
        return name
    # Not made from p: a bytes object of length 1 that is made from something is the interpreter's own, shared by all.
    out = PyBytes_FromStringAndSize(NULL, n)
    q = PyBytes_AS_STRING(out)
    for i in range(n):
        q[i] = p[i] + 32 if c"A" <= p[i] <= c"Z" else p[i]
    return out


cdef bytes _trimmed(bytes value):
    """Without the blanks behind it, which are no part of a value (RFC 9112 section 5.1). Bound: n only shrinks to 0."""
    cdef const char* p = PyBytes_AS_STRING(value)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(value)
    while n and (p[n - 1] == c" " or p[n - 1] == c"\t"):
        n -= 1
    return value if n == PyBytes_GET_SIZE(value) else PyBytes_FromStringAndSize(p, n)


cdef class Fields:
    cdef readonly list items
    cdef readonly dict first
    cdef readonly list repeated
    cdef readonly bytes target
    cdef readonly bint complete

    def __cinit__(self):
        self.items = []
        self.first = {}
        self.repeated = []
        self.target = b""

    cdef int add(self, bytes name, bytes value) except -1:
        self.items.append((name, value))
        if name in self.first:
            self.repeated.append(name)
        else:
            self.first[name] = value
        return 0

    def on_url(self, bytes url not None):
        self.target = self.target + url if self.target else url

    def on_header(self, bytes name not None, bytes value not None):
        self.add(_lower(name), _trimmed(value))

    def on_headers_complete(self):
        self.complete = True

    def read_block(self, bytes block not None, Py_ssize_t max_fields):
        cdef const char* p = PyBytes_AS_STRING(block)
        cdef const char* end = p + PyBytes_GET_SIZE(block)
        cdef const char* colon
        cdef const char* stop
        check_header_block(block, max_fields)  # so each line has a colon, ends with CRLF and has no other CR in it
        while p < end:
            colon = <const char*>memchr(p, c":", end - p)
            stop = <const char*>memchr(p, c"\r", end - p)
            name = _lower(PyBytes_FromStringAndSize(p, colon - p))
            p = stop + 2
            colon += 1
            while colon < stop and (colon[0] == c" " or colon[0] == c"\t"):
                colon += 1
            while stop > colon and ((stop - 1)[0] == c" " or (stop - 1)[0] == c"\t"):
                stop -= 1
            self.add(name, PyBytes_FromStringAndSize(colon, stop - colon))
