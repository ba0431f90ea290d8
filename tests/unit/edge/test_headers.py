"""Which header fields pass the edge (TUN-2, TUN-9)."""

from __future__ import annotations

import pytest

from iop._fast.relay import BODILESS, CHUNKED, LENGTH, RAW
from iop.config.edge import HttpSection
from iop.edge.api.headers import frame_answer, read_answer, to_provider
from iop.errors import HeadError
from iop.net.http.head import RequestHead, parse_request
from iop.wire import codec, limits
from iop.wire import messages as m


def head(*lines: str) -> RequestHead:
    return parse_request("\r\n".join(["POST / HTTP/1.1", "Host: a", *lines, "", ""]).encode("latin-1"))


@pytest.mark.req("TUN-9")
@pytest.mark.parametrize(
    "line",
    [
        "Authorization: Bearer k",
        "x-api-key: k",
        "api-key: k",
        "Cookie: a=b",
        "Proxy-Anything: x",
        "Forwarded: for=1",
        "X-Forwarded-For: 1",
        "X-Iop-Provider: p",
        "Connection: keep-alive",
        "Keep-Alive: 5",
        "TE: trailers",
        "Trailer: x",
        "Upgrade: h2c",
        "Content-Length: 3",
        "Expect: 100-continue",
    ],
)
def test_what_stays_at_the_edge(line: str) -> None:
    assert to_provider(head(line, "X-Kept: 1"), form=True, streaming=False) == b"x-kept: 1\r\n"


@pytest.mark.req("TUN-2", "TUN-9")
def test_unknown_fields_pass_in_order_with_their_repeats() -> None:
    block = to_provider(
        head("X-B: 1", "anthropic-beta: a", "X-B: 2", "X-Stainless-Lang: py"), form=True, streaming=False
    )
    assert block == b"x-b: 1\r\nanthropic-beta: a\r\nx-b: 2\r\nx-stainless-lang: py\r\n"


@pytest.mark.req("TUN-2")
def test_a_streaming_request_asks_for_a_plain_answer() -> None:
    lines = ("Accept-Encoding: gzip, br", "Content-Encoding: gzip")
    assert to_provider(head(*lines), form=True, streaming=True) == b"accept-encoding: identity\r\n"
    assert to_provider(head(*lines), form=True, streaming=False) == b"accept-encoding: gzip, br\r\n"
    assert to_provider(head(), form=True, streaming=False) == b""


@pytest.mark.req("TUN-9")
@pytest.mark.parametrize(
    "line",
    ["X-Y: 1", "Content-Type: text/plain", "content_type: text/plain", "Content-Type: application/JSON; charset=UTF-8"],
)
def test_a_json_body_is_called_json(line: str) -> None:
    block = to_provider(head(line), form=False, streaming=False)
    assert block.count(b"content-type: ") == 1
    assert block.endswith(b"content-type: application/json\r\n")
    assert b"text/plain" not in block


@pytest.mark.req("TUN-9")
def test_a_form_keeps_its_type_with_the_boundary() -> None:
    block = to_provider(head("Content-Type: multipart/form-data; boundary=B"), form=True, streaming=False)
    assert block == b"content-type: multipart/form-data; boundary=B\r\n"


@pytest.mark.req("TUN-2")
def test_fields_that_connection_names_end_here() -> None:
    assert to_provider(head("Connection: X-Private", "X-Private: 1"), form=True, streaming=False) == b""


