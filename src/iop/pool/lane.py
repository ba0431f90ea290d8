"""Queues and choice: groups, their lanes, the lines of waiters in them, and the seats of providers (POOL-3, 5, 9, 11).

A *lane* is one model group for one size class: all requests in it are long at the same providers. A group whose
providers know n different ``long_threshold_tokens`` has at most n + 1 lanes, made when first needed. A lane has

* *seats*, one per candidate, that is provider and target, in a heap that yields the best one with a free slot;
* *lines*, queues of waiters of one principal that accept the same seats. Lines that accept the same seats are of one
  *kind*: the plain one, and one per avoided provider and set of candidates that refused. A line exists while somebody
  waits in it.

A seat is *open* while it is a candidate, and *awake* while it is open and does not rest (HEALTH-9). The waiters of a
kind all of whose open seats rest are *asleep*: who cannot outwait the first rest is refused at once. Who that is, is
found in an index by deadline, which a kind gets when it falls asleep for the first time.

So the head of a line stands for the whole line: if it cannot be served, nobody behind it can. That is why neither a
grant nor a release ever looks at a second waiter of a line, and why a long waiter, who stands in another lane, cannot
block a normal one. Which line has the turn at a provider is :mod:`iop.pool.fair`'s business.

The heap of seats is lazy. Invariant: every seat that could be chosen has an entry, and an entry is never worse than
the seat's true rank. Use makes a seat worse, so a grant costs the heap nothing; the entry is corrected when it comes to
the top, so each correction is paid for by one grant. Only what makes a seat better (a release that no waiter takes)
must push. A seat that comes to the top with no free slot loses its entry until then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from iop.pool.fair import Entry as Turn
from iop.pool.fair import Share
from iop.pool.lease import Ticket
from iop.pool.resource import Resource
from iop.pool.specs import Candidate, GroupSpec

if TYPE_CHECKING:
    from iop.pool.standings import Picture

__all__ = ["Group", "Kind", "Lane", "Line", "Seat"]


class Kind(NamedTuple):
    """What the waiters of a line have in common besides their principal.

    ``avoid`` is the avoided provider, if any, and ``fallback`` whether it may be chosen when no other is eligible
    (POOL-11). ``refused`` are the candidates that refused: provider and target, or a provider with None (HEALTH-9).
    """

    avoid: str | None = None
    fallback: bool = False
    refused: frozenset[tuple[str, str | None]] = frozenset()

    def bars(self, seat: Seat) -> bool:
        """Whether these waiters never go to that seat."""
        provider_id = seat.resource.provider_id
        if provider_id == self.avoid and not self.fallback:
            return True
        return (provider_id, seat.target) in self.refused or (provider_id, None) in self.refused


PLAIN = Kind()

#: (priority, load, last_used, index, seat): POOL-3's order. The index is unique in a lane, so seats never compare.
Entry = tuple[int, float, int, int, "Seat"]


class Seat:
    """A candidate's place in a lane. ``long`` says whether this lane's requests are long there (POOL-2).

    ``lowered`` and ``rests_until`` (0: it does not) are what its provider has of its target, and ``usable`` says that
    neither is so. ``shares`` are the principals that wait for it, ``turns`` the heap of their entries
    (:mod:`iop.pool.fair`).
    """

    __slots__ = (
        "entry",
        "index",
        "lane",
        "long",
        "lowered",
        "priority",
        "resource",
        "rests_until",
        "shares",
        "target",
        "turns",
        "usable",
    )

    def __init__(self, lane: Lane, resource: Resource, candidate: Candidate, index: int, long: bool) -> None:
        self.lane = lane
        self.resource = resource
        self.target = candidate.target
        self.priority = candidate.priority
        self.index = index
        self.long = long
        self.entry: Entry | None = None
        self.shares: dict[str, Share] = {}
        self.turns: list[Turn] = []
        self.lowered = False
        self.rests_until = 0.0
        self.usable = True
        self.refresh()

    def refresh(self) -> None:
        """Take over what the provider has of the target."""
        resource, target = self.resource, self.target
        self.lowered = target in resource.lowered_targets
        until = resource.rests.get(target, 0.0)
        if until != self.rests_until:
            self.rests_until = until
            if until:
                self.lane.rests(self)
        self.usable = not self.lowered and not until
        self.lane.picture = None

    @property
    def open(self) -> bool:
        """Whether this lane's requests may ever be served here (POOL-3). Without any long slot, long ones may not."""
        resource = self.resource
        return resource.open and not self.lowered and not (self.long and resource.long_capacity <= 0)

    @property
    def awake(self) -> bool:
        """Whether it is open and does not rest."""
        return not self.rests_until and self.open


