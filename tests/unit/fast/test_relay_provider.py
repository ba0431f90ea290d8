"""A tunnel's half on the node: frames, pauses and ends of what a provider says (TUN-1, TUN-4, WIRE-5, LIVE-4)."""

from __future__ import annotations

import pytest

from iop._fast import frame
from iop._fast.body import FRAMING_CHUNKED, FRAMING_EOF, FRAMING_LENGTH
from iop._fast.out import Writer
from iop._fast.sse import BOUNDARY, CHAT, FINISH, PREAMBLE, SEMANTIC
from tests.support.halves import BODY, DELTA, DONE, END, ERROR_FRAME, HEAD, ROLE, Node


@pytest.mark.req("TUN-1", "TUN-2")
def test_one_frame_per_read_and_seq_from_0() -> None:
    node = Node(FRAMING_CHUNKED, dialect=CHAT)
    node.stream.feed(b"%x\r\n%b\r\n" % (len(ROLE), ROLE))
    node.stream.feed(b"%x\r\n%b\r\n%x\r\n%b\r\n" % (len(DELTA), DELTA, len(DONE), DONE))
    node.stream.feed(b"0\r\n\r\n")
    assert node.heard == [("end", 0)]
    node.stream.end((1, None, 0, None))
    frames = node.frames()
    assert [(f["seq"], f["kind"]) for f in frames] == [(0, HEAD), (1, BODY), (2, BODY), (3, END)]
    assert frames[0]["status"] == 200
    assert frames[0]["header_block"] == b"a: b\r\n"
    assert [f["body"] for f in frames[1:3]] == [ROLE, DELTA + DONE]
    assert [f["flags"] for f in frames[1:3]] == [PREAMBLE | BOUNDARY, SEMANTIC | FINISH | BOUNDARY]
    assert frames[3]["usage"] == (1, None, 0, None)
    assert node.stream.finished
    assert node.mux.stream_count == 0


@pytest.mark.req("API-8b", "TUN-10")
@pytest.mark.parametrize("framing", [FRAMING_CHUNKED, FRAMING_EOF])
def test_what_the_last_event_means_comes_with_the_end_if_no_blank_line_ended_it(framing: int) -> None:
    node = Node(framing, dialect=CHAT)
    body = DELTA + DONE[:-1]
    node.stream.feed(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if framing == FRAMING_CHUNKED else body)
    if framing == FRAMING_EOF:
        node.stream.eof()
    assert node.heard == [("end", 0)]
    assert node.stream.finished
    node.stream.end((1, None, 0, None))
    _, first, end = node.frames()
    assert (first["flags"], end["flags"], end["usage"]) == (SEMANTIC, FINISH, (1, None, 0, None))


@pytest.mark.req("WIRE-6")
def test_a_read_of_many_chunks_and_a_huge_one_become_frames_of_at_most_64_kib() -> None:
    node = Node(FRAMING_CHUNKED, credit=1 << 20)
    many = b"".join(b"1\r\n%c\r\n" % (65 + n % 26) for n in range(500))
    node.stream.feed(many + b"30000\r\n" + bytes(0x30000) + b"\r\n0\r\n\r\nextra")
    assert node.heard == [("end", 5)]
    node.round()
    frames = [f for f in node.frames() if f["kind"] == BODY]
    assert max(len(f["body"]) for f in frames) <= 65536
    assert b"".join(f["body"] for f in frames) == bytes(65 + n % 26 for n in range(500)) + bytes(0x30000)


@pytest.mark.req("WIRE-5")
def test_without_credit_the_source_stops_and_holds_what_it_read() -> None:
    node = Node(FRAMING_LENGTH, 100_000, credit=10_000)
    node.stream.feed(bytes(60_000))
    assert node.heard == ["pause"]
    assert node.stream.paused
    node.stream.feed(b"\1" * 40_000)  # one more read that was under way
    assert len(node.body()) == 10_000
    assert node.stream.send_credit == 0
    node.mux.feed(frame.encode_credit(1, 45_000))
    assert len(node.body()) == 45_000
    assert node.heard == ["pause"], "still more than the credit"
    node.mux.feed(frame.encode_credit(1, 100_000))
    assert node.body() == bytes(5000) + b"\1" * 40_000
    assert node.heard == ["pause", ("end", 0)]


