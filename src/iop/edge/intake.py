"""What the edge learns from a request body while it comes in (API-8c, POOL-2, D17).

The body is scanned piece by piece, never parsed and never joined; only the model's value is replaced when it is sent.
It is JSON, or a multipart form where an endpoint takes one.
A gzip or deflate body is inflated, bounded, and leaves plain: what was checked is what the provider reads.
"""

from __future__ import annotations

import functools
import re
import zlib

from iop._fast.form import FormScanner
from iop._fast.scan import RequestScanner, json_string, splice_model
from iop.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from iop.net.http.head import RequestHead

__all__ = ["Intake", "form_of"]

INFLATE_STEP_BYTES = 262144
CLIENT_ID_CHARS = 128

# API-8: with any of these, sending again is not the same as sending once.
_HOSTED_TOOLS = ("web_search", "file_search", "code_interpreter", "computer", "image_generation", "mcp")

# wbits for zlib: 31 takes a gzip wrapper, 15 a zlib one (what HTTP calls deflate).
_CODINGS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}


_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# Boundaries come unquoted with characters that should be quoted; which ones there are is told by RFC 2046.
_FORM = re.compile(rb"multipart/form-data((?:[ \t]*;[ \t]*" + _TOKEN + rb"=(?:\"[^\"\\]*\"|[^\s;\"]+))+)[ \t]*", re.I)
_BOUNDARY = re.compile(rb";[ \t]*boundary=(?:\"([^\"]*)\"|([^\s;\"]+))", re.I)
_BOUNDARY_TEXT = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")


def form_of(head: RequestHead) -> FormScanner | None:
    """The scanner of the form that a body is said to be; None for any other body. Raises InvalidRequest for one whose
    boundary nobody can be sure of."""
    kind = head.fields.first.get(b"content-type", b"")
    if kind[:19].lower() != b"multipart/form-data":
        return None
    form = _FORM.fullmatch(kind) if b"content-type" not in head.fields.repeated else None
    found = _BOUNDARY.findall(form[1]) if form is not None else []
    if len(found) != 1 or not _BOUNDARY_TEXT.fullmatch(boundary := found[0][0] or found[0][1]):
        raise InvalidRequest("multipart/form-data needs one content-type with one boundary of 1 to 70 characters")
    return FormScanner(boundary)


_CHARSET = re.compile(rb"charset[ \t]*=[ \t]*\"?([^\s\";,]*)", re.I)
_UTF8 = frozenset({b"utf-8", b"utf8", b"us-ascii", b"ascii"})
_LATIN_1 = frozenset({b"iso-8859-1", b"latin-1", b"latin1"})


@functools.lru_cache(maxsize=64)  # clients write a handful
def _ascii_only(kind: bytes) -> bool:
    """Whether a JSON body of this content type has to be ASCII: in Latin-1 the same bytes are other text than in UTF-8,
    in which the body leaves. Raises UnsupportedMediaType for any other charset."""
    charsets = frozenset(name.lower() for name in _CHARSET.findall(kind))
    if charsets - _UTF8 - _LATIN_1:
        raise UnsupportedMediaType("a JSON body has to be UTF-8")
    return not charsets.isdisjoint(_LATIN_1)


class Intake:
    """One request body. Feed it the pieces in order, then ``finish``; then ask. ``form`` scans one that is not JSON."""

    __slots__ = (
        "_ascii_only",
        "_form",
        "_inflater",
        "_limit_bytes",
        "_plain",
        "_scanner",
        "client_request_id",
        "estimated_tokens",
        "model",
        "received_bytes",
        "streaming",
    )

    def __init__(self, head: RequestHead, max_body_bytes: int, form: FormScanner | None = None) -> None:
        self._form = form
        self._scanner: RequestScanner | FormScanner = RequestScanner() if form is None else form
        self._plain: list[bytes] = []  # its pieces, inflated
        self._inflater: zlib._Decompress | None = None
        self._limit_bytes = max_body_bytes
        self.received_bytes = 0
        self.model = ""  # this and the next two are known once `finish` has returned
        self.streaming = False
        self.estimated_tokens = 0
        first = head.fields.first
        self._ascii_only = form is None and _ascii_only(first.get(b"content-type", b""))
        own_id = first.get(b"x-request-id")
        self.client_request_id = own_id[:CLIENT_ID_CHARS].decode("latin-1") if own_id is not None else ""
        coding = first.get(b"content-encoding")
        if coding is not None and coding.lower() != b"identity":
            wbits = _CODINGS.get(coding.lower())
            if wbits is None:
                raise UnsupportedMediaType
            self._inflater = zlib.decompressobj(wbits)

    def feed(self, piece: bytes) -> None:
        """Raises ScanError, PayloadTooLarge (inflated size counts too) or InvalidRequest (broken compression)."""
        self.received_bytes += len(piece)
        if self._inflater is None:
            self._plain.append(piece)
            self._scanner.feed(piece)
        else:
            self._inflate(self._inflater, piece)

    def _inflate(self, inflater: zlib._Decompress, piece: bytes) -> None:
        while piece:
            try:
                plain = inflater.decompress(piece, INFLATE_STEP_BYTES)
            except zlib.error:
                raise InvalidRequest("the body is not what its content-encoding says") from None
            if plain:
                self._limit_bytes -= len(plain)
                if self._limit_bytes < 0:
                    raise PayloadTooLarge
                self._plain.append(plain)
                self._scanner.feed(plain)
            if inflater.unused_data:
                raise InvalidRequest("bytes follow the end of the compressed body")
            piece = inflater.unconsumed_tail

    def finish(self) -> None:
        """The body is complete. Raises ScanError when it is not one JSON object, or one form, with a model,
        InvalidRequest when its compression is cut short."""
        if self._inflater is not None and not self._inflater.eof:
            raise InvalidRequest("the compressed body is cut short")
        scanner = self._scanner
        scanner.finish()
        if self._ascii_only and not all(map(bytes.isascii, self._plain)):
            raise UnsupportedMediaType("a JSON body has to be UTF-8")
        self.model = scanner.model or ""
        self.streaming = scanner.stream is True
        self.estimated_tokens = scanner.estimated_tokens

    def replayable(self, *, stores_by_default: bool) -> bool:
        """Whether sending this request a second time does what sending it once does (API-8)."""
        s = self._scanner
        if s.background or s.has_previous_response_id or s.store or (s.store is None and stores_by_default):
            return False
        return not any(kind.startswith(_HOSTED_TOOLS) for kind in s.tool_types)

    @property
    def is_form(self) -> bool:
        """Whether the body is a multipart form."""
        return self._form is not None

    def body_for(self, target: str) -> tuple[list[bytes], int]:
        """The plain body with the model replaced by ``target``: pieces, and their total size. Raises InvalidRequest if
        the target would end the part of the form that it is put in."""
        span = self._scanner.model_span
        assert span is not None, "body_for before finish"
        if self._form is None:
            value = json_string(target)
        else:
            value = target.encode()
            if not self._form.fits(value):
                raise InvalidRequest(
                    "the boundary occurs in the name that the provider has for this model; use another"
                )
        pieces = splice_model(self._plain, span, value)
        return pieces, sum(map(len, pieces))

    @property
    def held(self) -> bool:
        """Whether the body is still here."""
        return bool(self._plain) or self.received_bytes == 0

    def release(self) -> None:
        """Drops the body: it will not be sent again."""
        self._plain = []
