"""One link's framing, stream table, lanes and credit, seen from one end (WIRE-1, WIRE-4 … WIRE-6, WIRE-9)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from iop._fast import frame
from iop._fast.body import FRAMING_LENGTH, BodyDecoder
from iop._fast.mux import MAX_STREAM_ID, Mux, Stream
from iop._fast.out import Hub, Writer
from iop._fast.relay import ClientStream, ProviderStream
from iop.errors import ProtocolError

KIB = 1024
HIGH = 128 * KIB


class End:
    """A multiplexer, its poll round, and a transport that takes nothing until told."""

    def __init__(self, *, edge: bool = False, max_frame_bytes: int = 4 << 20, is_open: bool = True) -> None:
        self.ready: list[Callable[[], None]] = []
        self.messages: list[bytes] = []
        self.faults: list[ProtocolError] = []
        self.writes: list[bytes] = []
        self.buffered = 0
        self.hub = Hub(self.ready.append, self._raise)
        self.mux = Mux(self.hub, edge, self.messages.append, self.faults.append, max_frame_bytes)
        self.mux.heartbeat_open = self.mux.data_open = is_open
        self.mux.attach(self)
        self.round()

    def _raise(self, exc: Exception) -> None:
        raise exc

    def round(self) -> None:
        batch, self.ready[:] = self.ready[:], []
        for callback in batch:
            callback()

    # the transport
    def write(self, data: bytes) -> None:
        assert not self.mux.paused, "written although the transport said pause"
        assert self.buffered < HIGH, "fed although 128 KiB are unsent"
        self.writes.append(data)
        self.buffered += len(data)
        if self.buffered > HIGH - 1 and not self.mux.paused:
            self.mux.pause()

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def drain(self, left: int = 0) -> None:
        """The kernel takes everything, or all but ``left`` bytes."""
        self.buffered = left
        if self.mux.paused and self.buffered <= HIGH // 4:
            self.mux.resume()
        self.round()

    def sent(self) -> list[dict[str, Any] | bytes]:
        """What was written, frame by frame, and forgotten: hot ones decoded."""
        data = b"".join(self.writes)
        self.writes.clear()
        return [frame.decode(envelope) or envelope for envelope in frames(data)]

    @property
    def reason(self) -> str:
        assert len(self.faults) == 1, self.faults
        return self.faults[0].reason


def frames(data: bytes) -> list[bytes]:
    out = []
    while data:
        n = int.from_bytes(data[:4], "big")
        out.append(data[4 : 4 + n])
        assert len(out[-1]) == n
        data = data[4 + n :]
    return out


def framed(envelope: bytes) -> bytes:
    return len(envelope).to_bytes(4, "big") + envelope


class Provider:
    """Owner of a ProviderStream; everything it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.body = b""

    def on_request_body(self, data: bytes, last: bool) -> None:
        self.body += data
        self.heard.append(("body", data, last))

    def on_body_end(self, extra_bytes: int) -> None:
        self.heard.append(("end", extra_bytes))

    def on_body_error(self, error: object) -> None:
        self.heard.append(("error", error))

    def pause_source(self) -> None:
        self.heard.append("pause")

    def resume_source(self) -> None:
        self.heard.append("resume")


class Client:
    """Owner of a ClientStream."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_head(self, status: int, header_block: bytes) -> None:
        self.heard.append(("head", status, header_block))

    def on_commit(self) -> None:
        self.heard.append("commit")

    def on_terminal(self, kind: int, usage: Any, failure: Any) -> None:
        self.heard.append(("terminal", kind))


def source(end: End, stream_id: int, owner: Provider | None = None, *, credit: int = 1 << 20) -> ProviderStream:
    """A node's stream with an endless body begun."""
    stream = ProviderStream(owner or Provider())
    end.mux.adopt(stream, stream_id, 256 * KIB, credit)
    stream.begin(BodyDecoder(FRAMING_LENGTH, 1 << 40))
    return stream


# ---- receiving ------------------------------------------------------------------------------------------------------


def conversation() -> tuple[bytes, list[Any]]:
    """A node's half of a conversation: hot frames of every kind, large and small, and cold messages between them."""
    big = random.Random(1).randbytes(60_000)
    cold = framed(b"\x7a\x02\x0a\x00")  # EdgeNodeEvent{draining{}}
    parts = [
        frame.encode_tunnel_frame(1, 0, 1, status=200, header_block=b"a: b\r\n"),
        frame.encode_heartbeat(1),
        cold,
        frame.encode_tunnel_frame(1, 1, 2, b"x", 2),
        frame.encode_tunnel_frame(1, 2, 2, big),
        frame.encode_credit(1, 77),
        cold,
        frame.encode_tunnel_frame(1, 3, 4),
        frame.encode_heartbeat(2, ack=True),
    ]
    return b"".join(parts), parts


