"""Raw requests of clients and raw answers of providers, byte for byte, and what has to come of each.

A request is followed on its connection by a second one. Where a case ``keep``s the connection that one is served; else
nothing behind the case is ever looked at. The names begin with the family of faults to which a case belongs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.http import chat

__all__ = ["ANSWERS", "BODY", "CASES", "Answered", "Case"]

BODY = chat("m")
MAX_BODY_BYTES = 33_554_432
MAX_HEADER_BYTES = 32_768


@dataclass(frozen=True)
class Case:
    """``served``: the case is itself a request that reaches a provider. ``drip``: also sent byte by byte."""

    name: str
    wire: bytes
    status: int
    keep: bool = False
    served: bool = False
    drip: bool = True


def head(*lines: str, start: str = "POST /v1/chat/completions HTTP/1.1", host: str | None = "localhost") -> bytes:
    fields = [start, *([f"Host: {host}"] if host is not None else []), *lines]
    return "\r\n".join(fields).encode("latin-1") + b"\r\n\r\n"


def sized(*lines: str, start: str = "POST /v1/chat/completions HTTP/1.1", host: str | None = "localhost") -> bytes:
    return head(*lines, f"Content-Length: {len(BODY)}", start=start, host=host) + BODY


def chunked(*lines: str, body: bytes | None = None, end: bytes = b"0\r\n\r\n") -> bytes:
    body = b"%x\r\n%b\r\n" % (len(BODY), BODY) if body is None else body
    return head("Transfer-Encoding: chunked", *lines) + body + end


def get(*lines: str, target: str = "/healthz", host: str | None = "localhost") -> bytes:
    return head(*lines, start=f"GET {target} HTTP/1.1", host=host)


N = len(BODY)


def lengths() -> Iterator[Case]:
    for name, *lines in (
        ("same-twice", f"Content-Length: {N}", f"Content-Length: {N}"),
        ("different", f"Content-Length: {N}", "Content-Length: 3"),
        ("zero-and-more", "Content-Length: 0", f"Content-Length: {N}"),
        ("list", f"Content-Length: {N}, {N}"),
        ("plus", f"Content-Length: +{N}"),
        ("minus", f"Content-Length: -{N}"),
        ("hex", f"Content-Length: {N:#x}"),
        ("underscore", "Content-Length: 5_7"),
        ("exponent", "Content-Length: 5e1"),
        ("fraction", f"Content-Length: {N}.0"),
        ("quoted", f'Content-Length: "{N}"'),
        ("empty", "Content-Length:"),
        ("inner-space", "Content-Length: 5 7"),
        ("other-digits", "Content-Length: \xb2"),
        ("vertical-tab", f"Content-Length: \x0b{N}"),
        ("no-break-space", f"Content-Length: {N}\xa0"),
        ("17-digits", "Content-Length: " + "9" * 17),
        ("2^64", f"Content-Length: {2**64 + N}"),
        ("space-before-colon", f"Content-Length : {N}"),
        ("folded", f"Content-Length:\r\n {N}"),
    ):
        yield Case(f"D1-length-{name}", head(*lines) + BODY, 400)
    yield Case("D1-length-blanks-around", head(f"Content-Length: \t {N} \t") + BODY, 200, keep=True, served=True)
    yield Case("D1-length-leading-zeros", head(f"Content-Length: 000{N}") + BODY, 200, keep=True, served=True)
    yield Case(
        "D1-length-of-another-spelling", head(f"Content_Length: 3\r\nContent-Length: {N}") + BODY, 200, True, True
    )
    yield Case("D1-length-of-a-get", get("Content-Length: 5") + b"{    ", 200, keep=True)
    yield Case("D10-length-over-the-limit", head(f"Content-Length: {MAX_BODY_BYTES + 1}"), 413)
    yield Case("D10-length-of-16-digits", head("Content-Length: " + "9" * 16), 413)
    yield Case("D10-over-the-limit-asks", head(f"Content-Length: {MAX_BODY_BYTES + 1}", "Expect: 100-continue"), 413)
    yield Case(
        "D13-length-16-digits-is-read", head("Content-Length: " + f"{N:016}") + BODY, 200, keep=True, served=True
    )


def codings() -> Iterator[Case]:
    length = f"Content-Length: {N}"
    for name, status, *lines in (
        ("cl-te", 400, "Content-Length: 5", "Transfer-Encoding: chunked"),
        ("te-cl", 400, "Transfer-Encoding: chunked", "Content-Length: 5"),
        ("te-cl-0", 400, "Transfer-Encoding: chunked", "Content-Length: 0"),
        ("gzip-chunked", 501, "Transfer-Encoding: gzip, chunked"),
        ("identity-chunked", 501, "Transfer-Encoding: identity, chunked"),
        ("identity", 400, "Transfer-Encoding: identity"),
        ("chunked-chunked", 400, "Transfer-Encoding: chunked, chunked"),
        ("twice", 400, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("twice-other", 400, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        ("trailing-comma", 400, "Transfer-Encoding: chunked,"),
        ("leading-comma", 501, "Transfer-Encoding: ,chunked"),
        ("parameter", 400, "Transfer-Encoding: chunked;q=1"),
        ("quoted", 400, 'Transfer-Encoding: "chunked"'),
        ("empty", 400, "Transfer-Encoding:"),
        ("prefix", 400, "Transfer-Encoding: xchunked"),
        ("suffix", 400, "Transfer-Encoding: chunkedx"),
        ("no-break-space", 400, "Transfer-Encoding: chunked\xa0"),
        ("vertical-tab", 400, "Transfer-Encoding: \x0bchunked"),
        ("form-feed", 400, "Transfer-Encoding: chunked\x0c"),
        ("nul", 400, "Transfer-Encoding: chunked\x00"),
        ("space-before-colon", 400, "Transfer-Encoding : chunked"),
        ("folded", 400, "Transfer-Encoding:\r\n chunked"),
        ("blanks-behind", 400, "Transfer-Encoding: chunked \t"),
        ("bare-lf", 400, "X: y\nTransfer-Encoding: chunked"),
        ("bare-cr", 400, "X: y\rTransfer-Encoding: chunked"),
        ("behind-a-space", 400, " Transfer-Encoding: chunked"),
        ("no-colon", 400, "Transfer-Encoding chunked"),
    ):
        # 501 where llhttp would read a chunked body, which the policy above it does not believe; the others it refuses.
        yield Case(f"D1-coding-{name}", head(*lines) + b"0\r\n\r\n", status)
    yield Case("D1-coding-http10", head("Transfer-Encoding: chunked", start="POST / HTTP/1.0") + b"0\r\n\r\n", 400)
    for name, text in (("upper", "CHUNKED"), ("tab", "\tchunked")):
        wire = head(f"Transfer-Encoding: {text}") + b"%x\r\n%b\r\n0\r\n\r\n" % (N, BODY)
        yield Case(f"D1-coding-{name}", wire, 200, keep=True, served=True)
    yield Case("D1-coding-of-a-get", get("Transfer-Encoding: chunked") + b"5\r\n{    \r\n0\r\n\r\n", 200, keep=True)
    yield Case("D1-coding-of-another-spelling", head("Transfer_Encoding: chunked", length) + BODY, 200, True, True)


def hosts() -> Iterator[Case]:
    for name, host in (
        ("none", None),
        ("empty", ""),
        ("comma", "localhost, localhost"),
        ("space", "local host"),
        ("userinfo", "user@localhost"),
        ("path", "localhost/x"),
        ("backslash", "localhost\\x"),
        ("query", "localhost?x"),
        ("fragment", "localhost#x"),
        ("no-port", "localhost:"),
        ("six-digit-port", "localhost:123456"),
        ("port-65536", "localhost:65536"),
        ("port-99999", "localhost:99999"),
        *((f"escaped-{code}", f"local%{code}host") for code in ("00", "0a", "0D", "1f", "7f", "7F")),
        ("escape-cut", "localhost%4"),
        ("escape-none", "local%host"),
        ("zone-escaped-nul", "[fe80::1%25a%00]"),
        ("port-word", "localhost:http"),
        ("two-ports", "localhost:1:2"),
        ("open-bracket", "[::1"),
        ("bare-v6", "::1"),
        ("non-ascii", "l\xf6calhost"),
    ):
        yield Case(f"D3-host-{name}", sized(host=host), 400)
    yield Case("D3-host-twice", sized("Host: localhost"), 400)
    yield Case("D3-host-twice-other", sized("Host: evil.example"), 400)
    yield Case("D3-host-space-before-colon", sized("Host : localhost", host=None), 400)
    for name, host in (
        ("escaped", "local%68ost"),
        ("escaped-utf-8", "l%C3%B6calhost"),
        ("zone", "[fe80::1%25eth0]:80"),
    ):
        yield Case(f"D13-host-{name}", get(host=host), 200, keep=True)
    yield Case("D13-host-five-digit-port", get(host="localhost:65535"), 200, keep=True)
    for name, target in (
        ("other-host", "http://evil.example/healthz"),
        ("userinfo", "http://user@localhost/healthz"),
        ("other-port", "http://localhost:81/healthz"),
        ("other-scheme", "ftp://localhost/healthz"),
        ("no-slash", "http:localhost/healthz"),
        ("no-host", "http:///healthz"),
    ):
        yield Case(f"D3-absolute-{name}", get(target=target), 400)
    yield Case("D3-absolute-same", get(target="http://LOCALHOST/healthz?x"), 200, keep=True)


def starts() -> Iterator[Case]:
    for name, status, wire in (
        ("http09", 400, b"GET /healthz\r\n\r\n"),
        ("http09-host", 400, b"GET /healthz\r\nHost: localhost\r\n\r\n"),
        ("http2", 505, b"GET /healthz HTTP/2.0\r\nHost: localhost\r\n\r\n"),
        ("http12", 505, b"GET /healthz HTTP/1.2\r\nHost: localhost\r\n\r\n"),
        ("http1", 505, b"GET /healthz HTTP/1\r\nHost: localhost\r\n\r\n"),
        ("http01.1", 505, b"GET /healthz HTTP/01.1\r\nHost: localhost\r\n\r\n"),
        ("http1.10", 505, b"GET /healthz HTTP/1.10\r\nHost: localhost\r\n\r\n"),
        ("http1,1", 505, b"GET /healthz HTTP/1,1\r\nHost: localhost\r\n\r\n"),
        ("lower-case", 400, b"GET /healthz http/1.1\r\nHost: localhost\r\n\r\n"),
        ("preface", 505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("rtsp", 400, b"OPTIONS * RTSP/1.0\r\nHost: localhost\r\n\r\n"),
        ("ice", 400, b"GET /healthz ICE/1.0\r\nHost: localhost\r\n\r\n"),
        ("tls", 400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)),
        ("ssh", 400, b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        ("proxy-v1", 400, b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n\r\n"),
        ("proxy-v2", 400, b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c"),
        ("version-space", 400, b"GET /healthz HTTP/1.1 \r\nHost: localhost\r\n\r\n"),
        ("version-tab", 505, b"GET /healthz HTTP/1.1\t\r\nHost: localhost\r\n\r\n"),
        ("two-spaces", 400, b"GET  /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("two-spaces-behind", 400, b"GET /healthz  HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("tabs", 400, b"GET\t/healthz\tHTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("no-target", 400, b"GET HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("no-method", 400, b"/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("leading-space", 400, b" GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("space-in-target", 400, b"GET /health z HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("extra-word", 400, b"GET /healthz HTTP/1.1 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("lower-method", 400, b"get /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("mixed-method", 400, b"GeT /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("unknown-method", 400, b"BREW /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("method-suffix", 400, b"GETX /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("connect", 501, b"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("trace", 501, b"TRACE /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("purge", 501, b"PURGE /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("source", 501, b"SOURCE /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("asterisk-get", 400, b"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("authority-get", 400, b"GET localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("fragment", 400, b"GET /healthz#x HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("fragment-in-query", 400, b"GET /healthz?x#y HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("non-ascii", 400, b"GET /health\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("non-ascii-query", 400, b"GET /healthz?\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("tab-in-query", 400, b"GET /healthz?a\tb HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("nul-in-target", 400, b"GET /healthz\0 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("bare-lf", 400, b"GET /healthz HTTP/1.1\nHost: localhost\n\n"),
        ("bare-cr", 400, b"GET /healthz HTTP/1.1\rHost: localhost\r\r"),
        ("lf-first", 400, b"\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("cr-first", 400, b"\rGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("three-empty-lines", 400, b"\r\n\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("bom", 400, b"\xef\xbb\xbfGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ):
        yield Case(f"D4-{name}", wire, status)
    yield Case("D13-two-empty-lines", b"\r\n\r\n" + get(), 200, keep=True)
    for name, target in (("percent-nul", "/healthz%00"), ("backslash", "/healthz\\"), ("dots", "/v1/../healthz")):
        yield Case(f"D4-{name}-is-another-path", get(target=target), 404, keep=True)
    yield Case("D4-asterisk-options", b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 204, keep=True)


def fields() -> Iterator[Case]:
    for name, line in (
        ("no-colon", "X"),
        ("no-name", ": x"),
        ("space-in-name", "X Y: z"),
        ("tab-before-colon", "X\t: y"),
        ("folded", "X: y\r\n z"),
        ("folded-tab", "X: y\r\n\tz"),
        ("folded-empty", "X: y\r\n \r\nZ: a"),
        ("bracket-in-name", "X(Y): z"),
        ("quote-in-name", 'X"Y: z'),
        ("slash-in-name", "X/Y: z"),
        ("non-ascii-name", "X\xe9: z"),
        ("nul-in-name", "X\x00: z"),
        ("nul-in-value", "X: a\x00b"),
        ("bare-cr-in-value", "X: a\rb"),
        ("bare-lf-in-value", "X: a\nb"),
        ("cr-cr-lf", "X: a\r"),
        ("delete", "X: a\x7f"),
        ("bell", "X: a\x07"),
        ("vertical-tab", "X: a\x0bb"),
        ("escape", "X: \x1b[0m"),
    ):
        yield Case(f"D4-field-{name}", sized(line), 400)
    for name, line in (
        ("obs-text", "X: \xe9\xff"),
        ("all-name-characters", "!#$%&'*+-.^_`|~09azAZ: x"),
        ("empty-value", "X:"),
        ("tab-in-value", "X: a\tb"),
        ("colons", "X: a: b"),
        ("upgrade", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__"),
        ("websocket", "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x"),
        ("connection-lists-length", "Connection: content-length, host, transfer-encoding"),
        ("trailer-announced", "Trailer: content-length"),
        ("te", "TE: trailers, chunked"),
        ("expect-sent-along", "Expect: 100-Continue"),
    ):
        yield Case(f"D4-field-{name}", sized(line), 200, keep=True, served=True)
    for name, status, start in (
        ("404", 404, "POST /nowhere HTTP/1.1"),
        ("405", 405, "DELETE /v1/chat/completions HTTP/1.1"),
    ):
        # No body was asked for, so what follows may be the body or the next request.
        wire = head(f"Content-Length: {len(BODY)}", "Expect: 100-continue", start=start)
        yield Case(f"D4-expect-answered-at-once-{name}", wire, status)
        yield Case(f"D4-expect-answered-at-once-{name}-sent-along", wire + BODY, status)
        yield Case(
            f"D4-expect-answered-at-once-{name}-chunked",
            head("Transfer-Encoding: chunked", "Expect: 100-continue", start=start),
            status,
        )
        yield Case(
            f"D4-expect-answered-at-once-{name}-no-body", head("Expect: 100-continue", start=start), status, True
        )
    yield Case("D4-expect-other", sized("Expect: 200-ok"), 417)
    yield Case("D4-expect-list", sized("Expect: 100-continue, x"), 417)
    yield Case(
        "D4-http10-expect", sized("Expect: 100-continue", start="POST /v1/chat/completions HTTP/1.0"), 200, served=True
    )
    yield Case("D4-close", sized("Connection: x, CLOSE"), 200, served=True)


def chunks() -> Iterator[Case]:
    one = b"%x\r\n%b\r\n" % (N, BODY)
    for name, body in (
        ("plus", b"+5\r\n{    \r\n"),
        ("minus", b"-5\r\n{    \r\n"),
        ("leading-space", b" 5\r\n{    \r\n"),
        ("prefix", b"0x5\r\n{    \r\n"),
        ("underscore", b"1_0\r\n" + b"a" * 16 + b"\r\n"),
        ("empty", b"\r\n{    \r\n"),
        ("only-extension", b";a=b\r\n{    \r\n"),
        ("other-letter", b"g\r\n{    \r\n"),
        ("40-zeros", b"0" * 40 + b"5\r\n{    \r\n"),
        ("17-digits", b"0" * 16 + b"5\r\n{    \r\n"),
        ("2^64", b"10000000000000000\r\n{    "),
        ("2^64-1", b"ffffffffffffffff\r\n{    "),
        ("2^63", b"8000000000000000\r\n{    "),
        ("lf", b"5\n{    \r\n"),
        ("cr", b"5\r{    \r\n"),
        ("nul", b"5\0\r\n{    \r\n"),
        ("comma", b"5,5\r\n{    \r\n"),
        ("word-behind", b"5 5\r\n{    \r\n"),
        ("no-end", b"5\r\n{    0\r\n\r\n"),
        ("lf-end", b"5\r\n{    \n"),
        ("cr-end", b"5\r\n{    \rx"),
        ("too-long", b"5\r\n{    !\r\n"),
        ("extension-lf", b"5;a\n{    \r\n"),
        ("extension-cr", b"5;a\r{    \r\n"),
        ("extension-nul", b"5;a\0\r\n{    \r\n"),
        ("extension-quoted-line-end", b'5;a="\r\n{    \r\n"\r\n'),
        ("extension-100000", b"5;" + b"a" * 100_000 + b"\r\n{    \r\n"),
        ("extension-over-a-line", b"5;" + b"a" * 4095 + b"\r\n{    \r\n"),
        ("extensions-over-all", (b"1;" + b"a" * 4000 + b"\r\n \r\n") * 5),
    ):
        yield Case(f"D6-chunk-{name}", chunked(body=body), 400)
    for name, end in (
        ("folded", b"0\r\nX: y\r\n z\r\n\r\n"),
        ("no-colon", b"0\r\nX\r\n\r\n"),
        ("space-before-colon", b"0\r\nX : y\r\n\r\n"),
        ("lf", b"0\r\nX: y\n\r\n"),
        ("nul", b"0\r\nX: \0\r\n\r\n"),
        ("lf-for-the-last-line", b"0\r\n\n"),
        ("a-request", b"0\r\nPOST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("over-the-limit", b"0\r\n" + b"X: %b\r\n" % (b"a" * 1000) * 9 + b"\r\n"),
    ):
        yield Case(f"D6-trailer-{name}", chunked(end=end), 400)
    many = b"".join(b"1\r\n%c\r\n" % c for c in BODY + b" " * (100_000 - N))
    extended = b"%x;%b\r\n%b\r\n" % (N, b"a" * 4000, BODY)
    for name, body, end, drip in (
        ("upper", b"%X\r\n%b\r\n" % (N, BODY), b"0\r\n\r\n", True),
        ("zeros", b"%016x\r\n%b\r\n" % (N, BODY), b"0000\r\n\r\n", True),
        ("extension", b'%x;a=b; c="d" \r\n%b\r\n' % (N, BODY), b"0;x\r\n\r\n", True),
        ("extension-empty", b"%x;\r\n%b\r\n" % (N, BODY), b"0\r\n\r\n", True),
        ("bad-whitespace", b"%x \t;a\r\n%b\r\n" % (N, BODY), b"0\r\n\r\n", True),
        ("extension-4000", extended, b"0\r\n\r\n", True),
        ("trailers", one, b"0\r\nContent-Length: 3\r\nTransfer-Encoding: gzip\r\nHost: evil\r\nModel: x\r\n\r\n", True),
        ("100000-of-one-byte", many, b"0\r\n\r\n", False),
    ):
        yield Case(f"D6-chunk-{name}-is-right", chunked(body=body, end=end), 200, keep=True, served=True, drip=drip)
    # The size line with its CR may have 4096 bytes, a trailer section 8192 with its empty line.
    line = b"%x;" % N
    exact = line + b"a" * (4096 - len(line)) + b"\r\n%b\r\n" % BODY
    yield Case("D13-chunk-line-of-4096", chunked(body=exact), 200, keep=True, served=True)
    yield Case("D13-chunk-line-of-4097", chunked(body=exact.replace(b";", b";a", 1)), 400)
    trailers = b"X: " + b"a" * (8192 - 3 - 2 - 2) + b"\r\n\r\n"
    yield Case("D13-trailers-of-8192", chunked(end=b"0\r\n" + trailers), 200, keep=True, served=True)
    yield Case("D13-trailers-of-8193", chunked(end=b"0\r\nX" + trailers), 400)
    yield Case("D10-chunk-over-the-limit", chunked(body=b"%x\r\n" % (MAX_BODY_BYTES + 1), end=b" " * 100), 413)


def sizes() -> Iterator[Case]:
    """D11, each at the bound and one more. The Host line and Content-Length count, and so does the empty line."""
    length = f"Content-Length: {N}"
    bare = len(head(length))
    for name, lines in (
        ("value", lambda n: [f"X: {'v' * (n - bare - 5)}"]),
        ("name", lambda n: [f"{'n' * (n - bare - 5)}: v"]),
        ("total", lambda n: ["X: " + "v" * 1000] * 32 + ["Y: " + "v" * (n - bare - 5 - 32 * 1005)]),
    ):
        within, over = head(length, *lines(MAX_HEADER_BYTES)), head(length, *lines(MAX_HEADER_BYTES + 1))
        assert (len(within), len(over)) == (MAX_HEADER_BYTES, MAX_HEADER_BYTES + 1)
        yield Case(f"D11-{name}-at-the-limit", within + BODY, 200, keep=True, served=True)
        yield Case(f"D11-{name}-over-it", over + BODY, 431)
    yield Case("D11-128-fields", head(length, *["X: y"] * 126) + BODY, 200, keep=True, served=True)
    yield Case("D11-129-fields", head(length, *["X: y"] * 127) + BODY, 431)
    path = "/v1/chat/completions?"
    for count, status in ((8192, 200), (8193, 414)):
        target = path + "q" * (count - len(path))
        wire = head(length, start=f"POST {target} HTTP/1.1") + BODY
        yield Case(f"D11-target-of-{count}", wire, status, keep=status == 200, served=status == 200)
    yield Case("D11-endless-line", b"GET /" + b"x" * 100_000, 431)
    yield Case("D11-endless-fields", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000, 431)
    body = b'{"model":"%b"}' % (b"m" * 512)
    yield Case("D13-model-of-512-bytes", head(f"Content-Length: {len(body)}") + body, 404, keep=True)
    body = body.replace(b"m" * 512, b"m" * 513)
    yield Case("D13-model-of-513-bytes", head(f"Content-Length: {len(body)}") + body, 400, keep=True)


CASES = {case.name: case for family in (lengths, codings, hosts, starts, fields, chunks, sizes) for case in family()}


# ---- answers of providers (D15) -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answered:
    """What a provider sends, and what the client sees of it: by default an error of the edge's, 502."""

    name: str
    wire: bytes
    status: int = 502
    body: bytes = b""
    code: str = "provider_protocol_error"  # of that error


