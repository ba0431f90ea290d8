"""One provider's capacity on one node connection (POOL-1, POOL-3, POOL-12).

Every unit of capacity is free, leased or lingering::

    free ──grant──► leased ──evidence──► free
                      │
                      └── terminal with close_confirmed=false ──► lingering ──call_closed | generation ends──► free

and ``capacity = free + leased + lingering`` as long as nobody lowered the capacity below what is in use; then free is 0
until enough units came back (CONF-2).

A change of configuration counts here at once where it takes something away, and where it adds something only when the
node has acknowledged it. Meanwhile a provider that is new at its node, or has another backend than the node calls, is
*awaited*: a candidate, so that requests wait for it, with a capacity of 0. If the node refuses, what it does not have
is *missing* and no candidate, and what it has goes on as it was.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from iop.pool.fair import FairQueue
from iop.pool.lease import Ticket
from iop.pool.specs import ProviderSpec

if TYPE_CHECKING:
    from iop.pool.lane import Seat

__all__ = ["Resource"]


class Resource:
    """Counters and switches of one provider. The pool alone writes them.

    ``busy`` = leased + lingering, ``load`` = busy / capacity, ``last_used`` = number of the last lease granted here,
    which orders providers by recency without a clock. ``generation`` is 0 while the provider's node is not ready.
    ``limit`` is what the node is known to take, ``capacity`` what of it counts now; ``kind`` and ``backend`` are what
    the node calls, ``spec`` what it is to become.
    ``seats`` are its places in the lanes of the groups that it serves, ``fair`` says who of their waiters has the turn.
    """

    __slots__ = (
        "awaited",
        "backend",
        "busy",
        "capacity",
        "drained",
        "draining",
        "enabled",
        "fair",
        "generation",
        "kind",
        "last_used",
        "leases",
        "limit",
        "lingering",
        "load",
        "long_busy",
        "long_capacity",
        "long_threshold_tokens",
        "lowered",
        "lowered_targets",
        "missing",
        "node_id",
        "open",
        "provider_id",
        "removed",
        "rests",
        "seats",
        "spec",
    )

    def __init__(self, spec: ProviderSpec) -> None:
        self.node_id = spec.node_id
        self.provider_id = spec.provider_id
        self.generation = 0
        self.open = False  # is a candidate for normal requests (POOL-3)
        self.draining = False  # its node takes no more work (SUP-5)
        self.drained = False  # an operator wants it to take no more, over reconnects and refreshes
        self.lowered = False  # the overlay says unavailable (HEALTH-3)
        self.lowered_targets: set[str] = set()  # of these it does, and not of the others (HEALTH-7)
        self.rests: dict[str, float] = {}  # targets that asked for a pause, and when it is over (HEALTH-9)
        self.removed = False  # no longer configured; lives on until its last lease returned
        self.awaited = False  # the node has yet to acknowledge what brings or changes this one
        self.missing = False  # the node does not have it
        self.busy = 0
        self.long_busy = 0
        self.lingering = 0
        self.load = 0.0
        self.last_used = 0
        self.leases: dict[int, Ticket] = {}
        self.seats: list[Seat] = []
        self.fair = FairQueue()
        self.adopt(spec)

    def adopt(self, spec: ProviderSpec, *, rejected: bool = False) -> None:
        """Take over ``spec`` whole: the node has acknowledged it, or will start with it. ``rejected``: the node does
        not have it, and will not (CONF-2)."""
        self.awaited, self.missing = False, rejected
        if self.rests and (spec.kind, spec.backend) != (self.kind, self.backend):
            self.rests.clear()  # it was another one that asked
        self.kind: str = spec.kind
        self.backend: Hashable = spec.backend
        self._take(spec, *_capacities(spec))

    def propose(self, spec: ProviderSpec) -> None:
        """Take over of ``spec`` what counts before the node's acknowledgement (CONF-2): what it takes away."""
        self.missing = self.missing or self.removed or not self.enabled
        changed = (spec.kind, spec.backend) != (self.kind, self.backend)
        self.awaited = self.awaited or self.missing or changed
        capacity, long_capacity = _capacities(spec)
        if not self.missing:
            capacity, long_capacity = min(capacity, self.limit), min(long_capacity, self.long_capacity)
        self._take(spec, capacity, long_capacity)

    def introduce(self, generation: int, draining: bool, held: int) -> None:
        """It is new at a node that is connected already, and awaited there. The node may have had it before, and still
        hold slots of then."""
        self.generation = generation
        self.lingering = held
        self.draining = draining
        self.missing = self.awaited = True
        self.reload()

    def refused(self) -> None:
        """The node does not take what it was sent, and goes on with what it has."""
        self.awaited = False
        self.reload()

    def _take(self, spec: ProviderSpec, capacity: int, long_capacity: int) -> None:
        self.spec = spec
        self.enabled = spec.enabled
        self.limit = capacity
        self.long_capacity: int = long_capacity
        self.long_threshold_tokens = spec.long_threshold_tokens
        self.reload()

    def reload(self) -> None:
        """Recompute what follows from limit, standing and units in use."""
        self.capacity = 0 if self.awaited or self.missing else self.limit
        self.busy = len(self.leases) + self.lingering
        self.load = self.busy / self.capacity if self.capacity > 0 else 1.0

    def should_open(self) -> bool:
        """Whether this provider is a candidate (POOL-3)."""
        if self.generation == 0 or self.draining or self.drained or self.lowered or self.removed:
            return False
        return self.enabled and self.limit > 0 and (self.awaited or not self.missing)

    @property
    def usable(self) -> int:
        """Slots for leases now: lingering units are no such, and without its node there is none."""
        return max(0, self.capacity - self.lingering) if self.generation else 0

    def has_free(self, long: bool) -> bool:
        """Whether a request of this class fits now."""
        return self.busy < self.capacity and not (long and self.long_busy >= self.long_capacity)

    def begin(self, generation: int, held: int, *, rejected: bool = False) -> None:
        """A new generation is ready. What the node still holds from before lingers (POOL-12); health starts clean."""
        self.generation = generation
        self.draining = self.lowered = False
        self.lowered_targets.clear()
        self.lingering = held
        self.adopt(self.spec, rejected=rejected)

    def end(self) -> list[Ticket]:
        """The generation is dead: every unit is back. Returns the tickets that held leases, oldest lease first."""
        tickets = list(self.leases.values())
        self.leases.clear()
        self.generation = self.long_busy = self.lingering = 0
        self.draining = self.lowered = self.awaited = self.missing = False
        self.lowered_targets.clear()
        self.reload()
        return tickets

    def validate(self) -> None:
        """Assert what must hold between any two calls of the pool."""
        assert self.busy == len(self.leases) + self.lingering, self.provider_id
        assert self.lingering >= 0, self.provider_id
        assert self.long_busy == sum(1 for t in self.leases.values() if t.lease is not None and t.lease.long)
        assert self.open == self.should_open(), self.provider_id
        assert self.capacity == (0 if self.awaited or self.missing else self.limit), self.provider_id
        assert self.generation > 0 or not (self.awaited or self.missing), "awaited without a generation"
        assert self.generation > 0 or self.busy == 0, "capacity in use without a generation"
        self.fair.validate(self.seats)
        for lease_id, ticket in self.leases.items():
            assert ticket.lease is not None
            assert ticket.lease.lease_id == lease_id
            assert ticket.lease.generation == self.generation, "a lease outlived its generation"
            assert ticket.line is None, "a ticket is waiting and leased"


def _capacities(spec: ProviderSpec) -> tuple[int, int]:
    """All requests, and of those the long ones."""
    long_capacity = spec.capacity if spec.long_capacity is None else min(spec.long_capacity, spec.capacity)
    return spec.capacity, long_capacity
