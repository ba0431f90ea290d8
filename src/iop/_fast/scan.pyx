# cython: auto_pickle=False
"""JSON bodies, scanned as they arrive and never parsed into a tree (API-8c, POOL-2, TUN-3).

``RequestScanner`` checks a request strictly and keeps the few members that routing and recovery need. ``FieldScanner``
looks for one member of an answer and never complains. Both look at a byte once, whatever the pieces, and keep a bounded
amount: the tokenizer's stack is 64 bytes, a text that is split or escaped at most its buffer.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from json.encoder import encode_basestring_ascii

from iop.errors import ScanError

cdef enum:
    MAX_MODEL_BYTES = 512
    MAX_TYPE_BYTES = 64
    MAX_TOOL_TYPES = 32
    INLINE_RUN_BYTES = 1024   # base64 from this length on is an attachment (POOL-2)
    INLINE_TOKENS = 1500
    JOIN_BYTES = 65536        # a piece up to this size is copied when the model is spliced in

# Members of the request that are looked at; 0 = any other.
cdef enum:
    F_MODEL = 1
    F_STREAM = 2
    F_STORE = 3
    F_BACKGROUND = 4
    F_PREVIOUS = 5
    F_TOOLS = 6

cdef tuple FIELDS = (b"model", b"stream", b"store", b"background", b"previous_response_id", b"tools")

cdef enum:
    BOM_BYTES = 3
    NO_BOM = 4

cdef const unsigned char* BOM = b"\xef\xbb\xbf"


cdef inline bint _is(const unsigned char* p, Py_ssize_t n, bytes word) noexcept:
    return n == PyBytes_GET_SIZE(word) and memcmp(p, PyBytes_AS_STRING(word), n) == 0


cdef bint _reads_as(const unsigned char* p, Py_ssize_t n, bytes word) noexcept:
    """Whether some decoder takes p[:n] for ``word``, which is in lower case: Go's ignores case under Unicode's simple
    folding (so U+017F is an s and U+212A a k), others map to upper case (so U+0131 is an i), and what counts strings in
    C ends at a NUL. Bound: i < n, and at most three bytes are read for one of the word."""
    cdef const unsigned char* w = <const unsigned char*>PyBytes_AS_STRING(word)
    cdef Py_ssize_t i = 0, j
    cdef unsigned char c
    for j in range(PyBytes_GET_SIZE(word)):
        if i >= n:
            return False
        c = p[i]
        i += 1
        if b"A" <= c <= b"Z":
            c |= 32
        elif c == 0xC5 and i < n and p[i] == 0xBF:
            c = b"s"
            i += 1
        elif c == 0xC4 and i < n and (p[i] == 0xB0 or p[i] == 0xB1):
            c = b"i"
            i += 1
        elif c == 0xE2 and i + 1 < n and p[i] == 0x84 and p[i + 1] == 0xAA:
            c = b"k"
            i += 2
        if c != w[j]:
            return False
    return i == n or p[i] == 0


# ---- inline base64 --------------------------------------------------------------------------------------------------

cdef unsigned char[256] BASE64


cdef void _fill_base64() noexcept:
    cdef int c
    for c in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_":
        BASE64[c] = 1


_fill_base64()

# A run is a stretch of base64 characters; a backslash before a slash belongs to it (some encoders write "\/").
cdef struct Runs:
    Py_ssize_t open_bytes           # length of the run that reaches the end of the bytes seen so far
    bint backslash                  # it is followed by a backslash, whose other half is still to come
    unsigned long long inline_bytes
    unsigned long long inlines


cdef inline void _run_ends(Runs* r, Py_ssize_t n) noexcept nogil:
    if n >= INLINE_RUN_BYTES:
        r.inlines += 1
        r.inline_bytes += <unsigned long long>n


cdef inline bint _in_run(const unsigned char* p, Py_ssize_t i, Py_ssize_t n) noexcept nogil:
    return BASE64[p[i]] or (p[i] == b"\\" and i + 1 < n and p[i + 1] == b"/")


cdef void _count_runs(Runs* r, const unsigned char* p, Py_ssize_t n) noexcept nogil:
    """Finds the long runs of p[:n]. Looks at every byte only inside them: elsewhere it tries the end of where a long
    run would have to be, and goes on behind the last byte there that is not in one. Bound: i and j stay below n."""
    cdef Py_ssize_t i = 0, j, start = 0
    if n == 0:
        return
    if r.backslash:
        r.backslash = False
        if p[0] == b"/":
            r.open_bytes += 1
        else:
            _run_ends(r, r.open_bytes)
            r.open_bytes = 0
    if r.open_bytes:
        while i < n and _in_run(p, i, n):
            i += 1
        r.open_bytes += i
        if i == n:
            return
        if i + 1 == n and p[i] == b"\\":
            r.backslash = True
            return
        _run_ends(r, r.open_bytes)
        r.open_bytes = 0
        i += 1
    while n - i >= INLINE_RUN_BYTES:
        start = i
        j = i + INLINE_RUN_BYTES - 1
        while j >= start and _in_run(p, j, n):
            j -= 1
        if j >= start:
            i = j + 1
            continue
        j = i + INLINE_RUN_BYTES
        while j < n and _in_run(p, j, n):
            j += 1
        r.backslash = j + 1 == n and p[j] == b"\\"
        if j == n or r.backslash:
            r.open_bytes = j - start
            return
        _run_ends(r, j - start)
        i = j + 1
    if i < n and p[n - 1] == b"\\":
        r.backslash = True
        n -= 1
    j = n
    while j > i and _in_run(p, j - 1, n):
        j -= 1
    r.open_bytes = n - j


# ---- requests -------------------------------------------------------------------------------------------------------

cdef frozenset FUNCTIONS = frozenset(("function",))   # tools of the client's own


cdef class BodyFacts:
    """See scan.pyi."""

    def __cinit__(self):
        self.flags[0] = self.flags[1] = self.flags[2] = UNSET

    @property
    def model_span(self):
        return None if self.model is None else (self.model_at, self.model_end)

    @property
    def stream(self):
        return None if self.flags[0] == UNSET else bool(self.flags[0])

    @property
    def store(self):
        return None if self.flags[1] == UNSET else bool(self.flags[1])

    @property
    def background(self):
        return None if self.flags[2] == UNSET else bool(self.flags[2])

    cdef int _refuse(self, str reason, str message, str param=None, object offset=None) except -1:
        self.error = ScanError(reason, message, param=param, offset=offset)
        raise self.error


cdef class RequestScanner(BodyFacts):
    """See scan.pyi."""

    cdef Json js
    cdef Runs runs
    cdef int field           # of the key that was read last, at the root
    cdef bint in_tools
    cdef bint type_next
    cdef int bom             # bytes of a byte order mark that have come; NO_BOM once it is known that there is none
    cdef bint started
    cdef bint finished
    cdef set types
    cdef unsigned char text[MAX_MODEL_BYTES]

    def __init__(self):
        json_start(&self.js, self.text, MAX_MODEL_BYTES)
        self.types = set()

    def feed(self, bytes piece):
        cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(piece)
        cdef const unsigned char* end = p + PyBytes_GET_SIZE(piece)
        cdef int token
        if self.error is not None:
            raise self.error
        if self.finished:
            raise ValueError("feed after finish")
        json_span(&self.js, p, self.total)
        if not self.started:
            p = self._behind_bom(p, end)
            while p < end and p[0] in b" \t\r\n":
                p += 1
            if p < end:
                self.started = True
                if p[0] != b"{":
                    self._not_an_object(p)
        while True:
            token = json_next(&self.js, &p, end, True)
            if token == JSON_MORE:
                break
            if token == JSON_BAD:
                self._malformed(p)
            self._token(token, p)
        _count_runs(&self.runs, self.js.span, end - self.js.span)
        self.total += <unsigned long long>PyBytes_GET_SIZE(piece)

    cdef const unsigned char* _behind_bom(self, const unsigned char* p, const unsigned char* end) except NULL:
        while p < end and self.bom < BOM_BYTES:
            if p[0] == BOM[self.bom]:
                self.bom += 1
                p += 1
            elif self.bom == 0:
                self.bom = NO_BOM
            else:
                self.js.why = WHY_UTF8
                self._malformed(p)
        return p

    cdef int _token(self, int token, const unsigned char* p) except -1:
        cdef Json* js = &self.js
        if token == JSON_KEY:
            if js.depth == 1:
                self._root_key()
            else:
                self.type_next = _reads_as(js.tok, self._kept(), b"type")
        elif self.in_tools:
            self._in_tools(token)
        elif js.depth == 1 and token == JSON_OBJECT:
            js.watch = 1  # the root
        elif token != JSON_CLOSE:
            self._root_value(token, p)
        return 0

    cdef Py_ssize_t _kept(self) noexcept:
        """How much of the token's text is there."""
        return min(self.js.tok_n, self.js.cap) if self.js.tok == self.js.buf else self.js.tok_n

    cdef int _root_key(self) except -1:
        cdef int i
        self.field = 0
        for i in range(6):
            if not _reads_as(self.js.tok, self._kept(), <bytes>FIELDS[i]):
                continue
            self.field = i + 1
            if self.seen >> i & 1:
                name = FIELDS[i].decode()
                self._refuse("duplicate_key", f"the body has more than one {name!r}", name)
            if not _is(self.js.tok, self.js.tok_n, <bytes>FIELDS[i]):
                name = FIELDS[i].decode()
                self._refuse("ambiguous_key", f"some servers read a member of this body as {name!r}, and some do not; "
                             f"write {name!r} in lower case, or leave it out", name)
            self.seen |= 1 << i
            break
        return 0

    cdef int _root_value(self, int token, const unsigned char* p) except -1:
        cdef Json* js = &self.js
        if self.field == F_MODEL:
            if token != JSON_STRING:
                self._refuse("model_not_string", "'model' must be a string", "model")
            if js.tok_n > MAX_MODEL_BYTES:
                self._refuse("model_too_long", f"'model' is longer than {MAX_MODEL_BYTES} bytes", "model")
            if js.tok_n == 0:
                self._refuse("missing_model", "'model' must not be empty", "model")
            try:
                self.model = js.tok[:js.tok_n].decode()
            except UnicodeDecodeError:
                self._refuse("model_not_string", "'model' has half of a surrogate pair", "model")
            self.model_at = js.token_at
            self.model_end = js.offset + <unsigned long long>(p - js.span)
        elif F_STREAM <= self.field <= F_BACKGROUND:
            if token == JSON_TRUE or token == JSON_FALSE:
                self.flags[self.field - F_STREAM] = token == JSON_TRUE
            elif token != JSON_NULL:
                name = FIELDS[self.field - 1].decode()
                self._refuse("not_boolean", f"{name!r} must be true or false", name)
        elif self.field == F_PREVIOUS:
            self.has_previous_response_id = token != JSON_NULL
        elif self.field == F_TOOLS and token == JSON_ARRAY:
            self.in_tools = True
            js.watch = 2
        return 0

    cdef int _in_tools(self, int token) except -1:
        """Depth 2 is the array, 3 a tool; what lies deeper is not reported."""
        cdef Json* js = &self.js
        if token == JSON_OBJECT and js.depth == 3:
            js.watch = 3
            self.type_next = False
        elif token == JSON_CLOSE and js.depth < 3:
            js.watch = js.depth
            self.in_tools = js.depth == 2
        elif token == JSON_STRING and js.depth == 3 and self.type_next:
            self.types.add(js.tok[:min(js.tok_n, MAX_TYPE_BYTES)].decode("utf-8", "replace"))
            if len(self.types) > MAX_TOOL_TYPES:
                self._refuse("tool_types", f"'tools' has more than {MAX_TOOL_TYPES} different types", "tools")
        return 0

    cdef int _not_an_object(self, const unsigned char* p) except -1:
        if p[0] in b'["-0123456789tfn':
            self._refuse("not_object", "the body must be a JSON object")
        self.js.why = WHY_SYNTAX
        return self._malformed(p)

    cdef int _malformed(self, const unsigned char* p) except -1:
        cdef unsigned long long offset = self.js.offset + <unsigned long long>(p - self.js.span)
        if self.js.why == WHY_DEPTH:
            self._refuse("depth", f"the body is nested deeper than {JSON_MAX_DEPTH} levels", None, offset)
        if self.js.why == WHY_UTF8:
            self._refuse("syntax", f"the body is not valid UTF-8 (byte {offset})", None, offset)
        return self._refuse("syntax", f"the body is not valid JSON (byte {offset})", None, offset)

    def finish(self):
        if self.error is not None:
            raise self.error
        if self.js.state != J_END:
            self._refuse("syntax", f"the JSON body ends early (byte {self.total})", None, self.total)
        if self.model is None:
            self._refuse("missing_model", "'model' is missing", "model")
        if not self.finished:
            self.finished = True
            _run_ends(&self.runs, self.runs.open_bytes)

    @property
    def tool_types(self):
        return frozenset(self.types)

    @property
    def ordinary(self):
        return (
            self.flags[1] == UNSET and self.flags[2] == UNSET and not self.has_previous_response_id
            and (not self.types or self.types == FUNCTIONS))

    @property
    def cut(self):
        return (0, BOM_BYTES) if self.bom == BOM_BYTES else None

    @property
    def ascii(self):
        return self.js.other == 0 and self.bom != BOM_BYTES

    @property
    def estimated_tokens(self):
        cdef unsigned long long ascii_bytes = self.total - self.js.other - self.runs.inline_bytes
        if self.bom == BOM_BYTES:
            ascii_bytes -= BOM_BYTES
        return ascii_bytes // 3 + self.js.other // 2 + self.runs.inlines * INLINE_TOKENS


