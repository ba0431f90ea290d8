"""The node program: builds the rooms from a configuration and runs them under the supervisor (SUP)."""

from __future__ import annotations

import gc
import logging
import os

from iop.config.node import NodeConfig
from iop.net import link
from iop.net import loop as net_loop
from iop.net.http.server import HttpServer
from iop.net.loop import Runtime
from iop.node.metrics_listener import watch_listener
from iop.node.providers.allowance import Allowance
from iop.node.providers.registry import Backends
from iop.node.uplink.reconnect import ReconnectPolicy, SupervisorPolicy
from iop.node.uplink.supervisor import Supervisor
from iop.node.uplink.trust import Trust
from iop.observability import logs
from iop.observability.metrics import NodeMetrics
from iop.store.runs import RunStore

__all__ = ["run"]

log = logging.getLogger("iop.node")


def run(config: NodeConfig, *, log_format: logs.LogFormat = "console") -> int:
    """Serves until SIGTERM or SIGINT, or until the supervisor gives up; returns the exit code (SUP-3).

    What it writes, which is the run store and what SQLite puts beside it, is for its own user alone.
    """
    os.umask(0o077)
    sink = logs.setup(log_format)
    try:
        return net_loop.run(lambda runtime: _serve(config, runtime, sink))
    finally:
        sink.close()


async def _serve(config: NodeConfig, runtime: Runtime, sink: logs.Sink) -> int:
    node = config.node
    upstreams = None if node.allow_upstreams is None else [(p.host, p.port) for p in node.allow_upstreams]
    backends = Backends(runtime, Allowance(upstreams, frozenset(node.credentials), node.detect_ports))
    metrics = NodeMetrics()
    runs = RunStore(config.store.url)
    supervisor = Supervisor(
        runtime,
        backends,
        metrics,
        SupervisorPolicy(ReconnectPolicy(config.reconnect.max_attempts, config.reconnect.interval_sec)),
        host=node.edge.host,
        port=node.edge.port,
        token=node.token.get_secret_value,
        drain_s=node.drain_timeout_sec,
        timing=link.timing(),
        runs=runs,
        trust=_trust(config),
    )
    _watch(metrics, backends, supervisor, sink)
    metrics.store_rows.watch(lambda: {("written",): runs.written, ("dropped",): runs.dropped})
    net_loop.on_signals(runtime.loop, lambda signum: supervisor.stop(), hangup=True)
    if node.tls is None and not node.edge.is_loopback:
        log.warning("link_in_the_clear")
    watch: HttpServer | None = None
    listen = config.metrics.listen
    if listen is not None:
        watch = watch_listener(runtime, metrics, lambda: supervisor.connected, local_only=listen.is_loopback)
        try:
            await logs.listen(log, "metrics", "metrics.listen", (listen.host, listen.port), watch.start)
        except OSError:
            return 1
    runs.start()
    gc.freeze()
    try:
        return await supervisor.run()
    finally:
        if watch is not None:
            watch.close()
        backends.close()
        await runs.close()  # last (SUP-4): it hears of the ends of what was cut off


def _trust(config: NodeConfig) -> Trust:
    """How the edge is known. A CA of its own serves one edge, so that a certificate of it which says that it is an
    edge's is enough, unless the file asks for a name."""
    tls = config.node.tls
    if tls is None:
        return Trust()
    return Trust(
        tls.dialling,
        name=tls.server_name or config.node.edge.host,
        by_identity=tls.server_name is None and (tls.ca is not None or tls.ca_sha256 is not None),
        ca_sha256=tls.ca_sha256,
        cert=tls.cert,
        key=tls.key,
    )


def _watch(metrics: NodeMetrics, backends: Backends, supervisor: Supervisor, sink: logs.Sink) -> None:
    """Metrics that mirror state read it when they are scraped."""
    metrics.slots.watch(lambda: {(p,): backends.gate.held(p) for p in backends.providers})
    lingering = backends.lingering
    metrics.lingering.watch(lambda: lingering.held)
    metrics.lingered.watch(lambda: {("ended",): lingering.ended, ("expired",): lingering.expired})
    metrics.capacity.watch(lambda: {(i,): p.config.max_concurrency for i, p in backends.providers.items()})
    metrics.provider_connections.watch(lambda: sum(len(p.pool.connections) for p in backends.providers.values()))
    metrics.link_bytes.watch(supervisor.link_bytes)
    metrics.ready.watch(lambda: int(supervisor.connected))
    metrics.log_lines_dropped.watch(lambda: sink.dropped)