class Line:
    """Waiters of one principal in a lane that accept the same providers, oldest first.

    ``queue`` is a heap of (place, ticket), because a ticket may come back to its old place (POOL-8). The top is always
    a live waiter; those who left from further back stay as tombstones until they are the majority.
    """

    __slots__ = ("kind", "lane", "live", "principal", "queue")

    def __init__(self, lane: Lane, kind: Kind, principal: str) -> None:
        self.lane = lane
        self.kind = kind
        self.principal = principal
        self.queue: list[tuple[int, Ticket]] = []
        self.live = 0

    def push(self, ticket: Ticket) -> None:
        heappush(self.queue, (ticket.place, ticket))
        ticket.line = self
        self.live += 1

    def pop(self) -> Ticket:
        """Take the oldest waiter; there must be one."""
        queue = self.queue
        ticket = heappop(queue)[1]
        ticket.line = None
        self.live -= 1
        while queue and queue[0][1].line is not self:
            heappop(queue)
        return ticket

    def discard(self, ticket: Ticket) -> None:
        """Take one waiter out, wherever it stands. It never comes back, or its tombstone would come to life."""
        ticket.line = None
        self.live -= 1
        queue = self.queue
        if len(queue) > 2 * self.live + 32:
            queue[:] = [entry for entry in queue if entry[1].line is self]
            heapify(queue)
        while queue and queue[0][1].line is not self:
            heappop(queue)

    def __iter__(self) -> Iterator[Ticket]:
        """The waiters, in no order."""
        return (ticket for _, ticket in self.queue if ticket.line is self)

    @property
    def seats(self) -> Iterator[Seat]:
        """Where these waiters may go, once the seat is open (POOL-11)."""
        kind = self.kind
        return iter(self.lane.seats) if kind == PLAIN else (s for s in self.lane.seats if not kind.bars(s))


