"""The two halves of a tunnel, each alone: gate and framing for the client, frames and pauses for the provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from iop._fast import frame
from iop._fast.body import FRAMING_CHUNKED, FRAMING_EOF, FRAMING_LENGTH, BodyDecoder
from iop._fast.mux import Mux
from iop._fast.out import Hub, Writer
from iop._fast.relay import BODILESS, CHUNKED, LENGTH, RAW, ClientStream, ProviderStream
from iop._fast.scan import FieldScanner
from iop._fast.sse import BOUNDARY, CHAT, ERROR, FINISH, PREAMBLE, SEMANTIC, EventSplitter
from iop.errors import ProtocolError

HEAD, BODY, USAGE, END, ERROR_FRAME = 1, 2, 3, 4, 5
WINDOW = 1 << 18
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


class World:
    """A multiplexer with a transport that takes everything, and a poll round."""

    def __init__(self, *, edge: bool) -> None:
        self.ready: list[Callable[[], None]] = []
        self.faults: list[ProtocolError] = []
        self.out = b""
        self.hub = Hub(self.ready.append, self._raise)
        self.mux = Mux(self.hub, edge, self._message, self.faults.append, 4 << 20)
        self.mux.heartbeat_open = self.mux.data_open = True
        self.mux.attach(self)
        self.heard: list[Any] = []

    def _raise(self, exc: Exception) -> None:
        raise exc

    def _message(self, envelope: bytes) -> None:
        raise AssertionError(envelope)

    def round(self) -> None:
        batch, self.ready[:] = self.ready[:], []
        for callback in batch:
            callback()

    def write(self, data: bytes) -> None:
        self.out += data

    def writelines(self, parts: list[bytes]) -> None:
        self.out += b"".join(parts)

    def get_write_buffer_size(self) -> int:
        return 0


class Edge(World):
    """One client stream; ``client`` is what reached its socket."""

    def __init__(self, mode: int = RAW, length: int = 0, *, gated: bool = False, respond: bool = True) -> None:
        super().__init__(edge=True)
        self.client = b""
        self.mode, self.length, self.gated, self.respond = mode, length, gated, respond
        self.writer = Writer(self.hub)
        self.writer.attach(_Socket(self))
        self.stream = ClientStream(self.writer, self)
        self.mux.open(self.stream, WINDOW, WINDOW)
        self.seq = 0

    def on_head(self, status: int, header_block: bytes) -> None:
        self.heard.append((status, header_block))
        if self.respond:
            self.stream.respond(b"HEAD|", self.mode, self.length, self.gated)

    def on_commit(self) -> None:
        self.heard.append("commit")

    def on_terminal(self, kind: int, usage: Any, failure: Any) -> None:
        self.heard.append((kind, usage, failure))

    def frame(self, kind: int, body: bytes = b"", flags: int = 0, *, seq: int | None = None) -> None:
        """One frame from the node, in its turn."""
        at = self.seq if seq is None else seq
        self.seq += 1
        self.mux.feed(frame.encode_tunnel_frame(1, at, kind, body, flags, 200 if kind == HEAD else 0))
        self.round()


class _Socket:
    def __init__(self, edge: Edge) -> None:
        self.edge = edge

    def write(self, data: bytes) -> None:
        self.edge.client += data

    def writelines(self, parts: list[bytes]) -> None:
        self.edge.client += b"".join(parts)


class Node(World):
    """One provider stream; ``frames()`` is what the edge would see."""

    def __init__(self, framing: int, length: int = 0, *, credit: int = WINDOW, dialect: int = 0) -> None:
        super().__init__(edge=False)
        self.stream = ProviderStream(self)
        self.mux.adopt(self.stream, 1, WINDOW, credit)
        self.stream.head(200, b"a: b\r\n")
        splitter = EventSplitter(dialect) if dialect else None
        self.fields = None if dialect else FieldScanner(b"usage")
        self.stream.begin(BodyDecoder(framing, length), splitter, self.fields)

    def on_request_body(self, data: bytes, last: bool) -> None:
        self.heard.append((data, last))

    def on_body_end(self, extra_bytes: int) -> None:
        self.heard.append(("end", extra_bytes))

    def on_body_error(self, error: object) -> None:
        self.heard.append(("error", getattr(error, "code", error)))

    def pause_source(self) -> None:
        self.heard.append("pause")

    def resume_source(self) -> None:
        self.heard.append("resume")

    def frames(self) -> list[dict[str, Any]]:
        self.round()
        found, data = [], self.out
        self.out = b""
        while data:
            n = int.from_bytes(data[:4], "big")
            decoded = frame.decode(data[4 : 4 + n])
            assert decoded is not None
            found.append(decoded)
            data = data[4 + n :]
        return found

    def body(self) -> bytes:
        return b"".join(f["body"] for f in self.frames() if f.get("kind") == BODY)


# ---- the client's half ----------------------------------------------------------------------------------------------


@pytest.mark.req("TUN-2")
@pytest.mark.parametrize(
    ("mode", "length", "seen"),
    [
        (RAW, 0, b"HEAD|abcdefgh"),
        (LENGTH, 8, b"HEAD|abcdefgh"),
        (CHUNKED, 0, b"HEAD|3\r\nabc\r\n5\r\ndefgh\r\n0\r\n\r\n"),
        (BODILESS, 0, b"HEAD|"),
    ],
)
def test_how_an_answer_is_framed(mode: int, length: int, seen: bytes) -> None:
    edge = Edge(mode, length)
    edge.frame(HEAD)
    edge.frame(BODY, b"abc")
    edge.frame(BODY, b"defgh")
    edge.frame(END)
    assert edge.stream.finish()
    edge.round()
    assert edge.client == seen
    assert edge.heard == [(200, b""), "commit", (END, None, None)]
    assert edge.mux.stream_count == 0
    assert edge.hub.buffered_bytes == 0


@pytest.mark.parametrize("n", [1, 15, 16, 255, 256, 4095, 65535, 65536])
def test_chunk_sizes(n: int) -> None:
    edge = Edge(CHUNKED)
    edge.frame(HEAD)
    edge.frame(BODY, b"z" * n)
    assert edge.client == b"HEAD|%x\r\n%b\r\n" % (n, b"z" * n)


@pytest.mark.req("API-8b")
def test_a_short_body_is_not_a_good_end() -> None:
    edge = Edge(LENGTH, 9)
    edge.frame(HEAD)
    edge.frame(BODY, b"abc")
    edge.frame(END)
    assert not edge.stream.finish()


@pytest.mark.req("WIRE-2")
def test_a_long_body_is_a_fault_and_not_one_byte_of_it_is_sent() -> None:
    edge = Edge(LENGTH, 2)
    edge.frame(HEAD)
    edge.frame(BODY, b"abc")
    assert [fault.reason for fault in edge.faults] == ["body_too_long"]
    assert edge.client in (b"", b"HEAD|")


@pytest.mark.req("API-7")
@pytest.mark.parametrize("flags", [SEMANTIC, FINISH, PREAMBLE | SEMANTIC, 32])
def test_the_gate_holds_head_and_preamble_until_a_committing_event(flags: int) -> None:
    edge = Edge(gated=True)
    edge.frame(HEAD)
    edge.frame(BODY, ROLE, PREAMBLE | BOUNDARY)
    assert edge.client == b""
    assert edge.stream.held_bytes == len(ROLE)
    assert not edge.stream.committed
    edge.frame(BODY, DELTA, flags)
    assert edge.client == b"HEAD|" + ROLE + DELTA
    assert edge.stream.committed


@pytest.mark.req("API-7")
def test_an_error_after_a_preamble_does_not_commit() -> None:
    edge = Edge(gated=True)
    edge.frame(HEAD)
    edge.frame(BODY, b"data: {}\n\n", ERROR | BOUNDARY)
    edge.frame(ERROR_FRAME)
    assert edge.client == b""
    assert edge.heard[1:] == [(ERROR_FRAME, None, None)]


@pytest.mark.req("API-7")
def test_more_than_16_kib_of_preamble_commits() -> None:
    edge = Edge(gated=True)
    edge.frame(HEAD)
    edge.frame(BODY, b"x" * 16384, PREAMBLE)
    assert not edge.stream.committed
    edge.frame(BODY, b"y", PREAMBLE)
    assert edge.stream.committed
    assert edge.client == b"HEAD|" + b"x" * 16384 + b"y"


@pytest.mark.req("API-7")
def test_a_preamble_that_ends_well_is_delivered() -> None:
    edge = Edge(gated=True)
    edge.frame(HEAD)
    edge.frame(BODY, ROLE, PREAMBLE)
    edge.frame(END)
    assert edge.stream.finish()
    edge.round()
    assert edge.client == b"HEAD|" + ROLE


ORDERS: dict[str, list[tuple[int, bytes, int]]] = {
    "a body first": [(BODY, b"x", 0)],
    "an end first": [(END, b"", 0)],
    "two heads": [(HEAD, b"", 0), (HEAD, b"", 1)],
    "an empty body": [(HEAD, b"", 0), (BODY, b"", 1)],
    "a gap": [(HEAD, b"", 0), (BODY, b"x", 2)],
    "a repeat": [(HEAD, b"", 0), (BODY, b"x", 1), (BODY, b"x", 1)],
    "not from 0": [(HEAD, b"", 1)],
    "an unknown kind": [(HEAD, b"", 0), (6, b"", 1)],
    "kind 0": [(0, b"", 0)],
}


@pytest.mark.req("TUN-1", "WIRE-2")
@pytest.mark.parametrize("case", ORDERS)
def test_e4_frames_out_of_order_are_a_fault(case: str) -> None:
    edge = Edge()
    for kind, body, seq in ORDERS[case]:
        edge.frame(kind, body, seq=seq)
    assert [fault.reason for fault in edge.faults] in (["wrong_state"], ["sequence"], ["unknown_kind"])


@pytest.mark.req("WIRE-2")
def test_e4_a_run_event_of_a_tunnel_is_a_fault() -> None:
    edge = Edge()
    edge.mux.feed(frame.encode_run_event(1, 0, 2, b"x"))
    assert [fault.reason for fault in edge.faults] == ["wrong_state"]


@pytest.mark.req("TUN-1")
def test_nothing_follows_the_terminal() -> None:
    edge = Edge()
    edge.frame(HEAD)
    edge.frame(END)
    edge.frame(END)
    edge.frame(BODY, b"x")
    assert edge.heard == [(200, b""), "commit", (END, None, None)]
    assert edge.mux.late_frames == 2
    assert not edge.faults


@pytest.mark.req("EXEC-7")
def test_after_a_discard_only_the_terminal_counts() -> None:
    edge = Edge(CHUNKED)
    edge.frame(HEAD)
    edge.frame(BODY, b"abc")
    seen = edge.client
    edge.stream.discard()
    for _ in range(4):
        edge.frame(BODY, bytes(60_000))
    assert edge.client == seen
    assert edge.mux.stream_count == 1
    edge.frame(ERROR_FRAME)
    assert edge.heard[-1] == (ERROR_FRAME, None, None)
    assert edge.hub.buffered_bytes == 0


def test_a_discard_before_the_head_hears_only_the_terminal() -> None:
    edge = Edge()
    edge.stream.discard()
    edge.frame(HEAD)
    edge.frame(BODY, b"x")
    edge.frame(END)
    assert edge.heard == [(END, None, None)]
    assert edge.client == b""


def test_commit_without_an_event() -> None:
    edge = Edge(CHUNKED, gated=True)
    edge.stream.commit()
    edge.frame(HEAD)
    edge.stream.commit()
    edge.stream.commit()
    edge.round()
    assert edge.client == b"HEAD|"
    assert edge.heard.count("commit") == 1


@pytest.mark.req("API-8b")
def test_inject_follows_what_the_provider_sent() -> None:
    edge = Edge(CHUNKED)
    edge.frame(HEAD)
    edge.stream.inject(b"not yet")
    edge.frame(BODY, DELTA, SEMANTIC | BOUNDARY)
    assert edge.stream.at_boundary
    edge.frame(ERROR_FRAME)
    edge.stream.inject(b"oops")
    edge.round()
    assert edge.client == b"HEAD|%x\r\n%b\r\n4\r\noops\r\n" % (len(DELTA), DELTA)


@pytest.mark.req("WIRE-5")
def test_a_body_that_the_client_must_not_see_does_not_stop_the_sender() -> None:
    edge = Edge(BODILESS)
    edge.frame(HEAD)
    for _ in range(3):
        edge.frame(BODY, bytes(60_000))
    assert edge.client == b"HEAD|"
    assert edge.hub.buffered_bytes < WINDOW // 2


def test_at_boundary_is_the_last_frames_word() -> None:
    edge = Edge()
    edge.frame(HEAD)
    assert edge.stream.at_boundary
    edge.frame(BODY, DELTA + b"data: {", SEMANTIC)
    assert not edge.stream.at_boundary
    edge.frame(BODY, b"}\n\n", BOUNDARY)
    assert edge.stream.at_boundary
    assert edge.stream.flags_seen == SEMANTIC | BOUNDARY


def test_progress_is_the_hubs_time() -> None:
    edge = Edge()
    edge.hub.now = 5.0
    edge.frame(HEAD)
    edge.hub.now = 7.0
    edge.frame(BODY, b"x")
    assert edge.stream.progress_at == 7.0


@pytest.mark.req("WIRE-5", "WIRE-6")
@pytest.mark.parametrize("cuts", [[200_000], [1, 0, 65_536, 65_537, 68_926], [100_000] * 5])
def test_a_request_body_leaves_as_credit_allows(cuts: list[int]) -> None:
    edge = Edge()
    pieces = [bytes([n]) * size for n, size in enumerate(cuts)]
    total = sum(cuts)
    edge.stream.send_body(pieces)
    sent, lasts = b"", []
    while True:
        edge.round()
        data, edge.out = edge.out, b""
        if not data:
            break
        while data:
            n = int.from_bytes(data[:4], "big")
            chunk = frame.decode(data[4 : 4 + n])
            assert chunk is not None
            assert len(chunk["body"]) <= 65536
            sent += chunk["body"]
            lasts.append(chunk["last"])
            data = data[4 + n :]
        assert len(sent) <= WINDOW + max(0, len(sent) - WINDOW)
        assert edge.stream.send_credit >= 0
        if len(sent) < total:
            edge.mux.feed(frame.encode_credit(1, WINDOW // 2))
    assert sent == b"".join(pieces)
    assert lasts == [False] * (len(lasts) - 1) + [True]


# ---- the provider's half --------------------------------------------------------------------------------------------


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


@pytest.mark.req("LIVE-4")
def test_time_without_credit_does_not_count_as_silence() -> None:
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
    assert node.stream.progress_at == 500.0
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
