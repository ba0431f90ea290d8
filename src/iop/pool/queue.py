"""Who waits: the bounds, the books and the deadlines over all lines (POOL-4, POOL-6)."""

from __future__ import annotations

from collections.abc import Iterator

from iop.errors import IopError, ProvidersResting, QueueFull, Unavailable
from iop.pool.deadlines import Deadlines
from iop.pool.lane import Lane, Line
from iop.pool.lease import Ticket
from iop.pool.specs import QueueLimits

__all__ = ["Queue"]


class Queue:
    """All waiting tickets of a pool. ``waiting`` counts them; ``limits`` hold for newcomers only."""

    __slots__ = ("_deadlines", "_principals", "limits", "waiting")

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self.waiting = 0
        self._deadlines = Deadlines()
        self._principals: dict[str, int] = {}  # no entry is 0, so it is as small as the queue

    def objection(self, ticket: Ticket, lane: Lane, now: float) -> IopError | None:
        """What keeps a newcomer from waiting in ``lane``, if anything. One whose candidates all rest does not wait
        (HEALTH-9)."""
        kind = lane.kind_of(ticket)
        if lane.hopeless(kind):
            return Unavailable()
        if lane.asleep(kind):
            return ProvidersResting(rest_s=lane.wakes_at(kind) - now)
        if lane.group.waiting >= self.limits.max_waiters:
            return QueueFull()
        if self._principals.get(ticket.principal, 0) >= self.limits.max_waiters_per_principal:
            return QueueFull("too many requests of this key are waiting; let some finish first")
        return None

    def join(self, ticket: Ticket, lane: Lane, now: float) -> None:
        """Put the ticket at its place in ``lane``; its ``deadline_at`` is set."""
        ticket.since_at = now
        lane.join(ticket)
        lane.group.waiting += 1
        self.waiting += 1
        principals = self._principals
        principals[ticket.principal] = principals.get(ticket.principal, 0) + 1
        self._deadlines.add(ticket)

    def take(self, line: Line, now: float) -> Ticket:
        """Take out the oldest waiter of ``line``; there must be one."""
        ticket = line.pop()
        self._deadlines.discard(ticket)
        self._left(ticket, line, now)
        return ticket

    def leave(self, ticket: Ticket, line: Line, now: float) -> None:
        """Take out a waiter of ``line``, wherever it stands, for good."""
        self._deadlines.discard(ticket)
        line.discard(ticket)
        self._left(ticket, line, now)

    def expire(self, now: float) -> list[Ticket]:
        """Take out the waiters whose time is up."""
        due = self._deadlines.pop_due(now)
        for ticket in due:
            line = ticket.line
            assert line is not None
            line.discard(ticket)
            self._left(ticket, line, now)
        return due

    def take_all(self, now: float) -> list[Ticket]:
        """Take out everybody, oldest first."""
        tickets = sorted(self, key=lambda ticket: ticket.place)
        for ticket in tickets:
            assert ticket.line is not None
            self.leave(ticket, ticket.line, now)
        return tickets

    @property
    def next_at(self) -> float | None:
        """When :meth:`expire` is due; None while nobody waits."""
        return self._deadlines.next_at

    def __iter__(self) -> Iterator[Ticket]:
        """All waiting tickets, in no order."""
        return iter(self._deadlines)

    def _left(self, ticket: Ticket, line: Line, now: float) -> None:
        if not line.live:
            line.lane.drop(line)
        line.lane.group.waiting -= 1
        self.waiting -= 1
        principals = self._principals
        left = principals[ticket.principal] - 1
        if left:
            principals[ticket.principal] = left
        else:
            del principals[ticket.principal]
        ticket.waited_s += max(0.0, now - ticket.since_at)  # a caller may read a coarser clock than the one before

    def validate(self) -> None:
        """Assert that the books agree with the lines."""
        tickets = list(self)
        assert len(tickets) == self.waiting
        counts: dict[str, int] = {}
        for ticket in tickets:
            assert ticket.line is not None
            assert ticket.lease is None
            counts[ticket.principal] = counts.get(ticket.principal, 0) + 1
        assert counts == self._principals