class Recorder(Client):
    """Keeps the answer's bytes too."""

    def __init__(self, end: End) -> None:
        super().__init__()
        self.writer = Writer(end.hub)
        self.stream = ClientStream(self.writer, self)
        self.out: list[bytes] = []
        self.writer.attach(self)
        end.mux.open(self.stream, 256 * KIB, 0)

    def on_head(self, status: int, header_block: bytes) -> None:
        super().on_head(status, header_block)
        self.stream.respond(b"HEAD", 2, 0, False)

    def write(self, data: bytes) -> None:
        self.out.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.out.extend(parts)


def heard(pieces: list[bytes]) -> tuple[Any, ...]:
    end = End(edge=True)
    recorder = Recorder(end)
    for piece in pieces:
        end.mux.feed(piece)
    end.round()
    acks = [f for f in end.sent() if isinstance(f, dict) and f["payload"] == frame.HEARTBEAT_ACK]
    assert not end.faults
    return (
        recorder.heard, b"".join(recorder.out), end.messages, acks, end.mux.frames_in, end.mux.last_ack,
        recorder.stream.send_credit, end.mux.stream_count, end.hub.buffered_bytes,
    )  # fmt: skip


@pytest.mark.req("WIRE-1")
def test_e2_split_at_every_byte_offset() -> None:
    data, parts = conversation()
    whole = heard([data])
    assert whole[4] == len(parts)
    assert whole[1] == b"HEADx" + random.Random(1).randbytes(60_000)
    small = len(data) - 60_000
    offsets = [*range(1, small), *range(len(data) - 200, len(data)), *range(small, len(data), 997)]
    for at in offsets:
        assert heard([data[:at], data[at:]]) == whole, at


@pytest.mark.req("WIRE-1")
def test_e2_byte_by_byte() -> None:
    data, _ = conversation()
    assert heard([data[i : i + 1] for i in range(len(data))]) == heard([data])


@pytest.mark.req("WIRE-1")
def test_e2_a_thousand_frames_in_one_segment() -> None:
    parts = [frame.encode_tunnel_frame(1, 0, 1, status=200)]
    parts += [frame.encode_tunnel_frame(1, n, 2, b"%d;" % n) for n in range(1, 1000)]
    whole, singly = heard([b"".join(parts)]), heard(parts)
    assert whole == singly
    assert whole[1] == b"HEAD" + b"".join(b"%d;" % n for n in range(1, 1000))


@pytest.mark.req("WIRE-2", "WIRE-9")
@pytest.mark.parametrize(
    "prefix", [b"\0\0\0\0", b"\xff\xff\xff\xff", (64 * KIB + 1).to_bytes(4, "big"), b"GET ", b"\x16\x03\x01\x02"]
)
@pytest.mark.parametrize("step", [1, 4])
def test_e1_a_bad_length_is_refused_at_its_fourth_byte(prefix: bytes, step: int) -> None:
    end = End(max_frame_bytes=64 * KIB)
    for at in range(0, 4, step):
        end.mux.feed(prefix[at : at + step])
    assert end.reason == "frame_length"
    end.mux.feed(frame.encode_heartbeat(1))
    assert end.mux.frames_in == 0, "heard after the fault"
    assert len(end.faults) == 1


@pytest.mark.req("WIRE-1", "WIRE-9")
def test_the_largest_frame_passes() -> None:
    end = End(max_frame_bytes=64 * KIB)
    envelope = b"\x7a" + b"\0" * (64 * KIB - 1)
    end.mux.feed(framed(envelope))
    assert end.messages == [envelope]


def not_ready(end: End) -> None:
    end.mux.heartbeat_open = end.mux.data_open = False


def pending(end: End) -> None:
    end.mux.data_open = False


