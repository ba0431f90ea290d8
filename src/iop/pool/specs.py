"""What the pool is told about the world: plain values, made from configuration by whoever owns it (POOL-1, POOL-6)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

__all__ = ["Candidate", "GroupSpec", "ProviderSpec", "QueueLimits"]


@dataclass(frozen=True, slots=True)
class ProviderSpec:
    """One provider resource, keyed ``node_id`` + ``provider_id`` (POOL-1).

    ``capacity`` counts all concurrent requests, ``long_capacity`` those of them that may be long (absent: all). A
    request is long here when its estimate reaches ``long_threshold_tokens`` (absent: never, POOL-2). ``backend`` says,
    together with ``kind``, what stands behind it: once that has changed no request goes there before the node has
    changed over, too (CONF-2).
    """

    node_id: str
    provider_id: str
    kind: str
    capacity: int
    long_capacity: int | None = None
    long_threshold_tokens: int | None = None
    enabled: bool = True
    backend: Hashable = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to serve a model group. A lower ``priority`` is tried first; ``target`` is the provider's model name."""

    node_id: str
    provider_id: str
    target: str
    priority: int = 0


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A model group: the name that clients use, its other names, and who can serve it (POOL-1)."""

    group_id: str
    candidates: Sequence[Candidate]
    aliases: Sequence[str] = field(default=())


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds of waiting (POOL-6). ``max_waiters`` is per group."""

    timeout_s: float = 60.0
    max_waiters: int = 10_000
    max_waiters_per_principal: int = 1_000
