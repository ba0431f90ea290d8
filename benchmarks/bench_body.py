"""HTTP framing: native, a plain-Python twin, httptools, and memcpy as the floor."""

from __future__ import annotations

from typing import Any

import httptools
import pytest

from iop._fast.body import FRAMING_CHUNKED, BodyDecoder, HeadFinder, check_header_block, filter_headers

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":" hello"},"finish_reason":null}]}' + b" " * 130 + b"\n\n"
STREAM = b"".join(b"%x\r\n%b\r\n" % (len(EVENT), EVENT) for _ in range(280))  # 64 KiB, one event per chunk
LARGE = b"%x\r\n%b\r\n" % (1 << 18, bytes(1 << 18))
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.example:8080\r\nUser-Agent: OpenAI/Python 2.0.0\r\n"
    b"Accept: application/json\r\nContent-Type: application/json\r\nAuthorization: Bearer sk-0123456789abcdef\r\n"
    b"X-Stainless-Lang: python\r\nX-Stainless-Package-Version: 2.0.0\r\nX-Stainless-OS: Linux\r\n"
    b"X-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\nContent-Length: 312\r\n\r\n"
)
FIELDS = [
    (name.lower(), value) for name, _, value in (line.partition(b": ") for line in HEAD.split(b"\r\n")[1:-2]) if name
]
DROP = frozenset([b"authorization", b"x-api-key", b"cookie", b"host", b"connection", b"content-length", b"expect"])
PREFIXES = (b"proxy-", b"x-forwarded-", b"x-iop-")


def python_chunked(data: bytes) -> bytes:
    """The twin: right for good input only."""
    out, at = [], 0
    while at < len(data):
        eol = data.index(b"\r\n", at)
        size = int(data[at:eol], 16)
        out.append(data[eol + 2 : eol + 2 + size])
        at = eol + 4 + size
    return b"".join(out)


def native_chunked(data: bytes) -> bytes:
    return BodyDecoder(FRAMING_CHUNKED).feed(data)[0][0]


class Collector:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)


def httptools_chunked(data: bytes) -> bytes:
    collector = Collector()
    parser = httptools.HttpRequestParser(collector)
    parser.feed_data(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    parser.feed_data(data)
    return b"".join(collector.parts)


def memcpy(data: bytes) -> bytes:
    return bytes(bytearray(data))


DECODERS = {"native": native_chunked, "python": python_chunked, "httptools": httptools_chunked, "two-memcpys": memcpy}


@pytest.mark.benchmark(group="chunked body, 280 events")
@pytest.mark.parametrize("decoder", DECODERS)
def test_chunked_events(benchmark: Any, decoder: str) -> None:
    out = benchmark(DECODERS[decoder], STREAM)
    assert decoder == "two-memcpys" or out == EVENT * 280


@pytest.mark.benchmark(group="chunked body, one chunk of 256 KiB")
@pytest.mark.parametrize("decoder", DECODERS)
def test_chunked_large(benchmark: Any, decoder: str) -> None:
    benchmark(DECODERS[decoder], LARGE)


def native_head(finder: HeadFinder) -> None:
    finder.feed(HEAD)


def python_head(_: object) -> bytes:
    end = HEAD.find(b"\r\n\r\n") + 4
    if b"\0" in HEAD[:end] or HEAD.count(b"\n", 0, end) != HEAD.count(b"\r\n", 0, end):
        raise ValueError
    return HEAD[:end]


def httptools_head(_: object) -> None:
    httptools.HttpRequestParser(Collector()).feed_data(HEAD)


@pytest.mark.benchmark(group="request head")
@pytest.mark.parametrize("find", [native_head, python_head, httptools_head])
def test_head(benchmark: Any, find: Any) -> None:
    benchmark(find, HeadFinder(32768))


def python_filter() -> bytes:
    return b"".join(n + b": " + v + b"\r\n" for n, v in FIELDS if n not in DROP and not n.startswith(PREFIXES))


@pytest.mark.benchmark(group="header filter")
@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_filter(benchmark: Any, native: bool) -> None:
    out = benchmark(filter_headers, FIELDS, DROP, PREFIXES) if native else benchmark(python_filter)
    assert out == python_filter()


@pytest.mark.benchmark(group="header check")
def test_check(benchmark: Any) -> None:
    assert benchmark(check_header_block, python_filter(), 100) > 5
