# The one incremental JSON tokenizer (inline: scan.pyx and sse.pyx each compile their own copy), and the scanners that
# relay.pyx cimports. scan.pyi describes the Python face. The file is long because it is one state machine, and inline
# code has to be in a pxd to be shared.
#
# Strict is RFC 8259 with UTF-8 checked. Lenient also takes what Python's json.loads(strict=False) takes: control
# characters inside strings, NaN, Infinity and -Infinity, and it does not look at UTF-8.

from libc.string cimport memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    #define IOP_ONES  UINT64_C(0x0101010101010101)
    #define IOP_HIGHS UINT64_C(0x8080808080808080)

    /* First byte of [p, end) that does not just continue a JSON string: a quote or a backslash, and if strict a
       control or non-ASCII byte. Eight bytes at a time; in each word the lowest marked byte is exact (a borrow can
       only spoil higher ones). Never reads at or behind end. */
    static inline const unsigned char* iop_string_run(const unsigned char* p, const unsigned char* end, int strict) {
        while (end - p >= 8) {
            uint64_t x, q, b, hit;
            memcpy(&x, p, 8);
            q = x ^ (IOP_ONES * 0x22);
            b = x ^ (IOP_ONES * 0x5c);
            hit = ((q - IOP_ONES) & ~q) | ((b - IOP_ONES) & ~b);
            if (strict) hit |= (x - IOP_ONES * 0x20) | x;
            hit &= IOP_HIGHS;
            if (hit) {
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
                return p + (__builtin_ctzll(hit) >> 3);
    #else
                break;
    #endif
            }
            p += 8;
        }
        while (p < end && *p != 0x22 && *p != 0x5c && (!strict || (*p >= 0x20 && *p < 0x80))) p++;
        return p;
    }
    """
    const unsigned char* string_run "iop_string_run"(const unsigned char* p, const unsigned char* end,
                                                     int strict) noexcept nogil

cdef enum:
    JSON_MAX_DEPTH = 512

# Tokens. A scalar or a key is reported if it lies at depth <= watch, a container if its parent does.
cdef enum:
    JSON_BAD = -1   # js.why says what is wrong, js.position(at) where
    JSON_MORE = 0   # the span is used up
    JSON_KEY = 1    # js.tok[:js.tok_n]
    JSON_STRING = 2
    JSON_NUMBER = 3
    JSON_TRUE = 4
    JSON_FALSE = 5
    JSON_NULL = 6
    JSON_OBJECT = 7  # js.depth counts it already
    JSON_ARRAY = 8
    JSON_CLOSE = 9   # js.depth no longer counts it; js.was_empty

cdef enum:
    WHY_SYNTAX = 1
    WHY_DEPTH = 2
    WHY_UTF8 = 3

# States up to J_END are between tokens.
cdef enum:
    J_VALUE = 0       # a value must come
    J_FIRST_ITEM = 1  # a value or ]
    J_FIRST_KEY = 2   # a key or }
    J_NEXT_KEY = 3    # a key
    J_COLON = 4
    J_AFTER = 5       # a comma or the end of the container
    J_END = 6         # the root value is complete
    J_STRING = 7
    J_UTF8 = 8
    J_ESCAPE = 9
    J_HEX = 10
    J_LITERAL = 11
    J_BAD = 12
    J_MINUS = 13      # from here on: inside a number
    J_ZERO = 14
    J_INT = 15
    J_DOT = 16
    J_FRAC = 17
    J_E = 18
    J_SIGN = 19
    J_EXP = 20

cdef struct Json:
    int state
    int depth            # open containers
    int watch
    int why
    int need             # hex digits or continuation bytes that are missing, or the place in a literal
    unsigned int code    # the \u escape being read
    unsigned int high    # a high surrogate that waits for its other half
    unsigned char lo     # bounds of the next continuation byte
    unsigned char hi
    bint is_key
    bint wanted          # the current string or number is reported, hence kept
    bint spilled         # a part of it is in buf
    bint was_empty
    const char* literal
    const unsigned char* span     # set by json_span: where the current span begins, and its absolute offset
    unsigned long long offset
    unsigned long long token_at   # absolute offset at which the current string began
    unsigned long long other      # bytes above 0x7F (strict only)
    const unsigned char* tok      # the text of a key, string or number, unescaped (WTF-8); into the span or into buf
    Py_ssize_t tok_n              # its length; above cap the text is cut
    unsigned char* buf            # the consumer's, for texts that were escaped or split
    Py_ssize_t cap
    Py_ssize_t filled
    unsigned char stack[64]       # one bit per open container: 1 = object


cdef inline void json_start(Json* js, unsigned char* buf, Py_ssize_t cap) noexcept nogil:
    """Ready for a new document. The buffer is kept by reference."""
    js.state = J_VALUE
    js.depth = 0
    js.watch = 0
    js.why = 0
    js.high = 0
    js.wanted = False
    js.other = 0
    js.offset = 0
    js.span = NULL
    js.buf = buf
    js.cap = cap


cdef inline void json_span(Json* js, const unsigned char* p, unsigned long long offset) noexcept nogil:
    js.span = p
    js.offset = offset


cdef inline bint json_in_object(Json* js) noexcept nogil:
    return js.depth > 0 and (js.stack[(js.depth - 1) >> 3] >> ((js.depth - 1) & 7)) & 1


cdef inline void json_put(Json* js, unsigned int c) noexcept nogil:
    """One byte into buf; bound: filled < cap is checked, the rest is only counted."""
    if js.filled < js.cap:
        js.buf[js.filled] = <unsigned char>c
    js.filled += 1


cdef inline void json_put_code(Json* js, unsigned int v) noexcept nogil:
    """One code point as UTF-8; lone surrogates become their three-byte form, which equals no valid key."""
    if v < 0x80:
        json_put(js, v)
    elif v < 0x800:
        json_put(js, 0xC0 | v >> 6)
        json_put(js, 0x80 | (v & 63))
    elif v < 0x10000:
        json_put(js, 0xE0 | v >> 12)
        json_put(js, 0x80 | (v >> 6 & 63))
        json_put(js, 0x80 | (v & 63))
    else:
        json_put(js, 0xF0 | v >> 18)
        json_put(js, 0x80 | (v >> 12 & 63))
        json_put(js, 0x80 | (v >> 6 & 63))
        json_put(js, 0x80 | (v & 63))


cdef inline void json_flush_high(Json* js) noexcept nogil:
    cdef unsigned int high = js.high
    if high:
        js.high = 0
        json_put_code(js, high)


cdef inline void json_spill(Json* js, const unsigned char* s, const unsigned char* p) noexcept nogil:
    """Keeps [s, p), the part of the current text that lies in this span; bound: at most cap - filled are copied."""
    cdef Py_ssize_t n = p - s, k
    js.spilled = True
    if n == 0:
        return
    json_flush_high(js)
    if js.filled < js.cap:
        k = min(n, js.cap - js.filled)
        memcpy(js.buf + js.filled, s, k)
    js.filled += n


cdef inline void json_text(Json* js, const unsigned char* s, const unsigned char* p) noexcept nogil:
    """The current text ends at p."""
    if js.spilled:
        json_spill(js, s, p)
        json_flush_high(js)
        js.tok = js.buf
        js.tok_n = js.filled
    else:
        js.tok = s
        js.tok_n = p - s


cdef inline void json_hex_done(Json* js) noexcept nogil:
    cdef unsigned int v = js.code
    if js.high and 0xDC00 <= v < 0xE000:
        v = 0x10000 + ((js.high - 0xD800) << 10) + (v - 0xDC00)
        js.high = 0
    else:
        json_flush_high(js)
    if 0xD800 <= v < 0xDC00:
        js.high = v
    else:
        json_put_code(js, v)


cdef inline int json_bad(Json* js, const unsigned char** at, const unsigned char* p, int why) noexcept nogil:
    js.state = J_BAD
    js.why = why
    at[0] = p
    return JSON_BAD


cdef inline int json_next(Json* js, const unsigned char** at, const unsigned char* end, bint strict) noexcept nogil:
    """The next reported token of [at[0], end), or JSON_MORE. Bound: p is read only while p < end.

    A number ends only with the byte behind it, so the last one of a document without a root container is not reported.
    """
    cdef const unsigned char* p = at[0]
    cdef const unsigned char* s = p  # what of the current text is not in buf
    cdef int state = js.state, token
    cdef unsigned char c
    while p < end:
        if state == J_STRING:
            p = string_run(p, end, strict)
            if p == end:
                break
            c = p[0]
            if c == b'"':
                if js.wanted:
                    json_text(js, s, p)
                p += 1
                if js.is_key:
                    state = J_COLON
                    token = JSON_KEY
                    if p < end and p[0] == b":":
                        p += 1
                        state = J_VALUE
                else:
                    state = J_AFTER if js.depth else J_END
                    token = JSON_STRING
                if js.wanted:
                    js.wanted = False
                    at[0] = p
                    js.state = state
                    return token
            elif c == b"\\":
                if js.wanted:
                    json_spill(js, s, p)
                p += 1
                state = J_ESCAPE
            elif c < 0xC2 or c > 0xF4:
                return json_bad(js, at, p, WHY_SYNTAX if c < 0x20 else WHY_UTF8)
            else:
                # Whole three-byte characters at once: most text that is not ASCII consists of them.
                while (end - p >= 3 and p[0] > 0xE0 and p[0] < 0xF0 and p[0] != 0xED
                        and p[1] & 0xC0 == 0x80 and p[2] & 0xC0 == 0x80):
                    p += 3
                    js.other += 3
                if p == end or p[0] < 0xC2 or p[0] > 0xF4:
                    continue
                c = p[0]
                js.lo = 0x80
                js.hi = 0xBF
                if c < 0xE0:
                    js.need = 1
                elif c < 0xF0:
                    js.need = 2
                    if c == 0xE0:
                        js.lo = 0xA0
                    elif c == 0xED:
                        js.hi = 0x9F
                else:
                    js.need = 3
                    if c == 0xF0:
                        js.lo = 0x90
                    elif c == 0xF4:
                        js.hi = 0x8F
                p += 1
                js.other += 1
                state = J_UTF8
        elif state <= J_END:
            c = p[0]
            if c == b'"':
                if state == J_VALUE or state == J_FIRST_ITEM:
                    js.is_key = False
                elif state == J_FIRST_KEY or state == J_NEXT_KEY:
                    js.is_key = True
                else:
                    return json_bad(js, at, p, WHY_SYNTAX)
                if js.depth <= js.watch:
                    js.wanted = True
                    js.spilled = False
                    js.filled = 0
                    js.token_at = js.offset + <unsigned long long>(p - js.span)
                p += 1
                s = p
                state = J_STRING
            elif c == b",":
                if state != J_AFTER:
                    return json_bad(js, at, p, WHY_SYNTAX)
                p += 1
                state = J_NEXT_KEY if json_in_object(js) else J_VALUE
            elif c == b":":
                if state != J_COLON:
                    return json_bad(js, at, p, WHY_SYNTAX)
                p += 1
                state = J_VALUE
            elif c == b" " or c == b"\n" or c == b"\r" or c == b"\t":
                p += 1
            elif c == b"{" or c == b"[":
                if state > J_FIRST_ITEM:
                    return json_bad(js, at, p, WHY_SYNTAX)
                if js.depth == JSON_MAX_DEPTH:
                    return json_bad(js, at, p, WHY_DEPTH)
                p += 1
                if c == b"{":
                    js.stack[js.depth >> 3] |= <unsigned char>(1 << (js.depth & 7))
                    state = J_FIRST_KEY
                else:
                    js.stack[js.depth >> 3] &= <unsigned char>~(1 << (js.depth & 7))
                    state = J_FIRST_ITEM
                js.depth += 1
                if js.depth - 1 <= js.watch:
                    at[0] = p
                    js.state = state
                    return JSON_OBJECT if c == b"{" else JSON_ARRAY
            elif c == b"}" or c == b"]":
                if json_in_object(js):
                    if c != b"}" or (state != J_AFTER and state != J_FIRST_KEY):
                        return json_bad(js, at, p, WHY_SYNTAX)
                elif c != b"]" or (state != J_AFTER and state != J_FIRST_ITEM):
                    return json_bad(js, at, p, WHY_SYNTAX)
                p += 1
                js.was_empty = state != J_AFTER
                js.depth -= 1
                state = J_AFTER if js.depth else J_END
                if js.depth <= js.watch:
                    at[0] = p
                    js.state = state
                    return JSON_CLOSE
            else:
                if state > J_FIRST_ITEM:
                    return json_bad(js, at, p, WHY_SYNTAX)
                js.need = 1
                if b"1" <= c <= b"9":
                    state = J_INT
                elif c == b"0":
                    state = J_ZERO
                elif c == b"-":
                    state = J_MINUS
                else:
                    state = J_LITERAL
                    if c == b"n":
                        js.literal = b"null"
                    elif c == b"t":
                        js.literal = b"true"
                    elif c == b"f":
                        js.literal = b"false"
                    elif c == b"N" and not strict:
                        js.literal = b"NaN"
                    elif c == b"I" and not strict:
                        js.literal = b"Infinity"
                    else:
                        return json_bad(js, at, p, WHY_SYNTAX)
                js.wanted = js.depth <= js.watch
                js.spilled = False
                js.filled = 0
                s = p
                p += 1
        elif state == J_UTF8:
            c = p[0]
            if c < js.lo or c > js.hi:
                return json_bad(js, at, p, WHY_UTF8)
            js.lo = 0x80
            js.hi = 0xBF
            js.other += 1
            p += 1
            js.need -= 1
            if js.need == 0:
                state = J_STRING
        elif state == J_ESCAPE:
            c = p[0]
            if c == b"u":
                js.need = 4
                js.code = 0
                state = J_HEX
            else:
                if c == b"n":
                    c = 10
                elif c == b"t":
                    c = 9
                elif c == b"r":
                    c = 13
                elif c == b"b":
                    c = 8
                elif c == b"f":
                    c = 12
                elif c != b'"' and c != b"\\" and c != b"/":
                    return json_bad(js, at, p, WHY_SYNTAX)
                if js.wanted:
                    json_flush_high(js)
                    json_put(js, c)
                state = J_STRING
            p += 1
            s = p
        elif state == J_HEX:
            c = p[0]
            if b"0" <= c <= b"9":
                c -= 48
            elif b"a" <= (c | 32) <= b"f":
                c = (c | 32) - 87
            else:
                return json_bad(js, at, p, WHY_SYNTAX)
            js.code = js.code << 4 | c
            p += 1
            js.need -= 1
            if js.need == 0:
                if js.wanted:
                    json_hex_done(js)
                s = p
                state = J_STRING
        elif state == J_LITERAL:
            if p[0] != <unsigned char>js.literal[js.need]:
                return json_bad(js, at, p, WHY_SYNTAX)
            p += 1
            js.need += 1
            if js.literal[js.need] == 0:
                state = J_AFTER if js.depth else J_END
                if js.wanted:
                    c = <unsigned char>js.literal[0]
                    js.wanted = False
                    js.tok_n = 0
                    at[0] = p
                    js.state = state
                    if c == b"n":
                        return JSON_NULL
                    if c == b"t":
                        return JSON_TRUE
                    if c == b"f":
                        return JSON_FALSE
                    return JSON_NUMBER
        elif state == J_BAD:
            return JSON_BAD
        else:
            c = p[0]
            if b"0" <= c <= b"9":
                if state == J_MINUS:
                    state = J_ZERO if c == b"0" else J_INT
                elif state == J_DOT:
                    state = J_FRAC
                elif state == J_E or state == J_SIGN:
                    state = J_EXP
                elif state == J_ZERO:
                    return json_bad(js, at, p, WHY_SYNTAX)
                p += 1
            elif c == b"." and (state == J_ZERO or state == J_INT):
                state = J_DOT
                p += 1
            elif (c == b"e" or c == b"E") and (state == J_ZERO or state == J_INT or state == J_FRAC):
                state = J_E
                p += 1
            elif (c == b"+" or c == b"-") and state == J_E:
                state = J_SIGN
                p += 1
            elif c == b"I" and state == J_MINUS and not strict:
                js.literal = b"Infinity"
                js.need = 1
                state = J_LITERAL
                p += 1
            elif state == J_ZERO or state == J_INT or state == J_FRAC or state == J_EXP:
                state = J_AFTER if js.depth else J_END
                if js.wanted:
                    json_text(js, s, p)
                    js.wanted = False
                    at[0] = p
                    js.state = state
                    return JSON_NUMBER
            else:
                return json_bad(js, at, p, WHY_SYNTAX)
    if js.wanted and (state == J_STRING or state == J_UTF8 or state >= J_MINUS):
        json_spill(js, s, p)
    at[0] = p
    js.state = state
    return JSON_MORE


# A growing copy of a value's raw text, bounded.
cdef struct Capture:
    char* data       # freed by the owner
    Py_ssize_t n
    Py_ssize_t cap
    bint over        # longer than its bound: kept no further

cdef bytes captured(Capture* c)
cdef int capture(Capture* c, const unsigned char* p, const unsigned char* end, Py_ssize_t max_bytes) except -1


cdef enum:
    UNSET = -1  # a flag that no member has told


# What routing and recovery need to know of a request's body, in whatever form it comes.
cdef class BodyFacts:
    cdef unsigned long long total        # bytes before the piece that is looked at
    cdef unsigned long long model_at
    cdef unsigned long long model_end
    cdef int seen                        # bit per member
    cdef int flags[3]                    # stream, store, background
    cdef object error                    # raised, and raised again by every later call
    cdef readonly str model
    cdef readonly bint has_previous_response_id

    cdef int _refuse(self, str reason, str message, str param=*, object offset=*) except -1


cdef class FieldScanner:
    cdef Json js
    cdef Capture kept
    cdef bytes key
    cdef Py_ssize_t max_bytes
    cdef bint capturing
    cdef bint complete     # kept.data holds a whole value
    cdef unsigned char text[64]

    cdef int feed_span(self, const char* span, Py_ssize_t n) except -1
