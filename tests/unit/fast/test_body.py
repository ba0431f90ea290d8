"""HTTP framing at its limits: what is refused, what is not, and that nothing is quadratic (API-6)."""

from __future__ import annotations

import pytest

from iop._fast.body import (
    FRAMING_CHUNKED,
    FRAMING_EOF,
    FRAMING_LENGTH,
    FRAMING_NONE,
    BodyDecoder,
    HeadFinder,
    check_header_block,
    filter_headers,
)
from iop.errors import BodyError, HeadError, HeadTooLarge, PayloadTooLarge

pytestmark = pytest.mark.req("API-6")


def decode(data: bytes, *, drip: bool, max_bytes: int = 0) -> tuple[bytes, bool, int]:
    decoder = BodyDecoder(FRAMING_CHUNKED, max_bytes=max_bytes)
    body, used = b"", 0
    for part in [data[i : i + 1] for i in range(len(data))] if drip else [data]:
        out, taken = decoder.feed(part)
        body += b"".join(out)
        used += taken
    return body, decoder.done, used


whole_and_by_byte = pytest.mark.parametrize("drip", [False, True], ids=["whole", "by-byte"])


@whole_and_by_byte
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"5;" + b"x" * 100_000 + b"\r\n", "chunk_extension_too_long", id="D6-extension-100000"),
        pytest.param(b"0" * 40 + b"5\r\n", "chunk_size", id="D6-40-zeros"),
        pytest.param(b"1" + b"0" * 16 + b"\r\n", "chunk_size", id="D6-size-2^64"),
        pytest.param(b"8000000000000000\r\n", "chunk_size", id="D6-size-2^63"),
        pytest.param(b"5\nhello\r\n", "chunk_size", id="D1-bare-lf-after-size"),
        pytest.param(b"5;a\nhello\r\n", "chunk_extension", id="D1-bare-lf-in-extension"),
        pytest.param(b"5;a\r\r\nhello", "bare_cr", id="D1-bare-cr-in-extension"),
        pytest.param(b"5;\0\r\n", "chunk_extension", id="D1-nul-in-extension"),
        pytest.param(b"5 \r\nhello", "chunk_size", id="D1-space-after-size"),
        pytest.param(b" 5\r\nhello", "chunk_size", id="D1-space-before-size"),
        pytest.param(b"0x5\r\nhello", "chunk_size", id="D1-hex-prefix"),
        pytest.param(b"+5\r\nhello", "chunk_size", id="D1-sign"),
        pytest.param(b"5_0\r\nhello", "chunk_size", id="D1-underscore"),
        pytest.param(b"\r\nhello", "chunk_size", id="D1-no-size"),
        pytest.param(b"5\r\nhelloX\r\n", "chunk_end", id="D1-chunk-longer-than-said"),
        pytest.param(b"5\r\nhello\n0\r\n\r\n", "chunk_end", id="D1-bare-lf-after-chunk"),
        pytest.param(b"5\r\nhello\rX", "chunk_end", id="D1-bare-cr-after-chunk"),
        pytest.param(b"0\r\n folded: x\r\n\r\n", "trailer", id="D1-folded-trailer"),
        pytest.param(b"0\r\nGET / HTTP/1.1\r\n\r\n", "trailer", id="D1-request-as-trailer"),
        pytest.param(b"0\r\na: \x01\r\n\r\n", "trailer", id="D1-control-in-trailer"),
        pytest.param(b"0\r\n" + b"a: b\r\n" * 1400 + b"\r\n", "trailer_too_long", id="D6-trailers-over-8-KiB"),
        pytest.param((b"1;" + b"e" * 4000 + b"\r\nx\r\n") * 5, "chunk_extension_too_long", id="D6-many-extensions"),
    ],
)
def test_a_chunked_body_that_two_parsers_could_read_differently_is_refused(
    data: bytes, reason: str, drip: bool
) -> None:
    with pytest.raises(BodyError) as caught:
        decode(data, drip=drip)
    assert caught.value.reason == reason
    assert caught.value.status == 400


def test_a_refused_body_stays_refused() -> None:
    decoder = BodyDecoder(FRAMING_CHUNKED)
    for data in (b"zz", b"0\r\n\r\n", b""):
        with pytest.raises(BodyError):
            decoder.feed(data)
    assert not decoder.done
    assert not decoder.eof()