class Lane:
    """One size class of one group. ``open`` and ``awake`` count the seats that are so, ``kinds`` has the lines by kind
    and principal. ``long``: its requests are long at some provider. ``picture`` is :mod:`iop.pool.standings`', None
    when it has to be made anew."""

    __slots__ = ("_at", "_due", "_heap", "_rests", "awake", "group", "kinds", "long", "open", "picture", "seats")

    def __init__(self, group: Group, resources: list[tuple[Candidate, Resource]], tokens: int) -> None:
        self.group = group
        self.kinds: dict[Kind, dict[str, Line]] = {}
        self.seats: list[Seat] = []
        self.open = self.awake = 0
        self.picture: Picture | None = None
        self._at: dict[str, list[Seat]] = {}  # the seats, by provider
        self._heap: list[Entry] = []
        self._rests: list[tuple[float, int, Seat]] = []  # heap of when seats wake; superseded entries stay in it
        self._due: dict[Kind, list[tuple[float, int, Ticket]]] = {}  # heaps of waiters, of kinds that were asleep
        for index, (candidate, resource) in enumerate(resources):
            threshold = resource.long_threshold_tokens
            seat = Seat(self, resource, candidate, index, threshold is not None and tokens >= threshold)
            self.seats.append(seat)
            self._at.setdefault(resource.provider_id, []).append(seat)
            resource.seats.append(seat)
            self.open += seat.open
            self.awake += seat.awake
            self.offer(seat)
        self.long = any(seat.long for seat in self.seats)

    # ---- lines

    def kind_of(self, ticket: Ticket) -> Kind:
        """The kind of line that ``ticket`` belongs to."""
        avoid, refused = ticket.avoid_provider_id, ticket.refused
        if avoid is not None and avoid not in self._at:
            avoid = None
        if refused:
            refused = frozenset(ban for ban in refused if ban[0] in self._at)
        if avoid is None and not refused:
            return PLAIN
        return Kind(avoid, avoid is not None and ticket.allow_avoided_fallback, refused)

    def hopeless(self, kind: Kind) -> bool:
        """Whether no candidate is left for waiters of this kind (POOL-4)."""
        return self.open == 0 or (kind != PLAIN and self.open == sum(seat.open for seat in self._barred(kind)))

    def asleep(self, kind: Kind) -> bool:
        """Whether all candidates that are left for waiters of this kind rest (HEALTH-9)."""
        if self.awake and kind == PLAIN:
            return False
        barred = self._barred(kind)
        return self.awake == sum(s.awake for s in barred) and self.open > sum(s.open for s in barred)

    def _barred(self, kind: Kind) -> list[Seat]:
        """The seats that waiters of this kind never go to."""
        ids = {kind.avoid, *(provider_id for provider_id, _ in kind.refused)}
        return [seat for i in ids if i is not None for seat in self._at[i] if kind.bars(seat)]

    def wakes_at(self, kind: Kind) -> float:
        """When the first rest ends that waiters of this kind, who are asleep, wait for. O(log n), and as much again for
        each rest before it that is not theirs."""
        heap = self._rests
        hidden = []
        while True:
            until, _, seat = heap[0]
            if seat.rests_until != until:
                heappop(heap)
            elif seat.open and not kind.bars(seat):
                break
            else:
                hidden.append(heappop(heap))
        for entry in hidden:
            heappush(heap, entry)
        return until

    def rests(self, seat: Seat) -> None:
        """A seat rests, until another time than before."""
        heap = self._rests
        if len(heap) > 2 * len(self.seats) + 8:
            heap[:] = [entry for entry in heap if entry[2].rests_until == entry[0]]
            heapify(heap)
        heappush(heap, (seat.rests_until, seat.index, seat))

    def late(self, kind: Kind, at: float) -> list[Ticket]:
        """The waiters of this kind, which is asleep, whose time is up by then; they are about to leave."""
        heap = self._due.get(kind)
        if heap is None:
            waiters = [ticket for line in self.kinds[kind].values() for ticket in line]
            heap = self._due[kind] = [(ticket.deadline_at, ticket.place, ticket) for ticket in waiters]
            heapify(heap)
        found: dict[Ticket, None] = {}
        while heap and heap[0][0] <= at:
            deadline_at, _, ticket = heappop(heap)
            if self._waits(kind, ticket) and ticket.deadline_at == deadline_at:
                found[ticket] = None
        return list(found)

    def _waits(self, kind: Kind, ticket: Ticket) -> bool:
        line = ticket.line
        return line is not None and line.lane is self and line.kind == kind

    def join(self, ticket: Ticket) -> None:
        """Put ``ticket`` at its place in its line. O(log n), and O(candidates x log principals) for a first waiter."""
        kind = self.kind_of(ticket)
        lines = self.kinds.get(kind)
        if lines is None:
            lines = self.kinds[kind] = {}
        line = lines.get(ticket.principal)
        if line is None:
            line = lines[ticket.principal] = Line(self, kind, ticket.principal)
            for seat in line.seats:
                seat.resource.fair.attach(line, seat)
        line.push(ticket)
        due = self._due.get(kind) if self._due else None
        if due is not None:
            if len(due) > 2 * self.group.waiting + 32:  # most of them have left
                due[:] = [entry for entry in due if self._waits(kind, entry[2]) and entry[2].deadline_at == entry[0]]
                heapify(due)
            heappush(due, (ticket.deadline_at, ticket.place, ticket))

    def drop(self, line: Line) -> None:
        """``line`` has lost its last waiter."""
        lines = self.kinds[line.kind]
        del lines[line.principal]
        if not lines:
            del self.kinds[line.kind]
            self._due.pop(line.kind, None)
        for seat in line.seats:
            seat.resource.fair.detach(line, seat)

    def lines(self) -> list[Line]:
        return [line for lines in self.kinds.values() for line in lines.values()]

    # ---- seats

    def offer(self, seat: Seat) -> None:
        """The seat may have become better: make sure that the heap knows it."""
        resource = seat.resource
        entry = seat.entry
        if entry is not None and entry[1] <= resource.load:
            return
        if not resource.open or not seat.usable or not resource.has_free(seat.long):
            return
        heap = self._heap
        if len(heap) > 2 * len(self.seats) + 8:  # superseded entries are the majority
            heap[:] = [e for e in heap if e[4].entry is e]
            heapify(heap)
        seat.entry = entry = (seat.priority, resource.load, resource.last_used, seat.index, seat)
        heappush(heap, entry)

    def best(self) -> Seat | None:
        """The seat that POOL-3 chooses, or None if no candidate has a free slot of the class."""
        heap = self._heap
        while heap:
            entry = heap[0]
            seat = entry[4]
            resource = seat.resource
            if seat.entry is not entry:
                heappop(heap)
            elif (
                not resource.open
                or not seat.usable
                or resource.busy >= resource.capacity
                or (seat.long and resource.long_busy >= resource.long_capacity)
            ):
                heappop(heap)
                seat.entry = None
            elif entry[1] == resource.load and entry[2] == resource.last_used:
                return seat
            else:
                seat.entry = entry = (seat.priority, resource.load, resource.last_used, seat.index, seat)
                heapreplace(heap, entry)
                if heap[0] is entry:  # still the best, and it has a slot
                    return seat
        return None

    def best_for(self, kind: Kind, tried: frozenset[str]) -> Seat | None:
        """The same for a waiter of a line of this kind: whom it has not tried if one of those has a slot, else whom it
        has, else the avoided one if allowed."""
        seat = self.best()
        if seat is None or (kind == PLAIN and not tried):
            return seat
        hidden: list[Entry] = []
        again = avoided = None
        while seat is not None:
            provider_id = seat.resource.provider_id
            if not kind.bars(seat):
                if provider_id == kind.avoid:
                    avoided = avoided or seat
                elif provider_id not in tried:
                    break
                else:
                    again = again or seat
            hidden.append(heappop(self._heap))
            seat = self.best()
        for entry in hidden:
            heappush(self._heap, entry)
        return seat or again or avoided

    def validate(self) -> None:
        """Assert the lane's books, the invariant of the lazy heap, and that nobody waits who could be served."""
        assert self.open == sum(seat.open for seat in self.seats)
        assert self.awake == sum(seat.awake for seat in self.seats)
        for line in self.lines():
            assert line.live == sum(1 for _ in line)
            assert line.live, "an empty line was kept"
            assert line.queue[0][1].line is line, "a tombstone on top"
            assert len(line.queue) <= 2 * line.live + 33, "too many tombstones"
            assert not self.hopeless(line.kind), "somebody waits without a candidate"
            if self.asleep(line.kind):
                first = min(seat.rests_until for seat in line.seats if seat.open)
                assert self.wakes_at(line.kind) == first
                assert all(ticket.deadline_at > first for ticket in line), "somebody waits in vain for a rest to end"
            for seat in line.seats:
                assert line in seat.shares[line.principal].lines, "a line waits for a seat that does not know it"
                assert not (seat.awake and seat.resource.has_free(seat.long)), "an admissible waiter waits"
        assert len(self._heap) <= 2 * len(self.seats) + 9
        assert len(self._rests) <= 2 * len(self.seats) + 9
        assert self._due.keys() <= self.kinds.keys(), "an index outlived its waiters"
        for kind, due in self._due.items():
            waiters = {ticket for line in self.kinds[kind].values() for ticket in line}
            assert waiters <= {ticket for at, _, ticket in due if ticket.deadline_at == at}
        for seat in self.seats:
            resource = seat.resource
            assert seat.lowered == (seat.target in resource.lowered_targets)
            assert seat.rests_until == resource.rests.get(seat.target, 0.0)
            assert seat.usable == (not seat.lowered and not seat.rests_until)
            if resource.open and seat.usable and resource.has_free(seat.long):
                assert seat.entry is not None, "a free seat is not offered"
                assert seat.entry in self._heap
                assert seat.entry[1:3] <= (resource.load, resource.last_used), "an entry is worse than its seat"