@pytest.mark.req("LIVE-3", "LIVE-4")
def test_a_pause_is_no_progress_and_what_is_sent_behind_it_is() -> None:
    """Whoever looks after the silence is told of both."""
    node = Node(FRAMING_LENGTH, 100_000, credit=10)
    node.hub.now = 1.0
    node.stream.feed(bytes(20))
    assert node.stream.paused
    node.hub.now = 300.0
    node.mux.feed(frame.encode_credit(1, 10))
    assert node.stream.paused, "what was held is sent, and the credit used up by it"
    assert node.stream.progress_at == 300.0
    node.hub.now = 500.0
    node.mux.feed(frame.encode_credit(1, 1000))
    assert not node.stream.paused
    assert node.stream.progress_at == 300.0
    assert node.heard == ["pause", "resume"]


@pytest.mark.req("TUN-4")
def test_a_provider_that_closes_early_cuts_the_body() -> None:
    for framing, length in ((FRAMING_LENGTH, 10), (FRAMING_CHUNKED, 0)):
        node = Node(framing, length)
        node.stream.feed(b"5\r\nabcde\r\n" if framing == FRAMING_CHUNKED else b"abcde")
        node.stream.eof()
        node.stream.eof()
        assert node.heard == [("error", None)]
        assert node.body() == b"abcde"


def test_a_close_delimited_body_ends_behind_what_waits_for_credit() -> None:
    node = Node(FRAMING_EOF, credit=3)
    node.stream.feed(b"abcdef")
    node.stream.eof()
    assert node.heard == ["pause"]
    node.mux.feed(frame.encode_credit(1, 100))
    assert node.heard == ["pause", ("end", 0)]
    assert node.body() == b"abcdef"


def test_a_malformed_body_is_reported_behind_what_was_good() -> None:
    node = Node(FRAMING_CHUNKED)
    node.stream.feed(b"3\r\nabc\r\nzz\r\n")
    assert node.heard == [("error", "invalid_request_error")]
    node.stream.feed(b"3\r\nabc\r\n")
    assert node.body() == b"abc"


@pytest.mark.req("LIVE-5")
def test_a_fence_lets_only_the_terminal_out() -> None:
    node = Node(FRAMING_LENGTH, 100, credit=10)
    node.stream.feed(bytes(20))
    node.frames()
    node.stream.fence()
    node.stream.feed(bytes(30))
    node.mux.feed(frame.encode_credit(1, 1000))
    node.stream.eof()
    assert node.frames() == []
    assert node.stream.dropped_bytes == 30
    node.stream.send_terminal(frame.encode_tunnel_frame(1, node.stream.next_seq, ERROR_FRAME))
    node.stream.send_terminal(frame.encode_tunnel_frame(1, node.stream.next_seq, ERROR_FRAME))
    node.stream.end()
    assert [f["kind"] for f in node.frames()] == [ERROR_FRAME]
    assert "resume" not in node.heard


@pytest.mark.req("WIRE-5")
def test_a_request_body_is_credited_when_the_providers_socket_took_it() -> None:
    node = Node(FRAMING_EOF)
    writer = Writer(node.hub)
    writer.attach(_Taker())
    node.stream.feeds(writer)
    node.frames()
    for _ in range(3):
        node.mux.feed(frame.encode_tunnel_body(1, bytes(60_000)))
        writer.write(node.heard[-1][0])
    node.round()
    assert [f["bytes"] for f in node.frames()] == [180_000]
    writer.pause()
    for _ in range(3):
        node.mux.feed(frame.encode_tunnel_body(1, bytes(60_000)))
        writer.write(node.heard[-1][0])
    node.round()
    assert node.frames() == []
    writer.resume()
    assert [f["bytes"] for f in node.frames()] == [180_000]
    node.stream.feeds(None)
    node.mux.feed(frame.encode_tunnel_body(1, b"", True))
    assert node.heard[-1] == (b"", True)


class _Taker:
    def write(self, data: bytes) -> None: ...
    def writelines(self, parts: list[bytes]) -> None: ...


@pytest.mark.req("EXEC-5")
def test_usage_is_what_was_reported() -> None:
    node = Node(FRAMING_LENGTH, 30)
    assert node.stream.usage() == ()
    node.stream.feed(b'{"usage":{"total_tokens":3}}  ')
    assert node.stream.usage() == (b'{"total_tokens":3}',)


@pytest.mark.req("WIRE-2")
def test_e4_a_tunnel_frame_to_the_providers_half_is_a_fault() -> None:
    node = Node(FRAMING_EOF)
    node.mux.feed(frame.encode_tunnel_frame(1, 0, BODY, b"x"))
    assert [fault.reason for fault in node.faults] == ["wrong_role"]


def test_on_a_closed_link_everything_is_dropped_quietly() -> None:
    node = Node(FRAMING_EOF)
    node.mux.close()
    node.stream.feed(b"abc")
    node.stream.eof()
    node.stream.head(200, b"")
    node.stream.end()
    assert node.heard == []
    assert node.stream.dropped_bytes == 3
