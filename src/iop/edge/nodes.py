"""The edge's side of all node connections: registration, ownership, readiness, loss (REG).

A connection walks ``NodeLink``: register → (probe the present owner) → accepted → ready. Who owns a node is the pool's
registry's to say; here its verdicts are carried out. A link that ends is fenced first, then the pool hears of it, so
that nothing of a dead generation is ever acted on.

The file is long because a connection's life and the table of all connections act on each other at every step.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from iop import __version__
from iop._fast.mux import MAX_STREAM_ID
from iop._fast.runs import RunSink
from iop.edge.commands import Commands, Done
from iop.edge.engines import EngineFigures, EnginePoll
from iop.edge.health import Health
from iop.edge.identity import Certified, certified_node, speaks_tls
from iop.edge.refresh import ConfigState
from iop.edge.traffic import Traffic
from iop.errors import InvalidArgument, InvalidRequest, NodeDisconnected, NotThere
from iop.net.link import Link
from iop.net.lobby import Lobby
from iop.net.loop import Runtime
from iop.net.tls import HandshakeFailures, TlsListener, listen
from iop.observability.events import EVENTS, EventBus, NodeChanged
from iop.observability.metrics import EdgeMetrics
from iop.observability.repeats import Repeats
from iop.pool.lease import Actions
from iop.pool.pool import Pool
from iop.pool.registry import Claim, LossOutcome, OwnerProbe, ProbeVerdict, ReadyOutcome
from iop.tls.contexts import Served
from iop.wire import limits
from iop.wire import messages as m
from iop.wire.session import TIMEOUTS, EdgeSession, State

__all__ = ["NodeLink", "NodeServer"]

log = logging.getLogger("iop.edge.nodes")

READY = State.READY  # by its bare name: looking it up on its Enum class takes five times as long as a global

ANYBODYS = frozenset({"node_rejected", "node_connection_closed"})  # lines that take no token to cause
OLLAMA_S = 8.0  # less than a caller of the admin listener waits
PROBE_TICK_S = 0.1
TICK_S = 0.5
LAST_STREAM_ID = MAX_STREAM_ID - (1 << 20)  # what is left is more than one tick can use up


class NodeLink:
    """One connection: the session's handler and the link's owner."""

    def __init__(self, server: NodeServer, now: float) -> None:
        self.server = server
        self.session = EdgeSession(
            server.runtime.hub, self, now, max_frame_bytes=server.max_frame_bytes, timing=server.timing
        )
        self.link = Link(self.session, self)
        self.node_id = ""
        self.generation = 0
        self.adapters: list[str] = []
        self.node_version = ""
        self.config = ConfigState(server, self.session, self._log)
        self.leave_at: float | None = None  # its node is no longer configured
        self._token = b""  # hash
        self.certified = Certified()
        self.held: dict[str, int] = {}
        self.commands = Commands(self.session.send)
        self.engines = EnginePoll(self.commands, self._units_of, turn=len(server.links))
        self._guest: tuple[Any, ...] = (f"?{id(self)}", 0)  # what the lobby knows it by: the peer's address and port
        self.ready = False  # it has been
        self.fenced = False  # it counts for nothing any more
        self._fenced_at = 0.0

    def _units_of(self, provider_id: str) -> int | None:
        return self.server.pool.units_of(self.node_id, provider_id)

    def _log(self, level: int, event: str, **fields: Any) -> None:
        if event in ANYBODYS and not self.generation:  # there is no node behind it: anybody can go on with that
            server = self.server
            if not server.repeats.say(f"{event} {fields.get('reason', '')}", server.now):
                return
        log.log(level, event, extra={"fields": {"node": self.node_id or "?", "peer": self.link.peer, **fields}})
        if event in EVENTS and self.server.events.watched:
            self.server.events.publish(NodeChanged(event, time.time(), self.node_id, fields.get("reason", "")))

    # ---- link and session --------------------------------------------------------------------------------------------

    def link_made(self, link: Link) -> None:
        server = self.server
        server.links.add(self)
        name = link.transport.get_extra_info("peername") if link.transport is not None else None
        if isinstance(name, tuple):
            self._guest = name[:2]
        mux, now = self.session.mux, server.runtime.loop.time()
        if not server.lobby.enter(
            self._guest, str(self._guest[0]), now, lambda: mux.bytes_in > 0, lambda: link.abort("silent")
        ):
            link.abort("too_many_connections")
            return
        self.certified = found = certified_node(link.transport, self.server.tls)
        if found.fault:  # before anything of it is read
            self.reject(m.RejectReason.IDENTITY_MISMATCH, found.fault, "identity_ambiguous" if found.ambiguous else "")

    def link_lost(self, link: Link, reason: str) -> None:
        self.server.links.discard(self)
        self.server.lobby.leave(self._guest)
        self._fence(reason)

    def ended(self, reason: str, detail: str) -> None:
        metrics = self.server.metrics
        if reason not in TIMEOUTS:
            metrics.protocol_errors[reason].value += 1
        elif not self.ready:
            metrics.node_rejections[reason].value += 1  # else it counts as the end of a session
        self._log(logging.WARNING, "node_connection_closed", reason=reason, detail=detail)
        self.link.abort(reason)
        self._fence(reason)

    def _fence(self, reason: str) -> None:
        """The connection counts for nothing from here on (REG-5)."""
        if not self.fenced:
            self.fenced = True
            self._fenced_at = self.server.now
            self.server.traffic.ended(self.session.mux)
        streams = self.session.close()
        self.engines.close()
        self.commands.close()
        generation, self.generation = self.generation, 0
        if generation:
            self.server.lost(self, generation, reason)
        for stream in streams:
            if isinstance(stream, RunSink):
                stream.lost()  # a direct run has no lease through which it would hear of this

    def received(self, message: m.Message) -> None:
        handler = self._HANDLERS.get(type(message))
        if handler is not None:
            handler(self, message)

    # ---- registration ------------------------------------------------------------------------------------------------

    def _register(self, request: m.RegisterRequest) -> None:
        server = self.server
        self.adapters = request.capabilities.adapters
        self.node_version = request.node_version
        if request.protocol_version != limits.PROTOCOL_VERSION:
            return self.reject(
                m.RejectReason.PROTOCOL_MISMATCH,
                f"the edge speaks protocol {limits.PROTOCOL_VERSION}, the node {request.protocol_version}; "
                f"use matching versions (edge {__version__}, node {request.node_version})",
            )
        # The lookup key is a hash of what the peer sent: its timing tells nothing about a stored token (REG-1).
        self._token = hashlib.sha256(request.token.encode()).digest()
        node_id = server.tokens.get(self._token)
        if node_id is None:
            return self.reject(m.RejectReason.UNKNOWN_TOKEN, _NO_NODE)
        if self.certified.node not in ("", node_id):
            said = f"the certificate is that of node {self.certified.node}, and the token is not"
            return self.reject(m.RejectReason.IDENTITY_MISMATCH, said)
        if server.closing:
            return self.reject(m.RejectReason.SHUTTING_DOWN, "the edge is shutting down")
        self.node_id = self.config.node_id = node_id
        return self._claim()

    def _claim(self) -> None:
        server = self.server
        now = server.now
        if server.tokens.get(self._token) != self.node_id:  # no longer, since the present owner was asked
            return self.reject(m.RejectReason.UNKNOWN_TOKEN, _NO_NODE)
        answer = server.pool.claim(self.node_id, now)
        if isinstance(answer, Claim):
            payload = server.payloads[self.node_id]
            try:
                self.session.accept(payload, __version__, now)
            except ValueError:
                server.pool.lost(self.node_id, answer.generation, now)
                return self.reject(
                    m.RejectReason.CONFIG_BUILD_FAILED, "the node's configuration is too large for one message"
                )
            self.generation = answer.generation
            server.lobby.leave(self._guest)
            self.config.sent = payload.revision
            server.owners[self.node_id] = self
            return None
        owner = server.owners[self.node_id]
        # Any byte counts: the probe asks whether the owner lives, not what it says (REG-2).
        probe = OwnerProbe(owner.session.probe() if owner.session.state is not State.CLOSED else 0, now)
        server.runtime.wheel.arm(PROBE_TICK_S, lambda: self._judge(owner, probe))
        return None

    def _judge(self, owner: NodeLink, probe: OwnerProbe) -> None:
        if self.session.state is not State.REGISTERING:
            return None  # the newcomer gave up
        server = self.server
        if server.owners.get(self.node_id) is not owner:
            return self._claim()  # the owner went away by itself
        failed = owner.session.state is State.CLOSED
        verdict = probe.verdict(owner.session.mux.bytes_in, failed, server.now)
        if verdict is ProbeVerdict.ALIVE:
            return self.reject(
                m.RejectReason.DUPLICATE_CONNECTION, f"node {self.node_id} is connected already, and it answers"
            )
        if verdict is ProbeVerdict.DEAD:
            self._log(logging.WARNING, "node_superseded")
            owner.link.abort("superseded")
            owner._fence("superseded")
            return self._claim()
        server.runtime.wheel.arm(PROBE_TICK_S, lambda: self._judge(owner, probe))
        return None

    def reject(self, reason: m.RejectReason, message: str, name: str = "") -> None:
        """Refuses the registration; ``name`` is a finer reason than the wire has, for log and metrics."""
        name = name or reason.name.lower()
        self.server.metrics.node_rejections[name].value += 1
        self._log(logging.WARNING, "node_rejected", reason=name, detail=message)
        self.session.reject(reason, message, __version__)
        self.link.close(name)

    # ---- readiness ---------------------------------------------------------------------------------------------------

    def _ready(self, request: m.NodeReadyRequest) -> None:
        payload = self.server.payloads.get(self.node_id)
        if payload is None or request.node_id != self.node_id:
            return self._refuse(m.RejectReason.IDENTITY_MISMATCH)
        if self.session.state is State.PENDING:
            self.held = {entry.provider_id: entry.slots for entry in request.held}
            self.config.applied = request.revision
            self.config.reject(request.rejected)
            if not self.config.up_to_date:
                self.config.send()  # and acked before activation (REG-3)
                return None
        return self._activate()

    def _activate(self) -> None:
        server = self.server
        server.refusals.pop(self.node_id, None)
        readiness = server.pool.ready(self.node_id, self.generation, self.held, server.now, self.config.rejected)
        if readiness.outcome is ReadyOutcome.STALE:
            return self._refuse(m.RejectReason.STALE_CONNECTION)
        self.session.activate()
        self.ready = True
        if readiness.outcome is ReadyOutcome.ACTIVATED:
            server.health.ready(self.node_id, self.generation)
            self._log(logging.INFO, "node_connected", version=self.node_version or "?")
        server.perform(readiness.actions)
        return None

    def _refuse(self, reason: m.RejectReason) -> None:
        self.session.refuse_ready(reason)
        self.link.close(reason.name.lower())

    # ---- configuration (CONF-2) --------------------------------------------------------------------------------------

    def _refresh_answered(self, response: m.ConfigRefreshResponse) -> None:
        server = self.server
        final = self.config.answered(response)
        if response.applied and self.config.applied == response.revision:
            self.engines.refresh()
        if not final:
            return
        if self.session.state is READY:
            if response.applied:
                actions = server.pool.applied(self.node_id, self.generation, server.now, self.config.rejected)
            else:
                actions = server.pool.refused(self.node_id, self.generation, server.now)
            server.perform(actions)
        elif response.applied:
            self._activate()
        else:
            self._refuse(m.RejectReason.CONFIG_BUILD_FAILED)

    def leave_when_done(self, now: float) -> None:
        """The node is no longer configured: its last request ends the connection, or its time is up."""
        if self.leave_at is None:
            return
        at_work = self.server.pool.leases_of(self.node_id) or self.session.mux.stream_count  # a direct run has no lease
        if now >= self.leave_at or not at_work:
            self._log(logging.INFO, "node_removed")
            self.session.goodbye(m.GoodbyeReason.SHUTDOWN, code="removed")
            self._close("removed")

    # ---- the rest ----------------------------------------------------------------------------------------------------

    def _goodbye(self, message: m.Goodbye) -> None:
        if message.reason is m.GoodbyeReason.CONFIG_REJECTED and self.node_id in self.server.payloads:
            self.config.refused(message.code, message.ref)
        self._log(logging.INFO, "node_goodbye", reason=message.reason.name.lower(), code=message.code, ref=message.ref)
        self._close("goodbye")

    def _close(self, reason: str) -> None:
        """Lets what is queued leave and ends the connection; nothing of it counts any more."""
        self.link.close(reason)
        self._fence(reason)

    def tick(self, now: float) -> None:
        """The clocks of the session, and the end of its stream ids (WIRE-4): the node comes back and counts from 1."""
        if self.fenced:
            # Its goodbye may still leave; but a node that takes nothing would keep the socket for ever.
            if now - self._fenced_at >= self.server.timing.write_stall_s:
                self.link.abort("write_stalled")
            return
        self.session.tick(now)
        ends_at = self.certified.expires_at
        if ends_at is not None and self.server.wall() >= ends_at and self.session.state is not State.CLOSED:
            self.session.goodbye(m.GoodbyeReason.SHUTDOWN, code="identity_expired")
            self._close("identity_expired")
            return
        self.leave_when_done(now)
        if self.session.state is READY and self.config.overdue(now):
            # Requests that wait for what it was to bring wait no longer.
            self.server.perform(self.server.pool.refused(self.node_id, self.generation, now))
        self.commands.tick(now)
        if self.session.state is READY:
            self.engines.tick(now)
        if self.session.state is READY and self.session.mux.highest_id > LAST_STREAM_ID:
            self._log(logging.WARNING, "stream_ids_exhausted")
            self.session.goodbye(m.GoodbyeReason.STREAM_IDS_EXHAUSTED)
            self._close("stream_ids_exhausted")

    def _command_answered(self, response: m.NodeCommandResponse) -> None:
        self.commands.answered(response)

    def _event(self, event: m.EdgeNodeEvent) -> None:
        pool, now = self.server.pool, self.server.now
        if event.draining is not None:
            self._log(logging.INFO, "node_draining")
            self.server.perform(pool.drain(self.node_id, self.generation, now))
        elif event.call_closed is not None:
            self.server.perform(pool.call_closed(self.node_id, self.generation, event.call_closed.provider_id, now))
        elif event.health_observation is not None:
            self.server.health.observed(self.node_id, self.generation, event.health_observation)
        elif event.inventory is not None and self.session.state is READY:
            self.server.on_inventory(self.node_id, event.inventory)

    _HANDLERS: Mapping[type[Any], Callable[[NodeLink, Any], None]] = {
        m.RegisterRequest: _register,
        m.NodeReadyRequest: _ready,
        m.ConfigRefreshResponse: _refresh_answered,
        m.NodeCommandResponse: _command_answered,
        m.Goodbye: _goodbye,
        m.EdgeNodeEvent: _event,
    }


_NO_NODE = "no node of this edge has this token"


class NodeServer:
    """The node port. ``tokens`` maps SHA-256 of a token to its node, ``payloads`` holds each node's configuration;
    ``perform`` carries out what the pool decided. ``refusals`` says, by node, what it did not take last, and why."""

    def __init__(
        self,
        runtime: Runtime,
        pool: Pool,
        metrics: EdgeMetrics,
        perform: Callable[[Actions], None],
        *,
        tokens: Mapping[bytes, str],
        payloads: Mapping[str, m.NodeConfigPayload],
        max_frame_bytes: int = limits.MAX_FRAME_BYTES,
        timing: limits.Timing = limits.TIMING,
        events: EventBus | None = None,
    ) -> None:
        self.runtime = runtime
        self.events = events or EventBus()
        self.pool = pool
        self.metrics = metrics
        self.perform = perform
        self.tokens = tokens
        self.payloads = payloads
        self.max_frame_bytes = max_frame_bytes
        self.timing = timing
        self.links: set[NodeLink] = set()
        self.owners: dict[str, NodeLink] = {}
        self.refusals: dict[str, dict[str, Any]] = {}
        self.health = Health(runtime.wheel, pool, metrics, perform, commands=self._commands, events=self.events)
        self.traffic = Traffic(lambda: (link.session.mux for link in self.links if not link.fenced))
        self.lobby = Lobby(told=self._no_room)
        self.repeats = Repeats()
        self.wall: Callable[[], float] = time.time  # against which certificates end
        self.closing = False
        self.tls: Served | None = None  # what new connections are shown
        self.handshakes = HandshakeFailures(runtime, "nodes")
        #: Hears what a ready node found beside it; the composition root sets it.
        self.on_inventory: Callable[[str, m.Inventory], None] = lambda node_id, inventory: None
        self._server: asyncio.Server | TlsListener | None = None
        self._ticking = True
        self._tick()

    @property
    def now(self) -> float:
        """The loop's time, to the millisecond: what waits is measured by it."""
        return self.runtime.loop.time()

    async def start(self, host: str, port: int) -> int:
        """Binds and listens, with TLS if ``tls`` is set by now; returns the port. Raises OSError."""
        self._server, port = await listen(
            self.runtime,
            lambda: NodeLink(self, self.runtime.loop.time()).link,
            host,
            port,
            served=lambda: self.tls,
            room=lambda arriving: True,  # the lobby's to say
            handshake_s=lambda: self.timing.register_s,
            plain_answer=speaks_tls,
            failures=self.handshakes,
            lobby=self.lobby,
        )
        return port

    def configure(
        self, tokens: Mapping[bytes, str], payloads: Mapping[str, m.NodeConfigPayload], *, drain_s: float
    ) -> set[str]:
        """From here on these nodes and tokens count (CONF-2). A connection outlives a change of its token; that of a
        node which is no longer there ends with its last request, after ``drain_s`` at the latest.

        Returns the nodes that have all of theirs already. The pool has to hear of the change before :meth:`refresh`.
        """
        self.tokens = tokens
        self.payloads = payloads
        self.refusals = {node_id: said for node_id, said in self.refusals.items() if node_id in payloads}
        leave_at = self.now + drain_s
        for node_id, link in self.owners.items():
            if node_id in payloads:
                link.leave_at = None
            elif link.leave_at is None:
                link.leave_at = leave_at
        return {
            node_id
            for node_id, link in self.owners.items()
            if node_id in payloads and link.config.up_to_date and link.session.state is READY
        }

    def refresh(self) -> list[str]:
        """Sends ready nodes what has changed for them, and parts with those that are gone. Returns whom it was sent."""
        sent = []
        for node_id, link in list(self.owners.items()):
            link.leave_when_done(self.now)
            if link.session.state is READY and link.config.send():
                sent.append(node_id)
        return sent

    def out_of_date(self) -> int:
        """Ready nodes that have not applied what they are to have."""
        return sum(link.session.state is READY and not link.config.up_to_date for link in self.owners.values())

    def config_of(self, node_id: str) -> dict[str, Any]:
        """A node's part of the status: which revision it is to have (None: it is no longer configured), which one it
        applied (None: not connected), and what it refused."""
        payload, link = self.payloads.get(node_id), self.owners.get(node_id)
        ready = link is not None and link.session.state is READY
        return {
            "revision": payload.revision if payload is not None else None,
            "applied_revision": link.config.applied if link is not None and ready else None,
            "config_refused": self.refusals.get(node_id),
        }

    def rejections(self, node_id: str) -> Mapping[str, m.Rejected]:
        """By provider id, what a connected node does not take of the configuration that it applied (CONF-2)."""
        link = self.owners.get(node_id)
        return link.config.rejected if link is not None and link.session.state is READY else {}

    def unanswered(self, node_ids: Collection[str]) -> list[str]:
        """Those of the nodes that are connected and have not answered what they were sent."""
        return [i for i in node_ids if (link := self.owners.get(i)) is not None and link.config.under_way]

    def session(self, node_id: str, generation: int) -> EdgeSession | None:
        """The session that a lease of this generation goes to, or None if it is no longer the node's ready owner."""
        owner = self.owners.get(node_id)
        if owner is None or owner.generation != generation or owner.session.state is not READY:
            return None
        return owner.session

    def _commands(self, node_id: str, generation: int) -> Commands | None:
        return self.owners[node_id].commands if self.session(node_id, generation) is not None else None

    def ask_ollama(self, provider_id: str, path: bytes, body: bytes, done: Done) -> None:
        """Ask an Ollama server what it lists (EXEC-8); ``done`` hears the answer. Raises NotThere, InvalidRequest,
        NodeDisconnected or CapacityExceeded."""
        found = [(i, p.kind) for i, payload in self.payloads.items() for p in payload.providers if p.id == provider_id]
        if not found:
            raise NotThere(f"there is no provider {provider_id[:100]!r}; `iop-edge status` lists them")
        ((node_id, adapter),) = found
        if adapter != "ollama":
            raise InvalidRequest(f"provider {provider_id} is of kind {adapter}, and not ollama")
        self.only_ready(node_id)
        self.owners[node_id].commands.start(
            m.NodeCommand.OLLAMA_API, done, self.now, timeout_s=OLLAMA_S, provider_id=provider_id, adapter=adapter,
            argument=path, body=body,
        )  # fmt: skip

    def only_ready(self, node_id: str) -> tuple[str, EdgeSession]:
        """The ready node of this name, or without one the only ready node (POOL-14). Raises NodeDisconnected, or
        InvalidArgument when there are several."""
        ready = {
            i: link.session
            for i, link in self.owners.items()
            if link.session.state is READY and i in self.payloads  # one that is gone only finishes what it has
        }
        if node_id:
            if node_id not in ready:
                raise NodeDisconnected(f"node {node_id[:100]!r} is not connected")
            return node_id, ready[node_id]
        if not ready:
            raise NodeDisconnected("no node is connected")
        if len(ready) > 1:
            raise InvalidArgument(f"several nodes are connected; name one of {', '.join(sorted(ready))}")
        return next(iter(ready.items()))

    def connected(self) -> int:
        """Ready nodes."""
        return sum(link.session.state is READY for link in self.owners.values())

    def engine_figures(self) -> dict[str, EngineFigures]:
        """By provider id, what the engines of connected nodes reported last (POOL-13)."""
        return {
            provider_id: figures
            for owner in self.owners.values()
            for provider_id, figures in owner.engines.figures.items()
        }

    def lost(self, link: NodeLink, generation: int, reason: str) -> None:
        if self.owners.get(link.node_id) is link:
            del self.owners[link.node_id]
        loss = self.pool.lost(link.node_id, generation, self.now)
        if loss.outcome is LossOutcome.OWNER:
            self.metrics.node_sessions[reason].value += 1
            link._log(logging.WARNING, "node_disconnected", reason=reason)
        self.health.lost(link.node_id, generation)
        self.perform(loss.actions)

    def _no_room(self, reason: str, address: str) -> None:
        if self.repeats.say(f"node_connection_refused {reason}", self.now):
            log.warning("node_connection_refused", extra={"fields": {"peer": address, "reason": reason}})

    def _tick(self) -> None:
        if self._ticking:
            now = self.now
            for kind, count in self.repeats.due(now):
                event, _, reason = kind.partition(" ")
                log.warning(event, extra={"fields": {"reason": reason, "repeated": count}})
            for link in list(self.links):
                link.tick(now)
            self.runtime.wheel.arm(TICK_S, self._tick)

    def stop_accepting(self) -> None:
        """No new node connection; the present ones go on."""
        self.closing = True
        if self._server is not None:
            self._server.close()

    def close(self, grace_ms: int) -> None:
        """Says goodbye to every node and closes (SUP-5)."""
        self.stop_accepting()
        self._ticking = False
        for link in list(self.links):
            link.session.goodbye(m.GoodbyeReason.SHUTDOWN, grace_ms=grace_ms)
            link.link.close("shutdown")
