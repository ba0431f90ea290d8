"""Fair queueing among principals: who has the turn at one provider (POOL-5).

Start-time fair queueing. A *flow* is one principal at one provider. Each flow has a start tag, the virtual time at
which its next grant is due, and each provider has a virtual time, the start tag of its latest grant. A free slot goes
to the flow with the lowest tag, and a grant adds 1/weight to that flow's tag. So flows that wait for the same provider
get grants in proportion to their weights, whatever number of requests each of them has waiting.

* A flow that starts to wait gets the present virtual time as its tag, or keeps its own tag if that is higher: a
  principal that was idle gains no credit, and one that was just served gains no second turn.
* A flow that could not be served (its requests are long and no long slot was free) lags behind the virtual time. It
  goes first as soon as it can be served, and keeps a lag of one grant at most: no burst follows.
* A grant that came to nothing is taken off the tag again (:meth:`FairQueue.refund`).

With one principal there is one flow, and the order is that of arrival.

A *share* is a flow at one seat, that is, with the lines of one lane. Each seat has a heap of its shares, so that a seat
that may not be served now (its requests are long) is passed over as a whole. The heaps are lazy. Invariant: every share
has an entry, and an entry is never higher than its flow's tag. A grant raises tags, so it costs the heaps nothing;
entries are corrected when they come to the top.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iop.pool.lane import Line, Seat
    from iop.pool.lease import Ticket

__all__ = ["FairQueue", "Flow", "Share"]

#: (tag, order, share). A superseded entry of a flow may equal its successor; then either may come first.
Entry = tuple[float, int, "Share"]


def _preferred(seat: Seat, to: Seat) -> bool:
    """Whether of two seats of one lane and one provider the first is chosen (POOL-3)."""
    return (seat.priority, seat.index) < (to.priority, to.index)


class Flow:
    """One principal at one provider. ``order`` decides between equal tags: who joined or was granted first goes first,
    and before them whoever had a grant that came to nothing.

    ``shares`` is empty while nobody of this principal waits here.
    """

    __slots__ = ("at", "order", "principal", "shares", "tag")

    def __init__(self, at: FairQueue, principal: str, tag: float, order: int) -> None:
        self.at = at
        self.principal = principal
        self.tag = tag
        self.order = order
        self.shares: dict[Share, None] = {}


class Share:
    """The lines in which a flow waits for one seat; none of them is empty."""

    __slots__ = ("entry", "flow", "lines", "seat")

    def __init__(self, flow: Flow, seat: Seat) -> None:
        self.flow = flow
        self.seat = seat
        self.lines: dict[Line, None] = {}
        self.entry: Entry | None = None

    def __lt__(self, other: Share) -> bool:
        return False  # both are of one flow


class FairQueue:
    """The flows of one provider. ``flows`` is empty while nobody waits for it.

    ``time`` is the virtual time; it starts at 0 whenever the first flow starts to wait.
    """

    __slots__ = ("_backlogged", "_firsts", "_orders", "flows", "time")

    def __init__(self) -> None:
        self.time = 0.0
        self.flows: dict[str, Flow] = {}
        self._backlogged = 0
        self._orders = 0
        self._firsts = 0

    # ---- who waits

    def attach(self, line: Line, seat: Seat) -> None:
        """``line``, which is about to get its first waiter, waits for ``seat``. O(log flows)."""
        principal = line.principal
        flow = self.flows.get(principal)
        if flow is None:
            flow = self.flows[principal] = Flow(self, principal, self.time, self._last())
        if not flow.shares:
            self._backlogged += 1
            if flow.tag < self.time:
                flow.tag, flow.order = self.time, self._last()
        share = seat.shares.get(principal)
        if share is None:
            share = seat.shares[principal] = Share(flow, seat)
            flow.shares[share] = None
            self._enter(share)
        share.lines[line] = None

    def detach(self, line: Line, seat: Seat) -> None:
        """The last waiter of ``line`` has left."""
        principal = line.principal
        share = seat.shares[principal]
        del share.lines[line]
        if share.lines:
            return
        flow = share.flow
        share.entry = None
        del seat.shares[principal], flow.shares[share]
        self._trim(seat)
        if flow.shares:
            return
        self._left()
        if flow.tag <= self.time:
            self.flows.pop(principal, None)

    def hold(self) -> None:
        """Keep tags and time until :meth:`settle`, though all waiters leave: they come back at once."""
        self._backlogged += 1

    def settle(self) -> None:
        """End :meth:`hold`."""
        self._left()

    def _left(self) -> None:
        """One flow less waits; with the last one goes all that is remembered."""
        self._backlogged -= 1
        if not self._backlogged:
            self.flows.clear()
            self.time = 0.0

    def _last(self) -> int:
        """The order behind all others."""
        self._orders += 1
        return self._orders

    # ---- whose turn it is

    def turn(self, seats: Iterable[Seat], long_free: bool) -> tuple[Line, Seat] | None:
        """The line whose oldest waiter has the turn, and the seat that it is for; None if nobody can be served.

        Args:
            seats: The provider's seats, which is open itself; those that are not usable are passed over.
            long_free: Whether a long slot is free; without one the long seats are passed over.
        """
        first: Flow | None = None
        for seat in seats:
            if seat.shares and seat.usable and (long_free or not seat.long):
                if self._backlogged == 1:  # as on an edge without keys: no need to look at the heaps
                    first = next(iter(seat.shares.values())).flow
                    break
                flow = self._first(seat)
                if first is None or flow.tag < first.tag or (flow.tag == first.tag and flow.order < first.order):
                    first = flow
        if first is None:
            return None
        found: Line | None = None
        at: Seat | None = None
        found_place = 0
        for share in first.shares:
            seat = share.seat
            if seat.usable and (long_free or not seat.long):
                for line in share.lines:
                    place = line.queue[0][0]
                    # One line may wait for several targets of this provider.
                    if at is None or place < found_place or (line is found and _preferred(seat, at)):
                        found, at, found_place = line, seat, place
        assert found is not None and at is not None  # noqa: PT018 - one check for the type checker
        return found, at

    @staticmethod
    def _first(seat: Seat) -> Flow:
        """The flow with the lowest tag at a seat that has one."""
        heap = seat.turns
        while True:
            entry = heap[0]
            share = entry[2]
            flow = share.flow
            if share.entry is not entry:
                heappop(heap)
            elif entry[0] == flow.tag and entry[1] == flow.order:
                return flow
            else:
                share.entry = entry = (flow.tag, flow.order, share)
                heapreplace(heap, entry)

    def _enter(self, share: Share) -> None:
        flow = share.flow
        self._trim(share.seat)
        share.entry = entry = (flow.tag, flow.order, share)
        heappush(share.seat.turns, entry)

    @staticmethod
    def _trim(seat: Seat) -> None:
        """Drop superseded entries when they are the majority, so that the heap's size follows its shares."""
        heap = seat.turns
        if len(heap) > 2 * len(seat.shares) + 8:
            heap[:] = [entry for entry in heap if entry[2].entry is entry]
            heapify(heap)

    # ---- what a grant costs

    def charge(self, ticket: Ticket) -> None:
        """``ticket`` is granted a slot here while others wait."""
        flow = self.flows.get(ticket.principal)
        if flow is None:
            flow = self.flows[ticket.principal] = Flow(self, ticket.principal, self.time, 0)
        start, time, cost = flow.tag, self.time, ticket.cost
        if start > time:
            self.time = start
        elif start < time - cost:
            start = time - cost
        flow.tag = start + cost
        self._orders = flow.order = self._orders + 1
        ticket.flow = flow

    def refund(self, ticket: Ticket) -> None:
        """The grant that ``ticket`` was charged for came to nothing, and the ticket is admitted again: it has the turn
        that it had."""
        flow = ticket.flow
        ticket.flow = None
        if flow is None or self.flows.get(flow.principal) is not flow:
            return
        self._firsts -= 1
        flow.tag, flow.order = flow.tag - ticket.cost, self._firsts
        for share in flow.shares:
            if share.entry is not None and share.entry[:2] > (flow.tag, flow.order):
                self._enter(share)

    def validate(self, seats: Iterable[Seat]) -> None:
        """Assert the books of the flows and the invariant of the lazy heaps."""
        shares = {share for seat in seats for share in seat.shares.values()}
        assert shares == {share for flow in self.flows.values() for share in flow.shares}
        assert self._backlogged == sum(1 for flow in self.flows.values() if flow.shares)
        assert self._backlogged or not self.flows, "tags outlived the waiters"
        for share in shares:
            flow = share.flow
            assert self.flows[flow.principal] is flow
            assert share.lines, "a share without a line"
            assert all(line.live and line.principal == flow.principal for line in share.lines)
            assert share.entry is not None
            assert share.entry in share.seat.turns
            assert share.entry[:2] <= (flow.tag, flow.order), "an entry is higher than its flow's tag"
        for seat in seats:
            assert len(seat.turns) <= 2 * len(seat.shares) + 9
