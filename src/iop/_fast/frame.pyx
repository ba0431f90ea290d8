# cython: language_level=3
"""The codec of the hot messages (WIRE-3).

What the encoder writes equals the official runtime's ``SerializeToString()``: fields in number order, zero values left
out, minimal varints. The decoder takes exactly that form and answers "not plain" to anything else, however valid; the
caller then asks the official runtime, whose word counts. So an odd but legal peer costs time, never meaning.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy, memset

TUNNEL_FRAME = P_TUNNEL_FRAME
TUNNEL_BODY = P_TUNNEL_BODY
RUN_EVENT = P_RUN_EVENT
STREAM_CREDIT = P_CREDIT
HEARTBEAT = P_HEARTBEAT
HEARTBEAT_ACK = P_HEARTBEAT_ACK


# ---- varints --------------------------------------------------------------------------------------------------------

cdef int vlen(unsigned long long v) noexcept nogil:
    cdef int k = 1
    while v > 127:
        v >>= 7
        k += 1
    return k


cdef char* put_varint(char* p, unsigned long long v) noexcept nogil:
    while v > 127:
        p[0] = <char>((v & 127) | 128)
        v >>= 7
        p += 1
    p[0] = <char>v
    return p + 1


cdef char* put_prefix(char* p, Py_ssize_t n) noexcept nogil:
    """The 4-byte big-endian length in front of an envelope."""
    p[0] = <char>((n >> 24) & 255)
    p[1] = <char>((n >> 16) & 255)
    p[2] = <char>((n >> 8) & 255)
    p[3] = <char>(n & 255)
    return p + 4


cdef const unsigned char* _varint(
        const unsigned char* p, const unsigned char* end, unsigned long long* v) noexcept nogil:
    """Reads a minimal varint from [p, end); NULL when it is cut, longer than 64 bits or not minimal."""
    cdef unsigned long long value = 0
    cdef unsigned char c
    cdef int shift = 0
    while p < end:
        c = p[0]
        p += 1
        if shift == 63 and c > 1:
            return NULL
        value |= (<unsigned long long>(c & 127)) << shift
        if not c & 128:
            if c == 0 and shift:
                return NULL
            v[0] = value
            return p
        shift += 7
        if shift > 63:
            return NULL
    return NULL


# ---- decoder --------------------------------------------------------------------------------------------------------
# For each payload, what each field number is: 'n' a 32-bit number, 'N' a 64-bit one, 'b' bytes, 'u' Usage, ' ' not
# plain.
cdef const char* _shape(int payload) noexcept nogil:
    if payload == P_TUNNEL_FRAME:
        return b" nnnbnnbu"
    if payload == P_TUNNEL_BODY:
        return b" nbn     "
    if payload == P_RUN_EVENT:
        return b" nnnb    "
    if payload == P_CREDIT:
        return b" nn      "
    return b" N       "


cdef bint _usage(const unsigned char* p, const unsigned char* end, Tokens* out) noexcept nogil:
    """Reads the Usage [p, end): the same rules, four 64-bit numbers, whose presence counts even when they are 0."""
    cdef unsigned int number, before = 0
    cdef unsigned char tag
    while p < end:
        tag = p[0]
        number = tag >> 3
        if tag & 0x87 or number <= before or number > 4:
            return False
        before = number
        p = _varint(p + 1, end, &out.counts[number - 1])
        if p == NULL:
            return False
        out.given |= <unsigned int>1 << (number - 1)
    return True


cdef bint decode_plain(const unsigned char* p, Py_ssize_t n, Frame* f) noexcept nogil:
    """Decodes the envelope p[:n] into f. True only for the plain form of a hot message.

    Pointers in f point into p. Every read is bounded by `end`: a tag byte is read only while p < end, varints check
    each byte, and a bytes field is accepted only when its length fits what is left.
    """
    cdef const unsigned char* end = p + n
    cdef const char* shape
    cdef unsigned long long v = 0
    cdef unsigned int number, before = 0
    cdef unsigned char tag
    cdef char kind
    if n < 2 or p[0] & 7 != 2 or p[0] & 128:
        return False
    memset(f, 0, sizeof(Frame))
    f.payload = p[0] >> 3
    if f.payload < P_TUNNEL_FRAME or f.payload > P_HEARTBEAT_ACK:
        return False
    p = _varint(p + 1, end, &v)
    if p == NULL or v != <unsigned long long>(end - p):
        return False
    shape = _shape(f.payload)
    while p < end:
        tag = p[0]
        p += 1
        number = tag >> 3
        if tag & 128 or number <= before or number > 8:
            return False
        before = number
        kind = shape[number]
        p = _varint(p, end, &v)
        if p == NULL:
            return False
        if kind == c'b':
            if tag & 7 != 2 or v > <unsigned long long>(end - p):
                return False
            if number == 7:
                f.head = <const char*>p
                f.head_n = <Py_ssize_t>v
            else:
                f.body = <const char*>p
                f.body_n = <Py_ssize_t>v
            p += v
            continue
        if kind == c'u':
            if tag & 7 != 2 or v > <unsigned long long>(end - p) or not _usage(p, p + v, &f.usage):
                return False
            f.has_usage = True
            p += v
            continue
        if tag & 7 != 0 or kind == c' ' or (kind == c'n' and v >> 32 != 0):
            return False
        if f.payload >= P_HEARTBEAT:
            f.number = v
        elif number == 1:
            f.stream_id = <unsigned int>v
        elif f.payload == P_CREDIT:
            f.number = v
        elif number == 2:
            f.seq = <unsigned int>v
        elif number == 3:
            if f.payload == P_TUNNEL_BODY:
                if v > 1:
                    return False
                f.last = v == 1
            else:
                if v > 127:  # enums are signed: anything unusual is the official runtime's to judge
                    return False
                f.kind = <unsigned int>v
        elif number == 5:
            f.flags = <unsigned int>v
        else:
            f.status = <unsigned int>v
    return True


# ---- encoders -------------------------------------------------------------------------------------------------------

cdef inline Py_ssize_t _num(unsigned long long v) noexcept nogil:
    return 1 + vlen(v) if v else 0


cdef inline Py_ssize_t _blob(Py_ssize_t n) noexcept nogil:
    return 1 + vlen(n) + n if n else 0


cdef inline char* _put_num(char* p, char tag, unsigned long long v) noexcept nogil:
    if v:
        p[0] = tag
        p = put_varint(p + 1, v)
    return p


cdef inline char* _put_blob(char* p, char tag, const char* data, Py_ssize_t n) noexcept nogil:
    if n:
        p[0] = tag
        p = put_varint(p + 1, n)
        memcpy(p, data, n)
        p += n
    return p


cdef inline char* _open(char* p, int payload, Py_ssize_t inner) noexcept nogil:
    p = put_prefix(p, 1 + vlen(inner) + inner)
    p[0] = <char>(payload << 3 | 2)
    return put_varint(p + 1, inner)


cdef inline Py_ssize_t _framed(Py_ssize_t inner) noexcept nogil:
    return 4 + 1 + vlen(inner) + inner


cdef inline Py_ssize_t _tunnel_frame_inner(
        unsigned int stream_id, unsigned int seq, unsigned int kind, Py_ssize_t body_n, unsigned int flags,
        unsigned int status, Py_ssize_t head_n) noexcept nogil:
    return (_num(stream_id) + _num(seq) + _num(kind) + _blob(body_n) + _num(flags) + _num(status) + _blob(head_n))


cdef Py_ssize_t tunnel_frame_size(
        unsigned int stream_id, unsigned int seq, unsigned int kind, Py_ssize_t body_n, unsigned int flags,
        unsigned int status, Py_ssize_t head_n) noexcept nogil:
    return _framed(_tunnel_frame_inner(stream_id, seq, kind, body_n, flags, status, head_n))


cdef char* put_tunnel_frame_head(
        char* p, unsigned int stream_id, unsigned int seq, unsigned int kind, Py_ssize_t body_n, unsigned int flags,
        unsigned int status, Py_ssize_t head_n) noexcept nogil:
    """Everything up to where the body's bytes belong; the caller copies them there, then put_tunnel_frame_tail."""
    p = _open(p, P_TUNNEL_FRAME, _tunnel_frame_inner(stream_id, seq, kind, body_n, flags, status, head_n))
    p = _put_num(p, 0x08, stream_id)
    p = _put_num(p, 0x10, seq)
    p = _put_num(p, 0x18, kind)
    if body_n:
        p[0] = 0x22
        p = put_varint(p + 1, body_n)
    return p