OK = b"HTTP/1.1 200 OK\r\n"


def refused_answers() -> Iterator[Answered]:
    for name, wire in (
        ("not-http", b"SSH-2.0-OpenSSH\r\n\r\n"),
        ("http2", b"HTTP/2 200\r\n\r\n"),
        ("http09", b"<html>\r\n\r\n"),
        ("lower-case", b"http/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
        ("switching", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"),
        ("status-0", b"HTTP/1.1 000 X\r\nContent-Length: 0\r\n\r\n"),
        ("status-600", b"HTTP/1.1 600 X\r\nContent-Length: 0\r\n\r\n"),
        ("status-4-digits", b"HTTP/1.1 2000 X\r\nContent-Length: 0\r\n\r\n"),
        ("status-2-digits", b"HTTP/1.1 20 X\r\nContent-Length: 0\r\n\r\n"),
        ("status-word", b"HTTP/1.1 abc X\r\nContent-Length: 0\r\n\r\n"),
        ("status-minus", b"HTTP/1.1 -200 X\r\nContent-Length: 0\r\n\r\n"),
        ("lf", b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}"),
        ("two-lengths", OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
        ("length-twice", OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}"),
        ("length-list", OK + b"Content-Length: 2, 2\r\n\r\n{}"),
        ("length-plus", OK + b"Content-Length: +2\r\n\r\n{}"),
        ("length-minus", OK + b"Content-Length: -2\r\n\r\n{}"),
        ("length-hex", OK + b"Content-Length: 0x2\r\n\r\n{}"),
        ("length-2^64", OK + b"Content-Length: 18446744073709551618\r\n\r\n{}"),
        ("length-and-chunked", OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}"),
        ("gzip-chunked", OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        ("chunked-twice", OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("identity", OK + b"Transfer-Encoding: identity\r\n\r\n{}"),
        ("chunked-http10", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("space-before-colon", OK + b"Content-Length : 2\r\n\r\n{}"),
        ("bare-cr", OK + b"X: a\rSet-Cookie: b\r\nContent-Length: 2\r\n\r\n{}"),
        ("bare-lf", OK + b"X: a\nSet-Cookie: b\r\nContent-Length: 2\r\n\r\n{}"),
        ("nul", OK + b"X: a\0b\r\nContent-Length: 2\r\n\r\n{}"),
        ("space-in-name", OK + b"X Y: a\r\nContent-Length: 2\r\n\r\n{}"),
        ("no-colon", OK + b"X\r\nContent-Length: 2\r\n\r\n{}"),
        ("folded", OK + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}"),
        ("129-fields", OK + b"X: a\r\n" * 128 + b"Content-Length: 2\r\n\r\n{}"),
        ("10-MB-of-fields", OK + b"X: %b\r\n" % (b"a" * 1000) * 10_000 + b"Content-Length: 2\r\n\r\n{}"),
        ("endless-interim", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        ("chunk-word", OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
        ("chunk-minus", OK + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n"),
        ("chunk-lf", OK + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n"),
        ("chunk-2^64", OK + b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n"),
        ("chunk-extension-100000", OK + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"a" * 100_000),
    ):
        yield Answered(f"D15-{name}", wire)


def passed_answers() -> Iterator[Answered]:
    sized = b"Content-Length: 2\r\n\r\n{}"
    for name, wire in (
        ("no-reason", b"HTTP/1.1 200 \r\n" + sized),
        ("odd-reason", "HTTP/1.1 200 Schön & gut\r\n".encode() + sized),
        ("http10", b"HTTP/1.0 200 OK\r\n" + sized),
        ("close", OK + b"Connection: close\r\n" + sized),
        ("length-zeros", OK + b"Content-Length: 0002\r\n\r\n{}"),
        ("128-fields", OK + b"X: a\r\n" * 127 + sized),
        ("obs-text", OK + b"X: \xe9\xff\r\nY:\r\n" + sized),
        ("until-eof", OK + b"\r\n{}"),
        ("interim", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + sized),
        ("chunked-upper", OK + b"Transfer-Encoding: CHUNKED\r\n\r\n1;a=b\r\n{\r\n01\r\n}\r\n0\r\nX: y\r\n\r\n"),
        (
            "trailers",
            OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nSet-Cookie: a\r\nContent-Length: 9\r\n\r\n",
        ),
        ("cookies", OK + b"Set-Cookie: a\r\nSet-Cookie: b\r\nX-Iop-Provider: forged\r\n" + sized),
        ("bytes-behind", OK + sized + OK + b"Content-Length: 4\r\n\r\nevil"),
    ):
        yield Answered(f"D15-{name}", wire, 200, b"{}")
    yield Answered("D15-html", OK + b"Content-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>", 200, b"<html>")
    yield Answered("D15-empty", OK + b"Content-Length: 0\r\n\r\n", 200)
    for status in (204, 304):
        line = b"HTTP/1.1 %d X\r\n" % status
        yield Answered(f"D15-{status}", line + b"\r\n", status)
        yield Answered(f"D15-{status}-length", line + b"Content-Length: 2\r\n\r\n", status)
        yield Answered(f"D15-{status}-body", line + b"Content-Length: 2\r\n\r\n{}", status)
        yield Answered(f"D15-{status}-chunked", line + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", status)
    for status in (301, 302, 303, 307, 308):
        places = b"Location: http://10.0.0.5:8000/x\r\nContent-Location: /x\r\nRefresh: 0; url=/x\r\n"
        yield Answered(
            f"D15-{status}-places", b"HTTP/1.1 %d X\r\n" % status + places + sized, code="provider_redirected"
        )
    for status in (205, 402, 418, 599):
        yield Answered(f"D15-{status}", b"HTTP/1.1 %d X\r\n" % status + sized, status, b"{}")


ANSWERS = {case.name: case for family in (refused_answers, passed_answers) for case in family()}
