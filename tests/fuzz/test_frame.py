"""Invariants of link input: a fault with a reason of the closed set or nothing, never a crash, whatever comes."""

from __future__ import annotations

import random

import pytest

from iop._fast import frame
from iop._fast.body import FRAMING_EOF, BodyDecoder
from iop._fast.out import Hub, Writer
from iop._fast.relay import CHUNKED, ClientStream, ProviderStream
from iop.errors import IopError, ProtocolError
from iop.wire import codec
from iop.wire import messages as m
from iop.wire.session import EdgeSession, NodeSession, State
from tests.fuzz.fuzzer import ITERATIONS, cut, fuzz, mutate

#: Every reason that a peer's bytes can give (SPEC WIRE-2: counted under this label).
REASONS = frozenset(
    {
        "frame_length", "malformed", "empty_payload", "unsupported_payload", "bad_message", "wrong_state", "wrong_role",
        "unknown_stream", "stream_id_reused", "sequence", "unknown_kind", "credit_overflow", "credit_exceeded",
        "data_frame_too_large", "control_frame_too_large", "body_too_long", "control_lane_full",
    }
)  # fmt: skip

REGISTER = codec.encode(m.RegisterRequest("token", "1", 1, m.Capabilities(["vllm"]), request_window_bytes=65536))
READY = codec.encode(m.NodeReadyRequest("n", 1, [m.HeldSlots("p", 1)]))
FAILURE = m.ExecutionFailure(m.ErrorCode.CANCELLED, message=b"x")
TO_EDGE = [
    REGISTER + READY + frame.encode_tunnel_frame(1, 0, 1, status=200, header_block=b"a: b\r\n"),
    REGISTER + READY + frame.encode_tunnel_frame(1, 0, 1) + frame.encode_tunnel_frame(1, 1, 2, b"body", 2),
    REGISTER + READY + frame.encode_tunnel_frame(2, 0, 1) + frame.encode_tunnel_end(2, 1, (1, None, 2, 3)),
    REGISTER + READY + codec.tunnel_error(1, 0, FAILURE) + frame.encode_credit(2, 9) + frame.encode_heartbeat(1),
    REGISTER + READY + codec.encode(m.EdgeNodeEvent(call_closed=m.CallClosed("p", 1))) + codec.encode(m.Goodbye()),
    REGISTER + frame.encode_heartbeat(2**63, True) + READY + READY + codec.encode(m.ConfigRefreshResponse(1, True)),
    REGISTER + READY + codec.encode(m.NodeCommandResponse(1, m.ErrorCode.UNSUPPORTED_COMMAND)),
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]
OPENING = codec.encode(
    m.ProviderTunnelRequest(
        1, "r", "vllm", "p", "t", 65536, 1000, 1000, m.LeaseBinding(1), b"POST", b"/", body_bytes=9, body_follows=True
    )
)
ACCEPTED = codec.encode(
    m.RegisterResponse(True, config=m.NodeConfigPayload("n", 1, [m.ProviderConfig("p", "vllm", "", 1)]))
)
GRANTED = codec.encode(m.NodeReadyResponse(True))
TO_NODE = [
    ACCEPTED + GRANTED + OPENING + frame.encode_tunnel_body(1, b"body", True),
    ACCEPTED + GRANTED + OPENING + codec.encode(m.CancelRequest(1, "r", m.CancelReason.CLIENT_GONE)),
    ACCEPTED + GRANTED + OPENING + frame.encode_credit(1, 500) + frame.encode_heartbeat(4),
    ACCEPTED + GRANTED + codec.encode(m.NodeCommandRequest(1, m.NodeCommand.CAPABILITIES)) + codec.encode(m.Goodbye()),
    ACCEPTED + codec.encode(m.ConfigRefreshRequest(m.NodeConfigPayload("n", 2))) + GRANTED,
    codec.encode(m.RegisterResponse(False, m.RejectReason.UNKNOWN_TOKEN, "no")),
]
TOKENS = [
    frame.encode_heartbeat(1),
    frame.encode_credit(1, 0xFFFFFFFF),
    frame.encode_tunnel_frame(1, 1, 2, b"x"),
    frame.encode_tunnel_body(1, b"x"),
    OPENING,
    READY,
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\0\0\0\x02",
    b"\x80\x80\x80\x00",
    b"\x0a",
]


