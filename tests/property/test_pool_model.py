"""Registry, pool and node gate together, against a model that is too simple to be wrong.

The model keeps lists and scans them: it chooses by ``min`` over all candidates and over all waiters, and has no heap,
lane, line or counter. Nodes are real :class:`CapacityGate` objects behind in-order links whose messages arrive
late or never. After every step the pool's actions and its whole visible state must equal the model's, and
``validate()`` of each machine must hold. Driven twice: by Hypothesis, which shrinks, and by seeds, which go deep.

The file is long because the model is of all three at once: what one does to the others is what it is there to find.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from iop.errors import IopError
from iop.execution.gate import CapacityGate, Slot
from iop.pool import (
    Action,
    Candidate,
    Claim,
    Granted,
    GroupSpec,
    Lease,
    LossOutcome,
    OwnerAlive,
    Pool,
    ProviderSpec,
    QueueLimits,
    ReadyOutcome,
    Refused,
    ReleaseCause,
    Revoked,
    Ticket,
)
from iop.pool.deadlines import TICK_S
from iop.pool.fair import Flow

PROVIDERS = [
    ProviderSpec("n1", "p1", "vllm", 2, long_capacity=1, long_threshold_tokens=100),
    ProviderSpec("n1", "p2", "llama_cpp", 1),
    ProviderSpec("n2", "p3", "vllm", 3, long_capacity=2, long_threshold_tokens=1000),
    ProviderSpec("n3", "p4", "vllm", 1, long_capacity=0, long_threshold_tokens=100),
]
GROUPS = [
    GroupSpec("a", [Candidate("n1", "p1", "t1"), Candidate("n2", "p3", "t3")], aliases=["alias"]),
    GroupSpec("b", [Candidate("n1", "p2", "t2"), Candidate("n1", "p1", "t1", 1), Candidate("n1", "p1", "t6", 2)]),
    GroupSpec("c", [Candidate("n2", "p3", "t3"), Candidate("n3", "p4", "t4"), Candidate("n1", "p2", "t2", -1)]),
    GroupSpec("d", [Candidate("n3", "p4", "t4"), Candidate("n3", "p4", "t5")]),
]
LIMITS = QueueLimits(timeout_s=10.0, max_waiters=6, max_waiters_per_principal=4)
TOKENS = [0, 100, 5000]


# ---- the model ------------------------------------------------------------------------------------------------------


@dataclass
class MProvider:
    spec: ProviderSpec
    capacity: int
    long_capacity: int
    generation: int = 0
    draining: bool = False
    drained: bool = False
    lowered: bool = False
    lowered_targets: set[str] = field(default_factory=set)
    rests: dict[str, tuple[float, int]] = field(default_factory=dict)  # by target: until when, and which rest it is
    removed: bool = False
    lingering: int = 0
    last_used: int = 0
    backend: object = ()  # that the node calls
    there: bool = True  # the node has it
    awaited: bool = False  # the node may be about to have it, or another backend for it

    def candidate(self, long: bool) -> bool:
        up = self.generation and not (self.draining or self.drained or self.lowered or self.removed)
        up = up and self.spec.enabled and (self.there or self.awaited)
        return bool(up and self.capacity > 0 and (self.long_capacity > 0 or not long))

    @property
    def room(self) -> int:
        """The capacity that counts now."""
        return self.capacity if self.there and not self.awaited else 0

    def take_all(self) -> None:
        """The node has what is configured."""
        longs = self.spec.capacity if self.spec.long_capacity is None else self.spec.long_capacity
        self.capacity, self.long_capacity = self.spec.capacity, min(longs, self.spec.capacity)
        if self.backend != self.spec.backend:
            self.rests.clear()
        self.backend, self.there, self.awaited = self.spec.backend, True, False


@dataclass(eq=False)
class MFlow:
    """A principal at a provider, as start-time fair queueing has it."""

    tag: float
    order: int


@dataclass(eq=False)
class MTicket:
    ticket: Ticket
    place: int
    deadline: float = 0.0
    provider: MProvider | None = None  # of its lease
    long: bool = False


@dataclass
class Model:
    groups: dict[str, GroupSpec] = field(default_factory=dict)
    providers: dict[str, MProvider] = field(default_factory=dict)
    owners: dict[str, tuple[int, str]] = field(default_factory=dict)  # node -> generation, pending|ready|draining
    waiters: list[MTicket] = field(default_factory=list)
    holders: list[MTicket] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)  # ids of providers and of nodes
    flows: dict[tuple[str, str], MFlow] = field(default_factory=dict)  # by provider and principal
    times: dict[str, float] = field(default_factory=dict)  # virtual time, by provider
    charged: dict[str, tuple[str, MFlow]] = field(default_factory=dict)  # by request: for its latest grant
    places: int = 0
    grants: int = 0
    orders: int = 0
    firsts: int = 0
    rested: int = 0

    def group(self, name: str) -> GroupSpec | None:
        return next((g for g in self.groups.values() if name in (g.group_id, *g.aliases)), None)

    def mark_drained(self) -> None:
        for key, provider in self.providers.items():
            provider.drained = bool(self.drained & {key, provider.spec.node_id})

    def busy(self, provider: MProvider) -> int:
        return sum(1 for h in self.holders if h.provider is provider) + provider.lingering

    def ways(self, ticket: Ticket) -> list[tuple[Candidate, MProvider, bool]]:
        """The candidates of a request, also those that rest."""
        group = self.group(ticket.group_id)
        assert group is not None
        every = []
        for candidate in group.candidates:
            key, target = candidate.provider_id, candidate.target
            provider = self.providers[key]
            threshold = provider.spec.long_threshold_tokens
            long = threshold is not None and ticket.estimated_tokens >= threshold
            barred = (key == ticket.avoid_provider_id and not ticket.allow_avoided_fallback) or bool(
                ticket.refused & {(key, target), (key, None)}
            )
            if provider.candidate(long) and target not in provider.lowered_targets and not barred:
                every.append((candidate, provider, long))
        return every

    def choices(self, ticket: Ticket) -> list[tuple[Candidate, MProvider, bool]]:
        """The candidates with a free slot of the class, of which one is chosen."""
        every = [w for w in self.ways(ticket) if w[0].target not in w[1].rests and self.fits(w[1], w[2])]
        others = [w for w in every if w[0].provider_id != ticket.avoid_provider_id]
        return [w for w in others if w[0].provider_id not in ticket.tried] or others or every

    def wakes_at(self, ticket: Ticket) -> float | None:
        """When the first rest ends of a request all of whose candidates rest."""
        ends = [provider.rests.get(candidate.target) for candidate, provider, _ in self.ways(ticket)]
        rests = [end[0] for end in ends if end is not None]
        return min(rests) if rests and len(rests) == len(ends) else None

    def fits(self, provider: MProvider, long: bool) -> bool:
        longs = sum(1 for h in self.holders if h.provider is provider and h.long)
        return self.busy(provider) < provider.room and not (long and longs >= provider.long_capacity)

    def choice(self, ticket: Ticket) -> tuple[Candidate, MProvider, bool] | None:
        """POOL-3's choice for a request, if it can be served."""
        return min(
            self.choices(ticket),
            key=lambda c: (c[0].priority, Fraction(self.busy(c[1]), c[1].capacity), c[1].last_used),
            default=None,
        )

    def grant(self, entry: MTicket, at: str | None = None) -> tuple[str, str, str, str] | None:
        """At POOL-3's choice, or at the provider ``at``."""
        chosen = self.choice(entry.ticket)
        if chosen is None:
            return None
        if at is not None:
            chosen = self.way(entry.ticket, at)
        candidate, provider, long = chosen
        self.grants += 1
        provider.last_used = self.grants
        entry.provider, entry.long = provider, long
        self.holders.append(entry)
        self.charge(entry.ticket, candidate.provider_id)
        if entry in self.waiters:
            self.leave(entry)
        return ("granted", entry.ticket.request_id, candidate.provider_id, candidate.target)

    def way(self, ticket: Ticket, key: str) -> tuple[Candidate, MProvider, bool]:
        """A request's candidate at one provider, whether that one is preferred or not."""
        here = [w for w in self.ways(ticket) if w[0].provider_id == key and w[0].target not in w[1].rests]
        return min(here, key=lambda w: w[0].priority)

    # -- who has the turn (POOL-5)

    def reach(self, ticket: Ticket) -> list[str]:
        """The providers that a request waits for."""
        group = self.group(ticket.group_id)
        if group is None:
            return []
        bans = ticket.refused
        at = [c for c in group.candidates if not bans & {(c.provider_id, c.target), (c.provider_id, None)}]
        ids = dict.fromkeys(c.provider_id for c in at)
        return [key for key in ids if ticket.allow_avoided_fallback or key != ticket.avoid_provider_id]

    def waits(self, key: str, principal: str | None = None) -> bool:
        return any(principal in (None, w.ticket.principal) and key in self.reach(w.ticket) for w in self.waiters)

    def join(self, entry: MTicket) -> None:
        principal = entry.ticket.principal
        for key in self.reach(entry.ticket):
            if not self.waits(key, principal):
                time = self.times.setdefault(key, 0.0)
                flow = self.flows.get((key, principal))
                self.orders += 1
                if flow is None:
                    self.flows[key, principal] = MFlow(time, self.orders)
                elif flow.tag < time:
                    flow.tag, flow.order = time, self.orders
        self.waiters.append(entry)

    def leave(self, entry: MTicket, hold: bool = False) -> None:
        """With ``hold`` the tags outlive the last waiter."""
        self.waiters.remove(entry)
        for key in self.reach(entry.ticket):
            flow = self.flows.get((key, entry.ticket.principal))
            if flow is not None and not self.waits(key, entry.ticket.principal) and flow.tag <= self.times[key]:
                del self.flows[key, entry.ticket.principal]
            if not hold:
                self.forget_tags(key)

    def forget_tags(self, key: str) -> None:
        if not self.waits(key):
            self.times[key] = 0.0
            self.flows = {at: flow for at, flow in self.flows.items() if at[0] != key}

    def charge(self, ticket: Ticket, key: str) -> None:
        if not any(at[0] == key for at in self.flows):
            return
        flow = self.flows.setdefault((key, ticket.principal), MFlow(self.times[key], 0))
        start = max(flow.tag, self.times[key] - ticket.cost)
        self.times[key] = max(self.times[key], start)
        self.orders += 1
        flow.tag, flow.order = start + ticket.cost, self.orders
        self.charged[ticket.request_id] = (key, flow)

    def refund(self, ticket: Ticket) -> None:
        key, flow = self.charged.pop(ticket.request_id, ("", None))
        if flow is not None and self.flows.get((key, ticket.principal)) is flow:
            self.firsts -= 1
            flow.tag, flow.order = flow.tag - ticket.cost, self.firsts

    def turn(self, key: str) -> MTicket | None:
        """Whose turn it is at a provider with a free slot."""
        eligible = []
        for waiter in self.waiters:
            here = [w for w in self.ways(waiter.ticket) if w[0].provider_id == key and w[0].target not in w[1].rests]
            if any(self.fits(provider, long) for _, provider, long in here):
                flow = self.flows[key, waiter.ticket.principal]
                eligible.append((flow.tag, flow.order, waiter.place, waiter))
        return min(eligible)[3] if eligible else None

    def next_grant(self, first: str | None) -> tuple[MTicket, str] | None:
        """The turn-holder of a provider, unless it prefers another one: then whoever has the turn there, and so on."""
        order = sorted(self.providers.items(), key=lambda item: (item[0] != first, item[1].spec.node_id))
        for key, _ in order:
            at, passed = key, {key}
            while (waiter := self.turn(at)) is not None:
                chosen = self.choice(waiter.ticket)
                assert chosen is not None
                wanted = chosen[0].provider_id
                if wanted in passed:
                    return waiter, at
                at = wanted
                passed.add(at)
        return None

    def refusal(self, entry: MTicket) -> str | None:
        """Why a request may not wait."""
        ticket = entry.ticket
        if self.group(ticket.group_id) is None:
            return "model_not_found"
        if not self.ways(ticket):
            return "unavailable"
        wakes_at = self.wakes_at(ticket)
        return None if wakes_at is None or wakes_at < entry.deadline else "providers_resting"

    def settle(self, first: str | None = None) -> list[tuple[str, ...]]:
        """Refuse who has no candidate, then serve whose turn it is, at ``first`` first, until nothing changes."""
        out: list[tuple[str, ...]] = []
        for entry in sorted(self.waiters, key=lambda w: w.place):
            if (code := self.refusal(entry)) is not None:
                out.append(("refused", entry.ticket.request_id, code))
                self.leave(entry)
        while (following := self.next_grant(first)) is not None:
            granted = self.grant(*following)
            assert granted is not None
            out.append(granted)
        return out

    def give_back(self, ticket: Ticket) -> MTicket | None:
        entry = next((h for h in self.holders if h.ticket is ticket), None)
        if entry is not None:
            self.holders.remove(entry)
        return entry

    def forget_removed(self) -> None:
        for key in [k for k, p in self.providers.items() if p.removed and self.busy(p) == 0]:
            del self.providers[key]


