# cython: auto_pickle=False
"""HTTP/1.1 message bodies and heads, decoded under caps (API-6; RFC 9112 sections 2.2, 5, 6 and 7).

Both classes are byte-class state machines: a byte is looked at once, however the input is cut, so dripped input costs
linear time and any chunking of the same bytes gives the same answer. What RFC 9112 lets a recipient be lenient about
(bare LF, whitespace before the colon, folded lines, empty list members) is refused: two parsers that are lenient in
different ways are how requests get smuggled. The file is long because heads and bodies are decoded by the same byte
classes and caps, and trailers of a body by the rules of a head.

    chunked:  SIZE -> (BWS ->) (EXTENSION ->) SIZE_LF -> DATA -> DATA_CR -> DATA_LF -> SIZE
              SIZE_LF -> TRAILER_START -> (TRAILER_NAME -> TRAILER_VALUE -> TRAILER_LF ->)* END_LF -> DONE
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

from iop.errors import BodyError, HeadError, HeadTooLarge, PayloadTooLarge

cdef enum:
    DONE = 0
    COUNTED = 1    # `left` bytes of a length-delimited body are to come
    UNTIL_EOF = 2
    FAILED = 3
    SIZE = 4       # the states from here on are those of the chunked coding
    BWS = 5        # bad whitespace between the size and an extension, which RFC 9112 section 7.1.1 says to accept
    EXTENSION = 6
    SIZE_LF = 7
    DATA = 8
    DATA_CR = 9
    DATA_LF = 10
    TRAILER_START = 11
    TRAILER_NAME = 12
    TRAILER_VALUE = 13
    TRAILER_LF = 14
    END_LF = 15

cdef enum:
    HEAD_EMPTY = 0     # nothing but empty lines so far
    HEAD_EMPTY_LF = 1
    HEAD_LINE = 2
    HEAD_LINE_LF = 3
    HEAD_LINE_START = 4
    HEAD_END_LF = 5
    HEAD_FAILED = 6

cdef enum:
    HT = 9
    LF = 10
    CR = 13
    SP = 32
    COLON = 58
    SEMICOLON = 59

cdef enum:
    MAX_SIZE_DIGITS = 16
    MAX_LINE_BYTES = 4096         # one chunk-size line with its extension
    MAX_EXTENSION_BYTES = 16384   # all extensions of one body: they carry nothing for us
    MAX_TRAILER_BYTES = 8192
    MAX_EMPTY_LINES = 2

cdef unsigned long long MAX_CHUNK = 0x7FFFFFFFFFFFFFFF

# Byte classes: bit 0 = may stand in a field name (tchar, RFC 9110 section 5.6.2); bit 1 = may stand in a line
# (HTAB, SP, VCHAR, obs-text).
cdef enum:
    IS_TOKEN = 1
    IS_TEXT = 2

cdef unsigned char[256] CLASS


cdef void _fill_classes() noexcept:
    cdef int c
    for c in range(256):
        CLASS[c] = IS_TEXT if c == HT or (c >= SP and c != 127) else 0
    for c in b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz":
        CLASS[c] |= IS_TOKEN


_fill_classes()


cdef inline int _hex(unsigned char c) noexcept nogil:
    if 48 <= c <= 57:
        return c - 48
    c |= 32
    if 97 <= c <= 102:
        return c - 87
    return -1


cdef inline Py_ssize_t _class_run(const unsigned char* p, Py_ssize_t n, unsigned char mask) noexcept nogil:
    """Length of the longest prefix of p[:n] whose bytes are all of the class. Bound: eight bytes are read only where so
    many are left."""
    cdef Py_ssize_t i = 0
    cdef uint64_t word, flipped
    if mask == IS_TEXT:
        while i + 8 <= n:  # whether one of eight bytes is below 0x20 or is 0x7f; what a tab is part of goes on below
            memcpy(&word, p + i, 8)
            flipped = word ^ <uint64_t>0x7F7F7F7F7F7F7F7F
            if (((word - <uint64_t>0x2020202020202020) & ~word | (flipped - <uint64_t>0x0101010101010101) & ~flipped)
                    & <uint64_t>0x8080808080808080):
                break
            i += 8
    while i < n and CLASS[p[i]] & mask:
        i += 1
    return i


cdef class BodyDecoder:
    """One message body; see body.pyi."""

    def __init__(self, int framing, unsigned long long length=0, unsigned long long max_bytes=0):
        self.framing = framing
        self.max_bytes = max_bytes
        if framing == FRAMING_LENGTH:
            if max_bytes and length > max_bytes:
                self._over()
            self.left = length
            self.state = COUNTED if length else DONE
        elif framing == FRAMING_CHUNKED:
            self.state = SIZE
        elif framing == FRAMING_EOF:
            self.state = UNTIL_EOF
        elif framing == FRAMING_NONE:
            self.state = DONE
        else:
            raise ValueError(f"unknown framing {framing}")
        self.done = self.state == DONE

    cdef int _fail(self, str reason) except -1:
        self.state = FAILED
        self.fault = reason
        raise BodyError(reason)

    cdef int _over(self) except -1:
        self.state = FAILED
        self.fault = "too_large"
        raise PayloadTooLarge

    cdef int step(self, const char* p, Py_ssize_t n, Py_ssize_t* used, const char** out, Py_ssize_t* out_n) except -1:
        """Consumes a prefix of p[:n] (`used` bytes) and answers with a Step.

        After BODY_DATA call again, even when nothing is left of the input (or look at `done`): only BODY_NEED and
        BODY_DONE end the loop. The span points into p, and is valid as long as p is.
        """
        cdef Py_ssize_t i = 0, took
        used[0] = 0
        if self.state == FAILED:
            if self.fault == "too_large":
                raise PayloadTooLarge
            raise BodyError(self.fault)
        while True:
            if self.state == COUNTED or self.state == DATA:
                if i == n:
                    used[0] = n
                    return BODY_NEED
                took = n - i
                if <unsigned long long>took > self.left:
                    took = <Py_ssize_t>self.left
                self.left -= <unsigned long long>took
                self.body_bytes += <unsigned long long>took
                if self.left == 0:
                    self.done = self.state == COUNTED
                    self.state = DONE if self.done else DATA_CR
                out[0] = p + i
                out_n[0] = took
                used[0] = i + took
                return BODY_DATA
            if self.state == DONE:
                used[0] = i
                return BODY_DONE
            if i == n:
                used[0] = n
                return BODY_NEED
            if self.state == UNTIL_EOF:
                self.body_bytes += <unsigned long long>n
                if self.max_bytes and self.body_bytes > self.max_bytes:
                    self._over()
                out[0] = p
                out_n[0] = n
                used[0] = n
                return BODY_DATA
            self._line(<const unsigned char*>p + i, n - i, &took)
            i += took

    cdef int _line(self, const unsigned char* p, Py_ssize_t n, Py_ssize_t* used) except -1:
        """Advances through what is between chunks: size lines, chunk ends, trailers. Stops at DATA, DONE or n."""
        cdef Py_ssize_t i = 0, run
        cdef int digit
        cdef unsigned char c
        while i < n and self.state != DATA and self.state != DONE:
            c = p[i]
            if self.state == SIZE:
                digit = _hex(c)
                if digit >= 0:
                    self.digits += 1
                    if self.digits > MAX_SIZE_DIGITS:
                        self._fail("chunk_size")
                    self.left = (self.left << 4) | <unsigned long long>digit
                elif self.digits == 0:
                    self._fail("chunk_size")
                elif c == CR:
                    self.state = SIZE_LF
                elif c == SEMICOLON:
                    self.state = EXTENSION
                elif c == SP or c == HT:
                    self.state = BWS
                else:
                    self._fail("chunk_size")
                self.line_bytes += 1
            elif self.state == BWS:
                if c == SEMICOLON:
                    self.state = EXTENSION
                elif c != SP and c != HT:
                    self._fail("chunk_size")
                self._extension(1)
            elif self.state == EXTENSION:
                run = _class_run(p + i, min(n - i, MAX_LINE_BYTES + 1), IS_TEXT)
                self._extension(run)
                i += run
                if i == n:
                    break
                if p[i] != CR:
                    self._fail("chunk_extension")
                self.state = SIZE_LF
            elif self.state == SIZE_LF:
                if c != LF:
                    self._fail("bare_cr")
                self._size_line_ended()
            elif self.state == DATA_CR:
                if c != CR:
                    self._fail("chunk_end")
                self.state = DATA_LF
            elif self.state == DATA_LF:
                if c != LF:
                    self._fail("chunk_end")
                self.state = SIZE
                self.digits = 0
                self.line_bytes = 0
                self.left = 0
            else:
                self._trailer(c)
            i += 1
        used[0] = i
        return 0

    cdef int _extension(self, Py_ssize_t n) except -1:
        self.line_bytes += n
        self.extension_bytes += n
        if self.line_bytes > MAX_LINE_BYTES or self.extension_bytes > MAX_EXTENSION_BYTES:
            self._fail("chunk_extension_too_long")
        return 0

    cdef int _size_line_ended(self) except -1:
        if self.left == 0:
            self.state = TRAILER_START
            return 0
        if self.left > MAX_CHUNK:
            self._fail("chunk_size")
        # Refused as soon as the size is known, so that no byte of an oversized chunk is taken.
        if self.max_bytes and self.left > self.max_bytes - self.body_bytes:
            self._over()
        self.state = DATA
        return 0

    cdef int _trailer(self, unsigned char c) except -1:
        """One byte of the trailer section, which is checked, bounded and discarded (TUN-2)."""
        self.trailer_bytes += 1
        if self.trailer_bytes > MAX_TRAILER_BYTES:
            self._fail("trailer_too_long")
        if self.state == TRAILER_START:
            if c == CR:
                self.state = END_LF
            elif CLASS[c] & IS_TOKEN:
                self.state = TRAILER_NAME
            else:
                self._fail("trailer")
        elif self.state == TRAILER_NAME:
            if c == COLON:
                self.state = TRAILER_VALUE
            elif not CLASS[c] & IS_TOKEN:
                self._fail("trailer")
        elif self.state == TRAILER_VALUE:
            if c == CR:
                self.state = TRAILER_LF
            elif not CLASS[c] & IS_TEXT:
                self._fail("trailer")
        elif c != LF:
            self._fail("bare_cr")
        else:
            self.done = self.state == END_LF
            self.state = DONE if self.done else TRAILER_START
        return 0

    def feed(self, bytes data):
        cdef const char* p = PyBytes_AS_STRING(data)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data), i = 0, used = 0, span_n = 0, kept_n = 0
        cdef const char* span = NULL
        cdef const char* kept = NULL
        cdef bytes joined = None
        cdef char* to = NULL
        cdef Py_ssize_t filled = 0
        cdef int got
        while True:
            got = self.step(p + i, n - i, &used, &span, &span_n)
            i += used
            if got != BODY_DATA:
                break
            if kept == NULL:
                kept = span
                kept_n = span_n
                continue
            # Many small chunks become one piece: 100 000 one-byte chunks must not become 100 000 objects.
            if joined is None:
                joined = PyBytes_FromStringAndSize(NULL, kept_n + n - (kept - p))
                to = PyBytes_AS_STRING(joined)
                memcpy(to, kept, kept_n)
                filled = kept_n
            memcpy(to + filled, span, span_n)
            filled += span_n
        if kept == NULL:
            return [], i
        if joined is not None:
            return [joined[:filled]], i
        if kept_n == n:
            return [data], i
        return [PyBytes_FromStringAndSize(kept, kept_n)], i

    def eof(self):
        if self.state == UNTIL_EOF:
            self.state = DONE
            self.done = True
        return self.done


cdef class HeadFinder:
    """Finds the end of an HTTP head; see body.pyi."""

    def __init__(self, Py_ssize_t max_bytes):
        if max_bytes < 1:
            raise ValueError("max_bytes must be positive")
        self.max_bytes = max_bytes
        self.held = bytearray()
        self.reset()

    def reset(self):
        self.state = HEAD_EMPTY
        self.empty_lines = 0
        self.pending_bytes = 0
        self.error = None
        self.held.clear()

    cdef int _fail(self, error) except -1:
        self.state = HEAD_FAILED
        self.error = error
        self.held.clear()
        raise error

    def feed(self, bytes data, Py_ssize_t offset=0):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data), start = 0, end = 0
        cdef const char* p = PyBytes_AS_STRING(data)
        cdef bytes head
        if offset < 0 or offset > size:
            raise ValueError("offset outside data")
        if self.state == HEAD_FAILED:
            raise self.error
        if not self._scan(<const unsigned char*>p + offset, size - offset, &start, &end):
            if end > start:
                self.held += (<const unsigned char*>p)[offset + start:offset + end]
            return None, size - offset
        head = PyBytes_FromStringAndSize(p + offset + start, end - start)
        if self.held:
            head = bytes(self.held) + head
        self.reset()
        return head, end

    cdef int _scan(self, const unsigned char* p, Py_ssize_t n, Py_ssize_t* start, Py_ssize_t* end) except -1:
        """Runs over p[:n]; 1 when the head is complete. p[start:end] is the part of it that belongs to the head."""
        cdef Py_ssize_t i = 0, room, run
        cdef unsigned char c
        start[0] = 0
        while i < n:
            c = p[i]
            if self.state == HEAD_LINE:
                room = min(n - i, self.max_bytes - self.pending_bytes)
                run = _class_run(p + i, room, IS_TEXT)
                i += run
                self.pending_bytes += run
                if run < room:
                    if p[i] != CR:
                        self._fail(HeadError("control_character"))
                    self.state = HEAD_LINE_LF
                    i += 1
                    self.pending_bytes += 1
            elif self.state == HEAD_LINE_LF or self.state == HEAD_END_LF:
                if c != LF:
                    self._fail(HeadError("bare_cr"))
                i += 1
                self.pending_bytes += 1
                if self.state == HEAD_END_LF:
                    end[0] = i
                    return 1
                self.state = HEAD_LINE_START
            elif self.state == HEAD_LINE_START:
                if c == CR:
                    self.state = HEAD_END_LF
                elif c == SP or c == HT:
                    self._fail(HeadError("folded_line"))
                elif not CLASS[c] & IS_TEXT:
                    self._fail(HeadError("control_character"))
                else:
                    self.state = HEAD_LINE
                i += 1
                self.pending_bytes += 1
            elif self.state == HEAD_EMPTY:
                i += 1
                if c == CR:
                    self.state = HEAD_EMPTY_LF
                elif c == SP or not CLASS[c] & IS_TEXT or c == HT:
                    self._fail(HeadError("bad_start"))
                else:
                    self.state = HEAD_LINE
                    start[0] = i - 1
                    self.pending_bytes = 1
            else:  # HEAD_EMPTY_LF
                if c != LF:
                    self._fail(HeadError("bare_cr"))
                i += 1
                self.empty_lines += 1
                if self.empty_lines > MAX_EMPTY_LINES:
                    self._fail(HeadError("bad_start"))
                self.state = HEAD_EMPTY
                start[0] = i
            # The head is not complete yet, so it is longer than this.
            if self.pending_bytes >= self.max_bytes:
                self._fail(HeadTooLarge("more bytes than the limit"))
        end[0] = n if self.state >= HEAD_LINE else start[0]
        return 0


def check_header_block(bytes block, Py_ssize_t max_fields):
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(block)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(block), i = 0, run, count = 0
    while i < n:
        run = _class_run(p + i, n - i, IS_TOKEN)
        i += run
        if run == 0 or i == n or p[i] != COLON:
            raise HeadError("field_name")
        i += 1
        i += _class_run(p + i, n - i, IS_TEXT)
        if n - i < 2 or p[i] != CR or p[i + 1] != LF:
            raise HeadError("field_value")
        i += 2
        count += 1
        if count > max_fields:
            raise HeadTooLarge("more fields than the limit")
    return count


cdef bint _has_prefix(bytes name, tuple prefixes) except -1:
    cdef bytes prefix
    for prefix in prefixes:
        if (PyBytes_GET_SIZE(name) >= PyBytes_GET_SIZE(prefix)
                and memcmp(PyBytes_AS_STRING(name), PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix)) == 0):
            return True
    return False


cdef inline bint _all(bytes text, unsigned char mask) noexcept:
    cdef Py_ssize_t n = PyBytes_GET_SIZE(text)
    return _class_run(<const unsigned char*>PyBytes_AS_STRING(text), n, mask) == n


def filter_headers(list headers, frozenset drop, tuple drop_prefixes):
    cdef list kept = []
    cdef bytes name, value, out
    cdef Py_ssize_t size = 0, n
    cdef char* p
    for field in headers:
        name, value = field
        if name in drop or _has_prefix(name, drop_prefixes):
            continue
        if not name or not _all(name, IS_TOKEN):
            raise HeadError("field_name")
        if not _all(value, IS_TEXT):
            raise HeadError("field_value")
        size += PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(value) + 4
        kept.append(field)
    if not kept:
        return b""
    # Bound: `size` is the sum of what is written below, from the same objects.
    out = PyBytes_FromStringAndSize(NULL, size)
    p = PyBytes_AS_STRING(out)
    for name, value in kept:
        n = PyBytes_GET_SIZE(name)
        memcpy(p, PyBytes_AS_STRING(name), n)
        p[n] = c":"
        p[n + 1] = c" "
        p += n + 2
        n = PyBytes_GET_SIZE(value)
        memcpy(p, PyBytes_AS_STRING(value), n)
        p[n] = c"\r"
        p[n + 1] = c"\n"
        p += n + 2
    return out