NODE_BREAKS = {
    "heartbeat before registration": (not_ready, frame.encode_heartbeat(1), "wrong_state"),
    "body before ready": (pending, frame.encode_tunnel_body(1, b"x"), "wrong_state"),
    "credit before ready": (pending, frame.encode_credit(1, 1), "wrong_state"),
    "a tunnel frame to a node": (None, frame.encode_tunnel_frame(1, 0, 2, b"x"), "wrong_role"),
    "a run event to a node": (None, frame.encode_run_event(1, 0, 2, b"x"), "wrong_role"),
    "stream 0": (None, frame.encode_tunnel_body(0, b"x"), "unknown_stream"),
    "a stream that was never opened": (None, frame.encode_tunnel_body(6, b"x"), "unknown_stream"),
    "credit for one that was never opened": (None, frame.encode_credit(6, 1), "unknown_stream"),
    "more than 64 KiB in a frame": (None, frame.encode_tunnel_body(5, bytes(65_537)), "data_frame_too_large"),
    "no credit at all": (None, frame.encode_credit(5, 0), "credit_overflow"),
    "too much credit": (None, frame.encode_credit(5, 0xFFFF_FFFF), "credit_overflow"),
    "more than the window": (None, frame.encode_tunnel_body(5, bytes(65_536)) * 5, "credit_exceeded"),
}


@pytest.mark.req("WIRE-2", "WIRE-4", "WIRE-5")
@pytest.mark.parametrize("case", NODE_BREAKS)
def test_e4_a_broken_rule_is_a_fault_with_its_reason(case: str) -> None:
    prepare, data, reason = NODE_BREAKS[case]
    end = End()
    source(end, 5)
    if prepare is not None:
        prepare(end)
    end.mux.feed(data)
    assert end.reason == reason


@pytest.mark.req("WIRE-2")
def test_e4_a_request_body_to_an_edge() -> None:
    end = End(edge=True)
    Recorder(end)
    end.mux.feed(frame.encode_tunnel_body(1, b"x"))
    assert end.reason == "wrong_role"


@pytest.mark.req("WIRE-4")
def test_frames_of_an_ended_stream_are_late_and_dropped() -> None:
    end = End()
    stream = source(end, 5)
    end.mux.forget(stream)
    end.mux.feed(frame.encode_tunnel_body(5, b"x") + frame.encode_credit(5, 9) + frame.encode_credit(3, 9))
    assert end.mux.late_frames == 3
    assert not end.faults


@pytest.mark.req("WIRE-4")
def test_ids_count_up_and_are_never_used_twice() -> None:
    end = End(edge=True)
    streams = [Recorder(end).stream for _ in range(3)]
    assert [s.stream_id for s in streams] == [1, 2, 3]
    end.mux.forget(streams[2])
    assert Recorder(end).stream.stream_id == 4


@pytest.mark.req("WIRE-4")
@pytest.mark.parametrize("stream_id", [0, 4, 5, MAX_STREAM_ID + 1])
def test_an_opening_with_an_old_or_impossible_id_is_a_fault(stream_id: int) -> None:
    end = End()
    end.mux.adopt(ProviderStream(Provider()), 5, 1, 1)
    with pytest.raises(ProtocolError, match="stream_id_reused"):
        end.mux.adopt(ProviderStream(Provider()), stream_id, 1, 1)
    assert end.mux.stream_count == 1


@pytest.mark.req("WIRE-4")
def test_ids_run_out() -> None:
    end = End(edge=True)
    end.mux.adopt(Stream(), MAX_STREAM_ID - 1, 1, 1)
    assert Recorder(end).stream.stream_id == MAX_STREAM_ID
    with pytest.raises(OverflowError):
        Recorder(end)
    assert end.mux.stream_count == 2


def test_the_stream_table_is_a_dict() -> None:
    rng = random.Random(3)
    end = End()
    mirror: dict[int, Stream] = {}
    next_id = 0
    for _ in range(6000):
        if mirror and rng.random() < 0.45:
            stream_id = rng.choice(list(mirror)[-300:])
            end.mux.forget(mirror.pop(stream_id))
        else:
            next_id += rng.choice((1, 1, 1, 2, 64, 128))
            mirror[next_id] = stream = Stream()
            end.mux.adopt(stream, next_id, 1, 1)
        probe = rng.choice((rng.randint(1, next_id), next_id))
        assert end.mux.find(probe) is mirror.get(probe)
        assert end.mux.stream_count == len(mirror)
    assert all(end.mux.find(i) is mirror.get(i) for i in range(next_id + 2))
    assert sorted(s.stream_id for s in end.mux.close()) == sorted(mirror)
    assert end.mux.stream_count == 0


# ---- sending --------------------------------------------------------------------------------------------------------