# ---- the world around the pool --------------------------------------------------------------------------------------


@dataclass
class Session:
    """One node connection: its generation, and what travels on it, in order, each way."""

    node_id: str
    generation: int
    ready_sent: bool = False
    up: deque[tuple[str, Lease | None, Slot | None, object]] = field(default_factory=deque)
    down: deque[Lease] = field(default_factory=deque)
    running: list[tuple[Lease, Slot]] = field(default_factory=list)


class World:
    """The pool, its model, and three nodes. Every operation takes small numbers, so that anything can drive it."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.model = Model()
        self.now = 100.0
        self.count = 0
        self.tickets: dict[str, Ticket] = {}
        self.leases: list[tuple[Ticket, Lease]] = []  # every lease ever granted
        self.ends: dict[int, int] = {}  # lease id -> how often it ended
        self.sessions: dict[str, Session] = {}
        self.dead: list[tuple[str, int]] = []
        self.gates = {f"n{i}": CapacityGate() for i in (1, 2, 3)}
        self.orphans: list[tuple[str, Slot]] = []  # node-side calls whose stream is over
        self.bypass: list[tuple[str, Slot]] = []
        self.refresh(PROVIDERS, GROUPS)

    # -- comparing

    def expect(self, actions: object, expected: list[tuple[str, ...]]) -> None:
        """The pool's actions are the expected ones; grants in the same order, the rest in any."""
        assert isinstance(actions, list | tuple)
        got = [self.describe(action) for action in actions]
        assert [g for g in got if g[0] == "granted"] == [e for e in expected if e[0] == "granted"]
        assert sorted(got) == sorted(expected)
        for action in actions:
            self.obey(action)

    def describe(self, action: Action) -> tuple[str, ...]:
        match action:
            case Granted(ticket, lease):
                return ("granted", ticket.request_id, lease.provider_id, lease.target)
            case Refused(ticket, error):
                return ("refused", ticket.request_id, error.code)
            case Revoked(ticket, lease, _):
                return ("revoked", ticket.request_id, lease.provider_id)

    def obey(self, action: Action) -> None:
        match action:
            case Granted(ticket, lease):
                self.granted(ticket, lease)
            case Revoked(_, lease, error):
                assert error.code == "node_disconnected"
                self.ended(lease)
            case Refused(ticket, _):
                assert ticket.lease is None
                assert ticket.line is None

    def granted(self, ticket: Ticket, lease: Lease) -> None:
        assert self.pool.holds(lease)
        assert lease.request_id == ticket.request_id
        assert self.pool.is_current(lease.node_id, lease.generation)
        session = self.sessions[lease.node_id]
        assert lease.generation == session.generation
        self.leases.append((ticket, lease))
        session.down.append(lease)

    def ended(self, lease: Lease) -> None:
        self.ends[lease.lease_id] = self.ends.get(lease.lease_id, 0) + 1
        assert self.ends[lease.lease_id] == 1, "a lease ended twice"

    def check(self) -> None:
        self.pool.validate()
        for gate in self.gates.values():
            gate.validate()
        model = self.model
        snapshot = self.pool.snapshot(self.now)
        rows = {row["id"]: row for node in snapshot["nodes"] for row in node["providers"]}
        assert rows.keys() == model.providers.keys()
        for key, provider in model.providers.items():
            outstanding = sum(1 for h in model.holders if h.provider is provider)
            row = rows[key]
            assert (row["in_use"], row["lingering"]) == (outstanding, provider.lingering)
            assert row["long_in_use"] == sum(1 for h in model.holders if h.provider is provider and h.long)
            shown = max(0, provider.room - provider.lingering) if provider.generation else 0
            assert row["capacity"] == shown
            assert (row["health"] == "offline") == (provider.generation == 0)
            free = max(0, provider.capacity - outstanding - provider.lingering)
            assert 0 <= free <= provider.capacity
        for resources in self.pool._nodes.values():
            for key, resource in resources.items():
                flows = {principal: flow for (at, principal), flow in model.flows.items() if at == key}
                assert _in_turn(resource.fair.flows) == _in_turn(flows), key
        for node in snapshot["nodes"]:
            assert node["connected"] == (model.owners.get(node["id"], (0, ""))[1] in ("ready", "draining"))
        waiting = {name for name, t in self.tickets.items() if t.waiting}
        assert waiting == {w.ticket.request_id for w in model.waiters}
        assert snapshot["waiting"] == self.pool.waiting == len(model.waiters)
        assert self.pool.capacity == sum(row["capacity"] for row in rows.values())
        assert snapshot["leases_in_use"] == self.pool.leases_in_use == len(model.holders)
        assert self.pool.leases_granted == model.grants
        assert self.pool.leases_granted - sum(self.pool.stats.released.values()) == len(model.holders)
        live = [lease for _, lease in self.leases if lease.lease_id not in self.ends]
        assert len(live) == len(model.holders)
        for node_id, gate in self.gates.items():
            for spec in PROVIDERS:
                if spec.node_id == node_id:
                    assert 0 <= gate.held(spec.provider_id) <= spec.capacity

    # -- requests

    def submit(self, group: int, principal: int, tokens: int, avoid: int, fallback: bool) -> None:
        self.count += 1
        ticket = Ticket(
            f"r{self.count}",
            f"u{principal % 3}",
            ["a", "b", "c", "d", "alias", "a", "b", "c", "a", "b", "c", "nobody"][group % 12],
            TOKENS[tokens % 3],
            weight=[1, 3, 0.5][principal % 3],
            avoid_provider_id=[None, None, None, "p1", "p3", "elsewhere"][avoid % 6],
            allow_avoided_fallback=fallback,
        )
        self.tickets[ticket.request_id] = ticket
        model = self.model
        entry = MTicket(ticket, model.places + 1, self.now + LIMITS.timeout_s)
        spec = model.group(ticket.group_id)
        expected: tuple[str, ...] | str | None
        if spec is None:
            expected = "model_not_found"
        elif (granted := model.grant(entry)) is not None:
            expected = granted
        elif not model.ways(ticket):
            expected = "unavailable"
        elif model.wakes_at(ticket) is not None:
            expected = "providers_resting"
        elif (
            sum(1 for w in model.waiters if model.group(w.ticket.group_id) is spec) >= LIMITS.max_waiters
            or sum(1 for w in model.waiters if w.ticket.principal == ticket.principal)
            >= LIMITS.max_waiters_per_principal
        ):
            expected = "queue_full"
        else:
            expected = None
            model.join(entry)
        try:
            lease = self.pool.submit(ticket, self.now)
        except IopError as error:
            refused = error.code
        else:
            refused = None
        if refused is not None:
            assert refused == expected
            assert ticket.place == 0
            return
        model.places += 1
        assert ticket.place == entry.place
        if lease is None:
            assert expected is None
        else:
            assert expected == ("granted", ticket.request_id, lease.provider_id, lease.target)
            self.granted(ticket, lease)

    def cancel(self, pick: int) -> None:
        tickets = list(self.tickets.values())
        if not tickets:
            return
        ticket = tickets[pick % len(tickets)]
        entry = next((w for w in self.model.waiters if w.ticket is ticket), None)
        assert self.pool.cancel(ticket, self.now) == (entry is not None)
        if entry is not None:
            self.model.leave(entry)

    def advance(self, tenths: int) -> None:
        self.now += tenths / 10
        due = [w for w in self.model.waiters if w.deadline <= self.now]
        for waiter in due:
            self.model.leave(waiter)
        expected = [("refused", w.ticket.request_id, "queue_timeout") for w in due]
        providers = self.model.providers
        rests = [(end, key, target) for key, p in providers.items() for target, end in p.rests.items()]
        for end, key, target in sorted(rests):
            if end[0] <= self.now:
                del providers[key].rests[target]
                expected += self.model.settle(key)
        self.expect(self.pool.on_time(self.now), expected)
        firsts = [w.deadline + TICK_S + 1e-9 for w in self.model.waiters]
        firsts += [end[0] for p in providers.values() for end in p.rests.values() if not p.removed]
        next_at = self.pool.next_at
        assert next_at is None or self.now < next_at
        assert not firsts or (next_at is not None and next_at <= min(firsts))

    def readmit(self, ticket: Ticket, lease: Lease, cause: ReleaseCause, **options: object) -> None:
        """Return the lease if it is live, and put the ticket back to its place."""
        model = self.model
        entry = model.give_back(ticket)
        place = ticket.place
        if entry is not None:
            self.ended(lease)
            assert entry.provider is not None
            held = options.get("held")
            if isinstance(held, int):
                others = sum(1 for h in model.holders if h.provider is entry.provider)
                entry.provider.lingering = max(entry.provider.lingering, held - others)
            model.forget_removed()
        else:
            entry = MTicket(ticket, place, ticket.deadline_at)
        if options.get("recovery") or entry.deadline == 0:
            entry.deadline = self.now + LIMITS.timeout_s
        if ticket.deadline_at == 0:  # it never waited before: its clock starts now
            entry.deadline = self.now + LIMITS.timeout_s
        entry.provider = None
        model.refund(ticket)
        expected: list[tuple[str, ...]] = []
        if (code := model.refusal(entry)) is not None:
            expected.append(("refused", ticket.request_id, code))
        else:
            model.join(entry)
        expected += model.settle(lease.provider_id)
        self.expect(self.pool.readmit(ticket, lease, self.now, cause=cause, **options), expected)  # type: ignore[arg-type]
        assert ticket.place == place

    def give_back(self, lease: Lease, *, lingering: bool = False) -> None:
        """A terminal of a stream that the edge still knows."""
        entry = next((h for h in self.model.holders if h.ticket.lease is lease), None)
        if entry is None:
            before = self.pool.stats.returned_twice
            assert not self.pool.release(lease, ReleaseCause.TERMINAL, self.now, lingering=lingering)
            assert self.pool.stats.returned_twice == before + 1
            return
        assert entry.provider is not None
        self.model.give_back(entry.ticket)
        self.ended(lease)
        entry.provider.lingering += lingering
        self.model.forget_removed()
        expected = self.model.settle()
        self.expect(self.pool.release(lease, ReleaseCause.TERMINAL, self.now, lingering=lingering), expected)

    def give_back_again(self, pick: int) -> None:
        """E8: duplicate, late and unknown returns change nothing."""
        over = [lease for _, lease in self.leases if lease.lease_id in self.ends]
        for lease in over[pick % len(over) :][:2] if over else []:
            self.give_back(lease)
        live = [lease for _, lease in self.leases if lease.lease_id not in self.ends]
        before = self.pool.snapshot(self.now)
        for lease in live[:1]:
            forged = Lease(
                lease.lease_id, "n9", *(getattr(lease, n) for n in ("provider_id", "adapter", "target")), 1, False, "x"
            )
            assert not self.pool.release(forged, ReleaseCause.TERMINAL, self.now)
            same = Lease(lease.lease_id, lease.node_id, lease.provider_id, "vllm", "t", lease.generation, False, "x")
            assert not self.pool.release(same, ReleaseCause.TERMINAL, self.now)
        never = Lease(10**9, "n1", "p1", "vllm", "t1", 1, False, "x")
        unknown = self.pool.stats.returned_unknown
        assert not self.pool.release(never, ReleaseCause.TERMINAL, self.now)
        assert self.pool.stats.returned_unknown == unknown + 1
        assert self.pool.snapshot(self.now) == before

    def send_failed(self, pick: int) -> None:
        """A grant that could not be sent keeps its place (POOL-8)."""
        unsent = [(s, lease) for s in self.sessions.values() for lease in s.down]
        if unsent:
            session, lease = unsent[pick % len(unsent)]
            session.down.remove(lease)
            ticket = next(t for t, other in self.leases if other is lease)
            self.readmit(ticket, lease, ReleaseCause.SEND_FAILED)

    def recover(self, pick: int, fallback: bool) -> None:
        """Another attempt for a request whose lease is over, away from the provider that failed it (POOL-11), or
        never again where it was refused (HEALTH-9)."""
        over = [
            (t, lease)
            for t, lease in self.leases
            if lease.lease_id in self.ends and t.lease is None and not t.waiting and t.group_id != "nobody"
        ]
        if over:
            ticket, lease = over[pick % len(over)]
            if pick % 3:
                ticket.avoid_provider_id, ticket.allow_avoided_fallback = lease.provider_id, fallback
            else:  # it refused, itself or with all its targets
                ticket.avoid_provider_id = None
                ticket.refused |= {(lease.provider_id, lease.target if fallback else None)}
            ticket.tried |= {lease.provider_id}
            self.readmit(ticket, lease, ReleaseCause.TERMINAL, recovery=True)

    # -- nodes

    def connect(self, node: int) -> None:
        node_id = f"n{node % 3 + 1}"
        answer = self.pool.claim(node_id, self.now)
        if node_id in self.sessions:
            assert answer == OwnerAlive(node_id, self.sessions[node_id].generation)
            return
        assert isinstance(answer, Claim)
        assert all(answer.generation > generation for _, generation in self.dead)
        self.sessions[node_id] = Session(node_id, answer.generation)
        self.model.owners[node_id] = (answer.generation, "pending")

    def node_ready(self, node: int) -> None:
        """The node says ready, for the first time or again; the message is on its way."""
        session = self.sessions.get(f"n{node % 3 + 1}")
        if session is not None:
            held = {} if session.ready_sent else self.gates[session.node_id].carry_over()
            session.ready_sent = True
            session.up.append(("ready", None, None, held))

    def disconnect(self, node: int) -> None:
        node_id = f"n{node % 3 + 1}"
        session = self.sessions.pop(node_id, None)
        if session is None:
            return
        was = self.model.owners.pop(node_id)[1]
        self.dead.append((node_id, session.generation))
        self.orphans += [(node_id, slot) for _, slot in session.running]
        model = self.model
        expected: list[tuple[str, ...]] = []
        for provider in [p for p in model.providers.values() if p.spec.node_id == node_id]:
            for entry in [h for h in model.holders if h.provider is provider]:
                model.holders.remove(entry)
                expected.append(("revoked", entry.ticket.request_id, provider.spec.provider_id))
            provider.generation = provider.lingering = 0
            provider.draining = provider.lowered = False
            provider.lowered_targets.clear()
            backend, rests = provider.backend, dict(provider.rests)
            provider.take_all()
            provider.backend, provider.rests = backend, rests  # what the node called is what it calls until it is back
        model.forget_removed()
        expected += model.settle()
        loss = self.pool.lost(node_id, session.generation, self.now)
        assert loss.outcome is (LossOutcome.PENDING if was == "pending" else LossOutcome.OWNER)
        self.expect(loss.actions, expected)

    def stale(self, pick: int) -> None:
        """Whatever a dead generation still says changes nothing (REG-4, REG-5)."""
        if not self.dead:
            return
        node_id, generation = self.dead[pick % len(self.dead)]
        before = (self.pool.snapshot(self.now), self.pool.leases_granted)
        assert self.pool.lost(node_id, generation, self.now).outcome is LossOutcome.STALE
        assert self.pool.ready(node_id, generation, {"p1": 2}, self.now).outcome is ReadyOutcome.STALE
        assert not self.pool.drain(node_id, generation, self.now)
        assert not self.pool.applied(node_id, generation, self.now)
        assert not self.pool.refused(node_id, generation, self.now)
        for provider_id in ("p1", "p2", "p3", "p4"):
            assert not self.pool.call_closed(node_id, generation, provider_id, self.now)
            assert not self.pool.set_overlay(node_id, generation, provider_id, True, self.now)
            assert not self.pool.set_overlay(node_id, generation, provider_id, True, self.now, target="t1")
            old = Lease(1, node_id, provider_id, "vllm", "t1", generation, False, "x")
            assert not self.pool.rest(old, 5.0, self.now)
        assert not self.pool.is_current(node_id, generation)
        assert (self.pool.snapshot(self.now), self.pool.leases_granted) == before

    def drain(self, node: int) -> None:
        node_id = f"n{node % 3 + 1}"
        generation, state = self.model.owners.get(node_id, (0, ""))
        expected: list[tuple[str, ...]] = []
        if state == "ready":
            self.model.owners[node_id] = (generation, "draining")
            for provider in self.model.providers.values():
                if provider.spec.node_id == node_id:
                    provider.draining = True
            expected = self.model.settle()
        self.expect(self.pool.drain(node_id, generation, self.now), expected)

    def set_drained(self, pick: int, drained: bool) -> None:
        """An operator's word, on a node or on one provider; whatever state either is in."""
        key = ["n1", "n2", "n3", "p1", "p2", "p3", "p4"][pick % 7]
        provider = self.model.providers.get(key)
        if key[0] == "p" and (provider is None or provider.removed):
            return
        (self.model.drained.add if drained else self.model.drained.discard)(key)
        self.model.mark_drained()
        node_id = key if provider is None else provider.spec.node_id
        expected = self.model.settle()
        self.expect(self.pool.set_drained(node_id, None if provider is None else key, drained, self.now), expected)

    def overlay(self, pick: int, unavailable: bool) -> None:
        key = ["p1", "p2", "p3", "p4"][pick % 4]
        provider = self.model.providers.get(key)
        if provider is None or not provider.generation:
            return
        provider.lowered = unavailable
        generation = provider.generation
        self.expect(
            self.pool.set_overlay(provider.spec.node_id, generation, key, unavailable, self.now), self.model.settle()
        )

    def overlay_target(self, pick: int, unavailable: bool) -> None:
        """Evidence about one target alone (HEALTH-7)."""
        key = ["p1", "p2", "p3", "p4"][pick % 4]
        target = [f"t{key[1]}", "t6", "t5", "t4"][pick % 4]
        provider = self.model.providers.get(key)
        if provider is None or not provider.generation:
            return
        (provider.lowered_targets.add if unavailable else provider.lowered_targets.discard)(target)
        node_id, generation = provider.spec.node_id, provider.generation
        actions = self.pool.set_overlay(node_id, generation, key, unavailable, self.now, target=target)
        self.expect(actions, self.model.settle())

    def rest(self, pick: int, tenths: int) -> None:
        """A provider asks for a pause of one of its targets (HEALTH-9)."""
        live = [lease for _, lease in self.leases if lease.lease_id not in self.ends]
        if not live:
            return
        lease = live[pick % len(live)]
        provider, until = self.model.providers[lease.provider_id], self.now + min(tenths / 10, 60.0)
        expected: list[tuple[str, ...]] = []
        if until > max(self.now, provider.rests.get(lease.target, (0.0, 0))[0]):
            self.model.rested += 1
            provider.rests[lease.target] = until, self.model.rested
            expected = self.model.settle()
        self.expect(self.pool.rest(lease, tenths / 10, self.now), expected)

    # -- messages

    def deliver_down(self, node: int) -> None:
        """An opening reaches the node, whose gate has the last word (EXEC-3)."""
        session = self.sessions.get(f"n{node % 3 + 1}")
        if session is None or not session.down:
            return
        lease = session.down.popleft()
        gate = self.gates[session.node_id]
        slot = gate.try_acquire(lease.provider_id)
        if slot is None:
            session.up.append(("exceeded", lease, None, gate.report_full(lease.provider_id)))
        else:
            session.running.append((lease, slot))

    def finish(self, pick: int, confirmed: bool) -> None:
        """A call on a node ends, or is given up before it has ended (POOL-12)."""
        running = [(s, pair) for s in self.sessions.values() for pair in s.running]
        if not running:
            return
        session, (lease, slot) = running[pick % len(running)]
        session.running.remove((lease, slot))
        if confirmed:
            assert not slot.release()
        else:
            slot.linger()
            self.orphans.append((session.node_id, slot))
        session.up.append(("terminal", lease, slot, confirmed))

    def close(self, pick: int) -> None:
        """A call that outlived its stream, or that had no lease, really ends."""
        ending = [self.orphans, self.bypass]
        pool = [(box, item) for box in ending for item in box]
        if not pool:
            return
        box, item = pool[pick % len(pool)]
        box.remove(item)
        node_id, slot = item
        session = self.sessions.get(node_id)
        if slot.release() and session is not None and session.ready_sent:
            session.up.append(("closed", None, slot, None))
        assert not slot.release()

    def run_directly(self, pick: int) -> None:
        """Work that bypasses the edge's admission (POOL-14)."""
        spec = PROVIDERS[pick % 4]
        slot = self.gates[spec.node_id].try_acquire(spec.provider_id, leased=False)
        if slot is not None:
            self.bypass.append((spec.node_id, slot))

    def deliver_up(self, node: int) -> None:
        session = self.sessions.get(f"n{node % 3 + 1}")
        if session is None or not session.up:
            return
        kind, lease, slot, value = session.up.popleft()
        if kind == "ready":
            assert isinstance(value, dict)
            self.edge_ready(session, value)
        elif kind == "terminal":
            assert lease is not None
            self.give_back(lease, lingering=not value)
        elif kind == "exceeded":
            assert lease is not None
            ticket = next(t for t, other in self.leases if other is lease)
            self.readmit(ticket, lease, ReleaseCause.CAPACITY_EXCEEDED, held=value)
        else:
            assert slot is not None
            provider = self.model.providers.get(slot.provider_id)
            if provider is None or provider.generation != session.generation or not provider.lingering:
                expected: list[tuple[str, ...]] = []
            else:
                provider.lingering -= 1
                self.model.forget_removed()
                expected = self.model.settle()
            self.expect(
                self.pool.call_closed(session.node_id, session.generation, slot.provider_id, self.now), expected
            )

    def edge_ready(self, session: Session, held: dict[str, int]) -> None:
        generation, state = self.model.owners[session.node_id]
        expected: list[tuple[str, ...]] = []
        if state == "pending":
            self.model.owners[session.node_id] = (generation, "ready")
            for key, provider in self.model.providers.items():
                if provider.spec.node_id == session.node_id:
                    provider.generation, provider.lingering = generation, held.get(key, 0)
                    provider.take_all()
            expected = self.model.settle()
        readiness = self.pool.ready(session.node_id, session.generation, held, self.now)
        first = state == "pending"
        assert readiness.outcome is (ReadyOutcome.ACTIVATED if first else ReadyOutcome.REPEATED)
        self.expect(readiness.actions, expected)

    # -- configuration

    def refresh(
        self, providers: list[ProviderSpec], groups: list[GroupSpec], acked: frozenset[str] = frozenset()
    ) -> None:
        model = self.model
        known = {p.provider_id for p in providers}
        waiters = sorted(model.waiters, key=lambda w: w.place)
        for waiter in waiters:
            model.leave(waiter, hold=True)
        model.groups = {
            g.group_id: replace(g, candidates=[c for c in g.candidates if c.provider_id in known]) for g in groups
        }
        for spec in providers:
            long_capacity = spec.capacity if spec.long_capacity is None else spec.long_capacity
            provider = model.providers.get(spec.provider_id)
            if provider is None:
                provider = model.providers[spec.provider_id] = MProvider(spec, spec.capacity, long_capacity)
                provider.backend = spec.backend
                generation, state = model.owners.get(spec.node_id, (0, ""))
                if state in ("ready", "draining"):
                    provider.generation, provider.draining = generation, state == "draining"
                    provider.there, provider.awaited = False, True
                continue
            if not provider.generation or spec.node_id in acked:
                rejected = bool(provider.generation) and not provider.there and not provider.awaited
                provider.spec, provider.removed = spec, False
                provider.take_all()
                provider.there = not rejected
                continue
            provider.there = provider.there and not provider.removed and provider.spec.enabled
            provider.awaited = provider.awaited or not provider.there or spec.backend != provider.backend
            provider.spec, provider.removed = spec, False
            lower: Callable[[int, int], int] = min if provider.there else lambda new, _: new
            provider.capacity = lower(spec.capacity, provider.capacity)
            provider.long_capacity = lower(min(long_capacity, spec.capacity), provider.long_capacity)
        for key, provider in model.providers.items():
            provider.removed = key not in known
        model.drained &= known | {"n1", "n2", "n3"}
        model.mark_drained()
        model.forget_removed()
        expected: list[tuple[str, ...]] = []
        for waiter in waiters:
            if (code := model.refusal(waiter)) is not None:
                expected.append(("refused", waiter.ticket.request_id, code))
            else:
                model.join(waiter)
        for key in [*model.times]:
            model.forget_tags(key)
        expected += model.settle()
        for node_id, gate in self.gates.items():
            gate.configure({p.provider_id: p.capacity for p in PROVIDERS if p.node_id == node_id})
        self.expect(
            self.pool.configure(
                nodes=["n1", "n2", "n3"],
                providers=providers,
                groups=list(model.groups.values()),
                limits=LIMITS,
                now=self.now,
                acked=acked,
            ),
            expected,
        )

    def change_config(self, capacity: int, enabled: int, without: int) -> None:
        providers = [
            replace(
                p,
                capacity=max(1, p.capacity - (capacity >> i & 1)),
                enabled=not enabled >> i & 1,
                backend="another" if (capacity + i) % 5 == 0 else (),
            )
            for i, p in enumerate(PROVIDERS)
            if i != without
        ]
        self.refresh(providers, [g for i, g in enumerate(GROUPS) if i != without - 4])

    def change_the_edges_part(self, node: int, long_capacity: int) -> None:
        """What the node ``node`` is not told: there it counts at once, if the node has all else."""
        node_id = f"n{node % 3 + 1}"
        mine = [p for p in self.model.providers.values() if p.spec.node_id == node_id and not p.removed]
        if all(not p.awaited and (p.capacity, p.backend) == (p.spec.capacity, p.spec.backend) for p in mine):
            specs = [p.spec for p in self.model.providers.values() if not p.removed]
            changed = [
                replace(s, long_capacity=min(long_capacity, s.capacity)) if s.node_id == node_id else s for s in specs
            ]
            self.refresh(changed, list(self.model.groups.values()), frozenset({node_id}))

    def refused(self, node: int) -> None:
        """The node does not take what it was sent."""
        node_id = f"n{node % 3 + 1}"
        generation, state = self.model.owners.get(node_id, (0, ""))
        if state not in ("ready", "draining"):
            return
        for provider in [p for p in self.model.providers.values() if p.spec.node_id == node_id]:
            if not provider.removed:
                provider.awaited = False
        self.expect(self.pool.refused(node_id, generation, self.now), self.model.settle())

    def applied(self, node: int, rejects: int = 0) -> None:
        """``rejects`` has a bit for each provider that the node may have and does not take."""
        node_id = f"n{node % 3 + 1}"
        rejected = {p.provider_id for i, p in enumerate(PROVIDERS) if rejects >> i & 1}
        generation, state = self.model.owners.get(node_id, (0, ""))
        if state not in ("ready", "draining"):
            return
        for provider in [p for p in self.model.providers.values() if p.spec.node_id == node_id]:
            if not provider.removed:
                provider.take_all()
                provider.there = provider.spec.provider_id not in rejected
        self.expect(self.pool.applied(node_id, generation, self.now, rejected), self.model.settle())

    # -- the end

    def quiet_down(self) -> None:
        """Everything that is under way comes to its end: nothing may be left in use, and nobody may wait in vain."""
        for node in range(3):  # every node answers what it was sent, one way or the other
            (self.applied if node % 2 else self.refused)(node)
        for _ in range(200):
            for node in range(3):
                self.deliver_down(node)
                self.deliver_up(node)
            self.finish(0, True)
            self.close(0)
            rests = [end[0] for p in self.model.providers.values() for end in p.rests.values()]
            if rests:
                self.advance(max(0, round((min(rests) - self.now) * 10)) + 1)
            self.check()
        for session in self.sessions.values():
            assert not session.up
            assert not session.down
            assert not session.running
        assert self.pool.leases_in_use == 0
        for key, provider in self.model.providers.items():
            assert provider.lingering == 0, f"phantom unit at {key}"
        assert self.pool.waiting == 0
        for gate in self.gates.values():
            assert not gate.carry_over()
        assert set(self.ends) == {lease.lease_id for _, lease in self.leases}


