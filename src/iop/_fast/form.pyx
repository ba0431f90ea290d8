# cython: auto_pickle=False
"""multipart/form-data bodies, scanned as they arrive and never joined (API-8c, RFC 2046 section 5.1, RFC 7578).

    OPENING ─boundary→ BEHIND ─CRLF→ FIELDS ─empty line→ DATA ─CRLF boundary→ BEHIND ─"--"→ END (─CRLF→ OVER)

A byte is looked at once, however the input is cut: the delimiter begins with an LF, which stands nowhere else in it, so
a mismatch never has to be looked at again. What forms may contain and nobody sends (a preamble, padding behind a
boundary, an epilogue, lines that end in a bare LF, quotes inside of names) is refused: two parsers that are lenient in
different ways do not see the same parts.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr, memcpy

from iop._fast.scan cimport BodyFacts

import re

cdef enum:
    OPENING = 0        # the boundary that the body begins with
    BEHIND = 1         # right behind a boundary
    BEHIND_LF = 2
    BEHIND_DASH = 3
    FIELD_START = 4    # at the start of a line of a part's header
    FIELD = 5
    FIELD_LF = 6
    FIELDS_LF = 7      # behind the CR of the empty line
    DATA = 8
    END = 9
    END_LF = 10
    OVER = 11

cdef enum:
    LF = 10
    CR = 13
    MAX_BOUNDARY_BYTES = 70    # RFC 2046 section 5.1.1
    MAX_FIELDS_BYTES = 4096    # the header of one part
    MAX_FIELDS = 16
    MAX_PARTS = 1024
    MAX_MODEL_BYTES = 512
    MAX_FLAG_BYTES = 16
    FILE_TOKENS = 1500         # as an inline file of a JSON body counts (POOL-2)

# Parts that are read; 0 = any other.
cdef enum:
    F_MODEL = 1
    F_STREAM = 2
    F_STORE = 3
    F_BACKGROUND = 4
    F_PREVIOUS = 5

FIELDS = {b"model": F_MODEL, b"stream": F_STREAM, b"store": F_STORE, b"background": F_BACKGROUND,
          b"previous_response_id": F_PREVIOUS}
NAMES = {number: name.decode() for name, number in FIELDS.items()}
TRUE = frozenset({b"true", b"1", b"on", b"yes"})
FALSE = frozenset({b"false", b"0", b"off", b"no", b""})

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
FIELD_LINE = re.compile(rb"(" + TOKEN + rb"):[ \t]*(.*?)[ \t]*", re.DOTALL)
PARAMETER = re.compile(rb"[ \t]*;[ \t]*(" + TOKEN + rb")=(?:\"([^\"]*)\"|(" + TOKEN + rb"))")


cdef class FormScanner(BodyFacts):
    """See form.pyi."""

    cdef int state
    cdef int field                       # of the part that is read; 0 = it is not
    cdef bint is_file
    cdef int parts
    cdef unsigned long long content_at   # where the content of this part begins
    cdef unsigned long long ascii_bytes  # of parts that are no files
    cdef unsigned long long other_bytes
    cdef unsigned long long files
    cdef unsigned long long content_n    # of this part, a CR that may belong to the delimiter included
    cdef Py_ssize_t matched              # bytes of the delimiter
    cdef Py_ssize_t held_from            # those from here on are content if it is none
    cdef Py_ssize_t delimiter_n
    cdef Py_ssize_t fields_n
    cdef unsigned char last              # byte of the content
    cdef unsigned char delimiter[MAX_BOUNDARY_BYTES + 3]
    cdef unsigned char fields[MAX_FIELDS_BYTES]
    cdef unsigned char text[MAX_MODEL_BYTES + 1]

    def __init__(self, bytes boundary not None):
        cdef bytes delimiter = b"\n--" + boundary
        self.delimiter_n = PyBytes_GET_SIZE(delimiter)
        if not 3 < self.delimiter_n <= MAX_BOUNDARY_BYTES + 3 or b"\n" in boundary or b"\r" in boundary:
            raise ValueError("a boundary has 1 to 70 bytes on one line")
        memcpy(self.delimiter, PyBytes_AS_STRING(delimiter), self.delimiter_n)
        self.matched = self.held_from = 1  # as if a line had ended before the body

    def feed(self, bytes piece not None):
        cdef const unsigned char* span = <const unsigned char*>PyBytes_AS_STRING(piece)
        cdef const unsigned char* p = span
        cdef const unsigned char* end = span + PyBytes_GET_SIZE(piece)
        if self.error is not None:
            raise self.error
        while p < end:
            if self.state == DATA:
                p = self._data(p, end, span)
            elif self.state == OPENING:
                if p[0] != self.delimiter[self.matched]:
                    self._malformed("the body does not begin with the boundary of its content-type", p - span)
                self.matched += 1
                p += 1
                if self.matched == self.delimiter_n:
                    self.state = BEHIND
            else:
                self._between(p[0], p - span)
                p += 1
                if self.state == DATA:
                    self.content_at = self.total + <unsigned long long>(p - span)
        self.total += <unsigned long long>PyBytes_GET_SIZE(piece)

    cdef const unsigned char* _data(
        self, const unsigned char* p, const unsigned char* end, const unsigned char* span
    ) except NULL:
        """Content up to the next delimiter or the end of the piece. Bound: p < end, matched < delimiter_n."""
        cdef const unsigned char* lf
        while p < end:
            if self.matched == 0:
                lf = <const unsigned char*>memchr(p, LF, end - p)
                self._content(p, (end if lf == NULL else lf) - p)
                if lf == NULL:
                    return end
                self.matched = 1
                p = lf + 1
            elif p[0] == self.delimiter[self.matched]:
                self.matched += 1
                p += 1
                if self.matched == self.delimiter_n:
                    if self.held_from or self.content_n == 0 or self.last != CR:
                        self._malformed("a boundary is not on a line of its own", p - span - self.delimiter_n)
                    self._part_ends()
                    self.state = BEHIND
                    return p
            else:
                # No delimiter: what was held back is content. The byte at p is looked at again: it may be an LF.
                self._content(self.delimiter + self.held_from, self.matched - self.held_from)
                self.matched = self.held_from = 0
        return p

    cdef int _content(self, const unsigned char* p, Py_ssize_t n) except -1:
        cdef Py_ssize_t i, limit, before
        cdef unsigned long long other = 0
        if n == 0:
            return 0
        before = <Py_ssize_t>min(self.content_n, <unsigned long long>(MAX_MODEL_BYTES + 1))
        self.content_n += <unsigned long long>n
        self.last = p[n - 1]
        if self.is_file:
            return 0
        for i in range(n):
            other += p[i] >> 7
        self.other_bytes += other
        self.ascii_bytes += <unsigned long long>n - other
        if self.field == 0 or self.field == F_PREVIOUS:
            return 0
        limit = (MAX_MODEL_BYTES if self.field == F_MODEL else MAX_FLAG_BYTES) + 1  # with the CR of the delimiter
        if n > limit - before:
            if self.field == F_MODEL:
                self._refuse("model_too_long", f"'model' is longer than {MAX_MODEL_BYTES} bytes", "model")
            self._not_boolean()
        memcpy(self.text + before, p, n)
        return 0

    cdef int _part_ends(self) except -1:
        """The last byte of the content is the CR of the delimiter."""
        cdef Py_ssize_t n
        cdef bytes text
        if self.is_file:
            self.files += 1
            return 0
        self.ascii_bytes -= 1
        if self.field == F_PREVIOUS:
            self.has_previous_response_id = self.content_n > 1
        elif self.field == F_MODEL:
            n = <Py_ssize_t>self.content_n - 1
            if n == 0:
                self._refuse("missing_model", "'model' must not be empty", "model")
            try:
                self.model = PyBytes_FromStringAndSize(<const char*>self.text, n).decode()
            except UnicodeDecodeError:
                self._refuse("model_not_string", "'model' must be UTF-8", "model")
            self.model_at = self.content_at
            self.model_end = self.content_at + <unsigned long long>n
        elif self.field:
            text = PyBytes_FromStringAndSize(<const char*>self.text, <Py_ssize_t>self.content_n - 1).lower()
            if text not in TRUE and text not in FALSE:
                self._not_boolean()
            self.flags[self.field - F_STREAM] = text in TRUE
        return 0

    cdef int _between(self, unsigned char c, Py_ssize_t at) except -1:
        """One byte of what is not content: behind a boundary, or in a part's header."""
        if self.state == BEHIND:
            if c == CR:
                self.state = BEHIND_LF
            elif c == b"-":
                self.state = BEHIND_DASH
            else:
                self._malformed("a boundary is followed by something else than a line end or two hyphens", at)
        elif self.state == BEHIND_LF:
            if c != LF:
                self._malformed("a boundary is followed by a bare CR", at)
            self.parts += 1
            if self.parts > MAX_PARTS:
                self._refuse("syntax", f"the form has more than {MAX_PARTS} parts")
            self.state = FIELD_START
            self.fields_n = 0
        elif self.state == BEHIND_DASH:
            if c != b"-":
                self._malformed("a boundary is followed by something else than a line end or two hyphens", at)
            self.state = END
        elif self.state == END:
            if c != CR:
                self._malformed("something follows the end of the form", at)
            self.state = END_LF
        elif self.state == END_LF:
            if c != LF:
                self._malformed("something follows the end of the form", at)
            self.state = OVER
        elif self.state == OVER:
            self._malformed("something follows the end of the form", at)
        else:
            self._header(c, at)
        return 0

    cdef int _header(self, unsigned char c, Py_ssize_t at) except -1:
        if self.state == FIELDS_LF:
            if c != LF:
                self._malformed("a part's header has a bare CR", at)
            self._part_begins(PyBytes_FromStringAndSize(<const char*>self.fields, self.fields_n), at)
            return 0
        if self.state == FIELD_START and c == CR:
            self.state = FIELDS_LF
            return 0
        if self.fields_n == MAX_FIELDS_BYTES:
            self._malformed(f"a part's header has more than {MAX_FIELDS_BYTES} bytes", at)
        self.fields[self.fields_n] = c
        self.fields_n += 1
        if self.state == FIELD_LF:
            if c != LF:
                self._malformed("a part's header has a bare CR", at)
            self.state = FIELD_START
        elif c == CR:
            self.state = FIELD_LF
        elif c == 127 or (c < 32 and c != 9):
            self._malformed("a part's header has a control character", at)
        elif self.state == FIELD_START:
            if c == 32 or c == 9:
                self._malformed("a part's header has a folded line", at)
            self.state = FIELD
        return 0

    cdef int _part_begins(self, bytes block, Py_ssize_t at) except -1:
        disposition = None
        encoded = False
        lines = block.split(b"\r\n")
        lines.pop()
        if len(lines) > MAX_FIELDS:
            self._malformed(f"a part's header has more than {MAX_FIELDS} lines", at)
        for line in lines:
            match = FIELD_LINE.fullmatch(line)
            if match is None:
                self._malformed("a part's header has a line that is no field", at)
            key = match[1].lower()
            if key == b"content-disposition":
                if disposition is not None:
                    self._malformed("a part has two content-dispositions", at)
                disposition = match[2]
            elif key == b"content-transfer-encoding":
                encoded = True
        if disposition is None:
            self._malformed("a part has no content-disposition", at)
        parameters = self._parameters(disposition, at)
        name = parameters.get(b"name")
        if name is None or b"name*" in parameters:
            self._malformed("a part's content-disposition has no plain name", at)
        self.is_file = b"filename" in parameters or b"filename*" in parameters
        self.field = FIELDS.get(name, 0)
        if self.field:
            if self.seen >> self.field & 1:
                self._refuse("duplicate_key", f"the form has more than one {NAMES[self.field]!r}", NAMES[self.field])
            self.seen |= 1 << self.field
            if self.is_file or encoded:
                message = f"{NAMES[self.field]!r} must be a plain field: no file, no content-transfer-encoding"
                self._refuse("model_not_string" if self.field == F_MODEL else "not_plain", message, NAMES[self.field])
        self.state = DATA
        self.matched = self.held_from = 1  # the empty line's end must not be taken for that of an empty content
        self.content_n = 0
        return 0

    cdef dict _parameters(self, bytes disposition, Py_ssize_t at):
        cdef dict found = {}
        kind, _, _ = disposition.partition(b";")
        if kind.rstrip(b" \t").lower() != b"form-data":
            self._malformed("a part's content-disposition is not form-data", at)
        start = len(kind)
        while start < len(disposition):
            match = PARAMETER.match(disposition, start)
            # A backslash before a quote ends the text for some parsers and not for others.
            if match is None or (match[2] or b"").endswith(b"\\"):
                self._malformed("a part's content-disposition is malformed", at)
            key = match[1].lower()
            if key in found:
                self._malformed("a part's content-disposition has a parameter twice", at)
            found[key] = match[3] if match[2] is None else match[2]
            start = match.end()
        return found

    cdef int _not_boolean(self) except -1:
        name = NAMES[self.field]
        return self._refuse("not_boolean", f"{name!r} must be true or false", name)

    cdef int _malformed(self, str what, Py_ssize_t at) except -1:
        cdef long long offset = <long long>self.total + at
        return self._refuse("syntax", f"the multipart body is malformed: {what} (byte {offset})", None, offset)

    def finish(self):
        if self.error is not None:
            raise self.error
        if self.state != END and self.state != OVER:
            self._refuse("syntax", f"the multipart body ends early (byte {self.total})", None, self.total)
        if self.model is None:
            self._refuse("missing_model", "'model' is missing", "model")

    def fits(self, bytes value not None):
        return PyBytes_FromStringAndSize(<const char*>self.delimiter + 1, self.delimiter_n - 1) not in value

    @property
    def tool_types(self):
        return frozenset()

    @property
    def estimated_tokens(self):
        return self.ascii_bytes // 3 + self.other_bytes // 2 + self.files * FILE_TOKENS