class Quiet:
    """Owner of everything; keeps the names of what it heard."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.reason = ""
        self.session: EdgeSession | NodeSession
        self.hub = Hub(lambda callback: None, self._raise)
        self.writer = Writer(self.hub)
        self.stream: ClientStream | None = None

    def _raise(self, exc: Exception) -> None:
        raise exc

    def ended(self, reason: str, detail: str) -> None:
        assert not self.reason
        assert reason in REASONS, reason
        assert len(detail) < 300
        self.reason = reason

    def received(self, message: m.Message) -> None:
        assert not self.reason, "heard after the end"
        self.heard.append(type(message).__name__)
        session = self.session
        if isinstance(session, EdgeSession):
            if isinstance(message, m.RegisterRequest):
                session.accept(m.NodeConfigPayload("n", 1), "1", 0.0)
            elif isinstance(message, m.NodeReadyRequest):
                session.activate()
                if self.stream is None:
                    for _ in range(2):
                        self.stream = ClientStream(self.writer, self)
                        session.mux.open(self.stream, 65536, 65536)
        elif isinstance(message, m.ProviderTunnelRequest):
            stream = ProviderStream(self)
            session.mux.adopt(stream, message.stream_id, 65536, message.window_bytes)
            stream.begin(BodyDecoder(FRAMING_EOF))
            stream.feed(b"answer")

    def on_head(self, status: int, header_block: bytes) -> None:
        self.heard.append(f"head {status} {header_block!r}")
        assert self.stream is not None
        self.stream.respond(b"", CHUNKED, 0, False)

    def on_held_end(self) -> bool:
        return False

    def on_commit(self) -> None:
        self.heard.append("commit")

    def on_broken(self, exc: Exception, ended: bool = False) -> None:
        raise exc

    def on_terminal(self, kind: int, usage: object, failure: object) -> None:
        self.heard.append(f"terminal {kind} {usage}")

    def on_request_body(self, data: bytes, last: bool) -> None:
        self.heard.append(f"body {len(data)} {last}")

    def on_body_end(self, extra_bytes: int) -> None: ...
    def on_body_error(self, error: IopError | None) -> None: ...
    def pause_source(self) -> None: ...
    def resume_source(self) -> None: ...


def run(owner: Quiet, parts: list[bytes]) -> object:
    session = owner.session
    for part in parts:
        session.mux.feed(part)
    mux = session.mux
    assert (session.state is State.CLOSED) == bool(owner.reason)
    story = owner.heard, owner.reason, mux.frames_in, mux.late_frames, mux.stream_count, owner.hub.buffered_bytes
    session.close()
    assert owner.hub.buffered_bytes == 0
    return story


@pytest.mark.req("WIRE-2")
def test_what_a_node_sends() -> None:
    def feed(parts: list[bytes]) -> object:
        owner = Quiet()
        owner.session = EdgeSession(owner.hub, owner, 0.0)
        return run(owner, parts)

    fuzz(feed, TO_EDGE, TOKENS)


@pytest.mark.req("WIRE-2")
def test_what_an_edge_sends() -> None:
    def feed(parts: list[bytes]) -> object:
        owner = Quiet()
        owner.session = NodeSession(owner.hub, owner, 0.0)
        return run(owner, parts)

    fuzz(feed, TO_NODE, TOKENS)


def frames(data: bytes) -> list[bytes]:
    """The envelopes in a well framed seed."""
    out = []
    while len(data) >= 4:
        n = int.from_bytes(data[:4], "big")
        out.append(data[4 : 4 + n])
        data = data[4 + n :]
    return out


@pytest.mark.req("WIRE-2")
@pytest.mark.parametrize("edge", [True, False], ids=["to-edge", "to-node"])
def test_frames_in_any_order(edge: bool) -> None:
    """Lengths are right, so that what is in the frames is reached: any order, either role's, some mutated."""
    rng = random.Random(7)
    polite = [frames(data) for data in ((TO_EDGE[:7]) if edge else TO_NODE)]
    pool = [envelope for data in (*TO_EDGE[:7], *TO_NODE, *TOKENS[:6]) for envelope in frames(data)]
    reasons = set()
    for number in range(ITERATIONS):
        start = rng.choice(polite)
        envelopes = start[: rng.randint(1, len(start))] + rng.choices(pool, k=rng.randint(0, 5))
        if rng.random() < 0.5:
            at = rng.randrange(len(envelopes))
            envelopes[at] = mutate(envelopes[at], pool, TOKENS, rng) or b"\0"
        data = b"".join(len(envelope).to_bytes(4, "big") + envelope for envelope in envelopes)
        stories = []
        try:
            for parts in ([data], cut(data, rng)):
                owner = Quiet()
                owner.session = EdgeSession(owner.hub, owner, 0.0) if edge else NodeSession(owner.hub, owner, 0.0)
                stories.append(run(owner, parts))
                reasons.add(owner.reason)
            assert stories[0] == stories[1]
        except BaseException as error:
            error.add_note(f"input {number}: {data!r}")
            raise
    if ITERATIONS >= 3000:
        some = {"", "wrong_state", "wrong_role", "unknown_stream", "empty_payload", "malformed", "bad_message"}
        more = {"sequence", "unknown_kind"} if edge else {"stream_id_reused", "credit_overflow"}
        assert some | more <= reasons


@pytest.mark.req("WIRE-3")
def test_envelopes() -> None:
    def decode(parts: list[bytes]) -> object:
        envelope = b"".join(parts)
        native = frame.decode(envelope)
        refused = ""
        try:
            slow = codec.decode(envelope)
        except ProtocolError as error:
            refused = error.reason
        if refused:
            assert native is None, "plain, and refused by the runtime"
            assert refused in REASONS
            return refused
        if native is not None:
            assert isinstance(slow, codec.HotFrame)
            assert slow.payload == native["payload"]
            for name, value in slow.fields.items():
                if name in native:
                    assert native[name] == value
        return repr(slow)

    fuzz(decode, [data[4:] for data in (*TO_EDGE, *TO_NODE, *TOKENS)], TOKENS)