def congest(end: End) -> None:
    """Fills the transport to its mark."""
    filler = source(end, 1)
    while not end.mux.paused:
        filler.feed(bytes(16 * KIB))
        end.round()
    end.writes.clear()


@pytest.mark.req("WIRE-6")
def test_one_write_per_round() -> None:
    end = End()
    streams = [source(end, n) for n in range(1, 51)]
    for stream in streams:
        stream.feed(b"event")
    assert end.writes == []
    end.round()
    assert len(end.writes) == 1
    assert [f["stream_id"] for f in end.sent()] == list(range(1, 51))  # type: ignore[index]


@pytest.mark.req("WIRE-6")
def test_heartbeat_credit_and_goodbye_overtake_bulk() -> None:
    end = End()
    congest(end)
    stream = source(end, 2)
    for _ in range(10):
        stream.feed(bytes(KIB))
    end.mux.heartbeat(7)
    end.mux.send_control(framed(b"\x72\x00"))  # Goodbye
    end.round()
    assert end.writes == [], "the transport said pause"
    end.drain()
    first, second, *rest = end.sent()
    assert first == {"payload": frame.HEARTBEAT, "seq": 7}
    assert second == b"\x72\x00"
    assert {f["stream_id"] for f in rest} == {2}  # type: ignore[index]


@pytest.mark.req("WIRE-6")
def test_nothing_is_written_between_pause_and_resume() -> None:
    end = End()
    congest(end)
    end.mux.heartbeat(1)
    source(end, 2).feed(b"x")
    end.drain(left=100 * KIB)
    assert end.writes == []
    end.drain(left=32 * KIB)
    assert len(end.sent()) == 2


@pytest.mark.req("WIRE-6")
def test_lanes_take_turns_of_16_kib() -> None:
    end = End()
    congest(end)
    bulk, small = source(end, 2), source(end, 3)
    for _ in range(6):
        bulk.feed(bytes(64 * KIB))
    small.feed(b"x")
    end.drain()
    order = [f["stream_id"] for f in end.sent()]  # type: ignore[index]
    assert order.index(3) <= 1, "a small stream waited behind all of a large one"
    for _ in range(10):
        small.feed(bytes(16 * KIB))
    order = []
    while end.mux.queued_bytes:
        end.drain()
        order += [(f["stream_id"], len(f["body"])) for f in end.sent()]  # type: ignore[index]
    share = {2: 0, 3: 0}
    for stream_id, n in order:
        share[stream_id] += n
        if share[3] < 160 * KIB and share[2] < 320 * KIB:
            assert abs(share[2] - share[3]) <= 96 * KIB, "one lane takes more than its turn"


@pytest.mark.req("WIRE-6")
def test_above_1_mib_queued_sources_pause_until_half_is_gone() -> None:
    end = End()
    congest(end)
    owners = [Provider() for _ in range(3)]
    streams = [source(end, 2 + n, owner, credit=1 << 30) for n, owner in enumerate(owners)]
    for _ in range(100):
        for stream, owner in zip(streams, owners, strict=True):
            if owner.heard != ["pause"]:
                stream.feed(bytes(32 * KIB))
    assert all(owner.heard == ["pause"] for owner in owners)
    assert all(stream.blocked for stream in streams)
    assert end.mux.queued_bytes < (1 << 20) + 4 * 64 * KIB
    while not owners[0].heard[1:]:
        queued = end.mux.queued_bytes
        end.drain()
        assert end.mux.queued_bytes < queued
    kept = 3 * 32 * KIB  # what each had read and not sent
    assert end.mux.queued_bytes < (1 << 19) + kept + KIB
    assert all(owner.heard == ["pause", "resume"] for owner in owners)


@pytest.mark.req("WIRE-6")
def test_an_opening_that_was_not_sent_is_taken_back() -> None:
    end = End(edge=True)
    filler = Recorder(end)
    while not end.mux.paused:
        end.mux.send(framed(b"\x3a" + bytes(60_000)), filler.stream)
        end.round()
    gone, kept = Recorder(end), Recorder(end)
    for recorder in (gone, kept):
        end.mux.send(framed(b"opening"), recorder.stream, opening=True)
    before = end.mux.queued_bytes
    assert end.mux.withdraw(gone.stream)
    assert end.mux.queued_bytes == before - len(framed(b"opening"))
    assert end.mux.find(gone.stream.stream_id) is None
    end.writes.clear()
    while end.mux.queued_bytes:
        end.drain()
    assert end.sent().count(b"opening") == 1
    assert not end.mux.withdraw(kept.stream), "it has left"
    assert not end.mux.congested


