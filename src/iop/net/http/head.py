"""Request and response heads: httptools parses one whole head, and the policy above it decides (API-6, RFC 9112).

llhttp, which httptools wraps, accepts several framings that two parsers can read differently. So nothing here trusts it
with where a message ends: it gets exactly one head, and the framing is derived below from the fields alone.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

import httptools

from iop._fast.body import FRAMING_CHUNKED, FRAMING_EOF, FRAMING_LENGTH, FRAMING_NONE
from iop.errors import HeadError, HeadTooLarge

__all__ = ["HOP_BY_HOP", "REASONS", "RequestHead", "ResponseHead", "hop_by_hop", "parse_request", "parse_response"]

MAX_FIELDS = 128
MAX_TARGET_BYTES = 8192
MAX_LENGTH_DIGITS = 16

METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
REASONS: dict[int, bytes] = {s.value: s.phrase.encode("ascii") for s in HTTPStatus} | {499: b"Client Closed Request"}

#: RFC 9110 section 7.6.1, with the two that old software still sends.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"proxy-authenticate",
        b"proxy-authorization",
    }
)

Headers = list[tuple[bytes, bytes]]


class RequestHead:
    """One request head. Header names are lower case; order and repeats are kept. ``target`` is as it was sent."""

    __slots__ = (
        "content_length",
        "expect_continue",
        "framing",
        "headers",
        "host",
        "http10",
        "keep_alive",
        "method",
        "path",
        "query",
        "target",
    )

    method: bytes
    target: bytes
    path: bytes
    query: bytes
    headers: Headers
    host: bytes
    http10: bool
    keep_alive: bool
    framing: int
    content_length: int
    expect_continue: bool

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field, or None."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


class ResponseHead:
    """One response head. ``framing`` says how the body that follows is delimited."""

    __slots__ = ("content_length", "framing", "headers", "keep_alive", "status")

    status: int
    headers: Headers
    keep_alive: bool
    framing: int
    content_length: int

    def get(self, name: bytes) -> bytes | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None


class _Collector:
    """What httptools calls back into while it parses one head."""

    __slots__ = ("done", "headers", "target")

    def __init__(self) -> None:
        self.headers: Headers = []
        self.target = b""
        self.done = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.done = True


def _length(values: list[bytes]) -> int:
    """The one content-length, or HeadError: repeats are refused even when equal (D1)."""
    value = values[0]
    if len(values) != 1 or not value.isdigit() or len(value) > MAX_LENGTH_DIGITS:
        raise HeadError("content-length must be one decimal number")
    return int(value)


class _Fields:
    """The fields that decide about framing and connection, gathered in one pass."""

    __slots__ = ("connection", "expect", "hosts", "lengths", "transfer")

    _SLOT: ClassVar[dict[bytes, str]] = {
        b"content-length": "lengths",
        b"transfer-encoding": "transfer",
        b"connection": "connection",
        b"host": "hosts",
        b"expect": "expect",
    }

    def __init__(self, headers: Headers) -> None:
        self.lengths: list[bytes] = []
        self.transfer: list[bytes] = []
        self.connection: list[bytes] = []
        self.hosts: list[bytes] = []
        self.expect: list[bytes] = []
        slot = self._SLOT
        for name, value in headers:
            if name in slot:
                getattr(self, slot[name]).append(value)

    def keep_alive(self, http10: bool) -> bool:
        if not self.connection:
            return not http10
        tokens = b",".join(self.connection).lower().replace(b" ", b"").replace(b"\t", b"").split(b",")
        return b"close" not in tokens and (not http10 or b"keep-alive" in tokens)


def hop_by_hop(headers: Headers) -> frozenset[bytes]:
    """The fields that end at this hop: the standard ones and those that Connection lists (TUN-2)."""
    listed = [value for name, value in headers if name == b"connection"]
    if not listed:
        return HOP_BY_HOP
    tokens = {token.strip(b" \t") for token in b",".join(listed).lower().split(b",")}
    if tokens <= {b"keep-alive", b"close", b""}:
        return HOP_BY_HOP
    return HOP_BY_HOP | tokens


def parse_request(head: bytes) -> RequestHead:
    """The head of one request, blank line included. Raises HeadError (400, 414, 501, 505) or HeadTooLarge (431)."""
    version = head[: head.find(b"\r\n")].rpartition(b" ")[2]
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise HeadError("only HTTP/1.1 and HTTP/1.0 are spoken here", status=505 if version[:5] == b"HTTP/" else 400)
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # an upgrade that nobody takes up is an ordinary request
    except httptools.HttpParserError:
        raise HeadError("the request head is malformed") from None
    if not collector.done:
        raise HeadError("the request head is malformed")
    method: bytes = parser.get_method()
    target, headers = collector.target, collector.headers
    if method not in METHODS:
        raise HeadError("this method is not spoken here", status=501)
    if len(headers) > MAX_FIELDS:
        raise HeadTooLarge(f"more than {MAX_FIELDS} header fields")
    if len(target) > MAX_TARGET_BYTES:
        raise HeadError(f"the request target is longer than {MAX_TARGET_BYTES} bytes", status=414)
    request = RequestHead()
    request.method, request.target, request.headers = method, target, headers
    request.http10 = http10 = version == b"HTTP/1.0"
    fields = _Fields(headers)
    _frame_request(request, fields)
    request.host = _host(fields.hosts, http10)
    request.path, _, request.query = _origin_form(target, request.host).partition(b"?")
    request.keep_alive = fields.keep_alive(http10)
    request.expect_continue = False
    if fields.expect and not http10:
        if fields.expect[0].lower() != b"100-continue":
            raise HeadError("only 'expect: 100-continue' is understood", status=417)
        request.expect_continue = True
    return request


def _frame_request(request: RequestHead, fields: _Fields) -> None:
    request.framing, request.content_length = FRAMING_NONE, 0
    if fields.transfer:
        if fields.lengths or request.http10:
            raise HeadError("transfer-encoding with content-length or on HTTP/1.0 is ambiguous")
        if len(fields.transfer) != 1 or fields.transfer[0].lower() != b"chunked":
            raise HeadError("transfer-encoding must be exactly 'chunked'", status=501)
        request.framing = FRAMING_CHUNKED
    elif fields.lengths:
        request.content_length = _length(fields.lengths)
        if request.content_length:
            request.framing = FRAMING_LENGTH


_HOST_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]%~")


def _host(hosts: list[bytes], http10: bool) -> bytes:
    if not hosts and http10:
        return b""
    if len(hosts) != 1 or not hosts[0] or not _HOST_BYTES.issuperset(hosts[0]):
        raise HeadError("exactly one valid Host field is needed")
    return hosts[0]


def _origin_form(target: bytes, host: bytes) -> bytes:
    """The target as path and query: origin form, ``*``, or absolute form for this very host (D3)."""
    if target[:1] == b"/" or target == b"*":
        return target
    scheme, separator, rest = target.partition(b"://")
    if separator and scheme.lower() in (b"http", b"https"):
        authority, slash, path = rest.partition(b"/")
        if authority.lower() == host.lower():
            return slash + path if slash else b"/"
        raise HeadError("the request target names another host")
    raise HeadError("the request target must be a path")


def parse_response(head: bytes, *, head_request: bool = False) -> ResponseHead:
    """The head of one response. 1xx has FRAMING_NONE: the caller skips it. Raises HeadError or HeadTooLarge."""
    version = head[:9]
    if version not in (b"HTTP/1.1 ", b"HTTP/1.0 "):
        raise HeadError("not an HTTP/1.1 response")
    collector = _Collector()
    parser = httptools.HttpResponseParser(collector)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError:
        raise HeadError("the response head is malformed") from None
    if not collector.done:
        raise HeadError("the response head is malformed")
    if len(collector.headers) > MAX_FIELDS:
        raise HeadTooLarge(f"more than {MAX_FIELDS} header fields")
    response = ResponseHead()
    response.status = status = parser.get_status_code()
    if not 100 <= status <= 599 or status == 101:
        raise HeadError("the response status is outside 100 to 599, or switches protocols")
    response.headers = collector.headers
    fields = _Fields(collector.headers)
    http10 = version == b"HTTP/1.0 "
    response.keep_alive = fields.keep_alive(http10)
    response.content_length = 0
    if fields.transfer and (
        fields.lengths or http10 or len(fields.transfer) != 1 or fields.transfer[0].lower() != b"chunked"
    ):
        raise HeadError("the response's framing is ambiguous")
    length = _length(fields.lengths) if fields.lengths else 0
    if head_request or status < 200 or status in (204, 304):
        response.framing = FRAMING_NONE
        response.content_length = length
    elif fields.transfer:
        response.framing = FRAMING_CHUNKED
    elif fields.lengths:
        response.content_length = length
        response.framing = FRAMING_LENGTH if length else FRAMING_NONE
    else:
        response.framing = FRAMING_EOF
        response.keep_alive = False
    return response