@pytest.mark.req("TUN-9")
def test_what_a_client_gets_to_see() -> None:
    answer = read_answer(
        b"content-type: application/json\r\ncontent-length: 12\r\nset-cookie: a\r\nserver: x\r\ndate: y\r\n"
        b"alt-svc: z\r\nlocation: http://10.0.0.5:8000/x\r\ncontent-location: /y\r\nrefresh: 0; url=http://10.0.0.5/\r\n"
        b"strict-transport-security: s\r\nwww-authenticate: w\r\naccess-control-allow-origin: *\r\n"
        b"x-iop-attempts: 9\r\n"
        b"x-request-id: theirs\r\nx-ratelimit: 1\r\nconnection: close\r\n"
    )
    assert answer.block == (
        b"content-type: application/json\r\nx-ratelimit: 1\r\nx-iop-provider-request-id: theirs\r\n"
    )
    assert (answer.event_stream, answer.length) == (False, 12)


@pytest.mark.parametrize(
    ("block", "event_stream"),
    [
        (b"content-type: text/event-stream\r\n", True),
        (b"content-type: Text/Event-Stream; charset=utf-8\r\n", True),
        (b"content-type: text/event-stream\r\ncontent-encoding: gzip\r\n", False),
        (b"content-type: text/event-stream\r\ncontent-encoding: Identity\r\n", True),
        (b"content-type: application/json\r\n", False),
        (b"", False),
    ],
)
def test_a_plain_event_stream_is_recognised(block: bytes, event_stream: bool) -> None:
    assert read_answer(block).event_stream is event_stream


@pytest.mark.req("API-6")
@pytest.mark.parametrize("length", [b"-1", b"1x", b"", b"99999999999999999", b"1, 1", b"1\r\ncontent-length: 1"])
def test_a_length_that_is_not_one_number_is_refused(length: bytes) -> None:
    with pytest.raises(HeadError):
        read_answer(b"content-length: " + length + b"\r\n")


@pytest.mark.req("TUN-9")
def test_a_forged_block_is_refused() -> None:
    with pytest.raises(HeadError):
        read_answer(b"a: b\r\n\r\nHTTP/1.1 200 OK\r\n")


@pytest.mark.req("TUN-2")
@pytest.mark.parametrize(
    ("start", "status", "length", "framing"),
    [
        ("POST / HTTP/1.1", 200, 5, (LENGTH, b"content-length: 5\r\n")),
        ("POST / HTTP/1.1", 200, 0, (LENGTH, b"content-length: 0\r\n")),
        ("POST / HTTP/1.1", 200, -1, (CHUNKED, b"transfer-encoding: chunked\r\n")),
        ("POST / HTTP/1.0", 200, -1, (RAW, b"")),
        ("HEAD / HTTP/1.1", 200, 5, (BODILESS, b"content-length: 5\r\n")),
        ("POST / HTTP/1.1", 204, 5, (BODILESS, b"")),
        ("POST / HTTP/1.1", 304, 5, (BODILESS, b"content-length: 5\r\n")),
    ],
)
def test_how_an_answer_is_delimited(start: str, status: int, length: int, framing: tuple[int, bytes]) -> None:
    request = parse_request(f"{start}\r\nHost: a\r\n\r\n".encode())
    assert frame_answer(request, status, length) == framing


@pytest.mark.req("API-6", "WIRE-9")
def test_the_largest_head_that_an_edge_may_be_told_to_take_crosses_the_link() -> None:
    (most,) = [bound.le for bound in HttpSection.model_fields["max_header_bytes"].metadata if hasattr(bound, "le")]
    # Short fields grow most: by the space that is put behind each colon.
    start = b"POST /v1/x HTTP/1.1\r\nhost:a\r\n" + b"".join(b"a%d:b\r\n" % number for number in range(126))
    whole = start + b"z:%b\r\n\r\n" % (b"z" * (most - len(start) - 6))
    assert len(whole) == most
    block = to_provider(parse_request(whole), form=False, streaming=True)
    body = bytes(limits.INLINE_BODY_BYTES)
    request = m.ProviderTunnelRequest(
        1, "r", "a", "p", "t", 1, 1, 1, m.LeaseBinding(1, False, 1), b"POST", b"/x", b"", block, body, len(body)
    )
    assert codec.decode(codec.encode(request)[4:]) == request
