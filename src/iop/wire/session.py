"""The life of one edge-node connection, at either end, without I/O (WIRE-2, WIRE-7, WIRE-8, WIRE-9, REG-1, REG-3).

A session owns a native ``Mux`` and decides which message may come when, how large a frame may be by then, and when the
connection is dead. Bytes enter through ``mux.feed``; messages that are legal in the present state are handed to
``handler.received``; ``tick`` brings the time. A session ends once, with ``handler.ended(reason, detail)``.

    edge:  CONNECTED ─RegisterRequest→ REGISTERING ─accept()→ PENDING ─NodeReadyRequest→ PENDING ─activate()→ READY
    node:  REGISTERING ─RegisterResponse(accepted)→ PENDING ─NodeReadyResponse(ready)→ READY
    both:  any ─fault, timeout, close()→ CLOSED
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Protocol

from iop._fast.mux import Mux, Stream
from iop._fast.out import Hub
from iop.errors import ProtocolError
from iop.machine import Transitions
from iop.wire import codec, limits
from iop.wire import messages as m
from iop.wire.registry import EDGE_HEARS, NODE_HEARS, State

__all__ = ["EdgeSession", "Handler", "NodeSession", "Session", "State"]


class Event(StrEnum):
    REGISTER = "register"
    ACCEPT = "accept"
    ACTIVATE = "activate"
    CLOSE = "close"


#: The edge begins connected, the node registering.
TRANSITIONS = Transitions(
    "session",
    (State.CONNECTED, State.REGISTERING),
    {
        (State.CONNECTED, Event.REGISTER): State.REGISTERING,
        (State.REGISTERING, Event.ACCEPT): State.PENDING,
        (State.PENDING, Event.ACTIVATE): State.READY,
        **{(state, Event.CLOSE): State.CLOSED for state in State},
    },
)

#: Reasons of :meth:`Handler.ended` that are clocks: the peer broke no rule, it was silent or slow.
TIMEOUTS = frozenset({"heartbeat_timeout", "write_stalled", "register_timeout", "ready_timeout"})


class Handler(Protocol):
    """What the owner of a session does with what it hears. Called inside ``feed`` and ``tick``; must not raise."""

    def received(self, message: m.Message) -> None:
        """A legal message, in the order of the wire."""

    def ended(self, reason: str, detail: str) -> None:
        """The connection must be closed now; called once. ``reason`` is from a closed set: a protocol error's reason,
        or one of :data:`TIMEOUTS`."""


class Session:
    """What both ends share: state, the legal-message table, heartbeats and the write-stall clock.

    ``now`` arguments are seconds on any monotonic scale.
    """

    _hears: ClassVar[dict[State, frozenset[type[Any]]]]

    def __init__(
        self, hub: Hub, handler: Handler, *, edge: bool, state: State, first_frame_bytes: int, max_frame_bytes: int,
        timing: limits.Timing, now: float,
    ) -> None:  # fmt: skip
        self.mux = Mux(hub, edge, self._on_message, self._on_fault, first_frame_bytes)
        self.state = state
        self._handler = handler
        self._timing = timing
        self._max_frame_bytes = max_frame_bytes
        self._opened_at = now
        self._frames_seen = 0
        self._frame_at = now  # last complete valid frame
        self._beat_at = now  # last heartbeat sent
        self._beat_seq = 0
        self._left_seen = 0
        self._left_at = now  # last time that bytes left, or none waited
        self._deadline_at: float | None = None
        self._deadline_reason = ""

    # ---- output -----------------------------------------------------------------------------------------------------

    def send(self, message: m.Message, stream: Stream | None = None, *, opening: bool = False) -> None:
        """Queues a message, with ``stream`` in that stream's order. Raises ConnectionResetError when closed."""
        self.mux.send(codec.encode(message), stream, opening)

    def goodbye(self, reason: m.GoodbyeReason, *, grace_ms: int = 0, code: str = "", ref: str = "") -> None:
        """Says that this end closes now, behind what is queued unless the link is congested: then it does not wait. The
        owner closes the transport after flushing."""
        if self.state is not State.CLOSED:
            self.mux.flush_now()
            self.mux.send_control(codec.encode(m.Goodbye(reason, grace_ms, code, ref)))

    def probe(self) -> int:
        """Sends a Heartbeat now, whatever the interval says (REG-2); returns the count of bytes received so far."""
        self._beat_seq += 1
        self.mux.heartbeat(self._beat_seq)
        return int(self.mux.bytes_in)

    def close(self) -> list[Stream]:
        """Ends the session without calling the handler; returns the streams that were still open. Idempotent."""
        self._move(Event.CLOSE)
        return self.mux.close()

    # ---- input ------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Brings the time: sends a due heartbeat, notices a dead peer. Call it about once a second."""
        if self.state is State.CLOSED:
            return
        timing, mux = self._timing, self.mux
        if self._deadline_at is not None and now >= self._deadline_at:
            self._end(self._deadline_reason, "the peer took too long")
            return
        if mux.frames_in != self._frames_seen:
            self._frames_seen = mux.frames_in
            self._frame_at = now
        if self._beating():
            if now - self._frame_at >= timing.response_wait_s:
                self._end("heartbeat_timeout", f"no frame for {timing.response_wait_s:g} s")
                return
            if now - self._beat_at >= timing.heartbeat_interval_s:
                self._beat_at = now
                self.probe()
        left = mux.bytes_left
        if left != self._left_seen or mux.unsent_bytes == 0:
            self._left_seen = left
            self._left_at = now
        elif now - self._left_at >= timing.write_stall_s:
            self._end("write_stalled", f"no byte left for {timing.write_stall_s:g} s while data was queued")

    def _beating(self) -> bool:
        return self.state in (State.PENDING, State.READY)

    def _move(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]

    def _arm(self, at: float | None, reason: str = "") -> None:
        self._deadline_at, self._deadline_reason = at, reason

    def _on_message(self, data: bytes) -> None:
        message = codec.decode(data)
        if isinstance(message, codec.HotFrame):
            self.mux.deliver(message.payload, **message.fields)
            return
        if type(message) not in self._hears[self.state]:
            raise ProtocolError("wrong_state", f"{type(message).__name__} in state {self.state.value}")
        self._accepts(message)
        self._handler.received(message)

    def _accepts(self, message: m.Message) -> None:
        """Moves the state for a legal message, before the handler hears of it."""

    def _on_fault(self, fault: ProtocolError) -> None:
        self._end(fault.reason, fault.message)

    def _end(self, reason: str, detail: str) -> None:
        if self.state is not State.CLOSED:
            self._move(Event.CLOSE)
            self._handler.ended(reason, detail)


