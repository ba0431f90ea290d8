"""Who owns a node: claims, generations, readiness (REG-1 … REG-5).

Each configured node has at most one owner, the connection that registered last and is not yet gone. Its number is the
*generation*, counted up over the whole edge, so that no two connections ever share one. Whatever arrives later carries
the generation of its connection and is ignored unless that is still the owner's.

::

              claimed                 readied                 drained
    offline ───────────► pending ───────────────► ready ───────────────► draining
       ▲                    │                     │   ▲ readied (again)      │   ▲ readied, drained (again)
       │        lost        │        lost         │   └───┘                  │   └───┘
       └────────────────────┴─────────────────────┴──────────────────────────┘
                                                            lost

A second connection of the same node never disturbs the owner, pending or ready (REG-2): ``claim`` answers
:class:`OwnerAlive`, and the driver withholds the newcomer's answer while it probes the owner with a heartbeat
(:class:`OwnerProbe` judges). If the owner is dead the driver reports it ``lost`` and claims again, in one callback.

The driver's clocks: register within 10 s of connecting (WIRE), ready within :data:`READY_TIMEOUT_S` of the claim.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from iop.machine import Transitions

__all__ = [
    "PROBE_TIMEOUT_S",
    "READY_TIMEOUT_S",
    "TRANSITIONS",
    "Claim",
    "LossOutcome",
    "NodeEvent",
    "NodeRecord",
    "NodeState",
    "OwnerAlive",
    "OwnerProbe",
    "ProbeVerdict",
    "ReadyOutcome",
    "Registry",
]

READY_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 2.0


class NodeState(enum.StrEnum):
    OFFLINE = "offline"
    PENDING = "pending"
    READY = "ready"
    DRAINING = "draining"


class NodeEvent(enum.StrEnum):
    CLAIMED = "claimed"
    READIED = "readied"
    DRAINED = "drained"
    LOST = "lost"


TRANSITIONS = Transitions(
    "node",
    (NodeState.OFFLINE,),
    {
        (NodeState.OFFLINE, NodeEvent.CLAIMED): NodeState.PENDING,
        (NodeState.PENDING, NodeEvent.READIED): NodeState.READY,
        (NodeState.PENDING, NodeEvent.LOST): NodeState.OFFLINE,
        (NodeState.READY, NodeEvent.READIED): NodeState.READY,
        (NodeState.READY, NodeEvent.DRAINED): NodeState.DRAINING,
        (NodeState.READY, NodeEvent.LOST): NodeState.OFFLINE,
        (NodeState.DRAINING, NodeEvent.READIED): NodeState.DRAINING,
        (NodeState.DRAINING, NodeEvent.DRAINED): NodeState.DRAINING,
        (NodeState.DRAINING, NodeEvent.LOST): NodeState.OFFLINE,
    },
)


@dataclass(frozen=True, slots=True)
class Claim:
    """The connection owns the node now, pending its ready, under ``generation``."""

    node_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class OwnerAlive:
    """Another connection owns the node, under ``generation``: probe it before you answer (REG-2)."""

    node_id: str
    generation: int


class ReadyOutcome(enum.StrEnum):
    """``activated``: first ready of the owner. ``repeated``: acknowledge it and do nothing. ``stale``: answer
    ``ready=false``, then close (REG-4)."""

    ACTIVATED = "activated"
    REPEATED = "repeated"
    STALE = "stale"


class LossOutcome(enum.StrEnum):
    """``owner``: a ready generation ended; publish ``node_disconnected``. ``pending``: only a claim was released.
    ``stale``: nothing changed (REG-3, REG-5)."""

    OWNER = "owner"
    PENDING = "pending"
    STALE = "stale"


class ProbeVerdict(enum.StrEnum):
    ALIVE = "alive"
    DEAD = "dead"
    UNDECIDED = "undecided"


class OwnerProbe:
    """Judges an owner that was just sent a heartbeat: dead only if its socket fails, or not one byte arrives within
    :data:`PROBE_TIMEOUT_S` (REG-2). ``bytes_received`` is the connection's running total."""

    __slots__ = ("_bytes_before", "due_at")

    def __init__(self, bytes_received: int, now: float) -> None:
        self._bytes_before = bytes_received
        self.due_at = now + PROBE_TIMEOUT_S

    def verdict(self, bytes_received: int, socket_failed: bool, now: float) -> ProbeVerdict:
        if socket_failed:
            return ProbeVerdict.DEAD
        if bytes_received > self._bytes_before:
            return ProbeVerdict.ALIVE
        return ProbeVerdict.DEAD if now >= self.due_at else ProbeVerdict.UNDECIDED


