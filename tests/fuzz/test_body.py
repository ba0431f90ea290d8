"""Hostile HTTP bytes end in a documented error or a result, the same for any cut (API-6)."""

from __future__ import annotations

import pytest

from iop._fast.body import FRAMING_CHUNKED, BodyDecoder, HeadFinder, check_header_block, filter_headers
from iop.errors import BodyError, HeadError, PayloadTooLarge
from tests.fuzz import corpus
from tests.fuzz.fuzzer import fuzz

pytestmark = pytest.mark.req("API-6")


@pytest.mark.parametrize("max_bytes", [0, 12])
def test_chunked_bodies(max_bytes: int) -> None:
    def decode(parts: list[bytes]) -> object:
        decoder, body, used = BodyDecoder(FRAMING_CHUNKED, max_bytes=max_bytes), b"", 0
        try:
            for part in parts:
                out, taken = decoder.feed(part)
                body += b"".join(out)
                used += taken
                if decoder.done:
                    break
                assert taken == len(part)
        except (BodyError, PayloadTooLarge) as error:
            return error.code, getattr(error, "reason", "")
        assert decoder.body_bytes == len(body)
        assert not max_bytes or len(body) <= max_bytes
        return body, used, decoder.done, decoder.eof()

    fuzz(decode, corpus.CHUNKED, corpus.CHUNKED_TOKENS)


@pytest.mark.parametrize("max_bytes", [40, 4096])
def test_heads(max_bytes: int) -> None:
    def find(parts: list[bytes]) -> object:
        finder, used = HeadFinder(max_bytes), 0
        try:
            for part in parts:
                head, taken = finder.feed(part)
                used += taken
                if head is not None:
                    assert len(head) <= max_bytes
                    return head, used
                assert taken == len(part)
        except HeadError as error:
            return error.reason
        return finder.pending_bytes

    fuzz(find, corpus.HEADS, corpus.HEAD_TOKENS)


def test_field_blocks() -> None:
    def check(parts: list[bytes]) -> object:
        block = b"".join(parts)
        try:
            count = check_header_block(block, 50)
        except HeadError as error:
            return error.reason
        fields = [tuple(line.split(b":", 1)) for line in block.split(b"\r\n")[:-1]]
        assert count == len(fields)
        again = filter_headers([(name, value.strip(b" ")) for name, value in fields], frozenset(), ())
        assert check_header_block(again, 50) == count
        return count

    fuzz(check, corpus.BLOCKS, corpus.HEAD_TOKENS)