def splice_model(list pieces, tuple span, bytes json_target not None):
    cdef Py_ssize_t start, end, at = 0, n
    cdef bytes piece
    cdef list out = []
    start, end = span
    if not 0 <= start < end:
        raise ValueError("empty span")
    for piece in pieces:
        n = PyBytes_GET_SIZE(piece)
        if at + n <= start or at >= end:
            out.append(piece)
        else:
            before = piece[:max(0, start - at)]
            target = json_target if start >= at else b""
            after = piece[min(n, end - at):]
            if n <= JOIN_BYTES:
                joined = b"".join((before, target, after))
                if joined:
                    out.append(joined)
            else:
                out += [part for part in (before, target, after) if part]
        at += n
    if end > at:
        raise ValueError("span outside the pieces")
    return out


def json_string(str text):
    return encode_basestring_ascii(text).encode("ascii")


# ---- answers --------------------------------------------------------------------------------------------------------

cdef int capture(Capture* c, const unsigned char* p, const unsigned char* end, Py_ssize_t max_bytes) except -1:
    """Appends [p, end), a stretch of a value's raw text; what stands before the value (colon, space) is left out.

    Nothing is kept any more once max_bytes would be passed.
    """
    cdef Py_ssize_t n, room
    cdef char* grown
    if c.n == 0:
        while p < end and p[0] in b": \t\r\n":
            p += 1
    n = end - p
    if c.over or n == 0:
        return 0
    if n > max_bytes - c.n:
        c.over = True
        return 0
    if c.n + n > c.cap:
        room = max(256, 2 * (c.n + n))
        grown = <char*>realloc(c.data, room)
        if grown == NULL:
            raise MemoryError
        c.data = grown
        c.cap = room
    memcpy(c.data + c.n, p, n)
    c.n += n
    return 0