class NodeRecord:
    """One node's ownership. ``generation`` is the owner's, 0 while there is none."""

    __slots__ = ("generation", "node_id", "state", "story")

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.state = NodeState.OFFLINE
        self.generation = 0
        self.story: deque[str] = deque(maxlen=8)

    def move(self, event: NodeEvent) -> None:
        """The one place where the state changes."""
        self.state = TRANSITIONS.after(self.state, event, self.node_id, tuple(self.story))
        self.story.append(f"{event.value} (generation {self.generation})")

    @property
    def connected(self) -> bool:
        """Dispatch-ready or finishing its work: what the connected snapshot shows (REG-3)."""
        return self.state in {NodeState.READY, NodeState.DRAINING}

    @property
    def draining(self) -> bool:
        return self.state is NodeState.DRAINING


class Registry:
    """All nodes' ownership. Pure bookkeeping; :class:`iop.pool.Pool` couples it to resources and waiters."""

    __slots__ = ("_generation", "nodes")

    def __init__(self) -> None:
        self.nodes: dict[str, NodeRecord] = {}
        self._generation = 0

    def add(self, node_id: str) -> NodeRecord:
        """The record of a node, made if it is new."""
        record = self.nodes.get(node_id)
        if record is None:
            record = self.nodes[node_id] = NodeRecord(node_id)
        return record

    def forget(self, node_id: str) -> bool:
        """Drop the record of a node that has no owner. False if it has one, or never had a record."""
        record = self.nodes.get(node_id)
        if record is None or record.state is not NodeState.OFFLINE:
            return False
        del self.nodes[node_id]
        return True

    def claim(self, node_id: str) -> Claim | OwnerAlive:
        """Claim a configured node for a new connection (REG-1, REG-2). KeyError for a node that is not configured."""
        record = self.nodes[node_id]
        if record.state is not NodeState.OFFLINE:
            return OwnerAlive(node_id, record.generation)
        self._generation += 1
        record.generation = self._generation
        record.move(NodeEvent.CLAIMED)
        return Claim(node_id, record.generation)

    def owner(self, node_id: str, generation: int) -> NodeRecord | None:
        """The node's record if ``generation`` is its owner's, else None."""
        record = self.nodes.get(node_id)
        return record if record is not None and record.generation == generation and generation > 0 else None

    def ready(self, node_id: str, generation: int) -> ReadyOutcome:
        """The connection says that it is ready (REG-4)."""
        record = self.owner(node_id, generation)
        if record is None:
            return ReadyOutcome.STALE
        first = record.state is NodeState.PENDING
        record.move(NodeEvent.READIED)
        return ReadyOutcome.ACTIVATED if first else ReadyOutcome.REPEATED

    def drain(self, node_id: str, generation: int) -> bool:
        """The node finishes its work and takes no more (SUP-5). False if this changes nothing."""
        record = self.owner(node_id, generation)
        if record is None or record.state is NodeState.PENDING:
            return False
        changed = record.state is NodeState.READY
        record.move(NodeEvent.DRAINED)
        return changed

    def lost(self, node_id: str, generation: int) -> LossOutcome:
        """The connection is gone (REG-5)."""
        record = self.owner(node_id, generation)
        if record is None:
            return LossOutcome.STALE
        was_ready = record.connected
        record.move(NodeEvent.LOST)
        record.generation = 0
        return LossOutcome.OWNER if was_ready else LossOutcome.PENDING

    def validate(self) -> None:
        """Assert what must hold between any two calls."""
        owners = [r.generation for r in self.nodes.values() if r.generation]
        assert len(owners) == len(set(owners)), "two nodes share a generation"
        for record in self.nodes.values():
            assert (record.generation == 0) == (record.state is NodeState.OFFLINE), record.node_id
            assert record.generation <= self._generation, record.node_id
