"""What may come when at either end of a connection, how large, and how it is cancelled (WIRE-2, WIRE-9, REG)."""

from __future__ import annotations

import pytest

from iop._fast import frame
from iop._fast.out import Writer
from iop._fast.relay import ClientStream
from iop.errors import InvalidTransition
from iop.wire import codec, limits
from iop.wire import messages as m
from iop.wire.session import EdgeSession, NodeSession, State
from tests.support.sessionside import (
    ACCEPTED,
    BEAT,
    CONFIG,
    EVENT,
    GRANTED,
    MAKE,
    OPENING,
    READY,
    REGISTER,
    START,
    Side,
    edge_side,
    node_side,
    padded,
)


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
    with pytest.raises(InvalidTransition, match="session"):
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