@whole_and_by_byte
def test_d6_100000_one_byte_chunks_are_a_body_like_any_other(drip: bool) -> None:
    data = b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n"
    assert decode(data, drip=drip) == (b"x" * 100_000, True, len(data))


def test_d6_small_chunks_of_one_read_become_one_piece() -> None:
    assert len(BodyDecoder(FRAMING_CHUNKED).feed(b"1\r\nx\r\n" * 10_000)[0]) == 1


@whole_and_by_byte
def test_extensions_and_trailers_within_bounds_are_discarded(drip: bool) -> None:
    data = b'5;a=b;c="d e" \r\nhello\r\n000A \t;x\r\n0123456789\r\n0\r\nX-Sum: 1\r\nY:\t\xe9\r\n\r\nGET / '
    body, done, _ = decode(data[: data.index(b"GET")], drip=drip)
    assert (body, done) == (b"hello0123456789", True)
    assert BodyDecoder(FRAMING_CHUNKED).feed(data)[1] == data.index(b"GET")


@whole_and_by_byte
def test_the_cap_is_exact_and_known_from_the_size_line(drip: bool) -> None:
    assert decode(b"5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n", drip=drip, max_bytes=10)[0] == b"helloworld"
    with pytest.raises(PayloadTooLarge) as caught:
        decode(b"5\r\nhello\r\n6\r\n", drip=drip, max_bytes=10)
    assert caught.value.status == 413


def test_a_length_over_the_cap_is_refused_before_any_byte() -> None:
    BodyDecoder(FRAMING_LENGTH, 10, 10)
    with pytest.raises(PayloadTooLarge):
        BodyDecoder(FRAMING_LENGTH, 11, 10)


def test_a_close_delimited_body_is_capped() -> None:
    decoder = BodyDecoder(FRAMING_EOF, max_bytes=3)
    assert decoder.feed(b"abc") == ([b"abc"], 3)
    with pytest.raises(PayloadTooLarge):
        decoder.feed(b"d")


@pytest.mark.req("TUN-4")
def test_the_end_of_the_connection_completes_only_a_body_that_says_so() -> None:
    assert BodyDecoder(FRAMING_EOF).eof()
    assert BodyDecoder(FRAMING_NONE).eof()
    assert BodyDecoder(FRAMING_LENGTH, 0).eof()
    assert not BodyDecoder(FRAMING_LENGTH, 1).eof()
    chunked = BodyDecoder(FRAMING_CHUNKED)
    chunked.feed(b"5\r\nhello\r\n0\r\n")
    assert not chunked.eof()


def test_a_whole_piece_is_passed_on_uncopied() -> None:
    data = bytes(1000)
    assert BodyDecoder(FRAMING_LENGTH, 5000).feed(data)[0][0] is data


def test_an_unknown_framing_is_a_fault_of_ours() -> None:
    with pytest.raises(ValueError, match="framing"):
        BodyDecoder(7)


# ---- heads ----------------------------------------------------------------------------------------------------------

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-A: caf\xc3\xa9\t!\r\n\r\n"


def find(data: bytes, max_bytes: int, *, drip: bool) -> tuple[bytes | None, int]:
    finder, used = HeadFinder(max_bytes), 0
    for part in [data[i : i + 1] for i in range(len(data))] if drip else [data]:
        head, taken = finder.feed(part)
        used += taken
        if head is not None:
            return head, used
    return None, used


@whole_and_by_byte
def test_a_head_is_found_behind_empty_lines_and_before_the_body(drip: bool) -> None:
    assert find(HEAD + b"body", 1000, drip=drip) == (HEAD, len(HEAD))
    assert find(b"\r\n\r\n" + HEAD, 1000, drip=drip) == (HEAD, 4 + len(HEAD))


@whole_and_by_byte
def test_d11_a_head_of_exactly_the_limit_passes_and_one_byte_more_is_431(drip: bool) -> None:
    assert find(HEAD, len(HEAD), drip=drip)[0] == HEAD
    with pytest.raises(HeadTooLarge) as caught:
        find(HEAD, len(HEAD) - 1, drip=drip)
    assert (caught.value.status, caught.value.code) == (431, "head_too_large")