class EdgeSession(Session):
    """The edge's end. The owner answers a RegisterRequest with ``accept`` or ``reject`` (now or later), and a
    NodeReadyRequest with ``activate`` or ``refuse_ready``."""

    _hears: ClassVar[dict[State, frozenset[type[Any]]]] = EDGE_HEARS

    def __init__(
        self, hub: Hub, handler: Handler, now: float, *, max_frame_bytes: int = limits.MAX_FRAME_BYTES,
        timing: limits.Timing = limits.TIMING,
    ) -> None:  # fmt: skip
        super().__init__(
            hub, handler, edge=True, state=State.CONNECTED, first_frame_bytes=limits.MAX_UNREGISTERED_FRAME_BYTES,
            max_frame_bytes=max_frame_bytes, timing=timing, now=now,
        )  # fmt: skip
        self.request_window_bytes = limits.STREAM_WINDOW_BYTES
        self._cold_seen = 0
        self._cold_at = now  # when it was last looked at
        self._flooding_s = 0.0
        self._arm(now + timing.register_s, "register_timeout")

    def tick(self, now: float) -> None:
        """As :meth:`Session.tick`; a node that sends more than anybody has to say is parted with (WIRE-10)."""
        super().tick(now)
        passed_s = now - self._cold_at
        if passed_s < 1.0 or self.state is State.CLOSED:
            return
        cold = self.mux.cold_frames
        over = cold - self._cold_seen > limits.COLD_RATE * passed_s
        self._flooding_s = self._flooding_s + passed_s if over else 0.0
        self._cold_seen, self._cold_at = cold, now
        if self._flooding_s >= limits.COLD_S:
            self._end("flooding", f"more than {limits.COLD_RATE} messages a second for {limits.COLD_S:g} s")

    def _accepts(self, message: m.Message) -> None:
        if isinstance(message, m.RegisterRequest):
            self._move(Event.REGISTER)
            self._arm(None)
            window = message.request_window_bytes or limits.STREAM_WINDOW_BYTES
            self.request_window_bytes = min(max(window, limits.SMALL_WINDOW_BYTES), 1 << 24)

    def accept(self, config: m.NodeConfigPayload, edge_version: str, now: float) -> None:
        """Answers the registration with the node's configuration; the node has 60 s to be ready (REG-3).

        A configuration that does not fit into one frame raises ValueError and changes nothing.
        """
        answer = codec.encode(
            m.RegisterResponse(True, config=config, edge_version=edge_version, protocol_version=limits.PROTOCOL_VERSION)
        )
        self._move(Event.ACCEPT)
        self._frame_at = self._beat_at = now
        self._arm(now + self._timing.ready_s, "ready_timeout")
        self.mux.max_frame_bytes = self._max_frame_bytes
        self.mux.heartbeat_open = True
        self.mux.send(answer)

    def reject(self, reason: m.RejectReason, message: str, edge_version: str) -> None:
        """Answers the registration with a refusal (REG-2); the owner then closes after flushing."""
        self.send(
            m.RegisterResponse(
                False, reason, message, edge_version=edge_version, protocol_version=limits.PROTOCOL_VERSION
            )
        )

    def activate(self) -> None:
        """Answers NodeReadyRequest with ready=true: data may flow. A repeated one is acked and does nothing (REG-4)."""
        if self.state is State.PENDING:
            self._move(Event.ACTIVATE)
            self._arm(None)
            self.mux.data_open = True
        self.send(m.NodeReadyResponse(True))

    def refuse_ready(self, reason: m.RejectReason) -> None:
        """Answers NodeReadyRequest with ready=false (REG-4); the owner then closes after flushing."""
        self.send(m.NodeReadyResponse(False, reason))

    def cancel(self, stream: Stream, run_id: str, reason: m.CancelReason) -> bool:
        """Cancels a stream (EXEC-7). True if its opening had not left: it is gone, and no terminal will come.

        Otherwise the stream stays until its terminal.
        """
        if self.mux.withdraw(stream):
            return True
        if self.state is State.READY:
            self.send(m.CancelRequest(stream.stream_id, run_id, reason), stream)
        return False


