"""The policy above the HTTP parser: what may be a head, and where its message ends (API-6)."""

from __future__ import annotations

import pytest

from iop._fast.body import FRAMING_CHUNKED, FRAMING_EOF, FRAMING_LENGTH, FRAMING_NONE
from iop.errors import HeadError, HeadTooLarge
from iop.net.http.head import HOP_BY_HOP, parse_request, parse_response


def request(*lines: str, start: str = "POST /v1/x HTTP/1.1", host: str | None = "Host: a") -> bytes:
    fields = [start, *([host] if host else []), *lines]
    return "\r\n".join(fields).encode("latin-1") + b"\r\n\r\n"


def response(*lines: str, start: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([start, *lines]).encode("latin-1") + b"\r\n\r\n"


def test_a_plain_request() -> None:
    head = parse_request(request("Content-Length: 5", "X-Y: z", start="POST /v1/chat?a=1 HTTP/1.1"))
    assert (head.method, head.path, head.query) == (b"POST", b"/v1/chat", b"a=1")
    assert (head.framing, head.content_length, head.keep_alive, head.http10) == (FRAMING_LENGTH, 5, True, False)
    assert head.get(b"x-y") == b"z"


@pytest.mark.req("API-6")
@pytest.mark.parametrize(
    ("lines", "start", "status"),
    [
        (["Content-Length: 3", "Transfer-Encoding: chunked"], "", 400),
        (["Transfer-Encoding: chunked", "Content-Length: 3"], "", 400),
        (["Content-Length: 3", "Content-Length: 3"], "", 400),
        (["Content-Length: 3", "Content-Length: 4"], "", 400),
        (["Content-Length: 3, 3"], "", 400),
        (["Content-Length: +3"], "", 400),
        (["Content-Length: -1"], "", 400),
        (["Content-Length: 0x3"], "", 400),
        (["Content-Length: 3 "], "", None),
        (["Content-Length: 99999999999999999"], "", 400),
        (["Transfer-Encoding: gzip, chunked"], "", 501),
        (["Transfer-Encoding: identity, chunked"], "", 501),
        (["Transfer-Encoding: chunked, chunked"], "", 501),
        (["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], "", 501),
        (["Transfer-Encoding: xchunked"], "", 501),
        (["Transfer-Encoding: chunked"], "POST / HTTP/1.0", 400),
        (["Transfer-Encoding: Chunked"], "", None),
    ],
)
def test_d1_ambiguous_framing_is_refused(lines: list[str], start: str, status: int | None) -> None:
    head = request(*lines, start=start or "POST / HTTP/1.1")
    if status is None:
        parse_request(head)
        return
    with pytest.raises(HeadError) as caught:
        parse_request(head)
    assert caught.value.status in (400, status)


@pytest.mark.req("API-6")
@pytest.mark.parametrize(
    "host",
    [None, "Host:", "Host: a, b", "Host: a b", "Host: user@a", "Host: a/b", "Host: a\\b"]
    + [
        f"Host: {host}"
        for host in ("a:evil", "a:", "a:123456", ":80", "::1", "[::1", "[a]", "[::1]x", "a:1:2", "a[::1]")
    ],
)
def test_d3_exactly_one_sound_host(host: str | None) -> None:
    with pytest.raises(HeadError):
        parse_request(request(host=host))


@pytest.mark.req("API-6")
@pytest.mark.parametrize(
    "host", ["localhost:8080", "a-b.c", "[::1]", "[::1]:80", "[fe80::1%25eth0]:1", "10.0.0.1:65535"]
)
def test_d3_hosts_that_are_sound(host: str) -> None:
    assert parse_request(request(host=f"Host: {host}")).host == host.encode()


@pytest.mark.req("API-6")
def test_d3_two_hosts_and_foreign_absolute_form() -> None:
    with pytest.raises(HeadError):
        parse_request(request("Host: a"))
    with pytest.raises(HeadError):
        parse_request(request(start="GET http://other/ HTTP/1.1"))
    assert parse_request(request(start="GET http://A/x?y HTTP/1.1")).path == b"/x"
    assert parse_request(request(start="GET / HTTP/1.0", host=None)).host == b""


@pytest.mark.req("API-6")
@pytest.mark.parametrize(
    ("start", "status"),
    [
        ("GET /", 400),
        ("GET / HTTP/2.0", 505),
        ("PRI * HTTP/2.0", 505),
        ("OPTIONS * RTSP/1.0", 400),
        ("GET / ICE/1.0", 400),
        ("GET / HTTP/1.2", 505),
        ("GET / HTTP/1.1.1", 505),
        ("BREW / HTTP/1.1", 400),
        ("CONNECT a:1 HTTP/1.1", 501),
        ("TRACE / HTTP/1.1", 501),
        ("GET  / HTTP/1.1", 400),
        ("GET x HTTP/1.1", 400),
    ],
)
def test_d4_other_versions_methods_and_targets(start: str, status: int) -> None:
    with pytest.raises(HeadError) as caught:
        parse_request(request(start=start))
    assert caught.value.status == status


@pytest.mark.req("API-6")
def test_d11_limits_at_n_and_one_more() -> None:
    parse_request(request(*["a: b"] * 127))
    with pytest.raises(HeadTooLarge) as many:
        parse_request(request(*["a: b"] * 128))
    assert many.value.status == 431
    parse_request(request(start=f"GET /{'x' * 8191} HTTP/1.1"))
    with pytest.raises(HeadError) as long:
        parse_request(request(start=f"GET /{'x' * 8192} HTTP/1.1"))
    assert long.value.status == 414


def test_keep_alive_and_expect() -> None:
    assert not parse_request(request("Connection: close")).keep_alive
    assert not parse_request(request("Connection: keep-alive, Close")).keep_alive
    assert not parse_request(request(start="GET / HTTP/1.0")).keep_alive
    assert parse_request(request("Connection: Keep-Alive", start="GET / HTTP/1.0")).keep_alive
    assert parse_request(request("Expect: 100-Continue")).expect_continue
    with pytest.raises(HeadError) as caught:
        parse_request(request("Expect: money"))
    assert caught.value.status == 417


def test_an_upgrade_that_nobody_takes_up_is_an_ordinary_request() -> None:
    head = parse_request(request("Connection: Upgrade", "Upgrade: websocket", "Content-Length: 4"))
    assert (head.framing, head.content_length) == (FRAMING_LENGTH, 4)


@pytest.mark.req("TUN-2")
def test_fields_that_connection_lists_end_here() -> None:
    assert parse_request(request("Connection: X-Secret, keep-alive", "X-Secret: 1")).hop_by_hop >= {b"x-secret"}
    assert parse_request(request("Connection: keep-alive")).hop_by_hop is HOP_BY_HOP


@pytest.mark.req("API-6")
@pytest.mark.parametrize(
    ("start", "lines", "head_request", "framing", "length"),
    [
        ("HTTP/1.1 200 OK", ["Content-Length: 3"], False, FRAMING_LENGTH, 3),
        ("HTTP/1.1 200 OK", ["Content-Length: 0"], False, FRAMING_NONE, 0),
        ("HTTP/1.1 200 OK", ["Transfer-Encoding: chunked"], False, FRAMING_CHUNKED, 0),
        ("HTTP/1.1 200 OK", [], False, FRAMING_EOF, 0),
        ("HTTP/1.1 200 OK", ["Content-Length: 9"], True, FRAMING_NONE, 9),
        ("HTTP/1.1 204 No Content", [], False, FRAMING_NONE, 0),
        ("HTTP/1.1 304 Not Modified", ["Content-Length: 7"], False, FRAMING_NONE, 7),
        ("HTTP/1.1 100 Continue", [], False, FRAMING_NONE, 0),
    ],
)
def test_where_a_response_ends(start: str, lines: list[str], head_request: bool, framing: int, length: int) -> None:
    head = parse_response(response(*lines, start=start), head_request=head_request)
    assert (head.framing, head.content_length) == (framing, length)
    assert head.keep_alive is (framing != FRAMING_EOF)


@pytest.mark.req("API-6")
@pytest.mark.parametrize(
    "head",
    [
        response("Content-Length: 3", "Transfer-Encoding: chunked"),
        response("Content-Length: 3", "Content-Length: 3"),
        response("Transfer-Encoding: gzip, chunked"),
        response("Transfer-Encoding: chunked", start="HTTP/1.0 200 OK"),
        response(start="HTTP/2 200 OK"),
        response(start="HTTP/1.1 101 Switching Protocols"),
        response(start="HTTP/1.1 999 No"),
        response(*["a: b"] * 129),
        b"nonsense\r\n\r\n",
    ],
)
def test_a_response_that_could_be_read_two_ways_is_refused(head: bytes) -> None:
    with pytest.raises(HeadError):
        parse_response(head)
