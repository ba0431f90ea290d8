cdef enum:
    # payload numbers of Envelope
    P_TUNNEL_FRAME = 1
    P_TUNNEL_BODY = 2
    P_RUN_EVENT = 3
    P_CREDIT = 4
    P_HEARTBEAT = 5
    P_HEARTBEAT_ACK = 6
    # TunnelFrameKind
    K_HEAD = 1
    K_BODY = 2
    K_USAGE = 3
    K_END = 4
    K_ERROR = 5


# What a provider reported, in the order of Usage's fields; a bit of `given` for each that it did report (EXEC-5).
cdef struct Tokens:
    unsigned int given
    unsigned long long[4] counts


cdef struct Frame:
    int payload
    unsigned int stream_id
    unsigned int seq
    unsigned int kind
    unsigned int flags
    unsigned int status
    unsigned long long number   # credit bytes, heartbeat seq
    bint last
    const char* body
    Py_ssize_t body_n
    const char* head
    Py_ssize_t head_n
    bint has_usage
    Tokens usage


cdef bint decode_plain(const unsigned char* p, Py_ssize_t n, Frame* f) noexcept nogil

cdef int vlen(unsigned long long v) noexcept nogil
cdef char* put_varint(char* p, unsigned long long v) noexcept nogil
cdef char* put_prefix(char* p, Py_ssize_t n) noexcept nogil

# Sizes count the whole frame, length prefix included. Each put_ writes exactly that many bytes and returns the end;
# put_tunnel_body_head and put_tunnel_frame_head stop before the body so that it can be gathered from several spans.
cdef Py_ssize_t tunnel_frame_size(
    unsigned int stream_id, unsigned int seq, unsigned int kind, Py_ssize_t body_n, unsigned int flags,
    unsigned int status, Py_ssize_t head_n) noexcept nogil
cdef char* put_tunnel_frame_head(
    char* p, unsigned int stream_id, unsigned int seq, unsigned int kind, Py_ssize_t body_n, unsigned int flags,
    unsigned int status, Py_ssize_t head_n) noexcept nogil
cdef char* put_tunnel_frame_tail(
    char* p, unsigned int flags, unsigned int status, const char* head, Py_ssize_t head_n) noexcept nogil
cdef Py_ssize_t tunnel_end_size(
    unsigned int stream_id, unsigned int seq, unsigned int flags, const Tokens* usage) noexcept nogil
cdef char* put_tunnel_end(
    char* p, unsigned int stream_id, unsigned int seq, unsigned int flags, const Tokens* usage) noexcept nogil
cdef Py_ssize_t tunnel_body_size(unsigned int stream_id, Py_ssize_t body_n, bint last) noexcept nogil
cdef char* put_tunnel_body(
    char* p, unsigned int stream_id, const char* body, Py_ssize_t body_n, bint last) noexcept nogil
cdef Py_ssize_t run_event_size(
    unsigned int stream_id, unsigned int seq, unsigned int kind, Py_ssize_t text_n) noexcept nogil
cdef char* put_run_event(
    char* p, unsigned int stream_id, unsigned int seq, unsigned int kind, const char* text,
    Py_ssize_t text_n) noexcept nogil
cdef Py_ssize_t credit_size(unsigned int stream_id, unsigned int n) noexcept nogil
cdef char* put_credit(char* p, unsigned int stream_id, unsigned int n) noexcept nogil
cdef Py_ssize_t heartbeat_size(unsigned long long seq) noexcept nogil
cdef int tokens_from(tuple usage, Tokens* out) except -1
cdef tuple tokens_as_tuple(const Tokens* usage)
cdef char* put_heartbeat(char* p, int payload, unsigned long long seq) noexcept nogil
