"""One side of a link as its session sees it: handler, transport and clock in the test's hands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iop._fast import frame
from iop._fast.out import Hub
from iop.wire import codec, limits
from iop.wire import messages as m
from iop.wire.session import EdgeSession, NodeSession, State

CONFIG = m.NodeConfigPayload("n", 1, [m.ProviderConfig("p", "vllm", "", 1)])
REGISTER = codec.encode(m.RegisterRequest("t", "1", limits.PROTOCOL_VERSION))
READY = codec.encode(m.NodeReadyRequest("n", 1))
ACCEPTED = codec.encode(m.RegisterResponse(True, config=CONFIG))
GRANTED = codec.encode(m.NodeReadyResponse(True))
BEAT = frame.encode_heartbeat(1)
EVENT = codec.encode(m.EdgeNodeEvent(draining=m.Draining(1)))
OPENING = codec.encode(m.ProviderTunnelRequest(1, "r", "a", "p", "t", 1, 1, 1, m.LeaseBinding(), b"POST", b"/"))
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
