"""The pool as the edge has it, watched: every call is written into a ledger of its own, which must agree with it.

The ledger is told of grants and returns, and derives from them alone what may be out. After each step in which the pool
was called, :meth:`Ledger.check` compares the two, runs the pool's own ``validate`` and looks at both from the side of
the requests: who holds what, and who waits for what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from iop.edge.requests.attempts import State
from iop.errors import ProvidersResting, QueueTimeout, Unavailable
from iop.pool import Actions, Granted, Lease, Loss, Pool, Readiness, Refused, ReleaseCause, Revoked, Ticket
from iop.pool.registry import NodeState

__all__ = ["Ledger", "WatchedPool"]

Key = tuple[str, str]
LATE_S = 0.5  # how long after its deadline a waiter may still wait


class WatchedPool(Pool):
    """The pool, writing into ``ledger`` what it is asked and what it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(self)

    def submit(self, ticket: Ticket, now: float) -> Lease | None:
        ledger = self.ledger
        ledger.touched = True
        lease = super().submit(ticket, now)
        ledger.places[ticket] = ticket.place
        ledger.asked[ticket] = now
        if lease is not None:
            ledger.granted(ticket, lease)
        return lease

    def release(self, lease: Lease, cause: ReleaseCause, now: float, *, lingering: bool = False) -> Actions:
        self.ledger.returned(lease)
        if lingering:
            self.ledger.seen["close not confirmed"] += 1
        return self.ledger.acted(super().release(lease, cause, now, lingering=lingering))

    def readmit(self, ticket: Ticket, lease: Lease, now: float, **how: Any) -> Actions:
        ledger = self.ledger
        ledger.seen[f"readmit {how['cause']}"] += 1
        ledger.asked[ticket] = now
        if ticket.lease is lease:
            ledger.returned(lease)
        return ledger.acted(super().readmit(ticket, lease, now, **how))

    def cancel(self, ticket: Ticket, now: float) -> bool:
        self.ledger.touched = True
        return super().cancel(ticket, now)

    def on_time(self, now: float) -> Actions:
        actions = super().on_time(now)
        late = [a.ticket for a in actions if isinstance(a, Refused) and isinstance(a.error, QueueTimeout)]
        for ticket in late:
            assert ticket.deadline_at <= now, "a waiter was refused before its time"
        self.ledger.seen["queue timeout"] += len(late)
        return self.ledger.acted(actions)

    def shutdown(self, now: float) -> Actions:
        return self.ledger.acted(super().shutdown(now))

    def configure(self, **what: Any) -> Actions:
        actions = super().configure(**what)
        # What is gone and configured again is another provider, of which nothing bad is known.
        lowered = self.ledger.lowered
        lowered -= {key for key in lowered if key[2] not in self._nodes.get(key[0], {})}
        gone = {key for key in self.ledger.lowered_targets if key[2] not in self._nodes.get(key[0], {})}
        self.ledger.lowered_targets -= gone
        return self.ledger.acted(actions)

    # ---- calls that name a generation

    def _fenced(self, node_id: str, generation: int, call: Callable[[], Any]) -> Any:
        """A stale generation changes nothing."""
        self.ledger.touched = True
        if self.is_current(node_id, generation):
            return call()
        before = self.ledger.picture()
        self.ledger.seen["stale call"] += 1
        result = call()
        assert self.ledger.picture() == before, f"generation {generation} of {node_id} is stale and changed something"
        return result

    def applied(self, node_id: str, generation: int, now: float, *more: Any) -> Actions:
        return self.ledger.acted(
            self._fenced(node_id, generation, lambda: super(WatchedPool, self).applied(node_id, generation, now, *more))
        )

    def ready(self, node_id: str, generation: int, held: Any, now: float, *more: Any) -> Readiness:
        ledger = self.ledger
        ledger.seen["held over"] += sum(held.values())
        readiness: Readiness = self._fenced(
            node_id, generation, lambda: super(WatchedPool, self).ready(node_id, generation, held, now, *more)
        )
        ledger.acted(readiness.actions)
        return readiness

    def lost(self, node_id: str, generation: int, now: float) -> Loss:
        loss: Loss = self._fenced(node_id, generation, lambda: super(WatchedPool, self).lost(node_id, generation, now))
        self.ledger.acted(loss.actions)
        return loss

    def drain(self, node_id: str, generation: int, now: float) -> Actions:
        return self.ledger.acted(
            self._fenced(node_id, generation, lambda: super(WatchedPool, self).drain(node_id, generation, now))
        )

    def set_overlay(
        self, node_id: str, generation: int, provider_id: str, unavailable: bool, now: float, **more: Any
    ) -> Actions:
        ledger, key, target = self.ledger, (node_id, generation, provider_id), more.get("target")
        if target is None:
            ledger.seen["overlay lowered" if unavailable else "overlay restored"] += 1
            (ledger.lowered.add if unavailable else ledger.lowered.discard)(key)
        else:
            ledger.seen["target lowered" if unavailable else "target restored"] += 1
            down = ledger.lowered_targets
            (down.add if unavailable else down.discard)((*key, target))
        return ledger.acted(
            self._fenced(
                node_id,
                generation,
                lambda: super(WatchedPool, self).set_overlay(
                    node_id, generation, provider_id, unavailable, now, **more
                ),
            )
        )

    def rest(self, lease: Lease, seconds: float, now: float) -> Actions:
        self.ledger.seen["rest"] += 1
        return self.ledger.acted(
            self._fenced(lease.node_id, lease.generation, lambda: super(WatchedPool, self).rest(lease, seconds, now))
        )

    def call_closed(self, node_id: str, generation: int, provider_id: str, now: float) -> Actions:
        self.ledger.seen["call closed"] += 1
        return self.ledger.acted(
            self._fenced(
                node_id,
                generation,
                lambda: super(WatchedPool, self).call_closed(node_id, generation, provider_id, now),
            )
        )