class Group:
    """A model group with its lanes. ``waiting`` counts the tickets in all of them (POOL-6)."""

    __slots__ = ("_lanes", "_resources", "_thresholds", "spec", "waiting")

    def __init__(self, spec: GroupSpec, resources: dict[tuple[str, str], Resource]) -> None:
        self.spec = spec
        self.waiting = 0
        # Of one candidate with two priorities the lower one always wins, so the other can go.
        best: dict[tuple[str, str, str], Candidate] = {}
        for candidate in sorted(spec.candidates, key=lambda c: c.priority):
            best.setdefault((candidate.node_id, candidate.provider_id, candidate.target), candidate)
        self._resources = [(c, resources[key[:2]]) for key, c in best.items() if key[:2] in resources]
        self._thresholds = sorted({t for _, r in self._resources if (t := r.long_threshold_tokens) is not None})
        self._lanes: list[Lane | None] = [None] * (len(self._thresholds) + 1)

    def lane_for(self, tokens: int) -> Lane:
        """The lane of requests of this size."""
        number = bisect_right(self._thresholds, tokens) if self._thresholds else 0
        return self._lanes[number] or self._make(number)

    def _make(self, number: int) -> Lane:
        lane = Lane(self, self._resources, self._thresholds[number - 1] if number else -1)
        self._lanes[number] = lane
        return lane

    def lanes(self) -> list[Lane]:
        return [lane for lane in self._lanes if lane is not None]

    def candidates(self, most: int | None = None) -> list[tuple[Candidate, Resource]]:
        """Those preferred first, at most so many of them."""
        return self._resources[:most]

    @property
    def size(self) -> int:
        """The number of candidates."""
        return len(self._resources)
