from iop._fast.body cimport BodyDecoder
from iop._fast.out cimport OutBuffer, Writer
from iop._fast.scan cimport FieldScanner
from iop._fast.sse cimport EventSplitter
from iop._fast.streams cimport RequestStream, SourceStream


cdef class ClientStream(RequestStream):
    cdef Writer writer
    cdef object owner
    cdef bytes head
    cdef OutBuffer held
    cdef int state
    cdef int mode
    cdef bint gated
    cdef bint collected
    cdef unsigned int next_seq
    cdef long long remaining
    cdef readonly long long body_bytes
    cdef readonly unsigned int flags_seen
    cdef readonly bint at_boundary
    cdef readonly double progress_at

    cdef int open_with(self, const char* p, Py_ssize_t n) except -1
    cdef int emit(self, const char* p, Py_ssize_t n) except -1


cdef class ProviderSocket:
    cdef public object body     # whose feed(bytes) takes what the provider says; None: outside_body does
    cdef readonly unsigned long long bytes_in


cdef class ProviderStream(SourceStream):
    cdef Writer into            # where the request body goes
    cdef BodyDecoder decoder
    cdef EventSplitter splitter
    cdef FieldScanner fields
    cdef list pending
    cdef bint stopped           # the source was told to pause
    cdef bint eof_pending
    cdef bint body_ended
    cdef unsigned int last_flags    # of an event that ended with the body
    cdef readonly unsigned long long dropped_bytes
    cdef readonly long long body_bytes
    cdef readonly double progress_at
    cdef unsigned long long progress_seen

    cdef Py_ssize_t pump(self, const char* p, Py_ssize_t n) except -1
    cdef int push(self, const char** spans, Py_ssize_t* sizes, int count, Py_ssize_t total) except -1
    cdef int body_whole(self, Py_ssize_t extra) except -1
    cdef int fail_body(self, object exc) except -1