cdef char* put_tunnel_frame_tail(
        char* p, unsigned int flags, unsigned int status, const char* head, Py_ssize_t head_n) noexcept nogil:
    p = _put_num(p, 0x28, flags)
    p = _put_num(p, 0x30, status)
    return _put_blob(p, 0x3A, head, head_n)


cdef inline Py_ssize_t _usage_inner(const Tokens* usage) noexcept nogil:
    cdef Py_ssize_t n = 0
    cdef int i
    for i in range(4):
        if usage.given >> i & 1:
            n += 1 + vlen(usage.counts[i])
    return n


cdef inline Py_ssize_t _tunnel_end_inner(
        unsigned int stream_id, unsigned int seq, unsigned int flags, const Tokens* usage) noexcept nogil:
    cdef Py_ssize_t n = _num(stream_id) + _num(seq) + _num(K_END) + _num(flags), inner
    if usage != NULL:
        inner = _usage_inner(usage)
        n += 1 + vlen(inner) + inner
    return n


cdef Py_ssize_t tunnel_end_size(
        unsigned int stream_id, unsigned int seq, unsigned int flags, const Tokens* usage) noexcept nogil:
    return _framed(_tunnel_end_inner(stream_id, seq, flags, usage))


cdef char* put_tunnel_end(
        char* p, unsigned int stream_id, unsigned int seq, unsigned int flags, const Tokens* usage) noexcept nogil:
    """The terminal END; usage may be NULL."""
    cdef int i
    p = _open(p, P_TUNNEL_FRAME, _tunnel_end_inner(stream_id, seq, flags, usage))
    p = _put_num(p, 0x08, stream_id)
    p = _put_num(p, 0x10, seq)
    p = _put_num(p, 0x18, K_END)
    p = _put_num(p, 0x28, flags)
    if usage != NULL:
        p[0] = 0x42
        p = put_varint(p + 1, _usage_inner(usage))
        for i in range(4):
            if usage.given >> i & 1:
                p[0] = <char>((i + 1) << 3)
                p = put_varint(p + 1, usage.counts[i])
    return p


