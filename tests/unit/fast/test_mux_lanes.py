"""What a link sends, and in which order: rounds, lanes, bounds and credit (WIRE-5, WIRE-6)."""

from __future__ import annotations

import pytest

from iop._fast import frame
from iop._fast.relay import ClientStream
from tests.support.linkend import KIB, End, Provider, Recorder, congest, framed, source


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
