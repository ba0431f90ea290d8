"""The edge program: builds the rooms from a configuration, runs them, and takes them down in order (SUP-5)."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from iop import __version__
from iop.config.auto import asked_anew, asks, fill_in
from iop.config.diff import compare
from iop.config.edge import EdgeConfig, without_effect
from iop.edge.admin.actions import Operator
from iop.edge.admin.listener import Admin
from iop.edge.admin.runs import PRINCIPAL as OPERATOR
from iop.edge.admin.runs import RunFeed, open_run
from iop.edge.gateway.gateway import Gateway
from iop.edge.keys.keyring import Found, Keychain
from iop.edge.keys.limits import ANONYMOUS
from iop.edge.nodes.engine_load import drift, engine_fields, running
from iop.edge.nodes.server import NodeServer
from iop.edge.requests.dispatcher import Dispatcher
from iop.edge.requests.retry import Limits
from iop.edge.settings import values
from iop.edge.settings.discovery import Discovery
from iop.edge.settings.reload import TOLD, Load, Prepared, Reloaded, Reloader
from iop.errors import ShuttingDown
from iop.net import link
from iop.net import loop as net_loop
from iop.net.http.exchange import Exchange, ServerLimits
from iop.net.http.server import HttpServer
from iop.net.loop import Runtime
from iop.observability import logs
from iop.observability.events import EventBus
from iop.observability.metrics import EdgeMetrics
from iop.pool.evidence import Known, ProviderKey
from iop.pool.pool import Pool
from iop.wire import messages as m

__all__ = ["Edge", "run"]

log = logging.getLogger("iop.edge")

ADMIN_BODY_BYTES = 4 << 20  # a run's input, which is parsed in one go: 20 to 50 ms here and at the node
DRAIN_POLL_S = 0.1
CLOSE_FLUSH_S = 0.2


def run(config: EdgeConfig, load: Load | None = None, *, log_format: logs.LogFormat = "console") -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code (0 after an orderly end, 1 if a port is taken). ``load``
    reads the configuration again for a reload."""
    sink = logs.setup(log_format)
    try:
        return net_loop.run(lambda runtime: _serve(config, load, runtime, sink))
    finally:
        sink.close()


async def _serve(config: EdgeConfig, load: Load | None, runtime: Runtime, sink: logs.Sink) -> int:
    edge = Edge(config, runtime, sink, load)
    stop = asyncio.Event()
    signals = 0

    def on_signal(signum: int) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            edge.hurry()
        stop.set()

    net_loop.on_signals(runtime.loop, on_signal)
    on_terminal = os.isatty(2)

    def on_hangup() -> None:
        """SIGHUP says two things: read the file again, and that the terminal has gone that we were started on."""
        if on_terminal and not os.isatty(2):
            on_signal(signal.SIGHUP)
        elif not stop.is_set():
            edge.reloader.ask()

    # Before anybody knows that the edge is there: a signal that comes early must not end it.
    runtime.loop.add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        await edge.start()
    except OSError:
        edge.close()
        return 1
    gc.freeze()
    await stop.wait()
    await edge.drain()
    edge.close()
    await edge.leave()
    return 0


