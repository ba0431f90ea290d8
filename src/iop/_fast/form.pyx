# cython: auto_pickle=False
"""multipart/form-data bodies, scanned as they arrive and never joined (API-8c, RFC 2046 section 5.1, RFC 7578).

    OPENING ─boundary→ BEHIND ─CRLF→ FIELDS ─empty line→ DATA ─CRLF boundary→ BEHIND ─"--"→ END (─CRLF→ OVER)

A byte is looked at once, however the input is cut: a delimiter begins with a line end, which stands nowhere else in it,
so a mismatch never has to be looked at again. What forms may contain and nobody sends (a preamble, padding behind a
boundary, an epilogue, a boundary behind a bare CR or LF, quotes inside of names, forms inside of parts) is refused: two
parsers that are lenient in different ways do not see the same parts. So is what only some parsers read: another case of
a name's letters, a part's length that is not true, charsets.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from iop._fast.scan cimport UNSET, BodyFacts

import re

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    /* The first CR or LF of [p, end), or end. Eight bytes at a time; in each word the lowest marked byte is exact (a
       borrow can only spoil higher ones). Never reads at or behind end. */
    static inline const unsigned char* iop_line_end(const unsigned char* p, const unsigned char* end) {
        const uint64_t ones = UINT64_C(0x0101010101010101), highs = UINT64_C(0x8080808080808080);
        while (end - p >= 8) {
            uint64_t x, r, n;
            memcpy(&x, p, 8);
            r = x ^ (ones * 13);
            n = x ^ (ones * 10);
            if ((((r - ones) & ~r) | ((n - ones) & ~n)) & highs) break;
            p += 8;
        }
        while (p < end && *p != 13 && *p != 10) p++;
        return p;
    }
    """
    const unsigned char* line_end "iop_line_end"(const unsigned char* p, const unsigned char* end) noexcept nogil

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
READ_AS = {name.decode(): number for name, number in FIELDS.items()}
PARAMETERS = frozenset({b"name", b"filename", b"filename*"})
TRUE = frozenset({b"true", b"1", b"on", b"yes"})
FALSE = frozenset({b"false", b"0", b"off", b"no", b""})

TOKEN_BYTES = b"!#$%&'*+.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-"
TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# Matched from one place on, where each byte has one way to match: the time is linear.
PARAMETER = re.compile(rb"[ \t]*;[ \t]*(" + TOKEN + rb")=(?:\"([^\"]*)\"|(" + TOKEN + rb"))")

# Fields of a part's header that some parser acts on.
READ = frozenset({b"content-disposition", b"content-type", b"content-length", b"content-transfer-encoding",
                  b"content-encoding"})
# Charsets of a plain field that all parsers read alike: True if that is so for ASCII alone.
CHARSETS = {b"": False, b"utf-8": False, b"us-ascii": True, b"iso-8859-1": True}


