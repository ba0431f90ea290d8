"""The life of one connection at either end: what may come when, and when it is dead (WIRE-2, WIRE-7 … WIRE-9, REG)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from iop._fast import frame
from iop._fast.out import Hub, Writer
from iop._fast.relay import ClientStream
from iop.errors import InvalidTransition
from iop.wire import codec, limits
from iop.wire import messages as m
from iop.wire.session import EdgeSession, NodeSession, State

CONFIG = m.NodeConfigPayload("n", 1, [m.ProviderConfig("p", "vllm", "", 1)])
REGISTER = codec.encode(m.RegisterRequest("t", "1", limits.PROTOCOL_VERSION))
READY = codec.encode(m.NodeReadyRequest("n", 1))
ACCEPTED = codec.encode(m.RegisterResponse(True, config=CONFIG))
GRANTED = codec.encode(m.NodeReadyResponse(True))
BEAT = frame.encode_heartbeat(1)
START = 1000.0


class Side:
    """Handler and transport of a session; the transport takes everything unless ``stuck``."""

    def __init__(self, make: Callable[..., Any], timing: limits.Timing = limits.TIMING) -> None:
        self.ready: list[Callable[[], None]] = []
        self.hub = Hub(self.ready.append, self._raise)
        self.heard: list[m.Message] = []
        self.ends: list[str] = []
        self.out = b""
        self.stuck = False
        self.buffered = 0
        self.session = make(self.hub, self, START, timing=timing)
        self.session.mux.attach(self)
        self.now = START

    def _raise(self, exc: Exception) -> None:
        raise exc

    # handler
    def received(self, message: m.Message) -> None:
        self.heard.append(message)

    def ended(self, reason: str, detail: str) -> None:
        assert detail
        self.ends.append(reason)

    # transport
    def write(self, data: bytes) -> None:
        self.out += data
        if self.stuck:
            self.buffered += len(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def feed(self, *frames: bytes) -> None:
        self.session.mux.feed(b"".join(frames))
        self.round()

    def round(self) -> None:
        batch, self.ready[:] = self.ready[:], []
        for callback in batch:
            callback()

    def sent(self) -> list[Any]:
        self.round()
        data, self.out = self.out, b""
        found: list[Any] = []
        while data:
            n = int.from_bytes(data[:4], "big")
            found.append(frame.decode(data[4 : 4 + n]) or codec.decode(data[4 : 4 + n]))
            data = data[4 + n :]
        return found

    def pass_time(self, seconds: float, *, step_s: float = 0.5, every: Callable[[], None] | None = None) -> None:
        end_at = self.now + seconds
        while self.now < end_at and not self.ends:
            self.now = min(end_at, self.now + step_s)
            if every is not None:
                every()
            self.session.tick(self.now)
            self.round()


def edge_side(state: State = State.READY, timing: limits.Timing = limits.TIMING) -> Side:
    side = Side(EdgeSession, timing)
    if state is State.CONNECTED:
        return side
    side.feed(REGISTER)
    if state is State.REGISTERING:
        return side
    side.session.accept(CONFIG, "1", START)
    if state is State.PENDING:
        return side
    side.feed(READY)
    side.session.activate()
    side.sent()
    return side


def node_side(state: State = State.READY, timing: limits.Timing = limits.TIMING) -> Side:
    side = Side(NodeSession, timing)
    side.session.register("t", "1", ["vllm"])
    if state is State.REGISTERING:
        return side
    side.feed(ACCEPTED)
    if state is State.PENDING:
        return side
    side.session.ready(m.NodeReadyRequest("n", 1), START)
    side.feed(GRANTED)
    side.sent()
    return side


MAKE = {"edge": edge_side, "node": node_side}


# ---- which message may come when ------------------------------------------------------------------------------------


def test_the_edge_s_way() -> None:
    side = Side(EdgeSession)
    assert side.session.state is State.CONNECTED
    side.feed(codec.encode(m.RegisterRequest("t", "9", 1, m.Capabilities(["vllm"]), request_window_bytes=65536)))
    assert side.session.state is State.REGISTERING
    assert side.session.request_window_bytes == 65536
    side.session.accept(CONFIG, "2", START)
    assert side.session.state is State.PENDING
    (answer,) = side.sent()
    assert answer == m.RegisterResponse(True, config=CONFIG, edge_version="2", protocol_version=1)
    side.feed(READY)
    assert side.session.state is State.PENDING
    side.session.activate()
    assert side.session.state is State.READY
    assert side.sent() == [m.NodeReadyResponse(True)]
    side.feed(READY)
    side.session.activate()
    assert side.sent() == [m.NodeReadyResponse(True)], "a repeated ready is acknowledged"
    assert side.session.state is State.READY
    assert [type(message).__name__ for message in side.heard] == [
        "RegisterRequest",
        "NodeReadyRequest",
        "NodeReadyRequest",
    ]
    assert side.ends == []


def test_the_node_s_way() -> None:
    side = Side(NodeSession)
    side.session.register("t", "1", ["vllm"])
    (request,) = side.sent()
    assert (request.token, request.protocol_version) == ("t", limits.PROTOCOL_VERSION)
    assert request.request_window_bytes == limits.STREAM_WINDOW_BYTES
    side.feed(ACCEPTED)
    assert side.session.state is State.PENDING
    side.session.ready(m.NodeReadyRequest("n", 1), START)
    side.feed(GRANTED)
    assert side.session.state is State.READY
    side.feed(codec.encode(m.CancelRequest(1, "r", m.CancelReason.DEADLINE)))
    assert side.ends == []


@pytest.mark.parametrize(("asked", "given"), [(0, 262144), (1, 32768), (100_000, 100_000), (2**32 - 1, 1 << 24)])
@pytest.mark.req("WIRE-5")
def test_the_node_s_window_is_kept_in_bounds(asked: int, given: int) -> None:
    side = Side(EdgeSession)
    side.feed(codec.encode(m.RegisterRequest("t", "1", 1, request_window_bytes=asked)))
    assert side.session.request_window_bytes == given


EVENT = codec.encode(m.EdgeNodeEvent(draining=m.Draining(1)))
OPENING = codec.encode(m.ProviderTunnelRequest(1, "r", "a", "p", "t", 1, 1, 1, m.LeaseBinding(), b"POST", b"/"))
COLD = {
    "register request": REGISTER,
    "register response": ACCEPTED,
    "ready request": READY,
    "ready response": GRANTED,
    "goodbye": codec.encode(m.Goodbye(m.GoodbyeReason.SHUTDOWN)),
    "event": EVENT,
    "tunnel request": OPENING,
    "run request": codec.encode(m.RunRequest(1, "r", "a", "p", "t", 1, 1, 1, m.LeaseBinding())),
    "cancel": codec.encode(m.CancelRequest(1, "r", m.CancelReason.OPERATOR)),
    "command": codec.encode(m.NodeCommandRequest(1, m.NodeCommand.CAPABILITIES)),
    "command answer": codec.encode(m.NodeCommandResponse(1)),
    "refresh": codec.encode(m.ConfigRefreshRequest(CONFIG)),
    "refresh answer": codec.encode(m.ConfigRefreshResponse(1, True)),
}
LEGAL = {
    ("edge", State.CONNECTED): {"register request"},
    ("edge", State.REGISTERING): {"goodbye"},
    ("edge", State.PENDING): {"ready request", "refresh answer", "goodbye"},
    ("edge", State.READY): {"ready request", "refresh answer", "goodbye", "event", "command answer"},
    ("node", State.REGISTERING): {"register response", "goodbye"},
    ("node", State.PENDING): {"ready response", "refresh", "goodbye"},
    ("node", State.READY): {
        "ready response", "refresh", "goodbye", "event", "command", "tunnel request", "run request", "cancel",
    },
}  # fmt: skip


@pytest.mark.req("WIRE-2")
@pytest.mark.parametrize("name", COLD)
@pytest.mark.parametrize(("end", "state"), LEGAL, ids=str)
def test_e4_a_message_is_legal_in_its_states_and_nowhere_else(end: str, state: State, name: str) -> None:
    side = MAKE[end](state)
    before = len(side.heard)
    side.feed(COLD[name])
    if name in LEGAL[end, state]:
        assert side.ends == []
        assert len(side.heard) == before + 1
    else:
        assert side.ends == ["wrong_state"]
        assert len(side.heard) == before
        assert side.session.state is State.CLOSED


HOT = {
    "heartbeat": BEAT,
    "tunnel frame": frame.encode_tunnel_frame(1, 0, 1),
    "tunnel body": frame.encode_tunnel_body(1, b"x"),
    "run event": frame.encode_run_event(1, 0, 1),
    "credit": frame.encode_credit(1, 1),
}


@pytest.mark.req("WIRE-2")
@pytest.mark.parametrize("name", HOT)
@pytest.mark.parametrize(("end", "state"), [key for key in LEGAL if key[1] is not State.READY], ids=str)
def test_e4_no_data_before_ready_and_no_heartbeat_before_registration(end: str, state: State, name: str) -> None:
    side = MAKE[end](state)
    side.feed(HOT[name])
    early = end == "edge" and state in (State.CONNECTED, State.REGISTERING)
    assert side.ends == ([] if name == "heartbeat" and not early else ["wrong_state"])


def test_a_session_ends_once() -> None:
    side = edge_side()
    side.feed(REGISTER, REGISTER)
    side.feed(b"\0\0\0\0")
    side.pass_time(100)
    assert side.ends == ["wrong_state"]
    assert len(side.heard) == 2


def test_close_says_nothing_to_the_handler() -> None:
    side = edge_side()
    stream = ClientStream(Writer(side.hub), None)  # type: ignore[arg-type]
    side.session.mux.open(stream, 1000, 0)
    assert side.session.close() == [stream]
    assert side.session.close() == []
    side.feed(REGISTER)
    side.pass_time(200)
    assert side.ends == []
    assert side.session.goodbye(m.GoodbyeReason.SHUTDOWN) is None
    assert side.sent() == []


def test_accept_belongs_behind_a_registration() -> None:
    side = Side(EdgeSession)
    with pytest.raises(InvalidTransition, match="EdgeSession"):
        side.session.accept(CONFIG, "1", START)


@pytest.mark.req("REG-2")
def test_a_configuration_too_large_for_a_frame_changes_nothing() -> None:
    side = edge_side(State.REGISTERING)
    huge = m.NodeConfigPayload("n", 1, [m.ProviderConfig("p" * 500, "vllm", "x" * 500, 1) for _ in range(1100)])
    with pytest.raises(ValueError, match="at most"):
        side.session.accept(huge, "1", START)
    assert side.session.state is State.REGISTERING
    side.session.reject(m.RejectReason.CONFIG_BUILD_FAILED, "too large", "1")
    (answer,) = side.sent()
    assert (answer.accepted, answer.reason) == (False, m.RejectReason.CONFIG_BUILD_FAILED)


@pytest.mark.req("REG-4")
def test_a_refused_ready() -> None:
    side = edge_side(State.PENDING)
    side.sent()
    side.feed(READY)
    side.session.refuse_ready(m.RejectReason.STALE_CONNECTION)
    assert side.sent() == [m.NodeReadyResponse(False, m.RejectReason.STALE_CONNECTION)]
    assert side.session.state is State.PENDING


# ---- how large a frame may be ---------------------------------------------------------------------------------------


def padded(frame_: bytes, n: int) -> bytes:
    """The same message with an unknown field that brings its envelope to n bytes."""
    envelope = frame_[4:]
    room = n - len(envelope) - 2
    for size in (room - 3, room - 2, room - 1):
        length = bytearray()
        value = size
        while value > 127:
            length.append(value & 127 | 128)
            value >>= 7
        length.append(value)
        out = envelope + b"\xa2\x06" + bytes(length) + bytes(size)
        if len(out) == n:
            return n.to_bytes(4, "big") + out
    raise AssertionError(n)


@pytest.mark.req("WIRE-9")
@pytest.mark.parametrize(
    ("end", "state", "message", "limit"),
    [
        ("edge", State.CONNECTED, REGISTER, 16 << 10),
        ("edge", State.REGISTERING, COLD["goodbye"], 16 << 10),
        ("edge", State.PENDING, READY, 1 << 20),
        ("edge", State.READY, EVENT, 1 << 20),
        ("node", State.REGISTERING, ACCEPTED, 1 << 20),
        ("node", State.READY, EVENT, 1 << 20),
    ],
)
def test_e1_frames_up_to_the_limit_of_the_state(end: str, state: State, message: bytes, limit: int) -> None:
    side = MAKE[end](state)
    side.feed(padded(message, limit))
    assert side.ends == []
    side = MAKE[end](state)
    side.feed(padded(message, limit + 1))
    assert side.ends in (["frame_length"], ["control_frame_too_large"])


@pytest.mark.req("WIRE-9")
@pytest.mark.parametrize("state", [State.CONNECTED, State.REGISTERING])
def test_e1_before_registration_a_length_is_refused_before_its_frame_is_read(state: State) -> None:
    side = edge_side(state)
    side.feed((16385).to_bytes(4, "big"))
    assert side.ends == ["frame_length"]


# ---- clocks ---------------------------------------------------------------------------------------------------------


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


# ---- cancelling -----------------------------------------------------------------------------------------------------


@pytest.mark.req("EXEC-7")
def test_a_cancel_follows_the_opening() -> None:
    side = edge_side()
    stream = ClientStream(Writer(side.hub), None)  # type: ignore[arg-type]
    side.session.mux.open(stream, 1000, 1000)
    opening = codec.decode(OPENING[4:])
    side.session.send(opening, stream, opening=True)
    stream.send_body([b"body"])
    assert not side.session.cancel(stream, "r", m.CancelReason.CLIENT_GONE)
    first, body, cancel = side.sent()
    assert first == opening
    assert body["body"] == b"body"
    assert cancel == m.CancelRequest(1, "r", m.CancelReason.CLIENT_GONE)
    assert side.session.mux.stream_count == 1, "it stays until its terminal"


@pytest.mark.req("EXEC-7", "WIRE-6")
def test_a_cancel_takes_back_an_opening_that_waits() -> None:
    side = edge_side()
    side.session.mux.pause()
    stream = ClientStream(Writer(side.hub), None)  # type: ignore[arg-type]
    side.session.mux.open(stream, 1000, 1000)
    side.session.send(codec.decode(OPENING[4:]), stream, opening=True)
    stream.send_body([b"body"])
    stream.discard()
    assert side.session.cancel(stream, "r", m.CancelReason.CLIENT_GONE)
    side.session.mux.resume()
    assert side.sent() == []
    assert side.session.mux.stream_count == 0


@pytest.mark.req("SUP-5", "WIRE-6")
def test_goodbye_is_the_last_word_but_waits_for_no_congested_link() -> None:
    """A peer looks at nothing behind a goodbye: the terminals of a drained node must not be there."""
    event, goodbye = m.EdgeNodeEvent(draining=m.Draining(1)), m.Goodbye(m.GoodbyeReason.SHUTDOWN, 5)
    side = node_side()
    side.session.send(event)
    side.session.goodbye(goodbye.reason, grace_ms=5)
    assert side.sent() == [event, goodbye]
    side = node_side()
    side.session.mux.pause()
    side.session.send(event)
    side.session.goodbye(goodbye.reason, grace_ms=5)
    side.session.mux.resume()
    assert side.sent() == [goodbye, event]