class NodeSession(Session):
    """The node's end. ``register`` opens the conversation; ``ready`` asks for work once everything is in place."""

    _hears: ClassVar[dict[State, frozenset[type[Any]]]] = NODE_HEARS

    def __init__(
        self, hub: Hub, handler: Handler, now: float, *, max_frame_bytes: int = limits.MAX_FRAME_BYTES,
        timing: limits.Timing = limits.TIMING,
    ) -> None:  # fmt: skip
        super().__init__(
            hub, handler, edge=False, state=State.REGISTERING, first_frame_bytes=limits.MAX_CONTROL_FRAME_BYTES,
            max_frame_bytes=max_frame_bytes, timing=timing, now=now,
        )  # fmt: skip
        self.mux.heartbeat_open = True
        self._arm(now + timing.register_s, "register_timeout")

    def register(self, token: str, node_version: str, adapters: list[str]) -> None:
        self.send(
            m.RegisterRequest(
                token, node_version, limits.PROTOCOL_VERSION, m.Capabilities(adapters),
                request_window_bytes=limits.STREAM_WINDOW_BYTES,
            )
        )  # fmt: skip

    def ready(self, request: m.NodeReadyRequest, now: float) -> None:
        self._arm(now + self._timing.ready_s, "ready_timeout")
        self.send(request)

    def _accepts(self, message: m.Message) -> None:
        if isinstance(message, m.RegisterResponse):
            self._arm(None)
            if message.accepted:
                self._move(Event.ACCEPT)
                self.mux.max_frame_bytes = self._max_frame_bytes
        elif isinstance(message, m.NodeReadyResponse):
            self._arm(None)
            if message.ready and self.state is State.PENDING:
                self._move(Event.ACTIVATE)
                self.mux.data_open = True
