"""The edge's node port alone, in the test's loop: real pool and links, clocks as short as the test wants them.

async with NodePort() as port:
    link = await RawLink.connect(port.address)
"""

from __future__ import annotations

import asyncio
import hashlib
from types import TracebackType
from typing import Any

from iop.edge.nodes.server import NodeServer
from iop.net.loop import Runtime
from iop.observability.metrics import EdgeMetrics
from iop.pool import Action, Actions, Candidate, GroupSpec, Pool, ProviderSpec, QueueLimits
from iop.tls.contexts import Served
from iop.wire import limits
from iop.wire import messages as m
from tests.support.aio import until

TOKEN = "token-n1"
GROUP = "m"


class NodePort:
    """Nodes ``n1`` and ``n2`` with a provider of capacity 2 each; the group ``m`` has both as candidates. ``actions``
    are those that the pool gave up to now. A port of its own, or ``port`` again."""

    def __init__(
        self,
        *,
        timing: limits.Timing = limits.TIMING,
        port: int = 0,
        revision: int = 1,
        providers: int = 1,
        tls: Served | None = None,
    ) -> None:
        self._tls = tls
        self._timing = timing
        self._port = port
        names = ("n1", "n2")
        self.payloads = {
            name: m.NodeConfigPayload(
                name,
                revision,
                [m.ProviderConfig(f"{name}-p", "echo", "", 2, enabled=True)]
                + [m.ProviderConfig(f"{i}-{'x' * 500}", "echo", "y" * 500, 1) for i in range(providers - 1)],
            )
            for name in names
        }
        self.tokens = {hashlib.sha256(f"token-{name}".encode()).digest(): name for name in names}
        self.actions: list[Action] = []

    async def __aenter__(self) -> NodePort:
        loop = asyncio.get_running_loop()
        self.runtime = Runtime(loop)
        self.runtime.start()
        self.pool = Pool()
        self.metrics = EdgeMetrics()
        providers = [ProviderSpec(name, f"{name}-p", "echo", 2) for name in self.payloads]
        candidates = [Candidate(name, f"{name}-p", "t") for name in self.payloads]
        self.pool.configure(
            nodes=list(self.payloads),
            providers=providers,
            groups=[GroupSpec(GROUP, candidates)],
            limits=QueueLimits(),
            now=loop.time(),
        )
        self.server = NodeServer(
            self.runtime,
            self.pool,
            self.metrics,
            self._perform,
            tokens=self.tokens,
            payloads=self.payloads,
            timing=self._timing,
        )
        self.server.tls = self._tls
        self.address = ("127.0.0.1", await self.server.start("127.0.0.1", self._port))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.close(grace_ms=0)
        for link in list(self.server.links):
            link.link.abort("done")
        await until(lambda: not self.server.links)
        self.runtime.close()
        self.pool.registry.validate()

    def _perform(self, actions: Actions) -> None:
        self.actions.extend(actions)

    @property
    def now(self) -> float:
        return self.runtime.wheel.now

    def connected(self) -> dict[str, bool]:
        """What the snapshot shows."""
        snapshot: dict[str, Any] = dict(self.pool.snapshot(self.now))
        return {node["id"]: node["connected"] for node in snapshot["nodes"]}

    def provider(self, node_id: str) -> dict[str, Any]:
        """The snapshot of a node's provider."""
        snapshot: dict[str, Any] = dict(self.pool.snapshot(self.now))
        (node,) = [node for node in snapshot["nodes"] if node["id"] == node_id]
        found: dict[str, Any] = node["providers"][0]
        return found

    def rejections(self) -> dict[str, int]:
        """iop_edge_node_rejections_total by reason."""
        return {labels[0]: int(value) for labels, value in self.metrics.node_rejections.read() if value}

    def errors(self) -> dict[str, int]:
        """iop_edge_protocol_errors_total by reason."""
        return {labels[0]: int(value) for labels, value in self.metrics.protocol_errors.read() if value}