cdef class FormScanner(BodyFacts):
    """See form.pyi."""

    cdef int state
    cdef int field                       # of the part that is read; 0 = it is not
    cdef bint is_file
    cdef bint narrow                     # this part is ASCII, as its charset says
    cdef bint narrow_model               # and the model is
    cdef int parts
    cdef long long length                # of this part, as its header says; -1 = it does not
    cdef tuple length_span               # of the line that says it
    cdef readonly tuple cut
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
        cdef const unsigned char* at
        while p < end:
            if self.matched == 0:
                at = line_end(p, end)
                self._content(p, at - p)
                if at == end:
                    return end
                self.delimiter[0] = at[0]
                self.matched = 1
                p = at + 1
            elif p[0] == self.delimiter[self.matched]:
                self.matched += 1
                p += 1
                if self.matched == self.delimiter_n:
                    if self.held_from or self.delimiter[0] != LF or self.content_n == 0 or self.last != CR:
                        self._malformed("a boundary is not on a line of its own", p - span - self.delimiter_n)
                    self._part_ends(p - span)
                    self.state = BEHIND
                    return p
            else:
                # No delimiter: what was held back is content. The byte at p is looked at again: it may be a line end.
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

    cdef int _part_ends(self, Py_ssize_t at) except -1:
        """The last byte of the content is the CR of the delimiter, which ends at ``at`` in the piece."""
        cdef Py_ssize_t n
        cdef bytes text
        if self.length >= 0 and <unsigned long long>self.length != self.content_n - 1:
            self._malformed("a part's content-length is not its length", at)
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
            if self.narrow and not self.model.isascii():
                self._refuse("model_not_string", "'model' must be UTF-8", "model")
            self.narrow_model = self.narrow
            self.cut = self.length_span  # its length will be that of another name
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
        cdef unsigned long long line_at = self.total + <unsigned long long>(at - 1 - self.fields_n)
        found = {}
        self.length = -1
        self.length_span = None
        lines = block.split(b"\r\n")
        lines.pop()
        if len(lines) > MAX_FIELDS:
            self._malformed(f"a part's header has more than {MAX_FIELDS} lines", at)
        for line in lines:
            key, colon, value = line.partition(b":")
            if not colon or not key or key.translate(None, TOKEN_BYTES):
                self._malformed("a part's header has a line that is no field", at)
            key = key.lower()
            if key in READ:
                if key in found:
                    self._malformed(f"a part has two fields {key.decode()}", at)
                found[key] = value.strip(b" \t")
                if key == b"content-length":
                    self.length_span = (line_at, line_at + <unsigned long long>(len(line) + 2))
            line_at += <unsigned long long>(len(line) + 2)
        disposition = found.get(b"content-disposition")
        if disposition is None:
            self._malformed("a part has no content-disposition", at)
        length = found.get(b"content-length")
        if length is not None:
            if not 0 < len(length) <= 18 or not length.isdigit():
                self._malformed("a part's content-length is no number", at)
            self.length = int(length)
        kind = found.get(b"content-type", b"").lower()
        if kind.startswith(b"multipart"):
            self._malformed("a part is a form of its own", at)
        parameters = self._parameters(disposition, at)
        name = parameters.get(b"name")
        if name is None:
            self._malformed("a part's content-disposition has no plain name", at)
        self.is_file = b"filename" in parameters or b"filename*" in parameters
        self.field = FIELDS.get(name, 0)
        read_as = name.lstrip(b"/").decode("utf-8", "replace").strip().casefold()  # aiohttp drops the slashes
        if read_as == "_charset_":
            self._malformed("a part tells the charset of the others; send UTF-8", at)
        if read_as in READ_AS:
            self._routing_field(READ_AS[read_as], found, kind)
        self.state = DATA
        self.matched = self.held_from = 1  # the empty line's end must not be taken for that of an empty content
        self.content_n = 0
        return 0

    cdef int _routing_field(self, int field, dict found, bytes kind) except -1:
        """A part that some parser takes for the field: it has to be one that all take for it, and read alike."""
        name = NAMES[field]
        if self.seen >> field & 1:
            self._refuse("duplicate_key", f"the form has more than one {name!r}", name)
        if field != self.field:
            self._refuse("ambiguous_key", f"some servers read a part of this form as {name!r}, and some do not; "
                         f"write {name!r} in lower case, or leave it out", name)
        self.seen |= 1 << field
        mime, _, charset = kind.partition(b";")
        charset = charset.strip(b" \t")
        if charset:
            charset = charset.partition(b"charset=")[2].strip(b'"') or b"?"
        encoded = b"content-transfer-encoding" in found or b"content-encoding" in found
        if self.is_file or encoded or mime.strip(b" \t") not in (b"", b"text/plain") or charset not in CHARSETS:
            message = f"{name!r} must be a plain field of UTF-8 text: no file, no encoding of its own"
            self._refuse("model_not_string" if field == F_MODEL else "not_plain", message, name)
        self.narrow = CHARSETS[charset]
        return 0

    cdef dict _parameters(self, bytes disposition, Py_ssize_t at):
        cdef dict found = {}
        kind, _, _ = disposition.partition(b";")
        if kind.rstrip(b" \t").lower() != b"form-data":
            self._malformed("a part's content-disposition is not form-data", at)
        start = len(kind)
        while start < len(disposition):
            match = PARAMETER.match(disposition, start)
            # A backslash before a quote ends the text for some parsers and not for others, and in a name some take
            # any backslash away.
            if match is None or (match[2] or b"").endswith(b"\\"):
                self._malformed("a part's content-disposition is malformed", at)
            key = match[1].lower()
            if key not in PARAMETERS or (key == b"name" and b"\\" in (match[2] or b"")):
                self._malformed("a part's content-disposition has more than a plain name and a file's name", at)
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
        if self.narrow_model and not value.isascii():
            return False
        return PyBytes_FromStringAndSize(<const char*>self.delimiter + 1, self.delimiter_n - 1) not in value

    @property
    def ascii(self):
        return self.other_bytes == 0

    @property
    def ordinary(self):
        return self.flags[1] == UNSET and self.flags[2] == UNSET and not self.has_previous_response_id

    @property
    def tool_types(self):
        return frozenset()

    @property
    def estimated_tokens(self):
        return self.ascii_bytes // 3 + self.other_bytes // 2 + self.files * FILE_TOKENS
