"""Any cut of any bytes: the native HTTP framing agrees with regular expressions written from RFC 9112 (API-6)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iop._fast.body import (
    FRAMING_CHUNKED,
    FRAMING_EOF,
    FRAMING_LENGTH,
    BodyDecoder,
    HeadFinder,
    check_header_block,
    filter_headers,
)
from iop.errors import BodyError, HeadError, HeadTooLarge, PayloadTooLarge
from tests.support import oracles

cuts = st.lists(st.integers(0, 1 << 16), max_size=12)


def decode(decoder: BodyDecoder, parts: list[bytes]) -> tuple[bytes, int | None]:
    """(body, bytes used or None while incomplete), however many pieces it takes."""
    body, used = b"", 0
    for part in parts:
        out, taken = decoder.feed(part)
        body += b"".join(out)
        used += taken
        if decoder.done:
            return body, used
        assert taken == len(part)
    return body, None


# Chunked bodies that are right, nearly right, or noise from the same alphabet.
size_line = st.one_of(
    st.from_regex(rb"[0-9a-fA-F]{1,3}([ \t]*;[ a-z=\"]{0,6})?\r\n", fullmatch=True),
    st.sampled_from(
        [b"0\r\n", b"00\r\n", b"5 \r\n", b"5\n", b"\r\n", b"5;\n\r\n", b"-1\r\n", b"0x5\r\n", b"5;a\rb\r\n"]
    ),
    st.sampled_from(
        [b"8000000000000000\r\n", b"7fffffffffffffff\r\n", b"0" * 17 + b"\r\n", b"1" + b"0" * 16 + b"\r\n"]
    ),
)
good_chunk = st.binary(min_size=1, max_size=20).map(lambda data: b"%x\r\n%b\r\n" % (len(data), data))
trailer = st.sampled_from(
    [b"\r\n", b"a: b\r\n\r\n", b"a:\r\nb:c\r\n\r\n", b" a: b\r\n\r\n", b"a : b\r\n\r\n", b"a: b\n\n"]
)
noise = st.binary(max_size=4) | st.text("0aF;\r\n :", max_size=6).map(str.encode)
chunked_body = st.tuples(
    st.lists(good_chunk | size_line | noise, max_size=6).map(b"".join), st.just(b"0\r\n"), trailer, noise
).map(b"".join)


@pytest.mark.req("API-6")
@given(chunked_body, cuts)
@example(b'5;x="a\nb"\r\nhello\r\n0\r\n\r\n', [])
def test_chunked_bodies_decode_as_rfc_9112_says_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    try:
        want = oracles.chunked(data)
    except oracles.Refused:
        with pytest.raises(BodyError):
            decode(BodyDecoder(FRAMING_CHUNKED), oracles.pieces(data, cuts))
        with pytest.raises(BodyError):
            decode(BodyDecoder(FRAMING_CHUNKED), [data])
        return
    assert decode(BodyDecoder(FRAMING_CHUNKED), oracles.pieces(data, cuts)) == want
    assert decode(BodyDecoder(FRAMING_CHUNKED), [data]) == want


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.integers(1, 400), cuts)
def test_a_cap_refuses_a_chunked_body_exactly_above_it(chunks: list[bytes], cap: int, cuts: list[int]) -> None:
    data = b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
    decoder = BodyDecoder(FRAMING_CHUNKED, max_bytes=cap)
    total = len(b"".join(chunks))
    if total > cap:
        with pytest.raises(PayloadTooLarge):
            decode(decoder, oracles.pieces(data, cuts))
    else:
        assert decode(decoder, oracles.pieces(data, cuts)) == (b"".join(chunks), len(data))


@given(st.binary(max_size=200), st.integers(0, 200), cuts)
def test_a_counted_body_is_exactly_its_length(data: bytes, length: int, cuts: list[int]) -> None:
    decoder = BodyDecoder(FRAMING_LENGTH, length)
    if length == 0:
        assert decoder.done
    want = (data[:length], length if length <= len(data) else None)
    parts = [part for part in oracles.pieces(data, cuts) if part] or [b""]
    assert decode(decoder, parts) == want
    assert decoder.eof() is (length <= len(data))


@given(st.binary(max_size=200), cuts)
def test_a_close_delimited_body_is_everything_until_the_close(data: bytes, cuts: list[int]) -> None:
    decoder = BodyDecoder(FRAMING_EOF)
    assert decode(decoder, oracles.pieces(data, cuts)) == (data, None)
    assert decoder.eof()
    assert decoder.done


head_bytes = st.lists(
    st.sampled_from(
        [b"GET / HTTP/1.1", b"\r\n", b"\r\n\r\n", b"a: b", b"\n", b"\r", b" x", b"\xe9", b"\0", b"\t", b"z"]
    ),
    max_size=14,
).map(b"".join)


@pytest.mark.req("API-6")
@given(head_bytes, st.integers(1, 80), cuts)
def test_heads_end_where_rfc_9112_says_however_they_are_cut(data: bytes, max_bytes: int, cuts: list[int]) -> None:
    def find(parts: list[bytes]) -> tuple[bytes | None, int]:
        finder, used = HeadFinder(max_bytes), 0
        for part in parts:
            found, taken = finder.feed(b"skip" + part, 4)
            used += taken
            if found is not None:
                assert finder.pending_bytes == 0
                return found, used
            assert taken == len(part)
        return None, used

    try:
        want = oracles.head(data, max_bytes)
    except oracles.Refused:
        for parts in (oracles.pieces(data, cuts), [data]):
            with pytest.raises(HeadError):
                find(parts)
        return
    assert find(oracles.pieces(data, cuts)) == want
    assert find([data]) == want


field_name = st.from_regex(rb"[a-z0-9!#$%&'*+.^_`|~-]{1,8}", fullmatch=True)
field_value = st.binary(max_size=12).map(lambda raw: bytes(c for c in raw if c == 9 or c in range(32, 127) or c > 127))


@pytest.mark.req("TUN-2", "TUN-9")
@given(
    st.lists(st.tuples(field_name, field_value), max_size=8),
    st.frozensets(field_name, max_size=3),
    st.lists(field_name, max_size=2).map(tuple),
)
def test_header_blocks_keep_order_and_repeats_and_lose_what_is_dropped(
    headers: list[tuple[bytes, bytes]], drop: frozenset[bytes], prefixes: tuple[bytes, ...]
) -> None:
    kept = [(n, v) for n, v in headers if n not in drop and not n.startswith(prefixes)]
    block = filter_headers(headers, drop, prefixes)
    assert block == b"".join(n + b": " + v + b"\r\n" for n, v in kept)
    assert check_header_block(block, len(kept)) == len(kept)
    if kept:
        with pytest.raises(HeadTooLarge):
            check_header_block(block, len(kept) - 1)
