"""Queue deadlines in coarse buckets (POOL-6, POOL-9).

A heap with lazy deletion keeps an entry for every request that was granted in the last minute; this keeps none. Adding
and removing are one dict operation each; a waiter is found late by at most one tick.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from iop.pool.lease import Ticket

__all__ = ["TICK_S", "Deadlines"]

TICKS_PER_S = 20.0
TICK_S = 1.0 / TICKS_PER_S


class Deadlines:
    """The deadlines of all waiting tickets, by ``ticket.deadline_at``, which must not change while it is in here."""

    __slots__ = ("_buckets", "_order")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[int, Ticket]] = {}
        self._order: list[int] = []  # heap of bucket numbers, each once

    def add(self, ticket: Ticket) -> None:
        number = int(ticket.deadline_at * TICKS_PER_S)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            heappush(self._order, number)
        bucket[ticket.place] = ticket

    def discard(self, ticket: Ticket) -> None:
        """Forget a ticket that is in here. Its bucket stays until its time comes: at most one per tick of timeout."""
        del self._buckets[int(ticket.deadline_at * TICKS_PER_S)][ticket.place]

    def pop_due(self, now: float) -> list[Ticket]:
        """Remove and return the tickets whose deadline is at or before ``now``, bucket by bucket."""
        found: list[Ticket] = []
        limit = now * TICKS_PER_S
        while self._order and self._order[0] <= limit:
            bucket = self._buckets[self._order[0]]
            if self._order[0] + 1 > limit:  # this bucket is still running
                found += (late := [t for t in bucket.values() if t.deadline_at <= now])
                for ticket in late:
                    del bucket[ticket.place]
                break
            found += bucket.values()
            del self._buckets[heappop(self._order)]
        return found

    @property
    def next_at(self) -> float | None:
        """When to look again: no ticket is overdue by more than :data:`TICK_S` then. None while nobody waits."""
        while self._order:
            if self._buckets[self._order[0]]:
                return (self._order[0] + 1) / TICKS_PER_S
            del self._buckets[heappop(self._order)]
        return None

    def __iter__(self) -> Iterator[Ticket]:
        for bucket in self._buckets.values():
            yield from bucket.values()
