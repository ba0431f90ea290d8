"""An edge session and a node session in one world without sockets, loop or clock: what happens is drawn from a seed.

    world = World(seed, Plan(...))
    world.run(steps)        # one drawn action at a time; World.validate() after each
    world.settle()          # everything heals and drains; what must hold when quiet is checked

Sessions, multiplexers, streams and writers are the real ones. The transports keep asyncio's contract (pause above a
high mark, resume below a low one) and move bytes only when an action says so, in pieces of any size. Providers produce
bodies with a length or chunked, clients read or do not, leave, and links break.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from iop._fast import frame
from iop._fast.body import FRAMING_CHUNKED
from iop._fast.out import Hub
from iop._fast.relay import RAW
from iop.wire import limits
from iop.wire import messages as m
from iop.wire.session import EdgeSession, NodeSession, Session, State
from tests.support.traffic import CLIENT_HIGH, READ_MAX, Call, Pipe, Plan, Request


class _Side:
    """Handler of a session."""

    def __init__(self, world: World, heard: Callable[[m.Message], None]) -> None:
        self.world = world
        self.heard = heard
        self.reason = ""
        self.session: Session

    def received(self, message: m.Message) -> None:
        assert not self.reason, "a message after the end"
        self.heard(message)

    def ended(self, reason: str, detail: str) -> None:
        assert not self.reason, "ended twice"
        self.reason = f"{reason}: {detail}"
        self.world.seen["ended " + reason] += 1
        self.world.broken = True


class World:
    """See the module."""

    def __init__(self, seed: int, plan: Plan, timing: limits.Timing = limits.TIMING) -> None:
        self.rng = random.Random(seed)
        self.plan = plan
        self.now = 1000.0
        self.seen: Counter[str] = Counter()
        self.live: list[Request] = []
        self.every: list[Request] = []
        self.by_id: dict[int, Request] = {}
        self.withdrawn: set[int] = set()
        self.calls: list[Call] = []
        self.broken = False
        self.cut = False  # no byte moves, nobody is told
        self.edge_ready: list[Callable[[], None]] = []
        self.node_ready: list[Callable[[], None]] = []
        self.edge_hub = Hub(self.edge_ready.append, self._raise)
        self.node_hub = Hub(self.node_ready.append, self._raise)
        self.edge_side, self.node_side = _Side(self, self._edge_heard), _Side(self, self._node_heard)
        self.edge = EdgeSession(self.edge_hub, self.edge_side, self.now, timing=timing)
        self.node = NodeSession(self.node_hub, self.node_side, self.now, timing=timing)
        self.down, self.up = Pipe(self, "down"), Pipe(self, "up")  # edge to node, node to edge
        self.down.session, self.up.session = self.edge, self.node
        self.edge.mux.attach(self.down)
        self.node.mux.attach(self.up)
        self.node.register("token", "1", ["openai_compat"])
        self.opened = 0
        actions: list[tuple[Callable[[], None], float]] = [
            (self.open_stream, 2),
            (lambda: self.round(self.edge_ready), 8),
            (lambda: self.round(self.node_ready), 8),
            (lambda: self.down.leave(self._some(self.down.buffer)), 5),
            (lambda: self.up.leave(self._some(self.up.buffer)), 5),
            (lambda: self.down.arrive(self._some(self.down.wire), self.node), 5),
            (lambda: self.up.arrive(self._some(self.up.wire), self.edge), 5),
            (self.produce, 10),
            (self.client_reads, 4),
            (self.provider_reads, 4),
            (self.leave, 0.5 * plan.leaves),
            (self.tick, 1),
            (self.late_frame, 0.3),
            (self.reset, plan.breaks),
        ]
        self._actions = [action for action, _ in actions]
        total, self._weights = 0.0, []
        for _, weight in actions:
            total += weight
            self._weights.append(total)

    # ---- running ----------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        for action in self.rng.choices(self._actions, cum_weights=self._weights, k=steps):
            action()
            if self.broken:
                self.lose()
                return
            self.validate()

    def settle(self) -> None:
        """Nobody leaves and nothing breaks any more; every side reads. Ends when nothing moves."""
        for _ in range(10_000):
            before = self._progress()
            for _ in range(3):
                self.round(self.edge_ready)
                self.round(self.node_ready)
            for pipe, to in ((self.down, self.node), (self.up, self.edge)):
                pipe.leave(len(pipe.buffer))
                pipe.arrive(len(pipe.wire), to)
            for call in list(self.calls):
                call.produce(READ_MAX)
                call.provider.read(READ_MAX)
            for request in self.every:
                request.client.read(READ_MAX)
            if self.broken:
                break
            self.validate()
            if self._progress() == before and not self.edge_ready and not self.node_ready:
                break
        else:
            raise AssertionError("never quiet")
        if self.broken:
            self.lose()
        self.check_quiet()

    def _progress(self) -> tuple[int, ...]:
        edge, node = self.edge.mux, self.node.mux
        return (
            edge.bytes_in, node.bytes_in, len(self.live), len(self.calls), edge.queued_bytes, node.queued_bytes,
            sum(call.at for call in self.calls), sum(request.client.buffered for request in self.every),
            sum(request.writer.handed for request in self.every),
        )  # fmt: skip

    def round(self, ready: list[Callable[[], None]]) -> None:
        """The end of one poll round: what was marked is flushed."""
        batch = ready[:]
        ready.clear()
        for callback in batch:
            callback()

    def _some(self, data: bytearray) -> int:
        if self.cut or not data:
            return 0
        return self.rng.choice((1, 3, 100, 1448, self.plan.link_bytes, len(data)))

    # ---- actions ----------------------------------------------------------------------------------------------------

    def open_stream(self) -> None:
        if self.edge.state is not State.READY or len(self.live) >= self.plan.streams:
            return
        self.opened += 1
        request = Request(self, self.opened)
        self.live.append(request)
        self.every.append(request)
        request.send()
        assert request.stream.stream_id not in self.by_id
        self.by_id[request.stream.stream_id] = request
        self.seen["opened"] += 1
        if self.edge.mux.congested:
            self.seen["opened while congested"] += 1
        if self.rng.random() < 0.05 * self.plan.leaves:
            request.cancel()

    def produce(self) -> None:
        if self.calls:
            self.rng.choice(self.calls).produce(self.rng.choice((1, 50, 4000, READ_MAX)))

    def client_reads(self) -> None:
        if self.live:
            request = self.rng.choice(self.live)
            if request.reads:
                request.client.read(self.rng.choice((1000, READ_MAX)))

    def provider_reads(self) -> None:
        if self.calls:
            self.rng.choice(self.calls).provider.read(self.rng.choice((1000, READ_MAX)))

    def leave(self) -> None:
        staying = [request for request in self.live if not request.left]
        if staying:
            self.rng.choice(staying).cancel()

    def tick(self) -> None:
        self.now += self.rng.random() * 0.2
        self.edge_hub.now = self.node_hub.now = self.now
        self.edge.tick(self.now)
        if not self.broken:
            self.node.tick(self.now)

    def late_frame(self) -> None:
        """A frame for a stream that has ended: from a peer that is slow to learn of it."""
        over = [r for r in self.every if r.terminal and r.stream.stream_id not in self.withdrawn]
        if not over or self.edge.state is not State.READY or self.node.state is not State.READY:
            return
        request = self.rng.choice(over)
        stream_id = request.stream.stream_id
        if self.node.mux.find(stream_id) is not None:
            return
        self.seen["late frames"] += 1
        if self.rng.random() < 0.5:
            self.node.mux.send(frame.encode_tunnel_frame(stream_id, 9, m.TunnelFrameKind.BODY, b"late"))
        else:
            self.edge.mux.send(frame.encode_credit(stream_id, 1000))

    def reset(self) -> None:
        self.broken = True
        self.seen["reset"] += 1

    def lose(self) -> None:
        """Both transports are gone, as their owners hear of it."""
        wire = bytes(self.up.wire)
        seen = self.edge.mux.frames_in
        for session in (self.edge, self.node):
            session.close()
            assert session.close() == []
        for request in list(self.live):
            request.end("lost")
        for call in list(self.calls):
            call.cancel()
        self.edge.mux.feed(wire)
        assert self.edge.mux.frames_in == seen, "heard after the close"
        self.down.closed = self.up.closed = True
        self.round(self.edge_ready)
        self.round(self.node_ready)

    # ---- messages ---------------------------------------------------------------------------------------------------

    def _edge_heard(self, message: m.Message) -> None:
        match message:
            case m.RegisterRequest():
                self.edge.accept(m.NodeConfigPayload("n", 1), "1", self.now)
            case m.NodeReadyRequest():
                self.edge.activate()
            case _:
                raise AssertionError(message)

    def _node_heard(self, message: m.Message) -> None:
        match message:
            case m.RegisterResponse():
                self.node.ready(m.NodeReadyRequest("n", 1), self.now)
            case m.NodeReadyResponse():
                assert message.ready
            case m.ProviderTunnelRequest():
                assert message.stream_id not in self.withdrawn, "withdrawn, and still sent"
                call = Call(self, message, self.by_id[message.stream_id])
                window = limits.STREAM_WINDOW_BYTES
                self.node.mux.adopt(call.stream, message.stream_id, window, message.window_bytes)
                self.calls.append(call)
                if not call.inline:
                    call.stream.feeds(call.writer)
            case m.CancelRequest():
                assert message.stream_id not in self.withdrawn
                assert message.stream_id <= self.node.mux.highest_id, "the cancel overtook the opening"
                for call in self.calls:
                    if call.stream.stream_id == message.stream_id:
                        call.cancel()
                        return
                self.seen["cancel came too late"] += 1
            case _:
                raise AssertionError(message)

    def _raise(self, exc: Exception) -> None:
        raise exc

    # ---- what must hold ---------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """After every step."""
        edge, node = self.edge.mux, self.node.mux
        owed = 0
        for request in self.live:
            s = request.stream
            assert s.allowed >= 0
            assert s.owed >= 0
            assert s.allowed + s.owed == s.window
            owed += s.owed
        assert self.edge_hub.buffered_bytes == owed
        owed = 0
        for call in self.calls:
            up, r = call.stream, call.request.stream
            assert up.allowed >= 0
            assert up.owed >= 0
            assert up.allowed + up.owed == up.window
            owed += up.owed
            assert up.send_credit >= 0
            # Bytes on their way up, and credit on its way down: neither is lost, neither appears from nowhere.
            on_way = up.body_bytes - r.body_bytes
            returning = (r.body_bytes - r.owed) - (up.body_bytes + up.send_credit - r.window)
            assert on_way >= 0
            assert returning >= 0
            if call.request.framing != FRAMING_CHUNKED and not up.fenced:
                assert call.at - up.body_bytes <= 2 * READ_MAX, "a source that was not stopped"
        assert self.node_hub.buffered_bytes == owed
        assert edge.stream_count == len(self.live)
        assert node.stream_count == len(self.calls)
        bound = (1 << 20) + (len(self.live) + 1) * (READ_MAX + 65536)
        assert edge.queued_bytes <= bound
        assert node.queued_bytes <= bound
        if edge.congested or node.congested:
            self.seen["congested steps"] += 1
        for request in self.live:
            if request.stream.blocked:
                self.seen["blocked steps"] += 1
            window = request.window + CLIENT_HIGH + READ_MAX + 4096
            assert request.client.buffered <= window + request.window // 8, "a client that does not read fills memory"

    def check_quiet(self) -> None:
        """When nothing moves any more."""
        assert not self.live, [r.run_id for r in self.live]
        assert not self.calls
        for session, hub in ((self.edge, self.edge_hub), (self.node, self.node_hub)):
            assert hub.buffered_bytes == 0
            assert session.mux.stream_count == 0
            assert session.mux.queued_bytes == 0
            assert session.state is State.CLOSED or not session.mux.congested
        for request in self.every:
            assert request.terminal, request.run_id
            if request.finished and not request.left:
                assert request.delivered == len(request.answer), (request.run_id, request.delivered)
                assert request.decoder.eof(), "an answer that ended well looks cut"
            elif request.mode != RAW and not request.left:
                assert not request.decoder.done or request.delivered == len(request.answer)