cdef int tokens_from(tuple usage, Tokens* out) except -1:
    """(input, output, reasoning, cached input), None where the provider said nothing."""
    cdef int i
    out.given = 0
    for i in range(4):
        if usage[i] is not None:
            out.given |= <unsigned int>1 << i
            out.counts[i] = usage[i]
    return 0


cdef tuple tokens_as_tuple(const Tokens* usage):
    return tuple([usage.counts[i] if usage.given >> i & 1 else None for i in range(4)])


cdef inline Py_ssize_t _tunnel_body_inner(unsigned int stream_id, Py_ssize_t body_n, bint last) noexcept nogil:
    return _num(stream_id) + _blob(body_n) + _num(1 if last else 0)


cdef Py_ssize_t tunnel_body_size(unsigned int stream_id, Py_ssize_t body_n, bint last) noexcept nogil:
    return _framed(_tunnel_body_inner(stream_id, body_n, last))


cdef char* put_tunnel_body(
        char* p, unsigned int stream_id, const char* body, Py_ssize_t body_n, bint last) noexcept nogil:
    p = _open(p, P_TUNNEL_BODY, _tunnel_body_inner(stream_id, body_n, last))
    p = _put_num(p, 0x08, stream_id)
    p = _put_blob(p, 0x12, body, body_n)
    return _put_num(p, 0x18, 1 if last else 0)


cdef Py_ssize_t run_event_size(
        unsigned int stream_id, unsigned int seq, unsigned int kind, Py_ssize_t text_n) noexcept nogil:
    return _framed(_num(stream_id) + _num(seq) + _num(kind) + _blob(text_n))


cdef char* put_run_event(
        char* p, unsigned int stream_id, unsigned int seq, unsigned int kind, const char* text,
        Py_ssize_t text_n) noexcept nogil:
    p = _open(p, P_RUN_EVENT, _num(stream_id) + _num(seq) + _num(kind) + _blob(text_n))
    p = _put_num(p, 0x08, stream_id)
    p = _put_num(p, 0x10, seq)
    p = _put_num(p, 0x18, kind)
    return _put_blob(p, 0x22, text, text_n)


cdef Py_ssize_t credit_size(unsigned int stream_id, unsigned int n) noexcept nogil:
    return _framed(_num(stream_id) + _num(n))


