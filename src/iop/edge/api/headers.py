"""Which header fields pass the edge, in either direction (TUN-2, TUN-9)."""

from __future__ import annotations

import functools
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from iop._fast.body import filter_headers
from iop._fast.fields import Fields
from iop._fast.relay import BODILESS, CHUNKED, LENGTH, RAW
from iop.errors import HeadError
from iop.net.http.head import HOP_BY_HOP, RequestHead

__all__ = ["ProviderAnswer", "frame_answer", "read_answer", "rest_of", "to_provider"]

MAX_FIELDS = 128
MAX_LENGTH_DIGITS = 16

_TO_PROVIDER = HOP_BY_HOP | {
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"cookie",
    b"host",
    b"expect",
    b"forwarded",
    b"content-length",
    b"accept-encoding",
    b"content-encoding",  # what the edge has read leaves plain
    b"content_encoding",  # for servers to which these are the same names
    b"content_length",
    b"content_type",
    b"transfer_encoding",
}
_TO_PROVIDER_JSON = _TO_PROVIDER | {b"content-type"}
_TO_PROVIDER_PREFIXES = (b"proxy-", b"x-forwarded-", b"x-iop-")

_TO_CLIENT = HOP_BY_HOP | {
    b"set-cookie",
    b"server",
    b"date",
    b"alt-svc",
    b"strict-transport-security",
    b"www-authenticate",
    b"x-request-id",
    b"content-length",
    # Where to look instead: places that only the node reaches, and whose addresses are nobody else's business.
    b"location",
    b"content-location",
    b"refresh",
}
_TO_CLIENT_PREFIXES = (b"access-control-", b"x-iop-")


def to_provider(head: RequestHead, *, form: bool, streaming: bool) -> bytes:
    """Return the field lines that go on to a provider.

    A JSON body goes as ``application/json``, whatever type the client wrote: the edge has read it as that, and servers
    refuse JSON of another type. A ``form`` keeps its type, which carries the boundary. A streaming request asks for a
    plain answer, so that its events can be seen (TUN-2, TUN-9).
    """
    drop = _TO_PROVIDER if form else _TO_PROVIDER_JSON
    if head.hop_by_hop is not HOP_BY_HOP:
        drop |= head.hop_by_hop
    block = filter_headers(head.fields.items, drop, _TO_PROVIDER_PREFIXES)
    kind = b"" if form else b"content-type: application/json\r\n"
    accepted = b"identity" if streaming else head.fields.first.get(b"accept-encoding")
    if accepted is None:
        return block + kind
    return b"".join((block, kind, b"accept-encoding: ", accepted, b"\r\n"))


class ProviderAnswer(NamedTuple):
    """What the edge reads off a provider's fields: whether the body is a plain event stream, its length (-1 = not
    told), the field lines for the client, and the value of Retry-After (empty = not told)."""

    event_stream: bool
    length: int
    block: bytes
    retry_after: bytes


@functools.lru_cache(maxsize=64)  # a server says the same to all its streams, for a second at least (Date)
def read_answer(header_block: bytes) -> ProviderAnswer:
    """Raises HeadError or HeadTooLarge for a block that must not go on: malformed, or with a length that is not one
    number, which the node's own client would have refused."""
    fields = Fields()
    fields.read_block(header_block, MAX_FIELDS)
    first = fields.first
    kind = first.get(b"content-type", b"")[:17].lower()
    plain = first.get(b"content-encoding", b"identity").lower() == b"identity"
    length = first.get(b"content-length")
    if length is not None and (
        b"content-length" in fields.repeated or not length.isdigit() or len(length) > MAX_LENGTH_DIGITS
    ):
        raise HeadError("content_length")
    block = filter_headers(fields.items, _TO_CLIENT, _TO_CLIENT_PREFIXES)
    if b"x-request-id" in first:
        block += b"x-iop-provider-request-id: %b\r\n" % first[b"x-request-id"]
    is_stream, retry_after = kind == b"text/event-stream" and plain, first.get(b"retry-after", b"")
    return ProviderAnswer(is_stream, -1 if length is None else int(length), block, retry_after)


def rest_of(retry_after: bytes, now: float) -> float:
    """The seconds that a Retry-After asks for, in either of its forms; 0 for what is neither, or has passed. ``now`` is
    the time of day, in seconds since 1970."""
    text = retry_after.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return float(text[:10])
    try:
        return max(0.0, parsedate_to_datetime(text[:64]).timestamp() - now)
    except (TypeError, ValueError, OverflowError):
        return 0.0


def frame_answer(head: RequestHead, status: int, length: int) -> tuple[int, bytes]:
    """How the body of an answer is delimited towards the client: the relay's mode, and the field line for it."""
    told = b"content-length: %d\r\n" % length if length >= 0 else b""
    if head.method == b"HEAD" or status in (204, 304):
        return BODILESS, told if status != 204 else b""
    if told:
        return LENGTH, told
    if head.http10:
        return RAW, b""
    return CHUNKED, b"transfer-encoding: chunked\r\n"
