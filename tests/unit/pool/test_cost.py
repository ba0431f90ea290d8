"""What an admission costs does not grow with those who wait (POOL-9); benchmarks/bench_pool.py tells the times."""

from __future__ import annotations

import time
from collections import deque

import pytest

from iop.pool import Granted, Lease, QueueLimits, ReleaseCause, Ticket
from tests.support.lines import lines_of
from tests.unit.pool.pool_world import PoolWorld, group, provider

FEW, MANY = 100, 100_000
CYCLES = 300
RATIO = 3.0
ENDLESS = QueueLimits(timeout_s=60.0, max_waiters=10**6, max_waiters_per_principal=10**6)


class Full:
    """A pool without a free slot, with so many waiters of several principals in several groups, half of them long.
    A cycle is a request that comes, one that leaves the queue, and a release, which serves a waiter."""

    def __init__(self, waiters: int) -> None:
        providers = [provider(f"p{i}", f"n{i}", 4, long_capacity=2, long_threshold_tokens=1000) for i in range(10)]
        groups = [group(f"g{i}", *providers[i : i + 6]) for i in range(5)]
        self.world = PoolWorld(providers, groups, ENDLESS)
        self.leases: deque[Lease] = deque()
        self.newest: deque[Ticket] = deque(maxlen=20)
        self.count = 0
        while self.world.pool.waiting < waiters:
            self.come()

    def come(self) -> None:
        self.count += 1
        self.world.now += 5e-6
        who, tokens = f"u{self.count % 7}", 5000 * (self.count % 2)
        ticket = Ticket("r", who, f"g{self.count % 5}", tokens)
        lease = self.world.pool.submit(ticket, self.world.now)
        if lease is not None:
            self.leases.append(lease)
        else:
            self.newest.append(ticket)

    def cycle(self) -> None:
        pool, now = self.world.pool, self.world.now
        self.come()
        self.come()
        gone = self.newest.popleft()
        assert gone.waiting
        pool.cancel(gone, now)
        for action in pool.release(self.leases.popleft(), ReleaseCause.TERMINAL, now):
            assert isinstance(action, Granted)
            self.leases.append(action.lease)

    def cycles(self) -> None:
        for _ in range(CYCLES):
            self.cycle()

    def cpu_s(self) -> float:
        """CPU time of the cycles, the best of several: what runs without a line of Python counts, too."""
        best = float("inf")
        for _ in range(7):
            began = time.thread_time()
            self.cycles()
            best = min(best, time.thread_time() - began)
        return best


@pytest.mark.req("POOL-9")
def test_a_hundred_thousand_waiters_cost_an_operation_no_more_than_three_times_what_a_hundred_do() -> None:
    few, many = Full(FEW), Full(MANY)
    lines = lines_of(few.cycles), lines_of(many.cycles)
    assert lines[1] <= RATIO * lines[0], f"lines of Python for {CYCLES} cycles: {lines}"
    times = few.cpu_s(), many.cpu_s()
    assert times[1] <= RATIO * times[0], f"CPU seconds for {CYCLES} cycles: {times}"
