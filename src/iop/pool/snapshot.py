"""The pool as plain data, for status pages and metrics (REG-6, OBS-4).

Configured nodes and providers never vanish: a node that is not ready shows ``connected=false``, its enabled providers
``unavailable`` and ``offline`` with capacity and counters 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from iop.pool.lane import Group
from iop.pool.registry import Registry
from iop.pool.resource import Resource

__all__ = [
    "CandidateStatus",
    "ModelStatus",
    "NodeStatus",
    "PoolSnapshot",
    "ProviderStatus",
    "take_snapshot",
]


class ProviderStatus(TypedDict):
    """``status``: available | unavailable | disabled | draining | drained (by an operator, and nothing runs there any
    more) | pending (the node has yet to acknowledge it) | resting (all of its targets rest). ``resting`` says for how
    many seconds each target still rests (HEALTH-9).
    ``health``: available | unavailable | unknown | offline. ``capacity`` is the effective one: lingering units are
    already subtracted."""

    id: str
    kind: str
    status: str
    health: str
    capacity: int
    in_use: int
    long_in_use: int
    lingering: int
    resting: dict[str, float]


class NodeStatus(TypedDict):
    id: str
    connected: bool
    draining: bool
    providers: list[ProviderStatus]


class CandidateStatus(TypedDict):
    node: str
    provider: str
    target: str
    priority: int
    status: str


class ModelStatus(TypedDict):
    id: str
    aliases: list[str]
    waiting: int
    oldest_wait_ms: int
    candidates: list[CandidateStatus]


class PoolSnapshot(TypedDict):
    leases_in_use: int
    waiting: int
    nodes: list[NodeStatus]
    models: list[ModelStatus]


def take_snapshot(
    registry: Registry, nodes: Mapping[str, Mapping[str, Resource]], groups: Mapping[str, Group], now: float
) -> PoolSnapshot:
    """The state at ``now``, in configuration order. Sums and parts agree, because nothing runs in between."""
    node_rows = []
    for node_id, resources in nodes.items():
        record = registry.nodes[node_id]
        rows = [_provider(resource, now) for resource in resources.values()]
        node_rows.append(NodeStatus(id=node_id, connected=record.connected, draining=record.draining, providers=rows))
    models = [_model(group, now) for group in groups.values()]
    return PoolSnapshot(
        leases_in_use=sum(row["in_use"] for node in node_rows for row in node["providers"]),
        waiting=sum(model["waiting"] for model in models),
        nodes=node_rows,
        models=models,
    )


def _provider(resource: Resource, now: float) -> ProviderStatus:
    return ProviderStatus(
        id=resource.provider_id,
        kind=resource.kind,
        status=_status(resource),
        health=_health(resource),
        capacity=resource.usable,
        in_use=len(resource.leases),
        long_in_use=resource.long_busy,
        lingering=resource.lingering,
        resting={target: round(max(0.0, until - now), 1) for target, until in resource.rests.items()},
    )


def _health(resource: Resource) -> str:
    if resource.generation == 0:
        return "offline"
    if resource.missing:
        return "unknown"
    return "unavailable" if resource.lowered else "available"


def _status(resource: Resource) -> str:
    if not resource.enabled:
        return "disabled"
    if resource.draining or (resource.removed and resource.generation):
        return "draining"
    if resource.drained and resource.generation:
        return "draining" if resource.busy else "drained"
    if resource.open and resource.awaited:
        return "pending"
    if resource.missing and not resource.awaited:
        return "rejected"
    if resource.open and resource.seats and all(seat.rests_until for seat in resource.seats):
        return "resting"
    return "available" if resource.open else "unavailable"


def _candidate_status(resource: Resource, target: str) -> str:
    """As its provider's, unless the target alone is lowered or rests."""
    status = _status(resource)
    if status in ("available", "resting"):
        if target in resource.lowered_targets:
            return "unavailable"
        return "resting" if target in resource.rests else "available"
    return status


def _model(group: Group, now: float) -> ModelStatus:
    heads = [line.queue[0][1] for lane in group.lanes() for line in lane.lines()]
    oldest_s = max((head.waited_s + now - head.since_at for head in heads), default=0.0)
    return ModelStatus(
        id=group.spec.group_id,
        aliases=list(group.spec.aliases),
        waiting=group.waiting,
        oldest_wait_ms=int(oldest_s * 1000),
        candidates=[
            CandidateStatus(
                node=c.node_id,
                provider=c.provider_id,
                target=c.target,
                priority=c.priority,
                status=_candidate_status(r, c.target),
            )
            for c, r in group.candidates()
        ],
    )