cdef bytes captured(Capture* c):
    """The text that was kept, or None: nothing, too long, or no UTF-8 (so that whoever parses it need not care)."""
    cdef bytes text
    if c.over or c.n == 0:
        return None
    text = PyBytes_FromStringAndSize(c.data, c.n)
    try:
        text.decode()
    except UnicodeDecodeError:
        return None
    return text


cdef class FieldScanner:
    """See scan.pyi."""

    def __init__(self, bytes key not None, Py_ssize_t max_bytes=16384):
        if PyBytes_GET_SIZE(key) > <Py_ssize_t>sizeof(self.text):
            raise ValueError("key too long")
        json_start(&self.js, self.text, sizeof(self.text))
        self.key = key
        self.max_bytes = max_bytes

    def __dealloc__(self):
        free(self.kept.data)

    def feed(self, bytes data):
        self.feed_span(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef int feed_span(self, const char* span, Py_ssize_t n) except -1:
        cdef const unsigned char* p = <const unsigned char*>span
        cdef const unsigned char* end
        cdef const unsigned char* begun
        cdef int token
        if n <= 0:
            return 0
        end = p + n
        begun = p
        json_span(&self.js, p, 0)
        while True:
            token = json_next(&self.js, &p, end, False)
            if token <= 0:
                break
            if self.js.depth == 1 and (token == JSON_OBJECT or token == JSON_ARRAY):
                self.js.watch = token == JSON_OBJECT  # the root
            elif token == JSON_KEY:
                if _is(self.js.tok, self.js.tok_n, self.key):
                    self.capturing = True
                    self.complete = False
                    self.kept.n = 0
                    self.kept.over = False
                    begun = p
            elif self.capturing and self.js.depth == 1:
                capture(&self.kept, begun, p, self.max_bytes)
                self.capturing = False
                self.complete = True
        if self.capturing:
            capture(&self.kept, begun, p, self.max_bytes)
        return 0

    def value(self):
        return captured(&self.kept) if self.complete and self.js.state == J_END else None
