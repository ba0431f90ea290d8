"""One link's framing, stream table and receiving, seen from one end (WIRE-1, WIRE-2, WIRE-4, WIRE-9)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from iop._fast import frame
from iop._fast.mux import MAX_STREAM_ID, Mux, Stream
from iop._fast.relay import ProviderStream
from iop.errors import ProtocolError
from tests.support.linkend import KIB, End, Provider, Recorder, congest, framed, source


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


# ---- cold messages (WIRE-10) ----------------------------------------------------------------------------------------

COLD = framed(b"\x7a\x02\x0a\x00")  # EdgeNodeEvent{draining{}}


@pytest.mark.req("WIRE-10")
@pytest.mark.parametrize("step", [7, 1 << 20])
def test_a_round_has_room_for_64_cold_messages_and_the_rest_waits_in_order(step: int) -> None:
    end = End(edge=True)
    reading: list[bool] = []
    end.mux.on_reading = reading.append
    data = b"".join(COLD + frame.encode_heartbeat(number) for number in range(1, 201))
    for at in range(0, len(data), step):
        end.mux.feed(data[at : at + step])
    assert (len(end.messages), reading) == (64, [False])
    assert end.mux.bytes_in == len(data)
    rounds = 0
    while reading[-1] is False:
        end.round()
        rounds += 1
        assert 64 * rounds < len(end.messages) <= 64 * (rounds + 1), "nobody goes on"
    assert (len(end.messages), rounds, end.mux.cold_frames) == (200, 3, 200)
    end.round()
    acks = [f["seq"] for f in end.sent() if isinstance(f, dict)]
    assert acks == list(range(1, 201)), "what came between is handled between"
    assert (end.mux.frames_in, end.mux.bytes_in, end.faults) == (400, len(data), [])


@pytest.mark.req("WIRE-10")
def test_each_round_has_its_own_share() -> None:
    end = End(edge=True)
    end.mux.on_reading = lambda on: pytest.fail("the link is read on")
    for _ in range(10):
        end.mux.feed(COLD * 63)
        end.round()
    assert len(end.messages) == 630


@pytest.mark.req("WIRE-10", "WIRE-2")
def test_a_fault_behind_the_share_closes_the_link_when_its_turn_comes() -> None:
    end = End(edge=True)
    end.mux.feed(COLD * 70 + b"\0\0\0\0" + COLD)
    assert end.faults == []
    end.round()
    assert (end.reason, len(end.messages)) == ("frame_length", 70)
    other = End(edge=True)
    other.mux.feed(COLD * 70)
    other.mux.close()
    other.round()
    assert len(other.messages) == 64


@pytest.mark.req("WIRE-10")
def test_what_an_open_stream_bounds_is_no_flood() -> None:
    end = End(edge=True)
    recorder = Recorder(end)
    stream_id = recorder.stream.stream_id
    end.mux.deliver(frame.TUNNEL_FRAME, stream_id, seq=0, kind=1, status=200)
    end.mux.feed(COLD)
    assert end.mux.cold_frames == 1
    end.mux.deliver(frame.TUNNEL_FRAME, stream_id, seq=1, kind=3)
    assert end.mux.cold_frames == 1, "nothing bounds how often usage is told"
    end.mux.deliver(frame.TUNNEL_FRAME, stream_id, seq=2, kind=2, body=b"x")
    assert end.mux.cold_frames == 0, "counted when it came, and taken back"