@whole_and_by_byte
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01", "bad_start", id="D4-tls-client-hello"),
        pytest.param(b"\r\n\r\n\r\nGET / HTTP/1.1\r\n\r\n", "bad_start", id="three-empty-lines"),
        pytest.param(b" GET / HTTP/1.1\r\n\r\n", "bad_start", id="space-before-request"),
        pytest.param(b"GET / HTTP/1.1\nHost: x\n\n", "control_character", id="D1-bare-lf"),
        pytest.param(b"GET / HTTP/1.1\r\nA: b\rHost: x\r\n\r\n", "bare_cr", id="D1-bare-cr"),
        pytest.param(b"GET / HTTP/1.1\r\nA: b\0\r\n\r\n", "control_character", id="nul"),
        pytest.param(b"GET / HTTP/1.1\r\nA: \x7f\r\n\r\n", "control_character", id="del"),
        pytest.param(b"GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", "folded_line", id="D1-folded"),
        pytest.param(b"GET / HTTP/1.1\r\n\tHost: x\r\n\r\n", "folded_line", id="D1-folded-first-field"),
        pytest.param(b"\nGET / HTTP/1.1\r\n\r\n", "bad_start", id="lf-before-request"),
        pytest.param(b"\rGET / HTTP/1.1\r\n\r\n", "bare_cr", id="cr-before-request"),
        pytest.param(b"GET / HTTP/1.1\r\n\nX: y\r\n\r\n", "control_character", id="lf-as-blank-line"),
        pytest.param(b"GET / HTTP/1.1\r\n\rX: y\r\n\r\n", "bare_cr", id="cr-as-blank-line"),
    ],
)
def test_a_head_with_stray_controls_or_folded_lines_is_refused(data: bytes, reason: str, drip: bool) -> None:
    with pytest.raises(HeadError) as caught:
        find(data, 1000, drip=drip)
    assert caught.value.reason == reason
    assert caught.value.status == 400


def test_a_finder_serves_one_head_after_the_other_and_can_start_afresh() -> None:
    finder = HeadFinder(1000)
    data = HEAD + HEAD[:20]
    head, used = finder.feed(data)
    assert head == HEAD
    assert finder.feed(data, used) == (None, 20)
    assert finder.pending_bytes == 20
    assert finder.feed(HEAD[20:]) == (HEAD, len(HEAD) - 20)
    with pytest.raises(HeadError):
        finder.feed(b"\0")
    with pytest.raises(HeadError):
        finder.feed(HEAD)
    finder.reset()
    assert finder.feed(HEAD)[0] == HEAD
    with pytest.raises(ValueError, match="offset"):
        finder.feed(b"abc", 4)


def test_d11_a_dripped_megabyte_head_costs_linear_time() -> None:
    """A finder that rescans, or hands a parser the pieces, would look at 10^12 bytes here and never end."""
    finder = HeadFinder(1 << 20)
    assert finder.feed(b"GET / HTTP/1.1\r\nA: ") == (None, 19)
    for _ in range((1 << 20) - 23):
        finder.feed(b"x")
    head, _ = finder.feed(b"\r\n\r\n")
    assert head is not None
    assert len(head) == 1 << 20


# ---- field blocks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        *(b"a: b", b"a: b\r", b"a b: c\r\n", b": c\r\n", b"a : b\r\n", b"a: b\n", b"a: b\r\n\r\n", b"a: \0\r\n"),
        *(b" a: b\r\n", b"a: b\r\n c\r\n", b"a\r\n", b"a: b\rc: d\r\n", b"a\xe9: b\r\n"),
    ],
)
def test_d15_a_block_that_is_not_whole_field_lines_never_reaches_a_socket(block: bytes) -> None:
    with pytest.raises(HeadError):
        check_header_block(block, 100)


def test_field_counts_are_exact() -> None:
    assert check_header_block(b"", 0) == 0
    assert check_header_block(b"a: b\r\nc:\r\n", 2) == 2
    with pytest.raises(HeadTooLarge):
        check_header_block(b"a: b\r\nc:\r\n", 1)


@pytest.mark.req("TUN-9")
def test_d15_a_field_that_would_forge_another_one_is_refused() -> None:
    for name, value in ((b"a", b"b\r\nset-cookie: x"), (b"a\r\nb", b"c"), (b"", b"c"), (b"a", b"\0")):
        with pytest.raises(HeadError):
            filter_headers([(name, value)], frozenset(), ())
    assert filter_headers([(b"a", b"b\r\n")], frozenset([b"a"]), ()) == b""
