# cython: auto_pickle=False
"""Event streams: where events end, and what each one means for commit, liveness and recovery (TUN-10, LIVE-2, API-7).

Lines follow the WHATWG event-stream rules. The data of an event is not gathered: it runs through the incremental JSON
tokenizer as it arrives, which reports only the members that RULES names, and leaves a few facts behind. So an event may
be of any size and cut anywhere, and costs no memory. At the blank line the facts become flags. The file is long because
a third of it are the tables that say what each API's events mean.

    line:  BOM_1 -> BOM_2 -> BOM_3 -> START -> NAME -> DATA_SPACE -> DATA -> START ...
                                            -> NAME -> EVENT_SPACE -> EVENT ...       START, NAME -> SKIP
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy

from iop._fast.scan cimport (
    J_END,
    J_VALUE,
    JSON_ARRAY,
    JSON_CLOSE,
    JSON_KEY,
    JSON_NULL,
    JSON_NUMBER,
    JSON_OBJECT,
    JSON_STRING,
    capture,
    captured,
    json_next,
    json_span,
    json_start,
)

cdef enum:
    MAX_USAGE_BYTES = 16384
    PROGRESS_SHIFT = 12       # each 4 KiB of an incomplete event is progress
    WORD_BYTES = 64           # longer keys, types and codes are none that we know

cdef enum:
    BOM_1 = 0   # nothing seen yet
    BOM_2 = 1
    BOM_3 = 2
    START = 3
    NAME = 4
    DATA_SPACE = 5
    DATA = 6
    EVENT_SPACE = 7
    EVENT = 8
    SKIP = 9    # a comment, or a field that means nothing here

cdef enum:
    LF = 10
    CR = 13

# How the data of an event is read.
cdef enum:
    TEXT_NONE = 0
    TEXT_DONE = 1    # it began with "[": [DONE], or nothing that we know
    TEXT_JSON = 2
    TEXT_OPAQUE = 3

# Facts about the event that is being read.
cdef enum:
    IS_OBJECT = 1
    IS_KNOWN = 2      # chat: it has choices or usage
    HAS_CONTENT = 4
    HAS_FINISH = 8
    HAS_ERROR = 16
    HAS_4XX = 32
    IS_CALL = 64      # the item that was added is a tool call of the client
    IS_QUIET = 128    # the block that starts is text or thinking
    HAS_USAGE = 256
    HAS_START_USAGE = 512
    BLOCK_HAS_CONTENT = 1024

# Where in the document a member lies ...
cdef enum:
    P_NONE = 0
    P_CHAT = 1
    P_RESPONSES = 2
    P_MESSAGES = 3
    P_CHOICES = 4
    P_CHOICE = 5
    P_DELTA = 6
    P_RESPONSE = 7
    P_ITEM = 8
    P_MESSAGE = 9
    P_BLOCK = 10
    P_MEMBERS = 11
    P_ERROR = 12
    PATHS = 13

# ... and what its value is for.
cdef enum:
    V_NONE = 0
    V_CONTENT = 1     # anything but null, "", [] and {} is content
    V_CHOICES = 2
    V_FINISH = 3
    V_USAGE = 4
    V_START_USAGE = 5
    V_ERROR = 6
    V_CODE = 7
    V_TYPE = 8
    V_ITEM_TYPE = 9
    V_BLOCK_TYPE = 10
    V_BLOCK_CONTENT = 11
    V_INDEX = 12

cdef enum:
    CHOICES_MAX = 128         # whose ends are waited for; others do not count

# What the "type" of a Responses or Messages event says.
cdef enum:
    K_NONE = 0
    K_UNKNOWN = 1
    K_PREAMBLE = 2
    K_DELTA = 3
    K_ADDED = 4
    K_BLOCK = 5
    K_FINISH = 6
    K_FAILED = 7
    K_ERROR = 8

cdef int[4] P_ROOT = [P_NONE, P_CHAT, P_RESPONSES, P_MESSAGES]   # by dialect
cdef unsigned char NEWLINE = LF
cdef const char* END_OF_EVENT = b"\n\n"   # of any: a line is ended twice

cdef struct Rule:
    int path
    const char* key     # NULL = any other key
    Py_ssize_t key_n
    int value
    int into

cdef struct Word:
    int dialect
    const char* text
    Py_ssize_t text_n
    int kind

# Sorted by path; the bytes objects here keep the pointers of RULE alive.
cdef tuple RULES = (
    (P_CHAT, b"choices", V_CHOICES, P_CHOICES),
    (P_CHAT, b"usage", V_USAGE, P_NONE),
    (P_CHAT, b"error", V_ERROR, P_ERROR),
    (P_RESPONSES, b"type", V_TYPE, P_NONE),
    (P_RESPONSES, b"delta", V_CONTENT, P_NONE),
    (P_RESPONSES, b"item", V_NONE, P_ITEM),
    (P_RESPONSES, b"response", V_NONE, P_RESPONSE),
    (P_RESPONSES, b"error", V_ERROR, P_ERROR),
    (P_RESPONSES, b"code", V_CODE, P_NONE),
    (P_MESSAGES, b"type", V_TYPE, P_NONE),
    (P_MESSAGES, b"delta", V_NONE, P_MEMBERS),
    (P_MESSAGES, b"content_block", V_NONE, P_BLOCK),
    (P_MESSAGES, b"message", V_NONE, P_MESSAGE),
    (P_MESSAGES, b"usage", V_USAGE, P_NONE),
    (P_MESSAGES, b"error", V_ERROR, P_ERROR),
    (P_CHOICE, b"delta", V_NONE, P_DELTA),
    (P_CHOICE, b"finish_reason", V_FINISH, P_NONE),
    (P_CHOICE, b"index", V_INDEX, P_NONE),
    (P_CHOICE, b"text", V_CONTENT, P_NONE),
    (P_DELTA, b"role", V_NONE, P_NONE),
    (P_DELTA, None, V_CONTENT, P_NONE),
    (P_RESPONSE, b"usage", V_USAGE, P_NONE),
    (P_RESPONSE, b"error", V_NONE, P_ERROR),
    (P_ITEM, b"type", V_ITEM_TYPE, P_NONE),
    (P_MESSAGE, b"usage", V_START_USAGE, P_NONE),
    (P_BLOCK, b"type", V_BLOCK_TYPE, P_NONE),
    (P_BLOCK, None, V_BLOCK_CONTENT, P_NONE),
    (P_MEMBERS, b"type", V_NONE, P_NONE),
    (P_MEMBERS, None, V_CONTENT, P_NONE),
    (P_ERROR, b"code", V_CODE, P_NONE),
    (P_ERROR, b"type", V_CODE, P_NONE),
)

# A text that begins with "*" is a suffix.
cdef tuple TYPES = (
    (RESPONSES, b"*.delta", K_DELTA),
    (RESPONSES, b"response.created", K_PREAMBLE),
    (RESPONSES, b"response.in_progress", K_PREAMBLE),
    (RESPONSES, b"response.queued", K_PREAMBLE),
    (RESPONSES, b"keepalive", K_PREAMBLE),
    (RESPONSES, b"*.added", K_ADDED),
    (RESPONSES, b"response.completed", K_FINISH),
    (RESPONSES, b"response.incomplete", K_FINISH),
    (RESPONSES, b"response.failed", K_FAILED),
    (RESPONSES, b"error", K_ERROR),
    (MESSAGES, b"content_block_delta", K_DELTA),
    (MESSAGES, b"message_delta", K_DELTA),
    (MESSAGES, b"message_start", K_PREAMBLE),
    (MESSAGES, b"ping", K_PREAMBLE),
    (MESSAGES, b"content_block_start", K_BLOCK),
    (MESSAGES, b"message_stop", K_FINISH),
    (MESSAGES, b"error", K_ERROR),
)

# Error codes and types that blame the request. Three digits that begin with 4 do, too.
cdef frozenset CLIENT_FAULTS = frozenset((
    b"invalid_request_error", b"invalid_request", b"invalid_prompt", b"invalid_image", b"invalid_argument",
    b"context_length_exceeded", b"exceed_context_size_error", b"content_policy_violation", b"content_filter",
    b"authentication_error", b"invalid_api_key", b"permission_error", b"permission_denied", b"billing_error",
    b"insufficient_quota", b"not_found_error", b"model_not_found", b"request_too_large", b"unsupported_parameter",
    b"unsupported_value", b"rate_limit_error", b"rate_limit_exceeded", b"BadRequestError", b"AuthenticationError",
    b"PermissionDeniedError", b"NotFoundError", b"UnprocessableEntityError", b"RateLimitError",
))

cdef Rule[31] RULE
cdef int[PATHS + 1] FIRST_RULE   # of each path; a path's rules end where the next one's begin
cdef Word[17] TYPE


cdef int _fill_tables() except -1:
    cdef int i = 0, path = 0
    cdef bytes text
    for rule in RULES:
        while path <= <int>rule[0]:
            FIRST_RULE[path] = i
            path += 1
        RULE[i].path = rule[0]
        RULE[i].key = NULL
        RULE[i].key_n = 0
        if rule[1] is not None:
            text = rule[1]
            RULE[i].key = PyBytes_AS_STRING(text)
            RULE[i].key_n = PyBytes_GET_SIZE(text)
        RULE[i].value = rule[2]
        RULE[i].into = rule[3]
        i += 1
    while path <= PATHS:
        FIRST_RULE[path] = i
        path += 1
    i = 0
    for row in TYPES:
        text = row[1]
        TYPE[i].dialect = row[0]
        TYPE[i].text = PyBytes_AS_STRING(text)
        TYPE[i].text_n = PyBytes_GET_SIZE(text)
        TYPE[i].kind = row[2]
        i += 1
    return 0


assert len(RULES) == 31 and len(TYPES) == 17 and list(RULES) == sorted(RULES, key=lambda rule: rule[0])
_fill_tables()


cdef inline bint _is(const unsigned char* p, Py_ssize_t n, const char* word, Py_ssize_t word_n) noexcept nogil:
    return n == word_n and memcmp(p, word, n) == 0


cdef int _kind(int dialect, const unsigned char* p, Py_ssize_t n) noexcept nogil:
    cdef int i
    cdef const char* text
    cdef Py_ssize_t k
    if n > WORD_BYTES:
        return K_UNKNOWN
    for i in range(17):
        if TYPE[i].dialect != dialect:
            continue
        text = TYPE[i].text
        k = TYPE[i].text_n
        if text[0] == b"*":
            if n >= k - 1 and memcmp(p + n - (k - 1), text + 1, k - 1) == 0:
                return TYPE[i].kind
        elif _is(p, n, text, k):
            return TYPE[i].kind
    return K_UNKNOWN


cdef int _index(const unsigned char* p, Py_ssize_t n) noexcept nogil:
    """A small number without sign, fraction or exponent; CHOICES_MAX for any other."""
    cdef int value = 0
    cdef Py_ssize_t i
    for i in range(min(n, 4)):
        if not 48 <= p[i] <= 57:
            return CHOICES_MAX
        value = value * 10 + p[i] - 48
    return min(value, CHOICES_MAX)


cdef inline unsigned int _content_fact(int value) noexcept nogil:
    if value == V_CONTENT:
        return HAS_CONTENT
    return BLOCK_HAS_CONTENT if value == V_BLOCK_CONTENT else 0


cdef bint _blames_client(const unsigned char* p, Py_ssize_t n) except -1:
    if n == 3 and p[0] == b"4" and b"0" <= p[1] <= b"9" and b"0" <= p[2] <= b"9":
        return True
    return n <= WORD_BYTES and p[:n] in CLIENT_FAULTS


cdef class EventSplitter:
    """See sse.pyi."""

    def __init__(self, int dialect):
        if not OTHER <= dialect <= MESSAGES:
            raise ValueError(f"unknown dialect {dialect}")
        self.dialect = dialect
        self.at_boundary = True

    def __dealloc__(self):
        cdef int i
        for i in range(2):
            free(self.usages[i].data)
            free(self.starts[i].data)

    def feed(self, bytes data):
        return self.feed_span(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def usage(self):
        return captured(&self.usages[0])

    def usage_start(self):
        return captured(&self.starts[0])

    # ---- lines ------------------------------------------------------------------------------------------------------

    cdef int feed_span(self, const char* span, Py_ssize_t n) except -1:
        """The flags of the events that end in the span, together. Bound: p, eol and lf stay within [span, span + n].

        Each search for a line end covers bytes that are then consumed, or (lf) is remembered: linear for any mixture.
        """
        cdef const unsigned char* p = <const unsigned char*>span
        cdef const unsigned char* end
        cdef const unsigned char* lf = NULL
        cdef const unsigned char* eol
        cdef int flags = 0
        cdef unsigned char c
        if n <= 0:
            return 0
        end = p + n
        while p < end:
            c = p[0]
            if self.line >= DATA:
                if self.line == EVENT_SPACE:
                    self.line = EVENT
                    if c == b" ":
                        p += 1
                        continue
                if lf == NULL or lf < p:
                    lf = <const unsigned char*>memchr(p, LF, end - p)
                    if lf == NULL:
                        lf = end
                eol = <const unsigned char*>memchr(p, CR, lf - p) if lf > p else NULL
                if eol == NULL:
                    eol = lf
                if eol > p:
                    if self.line == DATA:
                        self._data(p, eol)
                    elif self.line == EVENT and self.event_n <= WORD_BYTES:
                        n = min(eol - p, WORD_BYTES - self.event_n)
                        memcpy(self.event + self.event_n, p, n)
                        self.event_n += <int>n + (n < eol - p)  # one more than fits: too long to be known
                p = eol
                if p < end:
                    self.after_cr = p[0] == CR
                    self.line = START
                    p += 1
            elif self.line == START:
                if self.after_cr:
                    self.after_cr = False
                    if c == LF:
                        p += 1
                        continue
                    self.lone_cr = True
                if c == LF or c == CR:
                    self.after_cr = c == CR
                    p += 1
                    flags |= self._dispatch()
                elif c == b":":
                    self.line = SKIP
                else:
                    self.has_fields = True
                    if end - p >= 6 and memcmp(p, b"data: ", 6) == 0:
                        p += 6
                        self.line = DATA
                        self._begin_data()
                    else:
                        self.line = NAME
                        self.name_n = 0
            elif self.line == NAME:
                if c == b":" or c == LF or c == CR:
                    if _is(self.name, self.name_n, b"data", 4):
                        self._begin_data()
                        self.line = DATA_SPACE
                    elif _is(self.name, self.name_n, b"event", 5):
                        self.event_n = 0
                        self.line = EVENT_SPACE
                    else:
                        self.has_id |= _is(self.name, self.name_n, b"id", 2)
                        self.line = SKIP
                    p += c == b":"
                elif self.name_n == 8:
                    self.line = SKIP
                else:
                    self.name[self.name_n] = c
                    self.name_n += 1
                    p += 1
            elif self.line == DATA_SPACE:
                self.line = DATA
                if c == b" ":
                    p += 1
            elif self.line == BOM_1:
                self.line = BOM_2 if c == 0xEF else START
                p += c == 0xEF
            elif (self.line == BOM_2 and c == 0xBB) or (self.line == BOM_3 and c == 0xBF):
                self.line += 1
                p += 1
            else:  # no byte order mark after all, but then no known field either
                self.has_fields = True
                self.line = SKIP
        # Between CR and LF is no place for more, unless CR alone ends lines here.
        self.at_boundary = self.line == START and not self.has_fields and (self.lone_cr or not self.after_cr)
        return flags

    cpdef int end(self) except -1:
        """The stream is complete: its end also ends the last event, with or without a blank line (API-8b). The flags of
        that event."""
        return self.feed_span(END_OF_EVENT, 2)

    # ---- data -------------------------------------------------------------------------------------------------------

    cdef int _begin_data(self) except -1:
        if self.has_data:
            self._data(&NEWLINE, &NEWLINE + 1)
        self.has_data = True
        return 0

    cdef int _data(self, const unsigned char* p, const unsigned char* end) except -1:
        """The next stretch of the event's data, [p, end), which is not empty."""
        cdef unsigned long long before = self.data_bytes
        self.data_bytes += <unsigned long long>(end - p)
        self.progress_events += (self.data_bytes >> PROGRESS_SHIFT) - (before >> PROGRESS_SHIFT)
        if self.text == TEXT_NONE:
            if p[0] == b"[":
                self.text = TEXT_DONE
                self.matched = 0
            elif self.dialect == OTHER:
                self.text = TEXT_OPAQUE
            else:
                self.text = TEXT_JSON
                json_start(&self.js, self.word, WORD_BYTES)
        if self.text == TEXT_JSON:
            self._json(p, end)
        elif self.text == TEXT_DONE:
            while p < end and self.matched < 6:
                if p[0] != b"[DONE]"[self.matched]:
                    self.text = TEXT_OPAQUE
                    break
                self.matched += 1
                p += 1
        return 0

    cdef int _json(self, const unsigned char* p, const unsigned char* end) except -1:
        cdef const unsigned char* begun = p
        cdef int token
        json_span(&self.js, p, 0)
        while True:
            token = json_next(&self.js, &p, end, False)
            if token <= 0:
                break
            if token == JSON_KEY:
                self._key()
            elif token == JSON_CLOSE:
                self._close(begun, p)
            elif token == JSON_OBJECT or token == JSON_ARRAY:
                if self._open(token):
                    begun = p - 1
            elif self.value != V_NONE:
                self._scalar(token)
        if self.capturing != NULL:
            capture(self.capturing, begun, p, MAX_USAGE_BYTES)
        return 0

    cdef void _key(self) noexcept:
        cdef int path = self.path[self.js.watch]
        cdef int i
        self.value = V_NONE
        self.into = P_NONE
        for i in range(FIRST_RULE[path], FIRST_RULE[path + 1]):
            if RULE[i].key == NULL or _is(self.js.tok, self.js.tok_n, RULE[i].key, RULE[i].key_n):
                self.value = RULE[i].value
                self.into = RULE[i].into
                return

    cdef bint _open(self, int token) noexcept:
        """A container opens; True if its raw text is to be kept, from its first byte on."""
        cdef Json* js = &self.js
        cdef bint is_object = token == JSON_OBJECT
        if js.depth == 1:
            if is_object:
                self.facts |= IS_OBJECT
                self.path[1] = P_ROOT[self.dialect]
                js.watch = 1
            return False
        if self.value == V_ERROR:
            self.facts |= HAS_ERROR
        elif self.value == V_FINISH:
            self.facts |= HAS_FINISH
            self.choice_finished = True
        elif self.value == V_USAGE or self.value == V_START_USAGE:
            self.facts |= IS_KNOWN
            if is_object:
                self.capturing = &self.usages[1] if self.value == V_USAGE else &self.starts[1]
                self.capturing.n = 0
                self.capturing.over = False
                return True
        if self.into != P_NONE and is_object == (self.into != P_CHOICES):
            self.path[js.depth] = self.into
            js.watch = js.depth
            if self.into == P_CHOICES:
                self.facts |= IS_KNOWN
                self._in_choices()
            elif self.into == P_CHOICE:
                self.choice = 0
                self.choice_finished = False
        return False

    cdef void _choice_closed(self) noexcept:
        """A choice of the event is complete."""
        cdef unsigned long long bit
        if self.choice < CHOICES_MAX:
            bit = <unsigned long long>1 << (self.choice & 63)
            self.event_choices[self.choice >> 6] |= bit
            if self.choice_finished:
                self.event_ends[self.choice >> 6] |= bit

    cdef void _in_choices(self) noexcept:
        """Items of an array have no key that would say what they are."""
        self.value = V_NONE
        self.into = P_CHOICE

    cdef int _close(self, const unsigned char* begun, const unsigned char* p) except -1:
        cdef Json* js = &self.js
        if js.depth < js.watch:  # one of those on the path
            if self.path[js.watch] == P_CHOICE:
                self._choice_closed()
            js.watch = js.depth
            self.value = V_NONE
            if self.path[js.depth] == P_CHOICES:
                self._in_choices()
        elif self.capturing != NULL:
            capture(self.capturing, begun, p, MAX_USAGE_BYTES)
            self.facts |= HAS_USAGE if self.capturing == &self.usages[1] else HAS_START_USAGE
            self.capturing = NULL
        elif not js.was_empty:
            self.facts |= _content_fact(self.value)
        return 0

    cdef int _scalar(self, int token) except -1:
        """A string, number or literal behind a key that matters. Null says nothing, and so does an empty string."""
        cdef Json* js = &self.js
        if token == JSON_NULL:
            return 0
        if self.value == V_ERROR:
            self.facts |= HAS_ERROR
        elif token == JSON_STRING and js.tok_n == 0:
            return 0
        elif self.value == V_CONTENT or self.value == V_BLOCK_CONTENT:
            self.facts |= _content_fact(self.value)
        elif self.value == V_FINISH:
            self.facts |= HAS_FINISH
            self.choice_finished = True
        elif self.value == V_INDEX:
            self.choice = _index(js.tok, js.tok_n) if token == JSON_NUMBER else CHOICES_MAX
        elif self.value == V_CODE:
            if (token == JSON_STRING or token == JSON_NUMBER) and _blames_client(js.tok, js.tok_n):
                self.facts |= HAS_4XX
        elif token == JSON_STRING:
            if self.value == V_TYPE:
                self.kind = _kind(self.dialect, js.tok, js.tok_n)
            elif self.value == V_ITEM_TYPE:
                if (_is(js.tok, js.tok_n, b"function_call", 13)
                        or _is(js.tok, js.tok_n, b"custom_tool_call", 16)):
                    self.facts |= IS_CALL
            elif self.value == V_BLOCK_TYPE:
                if _is(js.tok, js.tok_n, b"text", 4) or _is(js.tok, js.tok_n, b"thinking", 8):
                    self.facts |= IS_QUIET
        return 0

    # ---- events -----------------------------------------------------------------------------------------------------

    cdef int _dispatch(self) noexcept:
        """A blank line: the event, if there is one, is complete. Its flags."""
        cdef int flags = 0
        if self.has_data:
            flags = self._classify()
            self.events += 1
            if flags & ERROR or (flags & FINISH and (self.dialect != CHAT or self.text == TEXT_DONE)):
                self.over = True  # an error is the last that a stream says, too
            if self.dialect == CHAT:
                self._count_choices()
            else:
                self.finished = self.over
            if flags & (SEMANTIC | FINISH | ERROR) or self.facts & (HAS_USAGE | HAS_START_USAGE):
                self.progress_events += 1
            if self.facts & HAS_USAGE:
                _keep(self.usages)
            if self.facts & HAS_START_USAGE:
                _keep(self.starts)
            self.has_data = False
            self.text = TEXT_NONE
            self.data_bytes = 0
            self.facts = 0
            self.kind = K_NONE
            self.capturing = NULL
        if self.has_id:
            self.has_id = False
            flags |= EVENT_ID
        self.has_fields = False
        self.event_n = 0
        return flags

    cdef void _count_choices(self) noexcept:
        """Without [DONE] a chat stream is complete once every choice that was seen has finished (API-8b)."""
        cdef unsigned long long* now = self.event_choices
        cdef unsigned long long* ended = self.event_ends
        # Most events say nothing new of them.
        if now[0] & ~self.choices[0] | now[1] & ~self.choices[1] | ended[0] | ended[1] and self.facts & IS_OBJECT:
            self.choices[0] |= now[0]
            self.choices[1] |= now[1]
            self.ends[0] |= ended[0]
            self.ends[1] |= ended[1]
            self.finished = (
                self.ends[0] | self.ends[1] != 0
                and self.choices[0] & ~self.ends[0] | self.choices[1] & ~self.ends[1] == 0)
        now[0] = now[1] = ended[0] = ended[1] = 0
        if self.over:
            self.finished = True

    cdef int _classify(self) noexcept:
        cdef unsigned int facts
        cdef int kind
        cdef bint empty = self.text == TEXT_NONE or (
            self.text == TEXT_JSON and self.js.state == J_VALUE and self.js.depth == 0)
        if self.text == TEXT_DONE and self.matched == 6:
            return FINISH
        if self.text != TEXT_JSON or self.js.state != J_END or not self.facts & IS_OBJECT:
            self.facts = 0  # malformed: what was found in it means nothing
            self.kind = K_NONE
        facts = self.facts
        kind = self.kind
        if self.dialect == CHAT:
            return _chat_flags(facts) if not empty else PREAMBLE
        if kind == K_NONE and self.event_n:
            kind = _kind(self.dialect, self.event, self.event_n)
            if not facts & IS_OBJECT and kind in (K_DELTA, K_ADDED, K_BLOCK):
                kind = K_UNKNOWN
        if kind == K_PREAMBLE:
            return PREAMBLE
        if kind == K_DELTA:
            return SEMANTIC if facts & HAS_CONTENT else PREAMBLE
        if kind == K_ADDED:
            return SEMANTIC if facts & IS_CALL else PREAMBLE
        if kind == K_BLOCK:
            return PREAMBLE if facts & IS_QUIET and not facts & BLOCK_HAS_CONTENT else SEMANTIC
        if kind == K_FINISH:
            return FINISH
        if kind == K_FAILED:
            return FINISH | _error_flags(facts)
        if kind == K_ERROR or (kind == K_NONE and facts & HAS_ERROR):
            return _error_flags(facts)
        return PREAMBLE if empty else SEMANTIC


cdef inline int _error_flags(unsigned int facts) noexcept:
    return ERROR | ERROR_4XX if facts & HAS_4XX else ERROR


cdef inline int _chat_flags(unsigned int facts) noexcept:
    cdef int flags = 0
    if facts & HAS_CONTENT:
        flags |= SEMANTIC
    if facts & HAS_FINISH:
        flags |= FINISH
    if facts & HAS_ERROR:
        flags |= _error_flags(facts)
    if flags == 0:
        flags = PREAMBLE if facts & IS_KNOWN else SEMANTIC
    return flags


cdef inline void _keep(Capture* pair) noexcept:
    """The usage object of the event that ended becomes the last one; the buffers change places."""
    cdef Capture last = pair[0]
    pair[0] = pair[1]
    pair[1] = last
