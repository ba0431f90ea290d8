"""What the edge learns from a request body while it comes in (API-8c, POOL-2).

The body is scanned piece by piece, never parsed and never joined; only the model's value is replaced when it is sent.
It is JSON, or a multipart form where an endpoint takes one. What leaves is what was scanned: plain, in UTF-8, without
a byte order mark.

A gzip or deflate body is inflated, and a form is read, in steps with turns of the loop between: a few bytes of either
can take long.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

from iop._fast.form import FormScanner
from iop._fast.scan import RequestScanner, json_string, splice_model
from iop.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from iop.net.http.head import RequestHead

__all__ = ["Intake", "form_of", "require_plain_query"]

JSON_STEP_BYTES = 131072  # each takes a millisecond at most
FORM_STEP_BYTES = 16384
CLIENT_ID_CHARS = 128

# API-8: with any of these, sending again is not the same as sending once.
_HOSTED_TOOLS = ("web_search", "file_search", "code_interpreter", "computer", "image_generation", "mcp")

# wbits for zlib: 31 takes a gzip wrapper, 15 a zlib one (what HTTP calls deflate).
_CODINGS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}

# Charsets in which a body may be declared: True if they are UTF-8 for ASCII alone.
_CHARSETS = {b"utf-8": False, b"utf8": False, b"us-ascii": True, b"ascii": True, b"iso-8859-1": True, b"latin1": True}

# One parameter of a content-type, matched from one place on, where each byte has one way to match.
_PARAMETER = re.compile(rb"[ \t]*;[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:\"([^\"\\]*)\"|([^\s;\"]+))")
# Boundaries come unquoted with characters that should be quoted; which ones there are is told by RFC 2046.
_BOUNDARY_TEXT = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_FORM = b"multipart/form-data"


def form_of(head: RequestHead) -> FormScanner | None:
    """The scanner of the form that a body is said to be; None for any other body. Raises InvalidRequest for one whose
    boundary nobody can be sure of."""
    kind = head.fields.first.get(b"content-type", b"")
    if kind[: len(_FORM)].lower() != _FORM:
        return None
    found: dict[bytes, bytes] = {}
    at, end = len(_FORM), len(kind.rstrip(b" \t"))
    while at < end:
        match = _PARAMETER.match(kind, at, end)
        name = match[1].lower() if match is not None else b""
        if match is None or name in found or name not in (b"boundary", b"charset"):
            break
        found[name] = match[3] if match[2] is None else match[2]
        at = match.end()
    boundary = found.get(b"boundary", b"")
    if at < end or not _BOUNDARY_TEXT.fullmatch(boundary):
        raise InvalidRequest(
            "multipart/form-data needs one content-type with one boundary of 1 to 70 characters, and nothing else"
        )
    return FormScanner(boundary)


def require_plain_query(query: bytes) -> None:
    """Raises InvalidRequest if some server would read the model from the query instead of the body (API-8c)."""
    if b"=" not in query and len(query) < len("model"):
        return
    for part in query.replace(b";", b"&").split(b"&"):
        name = unquote_to_bytes(part.partition(b"=")[0].replace(b"+", b" ")).decode("utf-8", "replace")
        if name.strip().casefold() == "model":
            raise InvalidRequest("'model' belongs into the body, not into the query", param="model")


@functools.lru_cache(maxsize=64)  # clients write a handful
def _ascii_only(kind: bytes) -> bool:
    """Whether the charset of a content-type is UTF-8 for ASCII alone (TUN-9). Raises UnsupportedMediaType for one that
    is not UTF-8 at all."""
    kind = kind.lower()
    if b"charset" not in kind:
        return False
    _, _, told = kind.partition(b"charset")
    name, equals, rest = told.partition(b"=")
    value, _, more = rest.partition(b";")
    charset = value.strip(b" \t").strip(b'"')
    if name.strip(b" \t") or not equals or charset not in _CHARSETS or b"charset" in more:
        raise UnsupportedMediaType("send the body in UTF-8, and say so in content-type, or leave the charset out")
    return _CHARSETS[charset]


class Intake:
    """One request body. Feed it the pieces in order, then ``finish``; then ask. ``form`` scans one that is not JSON.
    ``hold`` hears of plain bytes that are held beyond what was fed (fewer, if negative), and may raise."""

    __slots__ = (
        "_ascii_only",
        "_at",
        "_behind",
        "_hold",
        "_inflated_bytes",
        "_inflater",
        "_limit_bytes",
        "_pieces",
        "_scanner",
        "_step_bytes",
        "_stepped",
        "client_request_id",
        "estimated_tokens",
        "form",
        "held_bytes",
        "model",
        "ordinary",
        "received_bytes",
        "streaming",
    )

    def __init__(
        self,
        head: RequestHead,
        max_body_bytes: int,
        form: FormScanner | None = None,
        hold: Callable[[int], None] | None = None,
    ) -> None:
        self.form = form
        self._scanner: RequestScanner | FormScanner = RequestScanner() if form is None else form
        self._pieces: list[bytes] = []  # plain
        self._inflater: zlib._Decompress | None = None
        self._limit_bytes = max_body_bytes
        self.received_bytes = 0
        self.model = ""  # this and what follows to `held_bytes` are known once `finish` has returned
        self.streaming = False
        self.ordinary = False  # sending it twice does nothing twice, as far as the body tells
        self.estimated_tokens = 0
        self.held_bytes: int | None = None  # the size of the plain body, None once it is released
        fields = head.fields
        first = fields.first
        kind = first.get(b"content-type")
        if kind == b"application/json" and not fields.repeated:  # as most requests: nothing else to look at
            self._ascii_only = False
        else:
            if b"content-type" in fields.repeated:
                raise InvalidRequest("the request has more than one content-type")
            self._ascii_only = kind is not None and _ascii_only(kind)
        own_id = first.get(b"x-request-id")
        self.client_request_id = own_id[:CLIENT_ID_CHARS].decode("latin-1") if own_id is not None else ""
        coding = first.get(b"content-encoding")
        if coding is not None and coding.lower() != b"identity":
            wbits = _CODINGS.get(coding.lower())
            if wbits is None or b"content-encoding" in fields.repeated:
                raise UnsupportedMediaType
            self._inflater = zlib.decompressobj(wbits)
        self._stepped = form is not None or self._inflater is not None
        if self._stepped:
            self._step_bytes = JSON_STEP_BYTES if form is None else FORM_STEP_BYTES
            self._hold = hold
            self._inflated_bytes = 0
            self._behind = b""  # fed and not looked at yet, from _at on
            self._at = 0

    def feed(self, piece: bytes) -> bool:
        """True: the piece is to be worked on by :meth:`step`, until that returns False. Raises ScanError."""
        self.received_bytes += len(piece)
        if self._stepped:
            self._behind, self._at = piece, 0
            if self._inflater is None:
                self._pieces.append(piece)
            return True
        self._pieces.append(piece)
        self._scanner.feed(piece)
        return False

    def step(self) -> bool:
        """Looks at a bounded part of the last piece; whether some of it is left. Raises ScanError, PayloadTooLarge
        (the plain size counts), InvalidRequest (broken compression), or what ``hold`` raises."""
        return self._read_on() if self._inflater is None else self._inflate(self._inflater)

    def _read_on(self) -> bool:
        piece, at, end = self._behind, self._at, self._at + self._step_bytes
        self._scanner.feed(piece[at:end] if at or end < len(piece) else piece)
        self._at = end
        return end < len(piece)

    def _inflate(self, inflater: zlib._Decompress) -> bool:
        size, piece = self._step_bytes, self._behind
        try:
            plain = inflater.decompress(piece, size)
        except zlib.error:
            raise InvalidRequest("the body is not what its content-encoding says") from None
        if inflater.unused_data:
            raise InvalidRequest("bytes follow the end of the compressed body")
        self._behind = inflater.unconsumed_tail
        self._limit_bytes -= len(plain)
        if self._limit_bytes < 0:
            raise PayloadTooLarge
        if self._hold is not None:
            self._hold(len(plain) - len(piece) + len(self._behind))
        if plain:
            self._inflated_bytes += len(plain)
            self._pieces.append(plain)
            self._scanner.feed(plain)
        return bool(self._behind) or len(plain) == size  # a full step may leave something inside the inflater, too

    def finish(self) -> None:
        """The body is complete. Raises ScanError when it is not one JSON object, or one form, with a model,
        InvalidRequest when its compression is cut short, UnsupportedMediaType when it is not in its charset."""
        if self._inflater is not None and not self._inflater.eof:
            raise InvalidRequest("the compressed body is cut short")
        scanner = self._scanner
        scanner.finish()
        if self._ascii_only and not scanner.ascii:
            raise UnsupportedMediaType("the body is not ASCII: send it in UTF-8, and say so in content-type")
        self.model = scanner.model or ""
        self.streaming = scanner.stream is True
        self.ordinary = scanner.ordinary
        self.estimated_tokens = scanner.estimated_tokens
        self.held_bytes = self.received_bytes if self._inflater is None else self._inflated_bytes

    def replayable(self, *, stores_by_default: bool) -> bool:
        """Whether sending this request a second time does what sending it once does (API-8)."""
        s = self._scanner
        if s.background or s.has_previous_response_id or s.store or (s.store is None and stores_by_default):
            return False
        return not any(kind.startswith(_HOSTED_TOOLS) for kind in s.tool_types)

    def body_for(self, target: str) -> tuple[list[bytes], int]:
        """The plain body with the model replaced by ``target``: pieces, and their total size. Raises InvalidRequest if
        the target cannot stand in the part of the form that it is put in."""
        scanner = self._scanner
        span, cut = scanner.model_span, scanner.cut
        assert span is not None, "body_for before finish"
        if self.form is None:
            value = json_string(target)
        else:
            value = target.encode()
            if not self.form.fits(value):
                raise InvalidRequest(
                    "the name that the provider has for this model cannot stand in this form; use another boundary, "
                    "and UTF-8"
                )
        pieces = splice_model(self._pieces, span, value)
        if cut is not None:
            pieces = splice_model(pieces, cut, b"")
        return pieces, sum(map(len, pieces))

    def release(self) -> None:
        """Drops the body: it will not be sent again."""
        self._pieces = []
        self.held_bytes = None
        if self._stepped:
            self._behind = b""
