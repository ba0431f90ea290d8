"""The pool: one facade over ownership, capacity, queues and choice (REG, POOL).

A synchronous machine: it never awaits, reads a clock or touches a socket. The caller passes ``now`` and carries out
the returned actions in order. A driver whose handling of one action calls the pool again (a send that fails) must
append the new actions behind the rest, and check :meth:`Pool.holds` before it sends on a grant (POOL-8).

The invariant on which everything stands, true between any two calls:

    *no waiter could be served by any provider*

Hence a newcomer that finds a free slot overtakes nobody (POOL-5); a slot that becomes free needs to look at the waiters
of that one provider only; and nobody waits without a candidate (POOL-4). Each call that frees or adds capacity restores
it before it returns: :meth:`Pool._serve` for one provider, :meth:`Pool._pump` for many at once.

The file is long because these methods keep the invariant together; what can stand alone is in lanes, resources, queue
and registry.

Lingering units (POOL-12) end by :meth:`Pool.call_closed` or with the generation. So a node owes one call_closed for
every gate slot that ends otherwise than by a terminal with ``close_confirmed=true`` on the session it is reported to
(:class:`iop.execution.gate.CapacityGate` keeps that account).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heappop, heappush

from iop.errors import (
    InvalidArgument,
    IopError,
    ModelNotFound,
    NodeDisconnected,
    ProvidersResting,
    QueueTimeout,
    ShuttingDown,
    Unavailable,
)
from iop.pool.lane import Group, Lane, Line, Seat
from iop.pool.lease import (
    NO_ACTIONS,
    Action,
    Actions,
    Granted,
    Lease,
    Loss,
    Readiness,
    Refused,
    ReleaseCause,
    Revoked,
    Ticket,
)
from iop.pool.queue import Queue
from iop.pool.registry import Claim, LossOutcome, OwnerAlive, ReadyOutcome, Registry
from iop.pool.resource import Resource
from iop.pool.snapshot import PoolSnapshot, take_snapshot
from iop.pool.specs import GroupSpec, ProviderSpec, QueueLimits
from iop.pool.standings import Standings, picture_of, standings, stood
from iop.pool.stats import Stats

__all__ = ["MAX_REST_S", "Pool"]

MAX_REST_S = 60.0  # of a candidate, whatever its provider asks for (HEALTH-9)


class Pool:
    """Admission for all model groups of one edge. See the module's header for how to drive it."""

    def __init__(self) -> None:
        self.stats = Stats()
        self.registry = Registry()
        self.queue = Queue(QueueLimits())
        self._configured: dict[str, None] = {}  # node ids, in order
        self._nodes: dict[str, dict[str, Resource]] = {}
        self._groups: dict[str, Group] = {}
        self._routes: dict[str, Group] = {}  # by group id and by alias
        self._drained: set[tuple[str, str | None]] = set()  # providers, or with None whole nodes, by an operator
        # What ready nodes still hold at providers that are not configured: it counts if those are added (POOL-12).
        self._unconfigured: dict[str, dict[str, int]] = {}
        self._places = 0
        self._lease_ids = 0
        self._rests: list[tuple[float, int, Resource, str]] = []  # heap of ends; those that were put off stay in it
        self._rest_ids = 0
        self._shut = False

    # ---- configuration (CONF-2)

    def configure(
        self,
        *,
        nodes: Iterable[str],
        providers: Iterable[ProviderSpec],
        groups: Iterable[GroupSpec],
        limits: QueueLimits,
        now: float,
        acked: Collection[str] = (),
    ) -> Actions:
        """Take over a whole configuration, first or refreshed; references must be sound (CONF-1 checks them).

        Leases stay. Lowered capacity counts at once; what grew, is new or has another backend at a ready node counts
        after :meth:`applied`, except at the nodes in ``acked``, for which nothing changes. A removed provider takes no
        more and lives on until its last unit is back. Waiters keep their places.
        """
        self.queue.limits = limits
        wanted = {(spec.node_id, spec.provider_id): spec for spec in providers}
        self._configured = dict.fromkeys([*nodes, *(node_id for node_id, _ in wanted)])
        for node_id in self._configured:
            self.registry.add(node_id)
            self._nodes.setdefault(node_id, {})
        for (node_id, provider_id), spec in wanted.items():
            resource = self._nodes[node_id].get(provider_id)
            if resource is None:
                resource = self._nodes[node_id][provider_id] = Resource(spec)
                record = self.registry.nodes[node_id]
                if record.connected:
                    held = self._unconfigured.get(node_id, {}).pop(provider_id, 0)
                    resource.introduce(record.generation, record.draining, held)
            elif resource.generation == 0 or node_id in acked:
                resource.adopt(spec, rejected=resource.missing and not resource.awaited)
            else:
                resource.propose(spec)
        self._drained = {at for at in self._drained if at in wanted or (at[1] is None and at[0] in self._configured)}
        for node_id, resources in list(self._nodes.items()):
            for provider_id, resource in resources.items():
                resource.removed = (node_id, provider_id) not in wanted
                resource.drained = self._is_drained(resource)
            self._forget(node_id)
        return self._rebuild(list(groups), now)

    def applied(self, node_id: str, generation: int, now: float, rejected: Collection[str] = ()) -> Actions:
        """A ready node acknowledged the present configuration: what grew or is new there counts now (CONF-2), but for
        the providers in ``rejected``, which it does not have."""

        def adopt(resource: Resource) -> None:
            resource.adopt(resource.spec, rejected=resource.provider_id in rejected)

        return self._settled(node_id, generation, adopt, now)

    def refused(self, node_id: str, generation: int, now: float) -> Actions:
        """A ready node does not take the present configuration: what it does not have is no candidate (CONF-2)."""
        return self._settled(node_id, generation, Resource.refused, now)

    def _settled(self, node_id: str, generation: int, change: Callable[[Resource], None], now: float) -> Actions:
        record = self.registry.owner(node_id, generation)
        if record is None or not record.connected:
            self.stats.stale_events += 1
            return NO_ACTIONS
        actions: list[Action] = []
        resources = [r for r in self._nodes[node_id].values() if not r.removed]
        self._reopen(resources, now, actions, change)
        self._pump(resources, now, actions)
        return actions

    def _rebuild(self, groups: list[GroupSpec], now: float) -> Actions:
        """Make all groups anew and put every waiter back at its place."""
        every = [resource for resources in self._nodes.values() for resource in resources.values()]
        for resource in every:
            resource.fair.hold()
        waiters = self.queue.take_all(now)
        known: dict[tuple[str, str], Resource] = {}
        for node_id, resources in self._nodes.items():
            for provider_id, resource in resources.items():
                resource.seats.clear()
                resource.open = resource.should_open()
                if not resource.removed:
                    known[node_id, provider_id] = resource
        self._groups = {spec.group_id: Group(spec, known) for spec in groups}
        self._routes = {
            name: group for group in self._groups.values() for name in (*group.spec.aliases, group.spec.group_id)
        }
        actions: list[Action] = []
        for ticket in waiters:
            self._join(ticket, now, actions)
        for resource in every:
            resource.fair.settle()
        self._pump(every, now, actions)
        return actions

    def _forget(self, node_id: str) -> None:
        """Drop what is no longer configured and no longer in use at a node."""
        resources = self._nodes.get(node_id, {})
        for provider_id in [r.provider_id for r in resources.values() if r.removed and r.busy == 0]:
            del resources[provider_id]
        if node_id not in self._configured and not resources and self.registry.forget(node_id):
            del self._nodes[node_id]

    # ---- nodes (REG)

    def claim(self, node_id: str, now: float) -> Claim | OwnerAlive:
        """A new connection of a configured node asks to own it (REG-1, REG-2). KeyError if it is not configured."""
        if node_id not in self._configured:
            raise KeyError(node_id)
        return self.registry.claim(node_id)

    def ready(
        self, node_id: str, generation: int, held: Mapping[str, int], now: float, rejected: Collection[str] = ()
    ) -> Readiness:
        """The owner is ready and still ``held`` so many slots per provider from earlier sessions (REG-3, POOL-12). It
        does not have the providers in ``rejected`` (CONF-2)."""
        outcome = self.registry.ready(node_id, generation)
        if outcome is not ReadyOutcome.ACTIVATED:
            self.stats.stale_events += outcome is ReadyOutcome.STALE
            return Readiness(outcome)
        actions: list[Action] = []
        resources = list(self._nodes[node_id].values())
        for resource in resources:
            provider_id = resource.provider_id
            resource.begin(generation, max(0, held.get(provider_id, 0)), rejected=provider_id in rejected)
        self._unconfigured[node_id] = {i: count for i, count in held.items() if i not in self._nodes[node_id]}
        self._reopen(resources, now, actions)
        self._pump(resources, now, actions)
        return Readiness(outcome, actions)

    def lost(self, node_id: str, generation: int, now: float) -> Loss:
        """The connection is gone. If it was the owner, its leases are back and its providers offline (REG-5)."""
        outcome = self.registry.lost(node_id, generation)
        if outcome is not LossOutcome.OWNER:
            self.stats.stale_events += outcome is LossOutcome.STALE
            self._forget(node_id)
            return Loss(outcome)
        self._unconfigured.pop(node_id, None)
        actions: list[Action] = []
        resources = list(self._nodes[node_id].values())
        for resource in resources:
            for ticket in resource.end():
                assert ticket.lease is not None
                actions.append(Revoked(ticket, ticket.lease, NodeDisconnected()))
                ticket.lease = None
                self.stats.released[ReleaseCause.GENERATION_DEAD] += 1
        self._reopen(resources, now, actions)
        self._forget(node_id)
        return Loss(outcome, actions)

    def drain(self, node_id: str, generation: int, now: float) -> Actions:
        """The node takes no new lease; those it has go on (SUP-5)."""
        if not self.registry.drain(node_id, generation):
            return NO_ACTIONS
        actions: list[Action] = []
        resources = self._nodes[node_id].values()
        for resource in resources:
            resource.draining = True
        self._reopen(resources, now, actions)
        return actions

    def set_drained(self, node_id: str, provider_id: str | None, drained: bool, now: float) -> Actions:
        """An operator's word: one provider of a node, or with None all of them, take no new lease until the word is
        taken back, over reconnects and refreshes; what they have goes on. KeyError for what is not configured."""
        resources = self._nodes[node_id] if provider_id is None else {provider_id: self._nodes[node_id][provider_id]}
        (self._drained.add if drained else self._drained.discard)((node_id, provider_id))
        actions: list[Action] = []
        for resource in resources.values():
            resource.drained = self._is_drained(resource)
        self._reopen(resources.values(), now, actions)
        self._pump(resources.values(), now, actions)
        return actions

    def _is_drained(self, resource: Resource) -> bool:
        return (resource.node_id, None) in self._drained or (resource.node_id, resource.provider_id) in self._drained

    def is_current(self, node_id: str, generation: int) -> bool:
        """Whether ``generation`` owns the node, pending or ready."""
        return self.registry.owner(node_id, generation) is not None

    # ---- health and lingering units (seams of HEALTH-2, HEALTH-5, POOL-12)

    def set_overlay(
        self,
        node_id: str,
        generation: int,
        provider_id: str,
        unavailable: bool,
        now: float,
        *,
        target: str | None = None,
    ) -> Actions:
        """Lower or restore a provider at run time, or one target of it alone (HEALTH-3, HEALTH-7). A new generation
        starts clean."""
        resource = self._resource(node_id, generation, provider_id)
        if resource is None:
            return NO_ACTIONS
        actions: list[Action] = []
        if target is None:
            resource.lowered = unavailable
        else:
            (resource.lowered_targets.add if unavailable else resource.lowered_targets.discard)(target)
        self._reopen([resource], now, actions)
        self._pump([resource], now, actions)
        return actions

    def rest(self, lease: Lease, seconds: float, now: float) -> Actions:
        """The provider that ``lease`` was for asked to be left alone with its target for so long: the candidate rests,
        a minute at most (HEALTH-9)."""
        resource = self._resource(lease.node_id, lease.generation, lease.provider_id)
        until = now + min(seconds, MAX_REST_S)
        if resource is None or until <= max(now, resource.rests.get(lease.target, 0.0)):
            return NO_ACTIONS
        resource.rests[lease.target] = until
        self._rest_ids += 1
        heappush(self._rests, (until, self._rest_ids, resource, lease.target))
        actions: list[Action] = []
        self._reopen([resource], now, actions)
        return actions

    def call_closed(self, node_id: str, generation: int, provider_id: str, now: float) -> Actions:
        """The node says that the call behind one lingering unit has really ended (POOL-12)."""
        unconfigured = self._unconfigured.get(node_id, {})
        if unconfigured.get(provider_id, 0) > 0 and self.is_current(node_id, generation):
            unconfigured[provider_id] -= 1
            return NO_ACTIONS
        resource = self._resource(node_id, generation, provider_id)
        if resource is None:
            return NO_ACTIONS
        if resource.lingering == 0:
            self.stats.surplus_call_closed += 1
            return NO_ACTIONS
        resource.lingering -= 1
        resource.reload()
        return self._serve(resource, now)

    def _resource(self, node_id: str, generation: int, provider_id: str) -> Resource | None:
        """The provider if ``generation`` is the one it lives under, else None, counted."""
        resource = self._nodes.get(node_id, {}).get(provider_id)
        if resource is None or resource.generation != generation or generation == 0:
            self.stats.stale_events += 1
            return None
        return resource

    # ---- requests

    def submit(self, ticket: Ticket, now: float) -> Lease | None:
        """Admit a new request: its lease, or None if it waits now and a later action decides.

        Raises ModelNotFound, Unavailable (no candidate, POOL-4), QueueFull (POOL-6), ShuttingDown; the ticket is then
        in no queue. A ticket is submitted once in its life (InvalidArgument); see :meth:`readmit`. One that gets a
        lease has ``stood`` then.
        """
        if ticket.place:
            raise InvalidArgument("a ticket is submitted once")
        group = self._routes.get(ticket.group_id)
        if group is None or self._shut:
            raise self._counted(ShuttingDown() if self._shut else ModelNotFound())
        lane = group.lane_for(ticket.estimated_tokens)
        plain = ticket.avoid_provider_id is None and not ticket.refused
        seat = lane.best() if plain else lane.best_for(lane.kind_of(ticket), ticket.tried)
        if seat is None and (error := self.queue.objection(ticket, lane, now)) is not None:
            raise self._counted(error)
        self._places = ticket.place = self._places + 1
        if seat is not None:
            ticket.stood = stood(lane)
            return self._grant(ticket, seat)
        ticket.deadline_at = now + self.queue.limits.timeout_s
        self.queue.join(ticket, lane, now)
        self.stats.queued += 1
        return None

    def has_candidate(self, ticket: Ticket) -> bool:
        """Whether some candidate may serve ``ticket``, now or when a slot is free, with what it avoids (POOL-11)."""
        group = self._routes.get(ticket.group_id)
        if group is None or self._shut:
            return False
        lane = group.lane_for(ticket.estimated_tokens)
        return not lane.hopeless(lane.kind_of(ticket))

    def cancel(self, ticket: Ticket, now: float) -> bool:
        """Take a waiting ticket out of its queue for good (POOL-6). False, and no change, if it does not wait: a lease
        ends on evidence only."""
        line = ticket.line
        if line is None:
            return False
        self.queue.leave(ticket, line, now)
        self.stats.cancelled += 1
        return True

    def release(self, lease: Lease, cause: ReleaseCause, now: float, *, lingering: bool = False) -> Actions:
        """Return a lease, once; a second return is a counted no-op (POOL-7). With ``lingering`` the provider call is
        not known to be closed, and its unit stays taken until :meth:`call_closed` (POOL-12)."""
        resource = self._return(lease, cause, lingering)
        return NO_ACTIONS if resource is None else self._serve(resource, now)

    def readmit(
        self,
        ticket: Ticket,
        lease: Lease,
        now: float,
        *,
        cause: ReleaseCause,
        lingering: bool = False,
        held: int | None = None,
        recovery: bool = False,
    ) -> Actions:
        """Return ``lease`` (unless it is back already) and admit its ticket again at its old place (POOL-8, POOL-12).

        What becomes of the ticket is in the actions (Granted or Refused); in neither it waits. ``held`` comes with
        ``capacity_exceeded``: the slots that the node holds; what exceeds the leases counts as lingering. The wait goes
        on under its first deadline, or with ``recovery`` under a new one. A call for a ticket that has moved on is
        a counted no-op.
        """
        resource: Resource | None = None
        if ticket.lease is lease:
            resource = self._return(lease, cause, lingering)
        elif ticket.lease is not None or ticket.line is not None or not ticket.place:
            self.stats.returned_twice += 1
            return NO_ACTIONS
        if resource is not None and held is not None:
            resource.lingering = max(resource.lingering, held - len(resource.leases))
            resource.reload()
        self.stats.readmitted += 1
        if recovery or ticket.deadline_at == 0.0:
            ticket.deadline_at = now + self.queue.limits.timeout_s
        actions: list[Action] = []
        if ticket.flow is not None:
            ticket.flow.at.refund(ticket)
        self._join(ticket, now, actions)
        if resource is not None:
            self._settle(resource)
            self._pump([resource], now, actions)
        line = ticket.line
        if line is not None and (seat := line.lane.best_for(line.kind, ticket.tried)) is not None:
            # Elsewhere nobody else could be served, so nobody is older in its line and no other principal has the turn.
            actions.append(self._give(line, seat, now))
        return actions

    def holds(self, lease: Lease) -> bool:
        """Whether the lease is still live: check it between grant and send (POOL-8)."""
        resource = self._nodes.get(lease.node_id, {}).get(lease.provider_id)
        ticket = None if resource is None else resource.leases.get(lease.lease_id)
        return ticket is not None and ticket.lease is lease

    def on_time(self, now: float) -> Actions:
        """Refuse the waiters whose time is up (POOL-6), and end the rests that are over (HEALTH-9)."""
        actions: list[Action] = [Refused(t, self._counted(QueueTimeout())) for t in self.queue.expire(now)]
        while self._rests and self._rests[0][0] <= now:
            until, _, resource, target = heappop(self._rests)
            if resource.rests.get(target) == until:
                del resource.rests[target]
                self._reopen([resource], now, actions)
                self._pump([resource], now, actions)
        return actions

    @property
    def next_at(self) -> float | None:
        """When to call :meth:`on_time` next, at the latest; None while nobody waits and nothing rests."""
        queue_at = self.queue.next_at
        if not self._rests:
            return queue_at
        return self._rests[0][0] if queue_at is None else min(queue_at, self._rests[0][0])

    def shutdown(self, now: float) -> Actions:
        """Refuse all waiters and every later request. Leases stay until their dispatch returns them."""
        self._shut = True
        return [Refused(ticket, self._counted(ShuttingDown())) for ticket in self.queue.take_all(now)]

    # ---- what is going on

    def leases_of(self, node_id: str) -> int:
        """Leases of one node that are not yet returned; 0 for a node that is not known."""
        return sum(len(r.leases) for r in self._nodes.get(node_id, {}).values())

    def units_of(self, node_id: str, provider_id: str) -> int | None:
        """Leases and lingering units of one provider: the calls that it should be working on (POOL-13). None for a
        provider that is not this node's."""
        resource = self._nodes.get(node_id, {}).get(provider_id)
        return len(resource.leases) + resource.lingering if resource is not None else None

    @property
    def waiting(self) -> int:
        """Tickets in all queues."""
        return self.queue.waiting

    @property
    def leases_granted(self) -> int:
        """Leases ever granted."""
        return self._lease_ids

    @property
    def leases_in_use(self) -> int:
        """Leases not yet returned."""
        return sum(len(r.leases) for resources in self._nodes.values() for r in resources.values())

    @property
    def capacity(self) -> int:
        """Slots for leases of all connected nodes; as the snapshot has them, at a fraction of its cost."""
        return sum(r.usable for resources in self._nodes.values() for r in resources.values())

    def resources(self) -> Iterator[Resource]:
        """Every provider, to be read only."""
        for resources in self._nodes.values():
            yield from resources.values()

    def waiting_by_group(self) -> dict[str, int]:
        """Tickets that wait, by model group."""
        return {group_id: group.waiting for group_id, group in self._groups.items()}

    def group_id(self, name: str) -> str:
        """The model group that a name or an alias stands for; "" for none."""
        group = self._routes.get(name)
        return group.spec.group_id if group is not None else ""

    def snapshot(self, now: float) -> PoolSnapshot:
        """Plain data for status pages (REG-6)."""
        return take_snapshot(self.registry, self._nodes, self._groups, now)

    def positions(self, tickets: Iterable[Ticket]) -> dict[Ticket, int]:
        """The places of waiting tickets among the waiters of their principal that could go to the same providers: 1 is
        next. An operator's question: it costs O(n) per queue that one of them is in."""
        wanted: dict[Line, list[Ticket]] = {}
        for ticket in tickets:
            if ticket.line is not None:
                wanted.setdefault(ticket.line, []).append(ticket)
        found: dict[Ticket, int] = {}
        for line, some in wanted.items():
            last = max(ticket.place for ticket in some)
            places = sorted(ticket.place for ticket in line if ticket.place <= last)
            found.update((ticket, bisect_left(places, ticket.place) + 1) for ticket in some)
        return found

    def explain(self, ticket: Ticket, most: int) -> Standings:
        """What speaks for and against the candidates of ``ticket`` now (OBS-7): of the ``most`` that are preferred the
        fields of a :class:`~iop.pool.standings.Standing`, and how many there are. No choice needs it."""
        group = self._routes.get(ticket.group_id)
        return ([], 0) if group is None else standings(group, ticket, most)

    # ---- the parts

    def _grant(self, ticket: Ticket, seat: Seat) -> Lease:
        resource = seat.resource
        self._lease_ids = lease_id = self._lease_ids + 1
        ticket.lease = lease = Lease(
            lease_id,
            resource.node_id,
            resource.provider_id,
            resource.kind,
            seat.target,
            resource.generation,
            seat.long,
            ticket.request_id,
        )
        resource.leases[lease_id] = ticket
        resource.busy = busy = resource.busy + 1
        resource.load = busy / resource.capacity
        resource.last_used = lease_id
        if seat.long:
            resource.long_busy += 1
        if resource.fair.flows:
            resource.fair.charge(ticket)
        return lease

    def _give(self, line: Line, seat: Seat, now: float) -> Granted:
        """Grant ``seat`` to the oldest waiter of ``line``."""
        ticket = line.queue[0][1]
        lease = self._grant(ticket, seat)  # first: a flow that stops to wait is forgotten, and its tag with it
        self.queue.take(line, now)
        return Granted(ticket, lease)

    def _return(self, lease: Lease, cause: ReleaseCause, lingering: bool) -> Resource | None:
        """Take a lease back without serving anybody. None if it is not out."""
        resources = self._nodes.get(lease.node_id)
        resource = None if resources is None else resources.get(lease.provider_id)
        ticket = None if resource is None else resource.leases.get(lease.lease_id)
        if resource is None or ticket is None or ticket.lease is not lease:
            if lease.lease_id <= self._lease_ids:
                self.stats.returned_twice += 1
            else:
                self.stats.returned_unknown += 1
            return None
        del resource.leases[lease.lease_id]
        ticket.lease = None
        if lease.long:
            resource.long_busy -= 1
        if lingering:
            resource.lingering += 1
        else:
            resource.busy = busy = resource.busy - 1
            resource.load = busy / resource.capacity if resource.capacity > 0 else 1.0
        self.stats.released[cause] += 1
        return resource

    def _join(self, ticket: Ticket, now: float, actions: list[Action]) -> None:
        """Queue a ticket that was admitted before, whatever the bounds; its refusal goes to ``actions``."""
        group = self._routes.get(ticket.group_id)
        if group is None or self._shut:
            actions.append(Refused(ticket, self._counted(ShuttingDown() if self._shut else ModelNotFound())))
            return
        lane = group.lane_for(ticket.estimated_tokens)
        kind = lane.kind_of(ticket)
        error: IopError | None = None
        if lane.hopeless(kind):
            error = Unavailable()
        elif lane.asleep(kind) and (wakes_at := lane.wakes_at(kind)) >= ticket.deadline_at:
            error = ProvidersResting(rest_s=wakes_at - now)
        if error is not None:
            actions.append(Refused(ticket, self._counted(error)))
            return
        self.queue.join(ticket, lane, now)

    def _counted(self, error: IopError) -> IopError:
        self.stats.refused[error.code] += 1
        return error

    def _serve(self, resource: Resource, now: float) -> Actions:
        """Hand the free slots of one provider to the waiters that have the turn there, over all groups (POOL-5).

        No other provider can serve them, or they would not wait: so nothing is left to choose but who.
        """
        actions: Actions = NO_ACTIONS
        if resource.fair.flows:
            granted: list[Action] = []
            while (turn := self._turn(resource)) is not None:
                line, seat = turn
                granted.append(self._give(line, seat, now))
            actions = granted
        self._settle(resource)
        return actions

    @staticmethod
    def _turn(resource: Resource) -> tuple[Line, Seat] | None:
        """Whose oldest waiter gets the next free slot of a provider, and the seat it is for."""
        if not resource.open or resource.busy >= resource.capacity:
            return None
        return resource.fair.turn(resource.seats, resource.long_busy < resource.long_capacity)

    def _settle(self, resource: Resource) -> None:
        """After units came back: let every lane know if slots are left, or drop a removed provider."""
        if resource.busy < resource.capacity:
            for seat in resource.seats:
                seat.lane.offer(seat)
        if resource.removed and resource.busy == 0:
            self._forget(resource.node_id)

    def _pump(self, resources: Iterable[Resource], now: float, actions: list[Action]) -> None:
        """Serve the waiters of providers that gained slots, until none can be served.

        A slot goes to whoever has the turn at its provider. That waiter may prefer another provider that has a slot
        (POOL-3): then that one's slot is handed out first, and so on, unless the wishes go round in a circle.
        """
        for resource in resources:
            while (turn := self._turn(resource)) is not None:
                at, passed = resource, {resource}
                while True:
                    assert turn is not None
                    line, seat = turn
                    best = line.lane.best_for(line.kind, line.queue[0][1].tried)
                    assert best is not None
                    if best.resource is at:
                        seat = best
                        break
                    if best.resource in passed:
                        break
                    at = best.resource
                    passed.add(at)
                    turn = self._turn(at)
                actions.append(self._give(line, seat, now))

    def _reopen(
        self,
        resources: Collection[Resource],
        now: float,
        actions: list[Action],
        change: Callable[[Resource], None] | None = None,
    ) -> None:
        """Bring providers and their seats in line with their switches, after ``change``, which is for what changes the
        slots of long requests. Waiters that lose their last candidate go (POOL-4), and those that would wait in vain
        for the end of a rest (HEALTH-9)."""
        closed: dict[Lane, None] = {}
        for resource in resources:
            for seat in resource.seats:
                seat.lane.open -= seat.open
                seat.lane.awake -= seat.awake
            if change is not None:
                change(resource)
            resource.open = resource.should_open()
            for seat in resource.seats:
                seat.refresh()
                seat.lane.open += seat.open
                seat.lane.awake += seat.awake
                if seat.awake:
                    seat.lane.offer(seat)
                else:
                    closed[seat.lane] = None
        for lane in closed:
            for kind in list(lane.kinds):
                if lane.hopeless(kind):
                    for line in list(lane.kinds[kind].values()):
                        while line.live:
                            actions.append(Refused(self.queue.take(line, now), self._counted(Unavailable())))
                elif lane.asleep(kind):
                    wakes_at = lane.wakes_at(kind)
                    for ticket in lane.late(kind, wakes_at):
                        assert ticket.line is not None
                        self.queue.leave(ticket, ticket.line, now)
                        actions.append(Refused(ticket, self._counted(ProvidersResting(rest_s=wakes_at - now))))

    # ---- self-check

    def validate(self) -> None:
        """Assert what must hold between any two calls. A full scan; tests call it after each step."""
        self.registry.validate()
        self.queue.validate()
        for node_id, resources in self._nodes.items():
            record = self.registry.nodes[node_id]
            for resource in resources.values():
                resource.validate()
                assert resource.generation in {0, record.generation}, "a provider outlived its generation"
                assert record.connected or resource.generation == 0, "a provider is active before its node is ready"
        for group in self._groups.values():
            assert group.waiting == sum(line.live for lane in group.lanes() for line in lane.lines())
            for lane in group.lanes():
                lane.validate()
                assert lane.picture is None or lane.picture == picture_of(lane), "a picture is out of date"
        assert self.queue.waiting == sum(group.waiting for group in self._groups.values())