class Ledger:
    """What the pool has given out, by its own word. ``live`` is set to the edge's set of requests."""

    def __init__(self, pool: WatchedPool) -> None:
        self.pool = pool
        self.touched = False
        self.seen: Counter[str] = Counter()
        self.note: Callable[[str], None] | None = None
        self.live: Any = ()
        self.out: dict[int, Lease] = {}
        self.places: dict[Ticket, int] = {}
        self.lowered: set[tuple[str, int, str]] = set()  # by node, generation, provider
        self.lowered_targets: set[tuple[str, int, str, str]] = set()
        self.asked: dict[Ticket, float] = {}  # when it was submitted or readmitted
        self._counts: Counter[Key] = Counter()
        self._longs: Counter[Key] = Counter()
        self._last_id = 0

    # ---- what happens

    def granted(self, ticket: Ticket, lease: Lease) -> None:
        if self.note:
            self.note(f"grant {lease!r}")
        assert lease.lease_id > self._last_id, "a lease id came twice"
        self._last_id = lease.lease_id
        key = lease.node_id, lease.provider_id
        resource = self.pool._nodes[lease.node_id][lease.provider_id]
        record = self.pool.registry.nodes[lease.node_id]
        assert record.state is NodeState.READY, f"{lease!r}: its node is {record.state}"
        assert lease.generation == record.generation == resource.generation, f"{lease!r} is of a dead generation"
        shut = resource.removed or resource.lowered or resource.draining
        assert not shut, f"{lease!r}: not a candidate"
        at = lease.node_id, lease.generation, lease.provider_id
        assert at not in self.lowered, f"{lease!r}: it is unavailable"
        assert (*at, lease.target) not in self.lowered_targets, f"{lease!r}: {lease.target} is unavailable"
        assert lease.target not in resource.rests, f"{lease!r}: {lease.target} rests"
        assert not {(lease.provider_id, lease.target), (lease.provider_id, None)} & ticket.refused, (
            "it refused this one"
        )
        assert ticket.place == self.places[ticket], f"{ticket!r} lost its place"
        self._overtakes(ticket, lease)
        self.out[lease.lease_id] = lease
        self._counts[key] += 1
        self._longs[key] += lease.long
        used = self._counts[key] + resource.lingering
        assert used <= min(resource.capacity, resource.spec.capacity), (
            f"{lease!r} is above capacity {resource.capacity}"
        )
        assert not lease.long or self._longs[key] <= resource.long_capacity, f"{lease!r} is above long capacity"

    def returned(self, lease: Lease) -> None:
        self.touched = True
        if self.note:
            self.note(f"return {lease!r}")
        assert self.out.pop(lease.lease_id, None) is lease, f"{lease!r} is returned twice"
        key = lease.node_id, lease.provider_id
        self._counts[key] -= 1
        self._longs[key] -= lease.long

    def acted(self, actions: Actions) -> Actions:
        """Writes down what the pool decided; grants come behind all returns of the call."""
        self.touched = True
        for action in actions:
            if isinstance(action, Revoked):
                self.seen["revoked"] += 1
                self.returned(action.lease)
        for action in actions:
            if isinstance(action, Granted):
                self.granted(action.ticket, action.lease)
            elif isinstance(action, Refused):
                if self.note:
                    self.note(f"refuse {action.ticket!r} {action.error.code}")
                self.seen[f"refused {action.error.code}"] += 1
                if isinstance(action.error, Unavailable):
                    assert not self._ways(action.ticket), f"{action.ticket!r} is refused, with a candidate there"
                elif isinstance(action.error, ProvidersResting):
                    awake = self._ways(action.ticket, awake=True)
                    assert not awake, f"{action.ticket!r} is refused, with a candidate that does not rest"
        return actions

    # ---- who could be served where

    def _ways(self, ticket: Ticket, *, awake: bool = False) -> list[tuple[Any, bool]]:
        """The candidates of a ticket, slots aside: resource, and whether the ticket is long there; with ``awake`` those
        that do not rest."""
        group = self.pool._routes.get(ticket.group_id)
        found = []
        for candidate, resource in group.candidates() if group is not None else ():
            target, bans = candidate.target, ticket.refused
            shut = target in resource.lowered_targets or (awake and target in resource.rests)
            if shut or {(resource.provider_id, target), (resource.provider_id, None)} & bans:
                continue
            threshold = resource.long_threshold_tokens
            long = threshold is not None and ticket.estimated_tokens >= threshold
            avoided = resource.provider_id == ticket.avoid_provider_id and not ticket.allow_avoided_fallback
            if resource.open and not avoided and not (long and resource.long_capacity <= 0):
                found.append((resource, long))
        return found

    def _overtakes(self, ticket: Ticket, lease: Lease) -> None:
        """Nobody older of the same principal waits who could have had this slot (POOL-5)."""
        if not self.pool.waiting:
            return
        key = lease.node_id, lease.provider_id
        for other in self.pool.queue:
            if other.place < ticket.place and other.principal == ticket.principal:
                for resource, long in self._ways(other, awake=True):
                    if (resource.node_id, resource.provider_id) == key:
                        fits = not long or self._longs[key] < resource.long_capacity
                        assert not fits, f"{ticket!r} overtakes {other!r}"

    def picture(self) -> Any:
        """All that a call may change, as plain data."""
        pool = self.pool
        return (
            sorted(self.out),
            sorted(ticket.place for ticket in pool.queue),
            {n: (r.state, r.generation) for n, r in pool.registry.nodes.items()},
            {
                (n, p): (
                    r.generation, r.capacity, r.open, r.draining, r.lowered, r.removed, r.busy, r.lingering,
                    sorted(r.leases), sorted(r.lowered_targets), dict(r.rests),
                )
                for n, rs in pool._nodes.items()
                for p, r in rs.items()
            },
        )  # fmt: skip

    # ---- after a step

    def check(self, now: float) -> None:
        """What must hold whenever the edge has finished with an event."""
        pool = self.pool
        pool.validate()
        stats = pool.stats
        assert stats.returned_twice == stats.returned_unknown == 0, "a lease was returned twice, or was never out"
        out: dict[int, Ticket] = {}
        for resources in pool._nodes.values():
            for resource in resources.values():
                out.update(resource.leases)
                assert len(resource.leases) == self._counts[resource.node_id, resource.provider_id]
        assert out.keys() == self.out.keys(), "the pool's leases are not those that it gave out and did not get back"
        for lease_id, ticket in out.items():
            request = ticket.owner
            assert request in self.live, f"lease {lease_id} has no live request"
            assert request.lease is self.out[lease_id], f"{ticket!r} does not know of its lease"
            assert request.state in _DISPATCHED, f"{ticket!r} is {request.state} and holds a lease"
        for ticket in pool.queue:
            assert ticket.place == self.places[ticket], f"{ticket!r} lost its place"
            due_at = max(ticket.deadline_at, self.asked[ticket])
            assert due_at + LATE_S >= now, f"{ticket!r} waits for ever: {now - due_at:.2f} s late"
            assert ticket.owner in self.live, f"{ticket!r} waits for nobody"
            assert self._ways(ticket), f"{ticket!r} waits without a candidate"
            for resource, long in self._ways(ticket, awake=True):
                free = resource.capacity - len(resource.leases) - resource.lingering
                if free > 0 and not (
                    long and self._longs[resource.node_id, resource.provider_id] >= resource.long_capacity
                ):
                    raise AssertionError(f"{ticket!r} waits while {resource.provider_id} has {free} free")
        for request in self.live:
            ticket = request.ticket
            if request.state is State.WAITING:
                assert ticket.line is not None, f"{ticket!r} waits in no queue"
                continue
            assert request.state in _DISPATCHED, f"{ticket!r} is {request.state} and live"
            if ticket is not None:  # a direct run has none
                assert pool.holds(request.lease), f"{ticket!r} is {request.state} without a lease"
        if len(self.places) > 4 * (len(self.live) + 16):
            alive = {request.ticket for request in self.live}
            self.places = {ticket: place for ticket, place in self.places.items() if ticket in alive}
            self.asked = {ticket: at for ticket, at in self.asked.items() if ticket in alive}


_DISPATCHED = frozenset({State.SENT, State.OPEN, State.CANCELLING})
