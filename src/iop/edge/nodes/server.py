"""The node port: listens for nodes, and has the tables of their connections (REG).

What one connection goes through is :mod:`iop.edge.nodes.connection`'s.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from iop.edge.nodes.commands import Commands, Done
from iop.edge.nodes.connection import READY, NodeLink
from iop.edge.nodes.engine_load import EngineFigures
from iop.edge.nodes.health import Health
from iop.edge.nodes.identity import speaks_tls
from iop.edge.nodes.traffic import Traffic
from iop.errors import InvalidArgument, InvalidRequest, NodeDisconnected, NotThere
from iop.net.lobby import Lobby
from iop.net.loop import Runtime
from iop.net.tls import HandshakeFailures, TlsListener, listen
from iop.observability.events import EventBus
from iop.observability.metrics import EdgeMetrics
from iop.observability.repeats import Repeats
from iop.pool.lease import Actions
from iop.pool.pool import Pool
from iop.pool.registry import LossOutcome
from iop.tls.contexts import Served
from iop.wire import limits
from iop.wire import messages as m
from iop.wire.session import EdgeSession

__all__ = ["NodeServer"]

log = logging.getLogger("iop.edge.nodes.server")

OLLAMA_S = 8.0  # less than a caller of the admin listener waits
TICK_S = 0.5


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
