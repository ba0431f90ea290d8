"""The two programs as the simulation starts them: the real ``Edge`` and the real ``Supervisor``, on loops of their own.

Nothing of them is replaced but what a process gets from its system (loop, sockets, log sink), and three classes by
subclasses that watch: the pool, the gate and the agent. Sets whose order depends on addresses become ordered ones, so
that a seed means one thing only.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, MutableSet
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from iop.config.edge import EdgeConfig
from iop.config.fields import Context
from iop.edge import app
from iop.execution.gate import CapacityGate, Slot, SlotState
from iop.net.loop import Runtime
from iop.node.providers import registry as backends_module
from iop.node.providers.allowance import Allowance
from iop.node.providers.registry import Backends
from iop.node.uplink import supervisor as supervisor_module
from iop.node.uplink.agent import Agent
from iop.node.uplink.reconnect import ReconnectPolicy, SupervisorPolicy
from iop.node.uplink.supervisor import Supervisor
from iop.observability.metrics import NodeMetrics
from iop.wire import limits
from tests.simulation.kernel import Loop
from tests.simulation.ledger import WatchedPool

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = [
    "EDGE_PORT", "HTTP_PORT", "MODELS", "NODES", "PROVIDERS", "TIMING", "EdgeProgram", "NodeProgram", "edge_config",
    "running",
]  # fmt: skip

EDGE_PORT, HTTP_PORT = 7443, 8080
PROVIDERS: dict[str, dict[str, Any]] = {
    "p1": {"node": "n1", "capacity": 3, "long_capacity": 1, "long_threshold_tokens": 150, "port": 9001},
    "p2": {"node": "n1", "capacity": 2, "port": 9002},
    "p3": {"node": "n2", "capacity": 4, "long_capacity": 2, "long_threshold_tokens": 150, "port": 9003},
    "p4": {"node": "n3", "capacity": 1, "port": 9004},
    "p5": {"node": "n3", "capacity": 2, "long_capacity": 1, "long_threshold_tokens": 150, "port": 9005},
}
MODELS: dict[str, list[tuple[str, int]]] = {
    "a": [("p1", 0), ("p3", 0)],
    "b": [("p2", 0), ("p1", 1)],
    "c": [("p3", 0), ("p4", 0), ("p2", 2)],
    "d": [("p4", 0)],
    "e": [("p5", 0), ("p1", 1)],
}
NODES = ("n1", "n2", "n3")
TIMING = limits.Timing(heartbeat_interval_s=2.0, response_wait_s=4.0, write_stall_s=4.0)


def edge_config(tree: dict[str, Any]) -> EdgeConfig:
    return EdgeConfig.model_validate_json(json.dumps(tree), context=Context({}, Path()))


class Ordered(MutableSet[Any]):
    """A set in the order of insertion."""

    def __init__(self) -> None:
        self._items: dict[Any, None] = {}

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, value: Any) -> None:
        self._items[value] = None

    def discard(self, value: Any) -> None:
        self._items.pop(value, None)


class _Sink:
    """Takes the outcome lines; everything else goes through logging."""

    dropped = 0

    def __init__(self, world: World) -> None:
        self.outcome = world.recorded

    def message(self, *_: Any, **__: Any) -> None: ...


class EdgeProgram:
    """One life of the edge, from its start to its end or its crash."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.loop = Loop(world.kernel, f"edge{world.edges}", world.network)
        self.loop.program = self
        self.runtime = Runtime(self.loop)
        self.runtime.start()
        config = edge_config(world.tree)
        with (
            mock.patch.object(app, "Pool", WatchedPool),
            mock.patch.dict(os.environ, IOP_TEST_TIMING=f"{TIMING.heartbeat_interval_s},{TIMING.response_wait_s}"),
        ):
            self.edge = edge = app.Edge(config, self.runtime, _Sink(world))  # type: ignore[arg-type]
        self.pool: WatchedPool = edge.pool  # type: ignore[assignment]
        edge.dispatcher.live = Ordered()  # type: ignore[assignment]
        edge.nodes.links = Ordered()  # type: ignore[assignment]
        edge.http.connections = Ordered()  # type: ignore[assignment]
        ledger = self.pool.ledger
        ledger.seen, ledger.live, ledger.note = world.seen, edge.dispatcher.live, world.note
        self.failing = 0  # sends that are to fail
        self.staling = 0  # grants that are to be found stale
        self._session = edge.nodes.session
        edge.nodes.session = self._find_session  # type: ignore[method-assign]
        self.loop.create_task(edge.start())

    def check(self) -> None:
        ledger = self.pool.ledger
        if ledger.touched:
            ledger.touched = False
            ledger.check(self.world.kernel.now)
            self._check_health()

    def _check_health(self) -> None:
        """The pool, the overlay and what was counted say the same."""
        health = self.edge.nodes.health
        health.overlay.validate()
        for node_id, resources in self.pool._nodes.items():
            for provider_id, resource in resources.items():
                down = health.overlay.lowering(node_id, provider_id) is not None
                assert resource.lowered == down, f"{provider_id}: the overlay says {'un' * down}available, the pool not"
                targets = {target for target in health.overlay.lowerings(node_id, provider_id) if target is not None}
                assert resource.lowered_targets == targets, f"{provider_id}: {targets} are unavailable, not in the pool"
        moves = dict(self.edge.metrics.health_transitions.read())
        fell = moves.get(("available", "unavailable"), 0)
        rose = moves.get(("unavailable", "available"), 0)
        assert fell - rose - moves.get(("unavailable", "offline"), 0) == health.overlay.lowered, moves
        applied: Counter[str] = Counter()
        for (source, _, result), count in self.edge.metrics.health_evidence.read():
            applied[source] += int(count) if result == "applied" else 0
        assert applied["terminal"] + applied["observation"] == fell, "a provider fell without evidence"
        assert applied["capabilities"] <= rose, "an answer restored nothing"

    # ---- faults at the seam between grant and send

    def _find_session(self, node_id: str, generation: int) -> Any:
        session = self._session(node_id, generation)
        if session is not None and self.staling > 0:
            self.staling -= 1
            self.world.seen["stale grant"] += 1
            return None
        if session is not None and self.failing > 0:
            self.failing -= 1
            self.world.seen["failed send"] += 1
            return _Broken(session)
        return session

    def refresh(self, tree: dict[str, Any]) -> None:
        """A new configuration file (CONF-2)."""
        if not self.edge._draining:
            self.edge.reload(edge_config(tree))


