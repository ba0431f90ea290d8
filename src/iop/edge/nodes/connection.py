"""One connection of a node: registration, readiness, its configuration, its loss (REG).

A connection walks register → (probe the present owner) → accepted → ready. Who owns a node is the pool's registry's to
say; here its verdicts are carried out. A connection that ends is fenced first, then the pool hears of it, so that
nothing of a dead generation is ever acted on.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from iop import __version__
from iop._fast.mux import MAX_STREAM_ID
from iop._fast.runs import RunSink
from iop.edge.nodes.commands import Commands
from iop.edge.nodes.config_sync import ConfigState
from iop.edge.nodes.engine_load import EnginePoll
from iop.edge.nodes.health import Health
from iop.edge.nodes.identity import Certified, certified_node
from iop.edge.nodes.traffic import Traffic
from iop.net.link import Link
from iop.net.lobby import Lobby
from iop.net.loop import Runtime
from iop.observability.events import EVENTS, EventBus, NodeChanged
from iop.observability.metrics import EdgeMetrics
from iop.observability.repeats import Repeats
from iop.pool.lease import Actions
from iop.pool.pool import Pool
from iop.pool.registry import Claim, OwnerProbe, ProbeVerdict, ReadyOutcome
from iop.tls.contexts import Served
from iop.wire import limits
from iop.wire import messages as m
from iop.wire.session import TIMEOUTS, EdgeSession, State

__all__ = ["Connections", "NodeLink"]

log = logging.getLogger("iop.edge.nodes.connection")

READY = State.READY  # by its bare name: looking it up on its Enum class takes five times as long as a global

ANYBODYS = frozenset({"node_rejected", "node_connection_closed"})  # lines that take no token to cause
PROBE_TICK_S = 0.1
LAST_STREAM_ID = MAX_STREAM_ID - (1 << 20)  # what is left is more than one tick can use up

_NO_NODE = "no node of this edge has this token"


class Connections(Protocol):
    """What a connection shares with all others: the tables, the pool, and who hears of its life."""

    runtime: Runtime
    events: EventBus
    pool: Pool
    metrics: EdgeMetrics
    perform: Callable[[Actions], None]
    tokens: Mapping[bytes, str]
    payloads: Mapping[str, m.NodeConfigPayload]
    max_frame_bytes: int
    timing: limits.Timing
    links: set[NodeLink]
    owners: dict[str, NodeLink]
    refusals: dict[str, dict[str, Any]]
    health: Health
    traffic: Traffic
    lobby: Lobby
    repeats: Repeats
    wall: Callable[[], float]
    closing: bool
    tls: Served | None
    on_inventory: Callable[[str, m.Inventory], None]

    @property
    def now(self) -> float: ...

    def lost(self, link: NodeLink, generation: int, reason: str) -> None:
        """An owner's connection counts for nothing any more."""


class NodeLink:
    """One connection: the session's handler and the link's owner."""

    def __init__(self, server: Connections, now: float) -> None:
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