class Edge:
    """All rooms of one edge, wired. ``start`` binds the listeners, ``drain`` lets requests finish, ``close`` ends all.

    ``http_port``, ``node_port`` and ``admin_port`` are what was bound, once started.
    """

    def __init__(self, file: EdgeConfig, runtime: Runtime, sink: logs.Sink, load: Load | None = None) -> None:
        self.file = file
        self.config = config = fill_in(file, {})  # what it runs: the file with what nodes have found in its open places
        self.runtime = runtime
        self.metrics = EdgeMetrics()
        self.pool = Pool()
        self.events = EventBus()
        self.http_port = self.node_port = self.admin_port = 0
        self._started_at = runtime.loop.time()
        self._draining = False
        self._hurry = asyncio.Event()
        self.revision = 1  # of the configuration; counts up with each change, from the start of the program
        self.reloader = Reloader(runtime, self.metrics, load, self.prepare, self.take, self._answers)
        self.discovery = Discovery(runtime, self._prepare_found, self._take_found)
        self.discovery.configure(file)
        self.keychain = Keychain(runtime, config.http, self._access_changed)
        told = values.payloads(config, self.revision, asks=asks(file))
        self.dispatcher = Dispatcher(
            runtime,
            self.pool,
            self.metrics,
            sink,
            self.events,
        )
        self.nodes = NodeServer(
            runtime,
            self.pool,
            self.metrics,
            self.dispatcher.perform,
            tokens=values.tokens(config),
            payloads=told,
            max_frame_bytes=config.transport.max_frame_bytes,
            timing=link.timing(),
            events=self.events,
        )
        self.dispatcher.nodes = self.nodes
        self.nodes.on_inventory = self.discovery.reported
        self.gateway = Gateway(
            self.dispatcher,
            values.access(config.http, self.keychain.keys),
            values.models(config),
            max_body_bytes=config.http.max_body_bytes,
            started_at=int(time.time()),
            ready=lambda: not self._draining,
            may_come=self.discovery.may_come,
        )
        self.http = HttpServer(
            runtime,
            self.gateway,
            self.gateway.fail,
            values.server_limits(config.http),
        )
        self.admin: HttpServer | None = None
        if config.admin.listen is not None:
            admin = Admin(
                runtime,
                self.metrics,
                self.status,
                self.events,
                reload=self.reloader.ask,
                runs=self._open_run,
                operator=Operator(self.dispatcher),
                ready=lambda: not self._draining,
                local_only=config.admin.listen.is_loopback,
            )
            self.admin = HttpServer(runtime, admin, admin.fail, ServerLimits(max_body_bytes=ADMIN_BODY_BYTES))
        for text in without_effect(config):
            log.warning("setting_without_effect", extra={"fields": {"setting": text}})
        self._watch(sink)
        self._configure(told, values.pool_arguments(config), values.known(config))

    # ---- the configuration (CONF-2) ----------------------------------------------------------------------------------

    def reload(self, wanted: EdgeConfig) -> Reloaded:
        """Takes over a changed configuration, whole or not at all. Raises ConfigError and changes nothing."""
        return self.take(self.prepare(wanted))

    def prepare(self, wanted: EdgeConfig, keys: Found | None = None) -> Prepared:
        """All that can be made of a configuration beforehand. Changes nothing, so a thread may do it while requests go
        on: with many nodes it takes longer than a stream may wait. The keys file is read again unless ``keys`` says
        what it has. Raises ConfigError."""
        running = self.config
        change = compare(running, self.discovery.fill_in(wanted))
        change = replace(change, changed=(*change.changed, *asked_anew(self.file, wanted)))
        revision = self.revision + bool(change.changed)
        told = values.payloads(change.config, revision, self.nodes.payloads, asks=asks(wanted))
        silent = sorted({*without_effect(change.config)} - {*without_effect(running)})
        keys = keys or self.keychain.prepare(change.config.http)
        pool, known = values.pool_arguments(change.config), values.known(change.config)
        return Prepared(running, wanted, change, revision, told, pool, silent, keys, known)

    def take(self, prepared: Prepared) -> Reloaded:
        """Takes over what was prepared.

        Nothing else runs in between: a request sees the old configuration or the new one. What a request has (its
        principal, its place in the queue, its lease, its provider's clocks) stays as it is.
        """
        if prepared.running is not self.config:
            prepared = self.prepare(prepared.file, prepared.keys)  # it was made for another one
        self.file = prepared.file
        self.discovery.configure(self.file)
        change = prepared.change
        for text in prepared.silent:
            log.warning("setting_without_effect", extra={"fields": {"setting": text}})
        self.keychain.take(change.config.http, prepared.keys)
        if not change.changed:
            self._access_changed()
            return Reloaded(self.revision, change, self.nodes.refresh())  # nodes that refused are asked again
        self.config, self.revision = change.config, prepared.revision
        return Reloaded(self.revision, change, self._configure(prepared.told, prepared.pool, prepared.known))

    def _answers(self, outcome: Reloaded) -> Reloaded:
        """With what the nodes have said to a reload so far."""
        rejected = [
            {"node": node_id, "provider": one.provider_id, "code": one.code, "detail": one.detail}
            for node_id in self.nodes.owners
            for one in self.nodes.rejections(node_id).values()
        ]
        return replace(outcome, unanswered=self.nodes.unanswered(outcome.nodes), rejected=rejected[:TOLD])

    def _prepare_found(self) -> Prepared:
        """What nodes have found, worked into the file that counts."""
        return self.prepare(self.file, self.keychain.found)

    def _take_found(self, prepared: Prepared) -> Reloaded:
        """A reload may have brought another file while the old one was worked on, and that must not come back."""
        return self.take(prepared if prepared.file is self.file else self._prepare_found())

    def _access_changed(self) -> None:
        """The keys file has changed."""
        self.gateway.set_access(values.access(self.config.http, self.keychain.keys))
        self.metrics.forget(principal=self._principals())

    def _principals(self) -> set[str]:
        """All that a request may have now."""
        return self.keychain.named | {ANONYMOUS.principal, OPERATOR}

    def _configure(
        self, told: dict[str, m.NodeConfigPayload], pool: dict[str, Any], known: Mapping[ProviderKey, Known]
    ) -> list[str]:
        """Hands the configuration to the rooms; returns the nodes that were sent theirs anew."""
        config, d = self.config, self.dispatcher
        d.providers = values.settings(config)
        d.request_timeouts = {group.id: group.request_timeout_ms / 1000 for group in config.models}
        d.window_bytes = config.transport.stream_window_bytes
        d.max_buffered_bytes = config.transport.max_buffered_bytes
        d.recovery = Limits(config.recovery.max_attempts, config.recovery.max_body_bytes)
        d.keepalive_s = config.http.stream_keepalive_sec
        d.count_principals = config.metrics.principals
        self.metrics.forget(
            model={group.id for group in config.models},
            node={node.id for node in config.nodes},
            provider={p.id for node in config.nodes for p in node.providers},
            principal=self._principals(),
        )
        self.gateway.configure(
            values.access(config.http, self.keychain.keys), values.models(config), config.http.max_body_bytes
        )
        self.http.limits = values.server_limits(config.http)
        self.http.tls = config.http.tls.served if config.http.tls is not None else None
        self.nodes.tls = config.transport.tls.served if config.transport.tls is not None else None
        self.nodes.max_frame_bytes = config.transport.max_frame_bytes
        acked = self.nodes.configure(values.tokens(config), told, drain_s=config.edge.drain_timeout_sec)
        d.perform(self.pool.configure(**pool, now=d.now, acked=acked))
        self.nodes.health.configure(known)
        d.watch_queue()
        return self.nodes.refresh()

    async def start(self) -> None:
        """Bind all listeners. Raises OSError when one cannot be had; its line is written."""
        transport, http, admin = self.config.transport.listen, self.config.http.listen, self.config.admin.listen
        start = self.nodes.start
        self.node_port = await logs.listen(log, "nodes", "transport.listen", (transport.host, transport.port), start)
        if self.admin is not None and admin is not None:
            start = self.admin.start
            self.admin_port = await logs.listen(log, "admin", "admin.listen", (admin.host, admin.port), start)
        self.keychain.start()
        self.http_port = await logs.listen(log, "http", "http.listen", (http.host, http.port), self.http.start)

    def _open_run(self, ex: Exchange, body: bytes) -> RunFeed:
        """An operator's run (POOL-14). Raises what refuses it."""
        if self._draining:
            raise ShuttingDown
        return open_run(self.dispatcher, ex, body)

    # ---- the end -----------------------------------------------------------------------------------------------------

    def hurry(self) -> None:
        """Ends the drain at once: the second signal."""
        self._hurry.set()

    async def drain(self) -> None:
        """Refuse what is new and wait, up to edge.drain_timeout_sec, for requests, uploads, and answers that their
        clients have not taken yet (SUP-5)."""
        self._draining = True
        self.reloader.close()
        self.discovery.close()
        log.info("draining", extra={"fields": {"requests": len(self.dispatcher.live)}})
        self.http.stop_accepting()
        self.nodes.stop_accepting()
        self.dispatcher.perform(self.pool.shutdown(self.dispatcher.now))
        deadline_at = self.runtime.loop.time() + self.config.edge.drain_timeout_sec
        while (self.dispatcher.live or self.http.unfinished) and self.runtime.loop.time() < deadline_at:
            try:
                await asyncio.wait_for(self._hurry.wait(), DRAIN_POLL_S)
                return
            except TimeoutError:
                continue

    def close(self) -> None:
        """Ends what is left: requests are cut with a typed error, nodes are told goodbye."""
        self._draining = True
        self.reloader.close()
        self.discovery.close()
        self.keychain.close()
        self.dispatcher.stop_all()
        self.nodes.close(grace_ms=1000)
        self.http.stop_accepting()
        if self.admin is not None:
            self.admin.close()

    async def leave(self) -> None:
        """After ``close``: let goodbyes and last bytes leave, and reset the clients that have not taken the rest, who
        would take a part for the whole (API-8b)."""
        await asyncio.sleep(CLOSE_FLUSH_S)
        self.http.close()
        await asyncio.sleep(0)  # in which the sockets close

    # ---- what is going on --------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The body of ``/admin/status``."""
        snapshot = self.pool.snapshot(self.dispatcher.now)
        engines, health = self.nodes.engine_figures(), self.nodes.health
        nodes: list[dict[str, Any]] = cast("Any", snapshot["nodes"])  # rows of our own by now: they are added to
        for node in nodes:
            node.update(self.nodes.config_of(node["id"]))
            rejections = self.nodes.rejections(node["id"])
            for provider in node["providers"]:
                rejected = rejections.get(provider["id"])
                provider["rejected"] = f"{rejected.code}: {rejected.detail}" if rejected is not None else None
                health.show(node["id"], provider)
                provider.update(engine_fields(engines.get(provider["id"])))
        for candidate in (row for model in snapshot["models"] for row in model["candidates"]):
            health.show_candidate(cast("Any", candidate))
        return {
            "edge": {
                "id": self.config.edge.id,
                "version": __version__,
                "uptime_s": round(self.runtime.loop.time() - self._started_at, 1),
                "revision": self.revision,
                "draining": self._draining,
                "config": {
                    "applied_at": round(self.reloader.applied_at, 3),
                    "needs_restart": list(self.reloader.needs_restart),
                    "faults": self.reloader.faults,
                },
                "keys": self.keychain.status(),
            },
            **snapshot,
            "nodes": nodes,
            "principals": self.keychain.principals(
                Counter(request.outline().principal for request in self.dispatcher.live), self.runtime.loop.time()
            ),
        }

    def _watch(self, sink: logs.Sink) -> None:
        """Metrics that mirror state read it when they are scraped."""
        metrics, pool, nodes, http = self.metrics, self.pool, self.nodes, self.http
        served: tuple[tuple[str, HttpServer | NodeServer], ...] = (("http", http), ("nodes", nodes))
        metrics.in_flight.watch(lambda: len(self.dispatcher.live))
        metrics.waiting.watch(lambda: {(i,): n for i, n in pool.waiting_by_group().items()})
        metrics.leases.watch(lambda: {(r.node_id, r.provider_id): len(r.leases) for r in pool.resources()})
        metrics.capacity.watch(lambda: {(r.node_id, r.provider_id): r.usable for r in pool.resources()})
        metrics.provider_up.watch(lambda: {(r.node_id, r.provider_id): int(r.open) for r in pool.resources()})
        metrics.ignored_returns.watch(lambda: pool.stats.returned_twice)
        metrics.keys.watch(lambda: self.keychain.count)
        metrics.keys_refused.watch(lambda: int(bool(self.keychain.faults)))
        metrics.client_connections.watch(lambda: len(http.connections))
        metrics.client_accepted.watch(lambda: http.stats.accepted)
        metrics.client_bytes.watch(lambda: {("in",): http.stats.bytes_in, ("out",): http.stats.bytes_out})
        metrics.buffered_bytes.watch(lambda: http.stats.buffered_body_bytes)
        metrics.nodes.watch(nodes.connected)
        metrics.nodes_configured.watch(lambda: len(self.config.nodes))
        metrics.nodes_out_of_date.watch(nodes.out_of_date)
        metrics.node_refusals.watch(lambda: {(reason,): count for reason, count in nodes.lobby.refused.items()})
        metrics.config_revision.watch(lambda: self.revision)
        metrics.config_applied_at.watch(lambda: self.reloader.applied_at)
        metrics.config_refused.watch(lambda: int(bool(self.reloader.faults)))
        metrics.link_bytes.watch(nodes.traffic.bytes)
        metrics.frames.watch(nodes.traffic.frames)
        metrics.late_frames.watch(nodes.traffic.late_frames)
        metrics.handshakes_failed.watch(
            lambda: {(n, r): count for n, s in served for r, count in s.handshakes.counts.items()}
        )
        metrics.certificate_expiry.watch(lambda: {(n,): s.tls.expires_at for n, s in served if s.tls is not None})
        metrics.log_lines_dropped.watch(lambda: sink.dropped)
        metrics.engine_running.watch(lambda: running(nodes.engine_figures()))
        metrics.engine_drift.watch(lambda: drift(nodes.engine_figures()))
        metrics.event_subscribers.watch(lambda: self.events.subscribers)
        metrics.events_lost.watch(lambda: self.events.lost)