class _Broken:
    """A session whose link breaks under the send."""

    def __init__(self, session: Any) -> None:
        self.request_window_bytes = session.request_window_bytes
        self.mux = self

    def open(self, *_: Any) -> None:
        raise ConnectionResetError("the link is closed")


class WatchedGate(CapacityGate):
    """The gate, which must never hold more than its limit when it gives a slot."""

    __slots__ = ()

    def try_acquire(self, provider_id: str, **how: Any) -> Slot | None:
        slot = super().try_acquire(provider_id, **how)
        if slot is not None:
            assert self.held(provider_id) <= self._limits[provider_id], f"{provider_id}: slots above the limit"
        return slot


def running(agent: Agent) -> int:
    """Calls of that connection that have not ended. One that stalled and has closed only waits for its probe."""
    return sum(call.slot.state is not SlotState.FREE for call in agent.calls.values())


class WatchedAgent(Agent):
    """An agent that is remembered until its last call has ended."""

    def __init__(self, runtime: Runtime, backends: Any, *args: Any, **how: Any) -> None:
        super().__init__(runtime, backends, *args, **how)
        agents = backends.agents
        agents[:] = [a for a in agents if running(a) or not a.done.done()]
        agents.append(self)


def watched_agents() -> Any:
    """While this is entered, supervisors make agents that are watched. They do so whenever they dial: all the world's
    time, and not a moment longer, since other tests of this process have supervisors too."""
    return mock.patch.object(supervisor_module, "Agent", WatchedAgent)


class NodeProgram:
    """One life of one node."""

    def __init__(self, world: World, node_id: str, *, twin: bool = False) -> None:
        self.world = world
        self.node_id = node_id
        self.twin = twin
        world.lives += 1
        self.loop = Loop(world.kernel, f"{node_id}.{world.lives}{' twin' if twin else ''}", world.network)
        self.loop.program = self
        self.runtime = Runtime(self.loop)
        self.runtime.start()
        with mock.patch.object(backends_module, "CapacityGate", WatchedGate):
            self.backends: Any = Backends(self.runtime, Allowance(None, frozenset(), {}))
        self.agents: list[Agent] = []
        self.backends.agents = self.agents
        self.bypass: list[Slot] = []  # slots that no tunnel took
        self.code: int | None = None
        self.supervisor = Supervisor(
            self.runtime,
            self.backends,
            NodeMetrics(),
            SupervisorPolicy(ReconnectPolicy(0, 0.2)),
            host="127.0.0.1",
            port=EDGE_PORT,
            token=lambda: f"token-{node_id}",
            drain_s=1.0,
            timing=TIMING,
        )
        self._held = 0
        self.task = self.loop.create_task(self._main())

    async def _main(self) -> None:
        try:
            self.code = await self.supervisor.run()
        finally:
            self.backends.close()
        self.world.node_left(self)

    def check(self) -> None:
        """A slot for each call, no more and no less."""
        gate: CapacityGate = self.backends.gate
        held = sum(map(len, gate._held.values()))
        calls = len(self.bypass) + sum(map(running, self.agents))
        assert held == calls, f"{self.loop.name}: {held} slots held by {calls} calls"
        if held != self._held:
            self._held = held
            gate.validate()
            assert gate.released_twice == 0, f"{self.loop.name}: a slot was released twice"
