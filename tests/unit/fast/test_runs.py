"""The two halves of a normalized run, joined by a link that delivers what both write (EXEC-1, WIRE-5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from iop._fast import frame
from iop._fast.mux import Mux
from iop._fast.out import Hub, Writer
from iop._fast.runs import RunSink, RunSource
from iop.errors import ProtocolError
from iop.wire import codec
from iop.wire import messages as m

K = m.RunEventKind
WINDOW = 32 * 1024  # the smallest that an edge gives


class End:
    """One multiplexer; what it writes waits in ``out`` until :meth:`Pair.carry`."""

    def __init__(self, *, edge: bool) -> None:
        self.ready: list[Callable[[], None]] = []
        self.faults: list[ProtocolError] = []
        self.out: list[bytes] = []
        self.hub = Hub(self.ready.append, self._raise)
        self.mux = Mux(self.hub, edge, self._message, self.faults.append, 4 << 20)
        self.mux.heartbeat_open = self.mux.data_open = True
        self.mux.attach(self)

    def _raise(self, exc: Exception) -> None:
        raise exc

    def _message(self, envelope: bytes) -> None:
        hot = codec.decode(envelope)
        assert isinstance(hot, codec.HotFrame)
        self.mux.deliver(hot.payload, **hot.fields)

    def write(self, data: bytes) -> None:
        self.out.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.out += parts

    def get_write_buffer_size(self) -> int:
        return 0

    def flushed(self) -> list[bytes]:
        batch, self.ready[:] = self.ready[:], []
        for callback in batch:
            callback()
        out, self.out = self.out, []
        return out


class Client:
    """The transport of whoever the edge writes the events to; it takes everything."""

    def write(self, data: bytes) -> None: ...

    def writelines(self, parts: list[bytes]) -> None: ...


class Pair:
    """One run between an edge and a node. ``heard`` is what each owner was told."""

    def __init__(self, window: int = WINDOW) -> None:
        self.edge, self.node = End(edge=True), End(edge=False)
        self.heard: list[Any] = []
        self.asked: list[Any] = []
        self.resumed = 0
        self.fail_next = False
        self.sink, self.source = RunSink(self), RunSource(self)
        self.edge.mux.open(self.sink, window, 1 << 18)
        self.node.mux.adopt(self.source, 1, 1 << 18, window)

    def carry(self) -> None:
        """Delivers until both are quiet."""
        while True:
            up, down = self.node.flushed(), self.edge.flushed()
            if not up and not down:
                return
            for data in up:
                self.edge.mux.feed(data)
            for data in down:
                self.node.mux.feed(data)

    def event(self, kind: K, **fields: Any) -> None:
        self.source.event(kind, codec.run_event(1, self.source.next_seq, m.RunEvent(kind, **fields)))

    # the two owners

    def on_event(self, kind: int, text: bytes, extra: Any) -> None:
        if self.fail_next:
            raise ValueError
        self.heard.append((K(kind), text, extra))

    def on_broken(self, exc: Exception, ended: bool = False) -> None:
        self.heard.append((type(exc), ended))

    def on_lost(self) -> None:
        self.heard.append("lost")

    def on_request_body(self, data: bytes, last: bool) -> None:
        self.asked.append((data, last))

    def resume_source(self) -> None:
        self.resumed += 1


@pytest.mark.req("EXEC-1")
def test_events_arrive_whole_and_in_order() -> None:
    pair = Pair()
    usage = (7, None, 0, 3)
    failure = m.ExecutionFailure(m.ErrorCode.PROVIDER_TRUNCATED, close_confirmed=True, message=b"cut")
    pair.event(K.START, session_id=b"s-1")
    pair.source.text(K.DELTA, b"hello")
    pair.event(K.TOOL_CALL_DELTA, text=b'{"a"', tool_index=2, tool_call_id=b"c1", tool_name=b"f")
    pair.source.text(K.REASONING_DELTA, "ü".encode())
    pair.event(K.USAGE, usage=usage)
    pair.event(K.ERROR, failure=failure)
    pair.carry()
    assert [(kind, text) for kind, text, _ in pair.heard] == [
        (K.START, b""), (K.DELTA, b"hello"), (K.TOOL_CALL_DELTA, b'{"a"'), (K.REASONING_DELTA, "ü".encode()),
        (K.USAGE, b""), (K.ERROR, b""),
    ]  # fmt: skip
    extras = [extra for _, _, extra in pair.heard]
    assert extras[0].session_id == b"s-1"
    assert extras[1] is None
    assert (extras[2].tool_index, extras[2].tool_call_id, extras[2].tool_name) == (2, b"c1", b"f")
    assert extras[4].usage == usage
    assert extras[5].failure == failure
    assert pair.edge.mux.stream_count == pair.node.mux.stream_count == 0


@pytest.mark.req("EXEC-2")
def test_nothing_follows_a_terminal() -> None:
    pair = Pair()
    pair.event(K.START)
    pair.event(K.COMPLETE, finish_reason=b"stop")
    pair.event(K.ERROR)
    pair.source.text(K.DELTA, b"late")
    pair.carry()
    assert [kind for kind, _, _ in pair.heard] == [K.START, K.COMPLETE]
    assert pair.edge.faults == []
    assert pair.edge.mux.late_frames == 0, "the node sent it all the same"


@pytest.mark.req("WIRE-5")
def test_a_long_delta_travels_in_parts_and_is_never_more_than_the_credit() -> None:
    pair = Pair()
    writer = Writer(pair.edge.hub)  # whom the edge writes the events to: it has not taken any yet
    pair.sink.feeds(writer)
    text = bytes(range(256)) * 400
    pair.event(K.START)
    pair.source.text(K.DELTA, text)
    pair.event(K.COMPLETE)
    assert not pair.source.ready
    pair.carry()
    got = b"".join(body for _, body, _ in pair.heard)
    assert 3 * 8192 <= len(got) <= WINDOW
    assert text.startswith(got)
    assert pair.heard[-1][0] is K.DELTA  # the terminal keeps its place behind what waits
    assert pair.source.paused
    writer.attach(Client())  # it takes everything now
    for _ in range(8):
        writer.write(b"x")
        pair.edge.flushed()
        pair.carry()
    assert b"".join(body for _, body, _ in pair.heard) == text
    assert pair.heard[-1][0] is K.COMPLETE
    assert pair.edge.hub.buffered_bytes == 0


@pytest.mark.req("WIRE-5")
def test_events_of_both_codecs_cost_the_same_credit_at_both_ends() -> None:
    """A megabyte through the smallest window, in turns text alone and text with a session: nothing leaks or sticks."""
    pair = Pair()
    pair.event(K.START)
    sent = []
    for n in range(400):
        text = b"%d:" % n + bytes(n * 13 % 8000)
        sent.append(text)
        if n % 2:
            pair.source.text(K.DELTA, text)
        else:
            pair.event(K.DELTA, text=text, session_id=b"s")
        pair.carry()
    pair.event(K.COMPLETE)
    pair.carry()
    assert [text for kind, text, _ in pair.heard if kind is K.DELTA] == sent
    assert pair.heard[-1][0] is K.COMPLETE
    assert pair.edge.faults == pair.node.faults == []


@pytest.mark.req("LIVE-4")
def test_the_source_is_told_when_it_may_go_on() -> None:
    pair = Pair()
    writer = Writer(pair.edge.hub)
    pair.sink.feeds(writer)
    pair.event(K.START)
    assert pair.source.ready
    assert not pair.source.paused
    while pair.source.ready:
        pair.source.text(K.DELTA, bytes(8000))
    pair.carry()
    assert pair.resumed == 0
    writer.write(b"x")
    writer.attach(Client())
    pair.edge.flushed()
    pair.carry()
    assert pair.resumed == 1
    assert not pair.source.paused


@pytest.mark.req("WIRE-5")
def test_an_input_above_64_kib_arrives_in_pieces_under_credit() -> None:
    pair = Pair()
    given = bytes(range(251)) * 3000
    pair.sink.send_body([given])
    pair.carry()
    assert b"".join(data for data, _ in pair.asked) == given
    assert [last for _, last in pair.asked] == [False] * (len(pair.asked) - 1) + [True]


@pytest.mark.req("EXEC-7")
def test_a_listener_that_left_hears_only_the_terminal_and_holds_up_nothing() -> None:
    pair = Pair()
    writer = Writer(pair.edge.hub)
    pair.sink.feeds(writer)
    pair.event(K.START)
    pair.source.text(K.DELTA, bytes(200_000))
    pair.carry()
    before = len(pair.heard)
    pair.sink.discard()
    pair.carry()
    pair.source.fence()
    pair.event(K.CANCELLED)
    pair.carry()
    assert [kind for kind, _, _ in pair.heard[before:]] == [K.CANCELLED]
    assert pair.edge.hub.buffered_bytes == 0


@pytest.mark.req("EXEC-1")
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame.encode_run_event(1, 1, K.DELTA, b"x"), "sequence"),
        (frame.encode_run_event(1, 0, 9, b"x"), "unknown_kind"),
        (frame.encode_run_event(1, 0, 0, b"x"), "unknown_kind"),
        (frame.encode_tunnel_frame(1, 0, 1, b"", 0, 200), "wrong_state"),
        (frame.encode_run_event(1, 0, K.DELTA, bytes(60_000)), "credit_exceeded"),
    ],
    ids=["gap", "kind 9", "kind 0", "a tunnel's frame", "beyond the credit"],
)
def test_a_node_that_breaks_the_order_loses_its_link(data: bytes, reason: str) -> None:
    pair = Pair()
    pair.edge.mux.feed(data)
    assert [fault.reason for fault in pair.edge.faults] == [reason]
    assert pair.heard == []


def test_a_fault_of_the_owner_is_told_and_the_link_goes_on() -> None:
    pair = Pair()
    pair.fail_next = True
    pair.event(K.START)
    pair.carry()
    pair.event(K.COMPLETE)
    pair.carry()
    assert pair.heard == [(ValueError, False), (ValueError, True)]
    assert pair.edge.faults == []


def test_a_lost_link_is_told_once() -> None:
    pair = Pair()
    for stream in pair.edge.mux.close():
        assert stream is pair.sink
        pair.sink.lost()
    pair.sink.lost()
    assert pair.heard == ["lost"]
