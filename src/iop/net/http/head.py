"""Request and response heads: httptools parses one whole head, and the policy above it decides (API-6, RFC 9112).

llhttp, which httptools wraps, accepts several framings that two parsers can read differently. So nothing here trusts it
with where a message ends: it gets exactly one head, and the framing is derived below from the fields alone.
"""

from __future__ import annotations

import functools
import re
from http import HTTPStatus
from ipaddress import IPv6Address

import httptools

from iop._fast.body import FRAMING_CHUNKED, FRAMING_EOF, FRAMING_LENGTH, FRAMING_NONE, filter_headers
from iop._fast.fields import Fields
from iop.errors import HeadError, HeadTooLarge

__all__ = ["HOP_BY_HOP", "RequestHead", "ResponseHead", "parse_request", "parse_response", "status_line"]

MAX_FIELDS = 128
MAX_TARGET_BYTES = 8192
MAX_LENGTH_DIGITS = 16

METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
REASONS: dict[int, bytes] = {s.value: s.phrase.encode("ascii") for s in HTTPStatus} | {499: b"Client Closed Request"}
_STATUS_LINES = {status: b"HTTP/1.1 %d %b\r\n" % (status, reason) for status, reason in REASONS.items()}

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


class RequestHead:
    """One request head. Header names are lower case; order and repeats are kept. ``target`` is as it was sent."""

    __slots__ = (
        "content_length",
        "expect_continue",
        "fields",
        "framing",
        "hop_by_hop",
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
    fields: Fields
    hop_by_hop: frozenset[bytes]
    host: bytes
    http10: bool
    keep_alive: bool
    framing: int
    content_length: int
    expect_continue: bool

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field, or None."""
        return self.fields.first.get(name)


class ResponseHead:
    """One response head; read-only, since equal heads may be one object. ``framing`` says how the body that follows is
    delimited, ``end_to_end`` is the field lines that go on past this hop, ``media_type`` the content-type without
    parameters, in lower case, and empty for a body in a content-coding that is not identity. ``redirects`` says that it
    tells to ask elsewhere; 304 does not."""

    __slots__ = (
        "content_length",
        "end_to_end",
        "fields",
        "framing",
        "hop_by_hop",
        "keep_alive",
        "media_type",
        "redirects",
        "status",
    )

    status: int
    fields: Fields
    hop_by_hop: frozenset[bytes]
    end_to_end: bytes
    media_type: bytes
    redirects: bool
    keep_alive: bool
    framing: int
    content_length: int

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field, or None."""
        return self.fields.first.get(name)


def status_line(status: int) -> bytes:
    """The first line of an answer."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status


def _length(fields: Fields) -> int:
    """The one content-length, or HeadError: repeats are refused even when equal (API-6)."""
    value = fields.first[b"content-length"]
    if b"content-length" in fields.repeated or not value.isdigit() or len(value) > MAX_LENGTH_DIGITS:
        raise HeadError("content-length must be one decimal number")
    return int(value)


def _is_chunked(fields: Fields) -> bool:
    """Whether transfer-encoding is exactly ``chunked``, once."""
    return b"transfer-encoding" not in fields.repeated and fields.first[b"transfer-encoding"].lower() == b"chunked"


_HARMLESS = frozenset({b"keep-alive", b"close", b""})


def _connection(fields: Fields) -> bytes:
    """All that Connection lists."""
    if b"connection" in fields.repeated:
        return b",".join(value for name, value in fields.items if name == b"connection")
    return fields.first.get(b"connection", b"")


@functools.lru_cache(maxsize=64)  # nearly everybody says the same
def _end_of_hop(connection: bytes, http10: bool) -> tuple[bool, frozenset[bytes]]:
    """What Connection says: whether the connection stays, and which fields end at this hop, the standard ones and those
    that it lists (TUN-2)."""
    tokens = frozenset(token.strip(b" 	") for token in connection.lower().split(b","))
    stays = b"close" not in tokens and (not http10 or b"keep-alive" in tokens)
    return stays, HOP_BY_HOP if tokens <= _HARMLESS else HOP_BY_HOP | tokens


def _unreadable(line: bytes) -> HeadError:
    """Why a request was not taken, by its first line: the parser refuses methods that it does not know, too."""
    method = line.partition(b" ")[0]
    if method not in METHODS and re.fullmatch(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}", method):
        return HeadError("this method is not supported")
    return HeadError("the request head is malformed")


def parse_request(head: bytes) -> RequestHead:
    """The head of one request, blank line included. Raises HeadError (400, 414, 501, 505) or HeadTooLarge (431)."""
    line = head[: head.find(b"\r\n")]
    version = line.rpartition(b" ")[2]
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise HeadError("only HTTP/1.1 and HTTP/1.0 are spoken here", status=505 if version[:5] == b"HTTP/" else 400)
    fields = Fields()
    parser = httptools.HttpRequestParser(fields)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # an upgrade that nobody takes up is an ordinary request
    except httptools.HttpParserError:
        raise _unreadable(line) from None
    if not fields.complete:
        raise _unreadable(line)
    method: bytes = parser.get_method()
    target = fields.target
    if line != b" ".join((method, target, version)):
        raise HeadError("the request line must be method, target and version with one space between them")
    if method not in METHODS:
        raise HeadError("this method is not supported", status=501)
    if len(fields.items) > MAX_FIELDS:
        raise HeadTooLarge(f"more than {MAX_FIELDS} header fields")
    if len(target) > MAX_TARGET_BYTES:
        raise HeadError(f"the request target is longer than {MAX_TARGET_BYTES} bytes", status=414)
    request = RequestHead()
    request.method, request.target, request.fields = method, target, fields
    request.http10 = http10 = version == b"HTTP/1.0"
    _frame_request(request, fields)
    request.host = host = _host(fields, http10)
    request.path, _, request.query = _origin_form(target, host, method).partition(b"?")
    request.keep_alive, request.hop_by_hop = _end_of_hop(_connection(fields), http10)
    request.expect_continue = False
    expect = fields.first.get(b"expect")
    if expect is not None and not http10:
        if expect.lower() != b"100-continue":
            raise HeadError("only 'expect: 100-continue' is understood", status=417)
        request.expect_continue = True
    return request


def _frame_request(request: RequestHead, fields: Fields) -> None:
    request.framing, request.content_length = FRAMING_NONE, 0
    first = fields.first
    if b"transfer-encoding" in first:
        if b"content-length" in first or request.http10:
            raise HeadError("transfer-encoding with content-length or on HTTP/1.0 is ambiguous")
        if not _is_chunked(fields):
            raise HeadError("transfer-encoding must be exactly 'chunked'", status=501)
        request.framing = FRAMING_CHUNKED
    elif b"content-length" in first:
        request.content_length = _length(fields)
        if request.content_length:
            request.framing = FRAMING_LENGTH


# A name (escapes of control characters are none) or IPv4 address, or an IPv6 address (with its zone) in brackets; then
# a port or nothing.
_HOST = re.compile(
    rb"(?:\[([0-9A-Fa-f:.]+)(?:%(?:25)?[A-Za-z0-9._~-]+)?\]|(?:[A-Za-z0-9._~-]|%(?!7[Ff])[2-9A-Fa-f][0-9A-Fa-f])+)"
    rb"(?::([0-9]{1,5}))?"
)
MAX_PORT = 65535


def _host(fields: Fields, http10: bool) -> bytes:
    host = fields.first.get(b"host")
    if host is None and http10:
        return b""
    if host is None or b"host" in fields.repeated or not _is_host(host):
        raise HeadError("exactly one valid Host field is needed")
    return host


@functools.lru_cache(maxsize=64)  # an edge has one or two names, and hears them with every request
def _is_host(host: bytes) -> bool:
    match = _HOST.fullmatch(host)
    if match is None or int(match[2] or 0) > MAX_PORT:
        return False
    try:
        return match[1] is None or bool(IPv6Address(match[1].decode("ascii")))
    except ValueError:
        return False


_HASH = ord("#")  # a number: looking for bytes in bytes takes five times as long


def _origin_form(target: bytes, host: bytes, method: bytes) -> bytes:
    """The target as path and query: origin form, ``*`` of OPTIONS, or absolute form for this very host (API-6)."""
    if _HASH in target:  # llhttp lets it pass
        raise HeadError("the request target has a fragment")
    if target[:1] == b"/" or (target == b"*" and method == b"OPTIONS"):
        return target
    scheme, separator, rest = target.partition(b"://")
    if separator and scheme.lower() in (b"http", b"https"):
        authority, slash, path = rest.partition(b"/")
        if authority.lower() == host.lower():
            return slash + path if slash else b"/"
        raise HeadError("the request target names another host")
    raise HeadError("the request target must be a path")


@functools.lru_cache(maxsize=64)  # a server opens all its streams with the same bytes, for a second at least (Date)
def parse_response(head: bytes, head_request: bool = False) -> ResponseHead:
    """The head of one response. 1xx has FRAMING_NONE: the caller skips it. Raises HeadError or HeadTooLarge."""
    version = head[:9]
    if version not in (b"HTTP/1.1 ", b"HTTP/1.0 "):
        raise HeadError("not an HTTP/1.1 response")
    fields = Fields()
    parser = httptools.HttpResponseParser(fields)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError:
        raise HeadError("the response head is malformed") from None
    if not fields.complete:
        raise HeadError("the response head is malformed")
    if len(fields.items) > MAX_FIELDS:
        raise HeadTooLarge(f"more than {MAX_FIELDS} header fields")
    response = ResponseHead()
    response.status = status = parser.get_status_code()
    if not 100 <= status <= 599 or status == 101:
        raise HeadError("the response status is outside 100 to 599, or switches protocols")
    response.redirects = 300 <= status < 400 and status != 304
    response.fields = fields
    http10 = version == b"HTTP/1.0 "
    response.keep_alive, response.hop_by_hop = _end_of_hop(_connection(fields), http10)
    response.end_to_end = filter_headers(fields.items, response.hop_by_hop, ())
    plain = fields.first.get(b"content-encoding", b"identity").lower() == b"identity"
    kind = fields.first.get(b"content-type", b"") if plain else b""
    response.media_type = kind.partition(b";")[0].strip().lower()
    response.content_length = 0
    chunked, lengthy = b"transfer-encoding" in fields.first, b"content-length" in fields.first
    if chunked and (lengthy or http10 or not _is_chunked(fields)):
        raise HeadError("the response's framing is ambiguous")
    length = _length(fields) if lengthy else 0
    if head_request or status < 200 or status in (204, 304):
        response.framing = FRAMING_NONE
        response.content_length = length
    elif chunked:
        response.framing = FRAMING_CHUNKED
    elif lengthy:
        response.content_length = length
        response.framing = FRAMING_LENGTH if length else FRAMING_NONE
    else:
        response.framing = FRAMING_EOF
        response.keep_alive = False
    return response
