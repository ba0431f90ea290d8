"""Event streams read for their data (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop.errors import ProviderProtocolError
from iop.net.http.events import EventReader

STREAM = (
    b"\xef\xbb\xbf: a comment\ndata: one\n\n"
    b"event: x\rdata:two\rdata: more\r\r"
    b"id: 3\r\ndata:  three\r\n\r\n"
    b"data: four\r\ndata: five\r\n\r\n"
    b"data\n\n"
    b"event: no data\n\n"
    b"data: last\n\ndata: never finished"
)
EVENTS = [b"one", b"two\nmore", b" three", b"four\nfive", b"", b"last"]


def read(pieces: list[bytes]) -> list[bytes]:
    reader = EventReader()
    return [data for piece in pieces for data in reader.feed(piece)]


def test_every_line_end_comments_and_several_data_lines() -> None:
    assert read([STREAM]) == EVENTS


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_any_cut_of_the_stream_gives_the_same_events(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(STREAM)]
    assert read([STREAM[a:b] for a, b in itertools.pairwise(at)]) == EVENTS


def test_byte_by_byte() -> None:
    assert read([bytes([byte]) for byte in STREAM]) == EVENTS


@pytest.mark.parametrize("line", [b"data: ", b": "], ids=["data", "comment"])
def test_an_event_is_bounded(line: bytes) -> None:
    with pytest.raises(ProviderProtocolError):
        read([line, *[b"x" * 10_000] * 200])


def test_many_data_lines_of_one_event_are_bounded_together() -> None:
    with pytest.raises(ProviderProtocolError):
        read([b"data: " + b"x" * 10_000 + b"\n"] * 200)


@pytest.mark.parametrize(
    "rest", [b"data: x", b"data: x\n", b"data: x\r", b"data: x\r\n", b"data: x\n\n", b"data: x\r\n\r\n"], ids=repr
)
def test_the_last_event_of_a_whole_body_needs_no_blank_line(rest: bytes) -> None:
    reader = EventReader()
    assert [*reader.feed(b"data: a\n\n" + rest), *reader.end()] == [b"a", b"x"]
    assert EventReader().end() == []