cdef char* put_credit(char* p, unsigned int stream_id, unsigned int n) noexcept nogil:
    p = _open(p, P_CREDIT, _num(stream_id) + _num(n))
    p = _put_num(p, 0x08, stream_id)
    return _put_num(p, 0x10, n)


cdef Py_ssize_t heartbeat_size(unsigned long long seq) noexcept nogil:
    return _framed(_num(seq))


cdef char* put_heartbeat(char* p, int payload, unsigned long long seq) noexcept nogil:
    p = _open(p, payload, _num(seq))
    return _put_num(p, 0x08, seq)


# ---- Python face: tests and benchmarks ------------------------------------------------------------------------------

def decode(bytes envelope not None):
    """The fields of a hot message in plain form as a dict (zero values included), or None when it is not plain.

    ``envelope`` has no length prefix.
    """
    cdef Frame f
    if not decode_plain(<const unsigned char*>PyBytes_AS_STRING(envelope), len(envelope), &f):
        return None
    if f.payload == P_TUNNEL_FRAME:
        return {"payload": f.payload, "stream_id": f.stream_id, "seq": f.seq, "kind": f.kind, "body": f.body[:f.body_n],
                "flags": f.flags, "status": f.status, "header_block": f.head[:f.head_n],
                "usage": tokens_as_tuple(&f.usage) if f.has_usage else None}
    if f.payload == P_TUNNEL_BODY:
        return {"payload": f.payload, "stream_id": f.stream_id, "body": f.body[:f.body_n], "last": bool(f.last)}
    if f.payload == P_RUN_EVENT:
        return {"payload": f.payload, "stream_id": f.stream_id, "seq": f.seq, "kind": f.kind, "text": f.body[:f.body_n]}
    if f.payload == P_CREDIT:
        return {"payload": f.payload, "stream_id": f.stream_id, "bytes": f.number}
    return {"payload": f.payload, "seq": f.number}


cdef char* _fresh(Py_ssize_t n, list out) except NULL:
    cdef bytes b = PyBytes_FromStringAndSize(NULL, n)
    out.append(b)
    return PyBytes_AS_STRING(b)


def encode_tunnel_frame(
        unsigned int stream_id, unsigned int seq, unsigned int kind, bytes body=b"", unsigned int flags=0,
        unsigned int status=0, bytes header_block=b""):
    """One whole frame, length prefix included."""
    cdef list out = []
    cdef char* p = _fresh(
        tunnel_frame_size(stream_id, seq, kind, len(body), flags, status, len(header_block)), out)
    p = put_tunnel_frame_head(p, stream_id, seq, kind, len(body), flags, status, len(header_block))
    memcpy(p, PyBytes_AS_STRING(body), len(body))
    put_tunnel_frame_tail(p + len(body), flags, status, PyBytes_AS_STRING(header_block), len(header_block))
    return out[0]


def encode_tunnel_end(unsigned int stream_id, unsigned int seq, tuple usage=None, unsigned int flags=0):
    """The terminal END, with (input, output, reasoning, cached input) tokens or None, and the flags of an event that
    ended with the body."""
    cdef list out = []
    cdef Tokens tokens
    cdef Tokens* given = NULL
    if usage is not None:
        tokens_from(usage, &tokens)
        given = &tokens
    put_tunnel_end(_fresh(tunnel_end_size(stream_id, seq, flags, given), out), stream_id, seq, flags, given)
    return out[0]


def encode_tunnel_body(unsigned int stream_id, bytes body not None, bint last=False):
    cdef list out = []
    put_tunnel_body(_fresh(tunnel_body_size(stream_id, len(body), last), out), stream_id, PyBytes_AS_STRING(body),
                    len(body), last)
    return out[0]


def encode_run_event(unsigned int stream_id, unsigned int seq, unsigned int kind, bytes text=b""):
    cdef list out = []
    put_run_event(_fresh(run_event_size(stream_id, seq, kind, len(text)), out), stream_id, seq, kind,
                  PyBytes_AS_STRING(text), len(text))
    return out[0]


def encode_credit(unsigned int stream_id, unsigned int n):
    cdef list out = []
    put_credit(_fresh(credit_size(stream_id, n), out), stream_id, n)
    return out[0]


def encode_heartbeat(unsigned long long seq, bint ack=False):
    cdef list out = []
    put_heartbeat(_fresh(heartbeat_size(seq), out), P_HEARTBEAT_ACK if ack else P_HEARTBEAT, seq)
    return out[0]
