"""When a connection is dead: heartbeats, deadlines of the handshake, bytes that do not leave (WIRE-6, WIRE-7, REG)."""

from __future__ import annotations

import pytest

from iop._fast import frame
from iop._fast.out import Writer
from iop._fast.relay import ClientStream
from iop.wire import messages as m
from iop.wire.session import State
from tests.support.sessionside import (
    BEAT,
    EVENT,
    MAKE,
    REGISTER,
    START,
    edge_side,
    node_side,
    padded,
)


@pytest.mark.req("WIRE-7")
@pytest.mark.parametrize("end", MAKE)
@pytest.mark.parametrize("state", [State.PENDING, State.READY])
def test_a_heartbeat_every_30_s(end: str, state: State) -> None:
    side = MAKE[end](state)
    side.sent()
    beats: list[float] = []

    def watch() -> None:
        if any(isinstance(f, dict) and f["payload"] == frame.HEARTBEAT for f in side.sent()):
            beats.append(side.now)
        side.feed(frame.encode_heartbeat(1, ack=True))

    side.pass_time(59 if state is State.PENDING else 200, every=watch)
    assert side.ends == []
    gaps = [b - a for a, b in zip([START, *beats], beats, strict=False)]
    assert gaps
    assert all(30 <= gap <= 31 for gap in gaps)


@pytest.mark.req("WIRE-7")
@pytest.mark.parametrize("end", MAKE)
def test_a_heartbeat_is_answered_at_once_with_its_number(end: str) -> None:
    side = MAKE[end]()
    side.feed(frame.encode_heartbeat(77))
    assert side.sent() == [{"payload": frame.HEARTBEAT_ACK, "seq": 77}]
    side.feed(frame.encode_heartbeat(78, ack=True))
    assert side.session.mux.last_ack == 78
    assert side.sent() == []


@pytest.mark.req("WIRE-7")
@pytest.mark.parametrize("end", MAKE)
def test_dead_45_s_after_the_last_frame(end: str) -> None:
    side = MAKE[end]()
    side.pass_time(20)
    side.feed(EVENT)
    side.pass_time(44.5)
    assert side.ends == []
    side.pass_time(1.5)
    assert side.ends == ["heartbeat_timeout"]
    assert side.session.state is State.CLOSED


@pytest.mark.req("WIRE-7")
@pytest.mark.parametrize("kind", [BEAT, EVENT, frame.encode_heartbeat(3, ack=True)], ids=["beat", "event", "ack"])
def test_any_frame_keeps_it_alive(kind: bytes) -> None:
    side = edge_side()
    side.pass_time(300, step_s=1, every=lambda: side.feed(kind) if side.now % 44 == 0 else None)
    assert side.ends == []


@pytest.mark.req("WIRE-7")
def test_half_a_frame_that_drips_does_not() -> None:
    side = edge_side()
    side.feed(b"\0\1\0\0")
    side.pass_time(100, step_s=0.5, every=lambda: side.feed(b"x"))
    assert side.ends == ["heartbeat_timeout"]
    assert side.now - START <= 46


@pytest.mark.req("WIRE-7")
def test_a_late_frame_of_an_ended_stream_counts_too() -> None:
    side = edge_side()
    stream = ClientStream(Writer(side.hub), None)  # type: ignore[arg-type]
    side.session.mux.open(stream, 1000, 0)
    side.session.mux.forget(stream)
    side.pass_time(100, step_s=1, every=lambda: side.feed(frame.encode_credit(1, 5)))
    assert side.ends == []


@pytest.mark.req("REG-2")
def test_a_probe_is_a_heartbeat_out_of_turn() -> None:
    side = edge_side()
    before = side.session.mux.bytes_in
    assert side.session.probe() == before
    assert side.sent() == [{"payload": frame.HEARTBEAT, "seq": 1}]


@pytest.mark.req("REG-1")
def test_register_must_come_within_10_s() -> None:
    side = edge_side(State.CONNECTED)
    side.pass_time(9.5)
    assert side.ends == []
    side.pass_time(1)
    assert side.ends == ["register_timeout"]


@pytest.mark.req("REG-1")
def test_a_dripped_registration_does_not_buy_time() -> None:
    side = edge_side(State.CONNECTED)
    data = iter(padded(REGISTER, 10_000))
    side.pass_time(20, every=lambda: side.feed(bytes([next(data)])))
    assert side.ends == ["register_timeout"]
    assert side.now - START <= 10.5


def test_while_the_answer_is_withheld_no_clock_runs() -> None:
    side = edge_side(State.REGISTERING)
    side.pass_time(100)
    assert side.ends == []


@pytest.mark.req("REG-3")
def test_ready_must_come_within_60_s() -> None:
    side = edge_side(State.PENDING)
    side.pass_time(59, every=lambda: side.feed(BEAT))
    assert side.ends == []
    side.pass_time(1.5, every=lambda: side.feed(BEAT))
    assert side.ends == ["ready_timeout"]


def test_the_node_waits_for_its_answers_as_long() -> None:
    side = node_side(State.REGISTERING)
    side.pass_time(11)
    assert side.ends == ["register_timeout"]
    side = node_side(State.PENDING)
    side.session.ready(m.NodeReadyRequest("n", 1), START)
    side.pass_time(61, every=lambda: side.feed(BEAT))
    assert side.ends == ["ready_timeout"]


@pytest.mark.req("WIRE-6")
@pytest.mark.parametrize("end", MAKE)
def test_e6_no_byte_left_for_45_s_while_data_waited(end: str) -> None:
    side = MAKE[end]()
    side.stuck = True
    side.session.send(m.EdgeNodeEvent(draining=m.Draining(1)))
    side.round()
    side.pass_time(44, every=lambda: side.feed(BEAT))
    assert side.ends == []
    side.pass_time(2, every=lambda: side.feed(BEAT))
    assert side.ends == ["write_stalled"]


@pytest.mark.req("WIRE-6")
def test_a_slow_link_is_not_a_stalled_one() -> None:
    side = edge_side()
    side.stuck = True
    for _ in range(50):
        side.session.send(m.EdgeNodeEvent(draining=m.Draining(1)))
    side.round()

    def drip() -> None:
        side.feed(BEAT)
        if side.now % 40 == 0:
            side.buffered -= 1

    side.pass_time(600, step_s=1, every=drip)
    assert side.ends == []


@pytest.mark.req("WIRE-6")
def test_a_quiet_link_is_not_a_stalled_one() -> None:
    side = edge_side()
    side.pass_time(600, every=lambda: side.feed(BEAT))
    assert side.ends == []


def test_time_that_jumps_is_noticed_once() -> None:
    side = node_side()
    side.session.tick(START + 10_000)
    side.session.tick(START + 20_000)
    assert side.ends == ["heartbeat_timeout"]
