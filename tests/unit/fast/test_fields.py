"""Header fields gathered natively."""

from __future__ import annotations

import pytest

from iop._fast.fields import Fields
from iop.errors import HeadError, HeadTooLarge


def test_names_become_lower_case_and_order_and_repeats_are_kept() -> None:
    fields = Fields()
    for name, value in ((b"Host", b"a"), (b"X-A", b"1"), (b"x-a", b"2"), (b"accept", b"*/*")):
        fields.on_header(name, value)
    assert fields.items == [(b"host", b"a"), (b"x-a", b"1"), (b"x-a", b"2"), (b"accept", b"*/*")]
    assert fields.first == {b"host": b"a", b"x-a": b"1", b"accept": b"*/*"}
    assert fields.repeated == [b"x-a"]


def test_a_target_that_comes_in_pieces_is_joined() -> None:
    fields = Fields()
    fields.on_url(b"/v1/")
    fields.on_url(b"models")
    assert fields.target == b"/v1/models"


@pytest.mark.parametrize(
    ("block", "items"),
    [
        (b"", []),
        (b"A: b\r\n", [(b"a", b"b")]),
        (b"a:b\r\nc:\r\n", [(b"a", b"b"), (b"c", b"")]),
        (b"a: \t b c \t\r\n", [(b"a", b"b c")]),
        (b"a: x:y\r\n", [(b"a", b"x:y")]),
        (b"a: \xff\r\n", [(b"a", b"\xff")]),
        (b"a:    \r\nb: 1\r\n", [(b"a", b""), (b"b", b"1")]),
    ],
)
def test_a_block_from_the_wire_is_read_into_trimmed_fields(block: bytes, items: list[tuple[bytes, bytes]]) -> None:
    fields = Fields()
    fields.read_block(block, 10)
    assert fields.items == items


@pytest.mark.req("TUN-9", "WIRE-2")
@pytest.mark.parametrize(
    "block",
    [b"a: b", b"a: b\n", b"a b: c\r\n", b": c\r\n", b"a: b\r\r\n", b"a: \x00\r\n", b"a\r\n", b"\r\n", b"a: b\rc\r\n"],
)
def test_a_block_that_could_forge_a_field_is_refused(block: bytes) -> None:
    with pytest.raises(HeadError):
        Fields().read_block(block, 10)


def test_more_fields_than_allowed_are_refused() -> None:
    Fields().read_block(b"a: b\r\n" * 10, 10)
    with pytest.raises(HeadTooLarge):
        Fields().read_block(b"a: b\r\n" * 11, 10)


def test_names_of_one_letter_change_nothing_but_themselves() -> None:
    """The interpreter shares all bytes objects of length 1: lower-casing one in place would change it for everybody."""
    for code in range(ord("A"), ord("Z") + 1):
        letter = bytes([0, code])[1:]
        fields = Fields()
        fields.on_header(letter, b"x")
        fields.read_block(letter + b": y\r\n", 10)
        assert [name for name, _ in fields.items] == [letter.lower(), letter.lower()]
        assert bytes([0, code])[1:] == bytes([code, 0])[:1]
        assert bytes([0, code])[1:][0] == code