def _in_turn(flows: Mapping[str, Flow | MFlow]) -> list[tuple[str, float]]:
    """Principals and their tags, whose turn it is first."""
    return [(who, flow.tag) for who, flow in sorted(flows.items(), key=lambda item: (item[1].tag, item[1].order))]


small = st.integers(0, 11)


@pytest.mark.req("POOL-3")
class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        for node in range(3):
            self.world.connect(node)
            self.world.node_ready(node)
            self.world.deliver_up(node)

    @rule(group=small, principal=small, tokens=small, avoid=small, fallback=st.booleans())
    def submit(self, group: int, principal: int, tokens: int, avoid: int, fallback: bool) -> None:
        self.world.submit(group, principal, tokens, avoid, fallback)

    @rule(group=small, count=st.integers(2, 6))
    def submit_many(self, group: int, count: int) -> None:
        for i in range(count):
            self.world.submit(group, i, 0, 0, False)

    @rule(pick=small)
    def cancel(self, pick: int) -> None:
        self.world.cancel(pick)

    @rule(tenths=st.integers(0, 60))
    def advance(self, tenths: int) -> None:
        self.world.advance(tenths)

    @rule(pick=small)
    def give_back_again(self, pick: int) -> None:
        self.world.give_back_again(pick)

    @rule(pick=small)
    def send_failed(self, pick: int) -> None:
        self.world.send_failed(pick)

    @rule(pick=small, fallback=st.booleans())
    def recover(self, pick: int, fallback: bool) -> None:
        self.world.recover(pick, fallback)

    @rule(node=small)
    def connect(self, node: int) -> None:
        self.world.connect(node)

    @rule(node=small)
    def node_ready(self, node: int) -> None:
        self.world.node_ready(node)

    @rule(node=small)
    def disconnect(self, node: int) -> None:
        self.world.disconnect(node)

    @rule(pick=small)
    def stale(self, pick: int) -> None:
        self.world.stale(pick)

    @rule(node=small)
    def drain(self, node: int) -> None:
        self.world.drain(node)

    @rule(pick=small, drained=st.booleans())
    def set_drained(self, pick: int, drained: bool) -> None:
        self.world.set_drained(pick, drained)

    @rule(pick=small, unavailable=st.booleans())
    def overlay(self, pick: int, unavailable: bool) -> None:
        self.world.overlay(pick, unavailable)

    @rule(pick=small, unavailable=st.booleans())
    def overlay_target(self, pick: int, unavailable: bool) -> None:
        self.world.overlay_target(pick, unavailable)

    @rule(pick=small, tenths=st.integers(0, 200) | st.integers(600, 700))
    def rest(self, pick: int, tenths: int) -> None:
        self.world.rest(pick, tenths)

    @rule(node=small)
    def deliver_down(self, node: int) -> None:
        self.world.deliver_down(node)

    @rule(node=small)
    def deliver_up(self, node: int) -> None:
        self.world.deliver_up(node)

    @rule(pick=small, confirmed=st.booleans())
    def finish(self, pick: int, confirmed: bool) -> None:
        self.world.finish(pick, confirmed)

    @rule(pick=small)
    def close(self, pick: int) -> None:
        self.world.close(pick)

    @rule(pick=small)
    def run_directly(self, pick: int) -> None:
        self.world.run_directly(pick)

    @rule(capacity=st.integers(0, 15), enabled=st.sampled_from([0, 0, 1, 2, 4, 8]), without=st.integers(0, 15))
    def change_config(self, capacity: int, enabled: int, without: int) -> None:
        self.world.change_config(capacity, enabled, without)

    @rule(node=small, rejects=st.sampled_from([0, 0, 1, 2, 4, 8, 15]))
    def applied(self, node: int, rejects: int) -> None:
        self.world.applied(node, rejects)

    @rule(node=small)
    def refused(self, node: int) -> None:
        self.world.refused(node)

    @rule(node=small, long_capacity=small)
    def change_the_edges_part(self, node: int, long_capacity: int) -> None:
        self.world.change_the_edges_part(node, long_capacity % 3)

    @invariant()
    def agrees(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.quiet_down()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestPool = pytest.mark.req(
    "HEALTH-7",
    "HEALTH-9",
    "REG-4",
    "REG-5",
    "POOL-3",
    "POOL-4",
    "POOL-5",
    "POOL-6",
    "POOL-7",
    "POOL-8",
    "POOL-11",
    "POOL-12",
    "EXEC-3",
)(TestPool)


def drive(seed: int, steps: int) -> World:
    """One seeded schedule, in which a full pool and one with room to choose take turns."""
    rng = random.Random(seed)
    world = World()
    for node in range(3):
        world.connect(node)
        world.node_ready(node)
        world.deliver_up(node)
    n = lambda: rng.randrange(12)  # noqa: E731
    yes = lambda: rng.random() < 0.5  # noqa: E731
    moves: list[tuple[int, Callable[[], None]]] = [
        (30, lambda: world.submit(n(), n(), n(), n(), yes())),
        (16, lambda: world.deliver_down(n())),
        (24, lambda: world.deliver_up(n())),
        (18, lambda: world.finish(n(), rng.random() < 0.8)),
        (6, lambda: world.close(n())),
        (3, lambda: world.cancel(rng.randrange(10**6))),
        (5, lambda: world.advance(rng.randrange(30))),
        (2, lambda: world.give_back_again(rng.randrange(10**6))),
        (2, lambda: world.send_failed(n())),
        (3, lambda: world.recover(rng.randrange(10**6), yes())),
        (8, lambda: world.connect(n())),
        (6, lambda: world.node_ready(n())),
        (1, lambda: world.disconnect(n())),
        (1, lambda: world.stale(rng.randrange(10**6))),
        (1, lambda: world.drain(n()) if rng.random() < 0.2 else None),
        (3, lambda: world.set_drained(n(), rng.random() < 0.2)),
        (3, lambda: world.overlay(n(), rng.random() < 0.15)),
        (3, lambda: world.overlay_target(n(), rng.random() < 0.15)),
        (2, lambda: world.rest(n(), rng.choice([0, 2, 3, 5, 5, 10, 30, 90]))),
        (2, lambda: world.run_directly(n())),
        (1, lambda: world.change_config(rng.randrange(16), rng.choice([0, 0, 0, 1, 2, 4, 8]), rng.randrange(24))),
        (5, lambda: world.applied(n(), rng.choice([0] * 20 + [1, 2, 4, 8]))),
        (1, lambda: world.refused(n())),
        (1, lambda: world.change_the_edges_part(n(), rng.randrange(3))),
    ]
    busy = [weight for weight, _ in moves]
    idle = [10, 40, 60, 60, *busy[4:]]
    for step in range(0, steps, 25):
        for action in rng.choices([move for _, move in moves], busy if step // 25 % 3 else idle, k=25):
            action()
            world.check()
    world.quiet_down()
    return world


@pytest.mark.req("REG-5", "POOL-5", "POOL-7", "POOL-8", "POOL-12", "EXEC-3")
@pytest.mark.parametrize("block", range(4))
def test_e8_e10_seeded_schedules_agree_with_the_model(block: int) -> None:
    granted = 0
    for seed in range(block * 15, block * 15 + 15):
        try:
            granted += drive(seed, 600).pool.leases_granted
        except BaseException:
            print(f"seed {seed}")  # drive(seed, 600) replays it
            raise
    assert granted > 250, "the schedules hardly did anything"