@pytest.mark.req("WIRE-4", "WIRE-6")
def test_a_stream_that_was_withdrawn_while_blocked_sends_nothing_more() -> None:
    """Found by the session simulation: such a stream's body would go to a node that never heard of the stream."""
    end = End(edge=True)
    filler = Recorder(end)
    while not end.mux.paused:
        end.mux.send(framed(b"\x3a" + bytes(60_000)), filler.stream)
        end.round()
    recorder = Recorder(end)
    stream = ClientStream(recorder.writer, recorder)
    end.mux.open(stream, 256 * KIB, 1 << 30)
    end.mux.send(framed(b"opening"), stream, opening=True)
    stream.send_body([bytes(64 * KIB)] * 40)
    assert stream.blocked
    assert end.mux.withdraw(stream)
    end.writes.clear()
    for _ in range(50):
        end.drain()
    assert not [f for f in end.sent() if isinstance(f, dict)]


@pytest.mark.req("WIRE-6")
def test_a_peer_that_reads_nothing_fills_the_control_lane_and_is_closed() -> None:
    """E6: heartbeats that are answered but never read."""
    end = End()
    congest(end)
    flood = frame.encode_heartbeat(1) * 1000
    for _ in range(1000):
        end.mux.feed(flood)
        if end.faults:
            break
    assert end.reason == "control_lane_full"
    assert end.mux.queued_bytes <= (1 << 20) + 64


@pytest.mark.req("WIRE-5")
def test_credit_returns_in_steps_of_half_a_window() -> None:
    end = End(edge=True)
    recorder = Recorder(end)
    end.mux.feed(frame.encode_tunnel_frame(1, 0, 1, status=200))
    end.round()
    credits = []
    for n in range(1, 41):
        end.mux.feed(frame.encode_tunnel_frame(1, n, 2, bytes(10_000)))
        end.round()
        credits += [f["bytes"] for f in end.sent() if isinstance(f, dict)]
        stream = recorder.stream
        assert stream.allowed + stream.owed == stream.window
        assert end.hub.buffered_bytes == stream.owed
    assert credits == [140_000, 140_000]


@pytest.mark.req("WIRE-5")
def test_a_paused_client_gets_no_credit_back_until_it_resumes() -> None:
    end = End(edge=True)
    recorder = Recorder(end)
    end.mux.feed(frame.encode_tunnel_frame(1, 0, 1, status=200))
    end.round()
    recorder.writer.pause()
    for n in range(1, 5):
        end.mux.feed(frame.encode_tunnel_frame(1, n, 2, bytes(60_000)))
        end.round()
    assert end.sent() == []
    assert end.hub.buffered_bytes == 240_000
    recorder.writer.resume()
    end.round()
    assert [f["bytes"] for f in end.sent()] == [240_000]  # type: ignore[index]
    assert end.hub.buffered_bytes == 0


def test_close_ends_everything() -> None:
    end = End()
    congest(end)
    streams = [source(end, n) for n in range(2, 6)]
    for stream in streams:
        stream.feed(bytes(64 * KIB))
    end.mux.feed(b"\0\0\1\0half a frame")
    closed = end.mux.close()
    assert {s.stream_id for s in closed} == {1, 2, 3, 4, 5}
    assert end.mux.queued_bytes == 0
    assert end.hub.buffered_bytes == 0
    end.writes.clear()
    streams[0].feed(b"more")
    streams[0].end()
    end.mux.heartbeat(1)
    end.mux.feed(frame.encode_heartbeat(1))
    end.round()
    assert end.writes == []
    assert end.mux.frames_in == 0
    with pytest.raises(ConnectionResetError):
        end.mux.send(framed(b"x"))


def test_a_handler_may_close_in_the_middle_of_a_segment() -> None:
    end = End()
    mux = Mux(end.hub, False, lambda envelope: mux.close() and None, end.faults.append, 1 << 20)
    mux.heartbeat_open = True
    beat = frame.encode_heartbeat(1)
    data = beat + framed(b"\x7a\x00") + beat
    mux.feed(data)
    assert mux.frames_in == 2
    mux = Mux(end.hub, False, lambda envelope: mux.close() and None, end.faults.append, 1 << 20)
    for byte in framed(b"\x7a\x00") + beat:
        mux.feed(bytes([byte]))
    assert mux.frames_in == 1
    assert not end.faults
