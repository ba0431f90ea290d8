"""What the dispatcher does for all requests: the clock of the queue, and what the pool decides, in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from iop.edge.requests.dispatcher import Dispatcher
from iop.errors import IopError
from iop.net.wheel import TICK_S, Wheel
from iop.observability.metrics import EdgeMetrics
from iop.pool import QueueLimits
from tests.unit.pool.pool_world import PoolWorld, group, provider

P = provider("p")
TIMEOUT_S = 1.5
LATE_S = 0.0003  # a loop's tick is never on time


class Waiter:
    """The owner of a waiting ticket."""

    def __init__(self) -> None:
        self.error: IopError | None = None

    def refused(self, error: IopError) -> None:
        self.error = error


@pytest.mark.req("POOL-6")
@pytest.mark.parametrize("start", [1000.0, 1000.0123, 12_345.678])
def test_a_waiter_is_refused_in_time_while_new_ones_come_at_every_moment(start: float) -> None:
    wheel = Wheel(start)
    world = PoolWorld([P], [group("g", P)], QueueLimits(timeout_s=TIMEOUT_S))
    sink: Any = SimpleNamespace(outcome=lambda record: None)
    runtime: Any = SimpleNamespace(wheel=wheel, loop=SimpleNamespace(time=lambda: wheel.now))
    dispatcher = Dispatcher(runtime, world.pool, EdgeMetrics(), sink)
    world.lease()
    waiting: list[tuple[float, Waiter]] = []
    refused = 0
    for _ in range(80):
        wheel.advance(wheel.now + TICK_S + LATE_S)
        world.now = wheel.now
        while waiting and waiting[0][1].error is not None:
            since_at, waiter = waiting.pop(0)
            assert waiter.error is not None
            assert waiter.error.code == "queue_timeout"
            assert wheel.now >= since_at + TIMEOUT_S
            refused += 1
        assert not waiting or wheel.now <= waiting[0][0] + TIMEOUT_S + 4 * TICK_S, "newcomers push the clock off"
        for _ in range(2):
            waiting.append((wheel.now, waiter := Waiter()))
            world.wait(owner=waiter)
            dispatcher.watch_queue()
    assert refused > 50


@pytest.mark.req("WIRE-10", "EXEC-5")
def test_counts_that_cannot_be_are_dropped_and_counted() -> None:
    metrics, sink = EdgeMetrics(), SimpleNamespace(outcome=lambda record: None)
    runtime: Any = SimpleNamespace(wheel=Wheel(1000.0))
    dispatcher = Dispatcher(runtime, PoolWorld([P], [group("g", P)]).pool, metrics, cast("Any", sink))
    most = 10_000_000
    for told, kept in (
        ((1, None, most, 0), (1, None, most, 0)),
        ((most + 1, 7, None, None), (None, 7, None, None)),
        ((2**64 - 1, 2**64 - 1, 2**63, 3), (None, None, None, 3)),
    ):
        assert dispatcher.possible(told) == kept
    assert [count for _, count in metrics.tokens_dropped.read()] == [4]


@pytest.mark.req("POOL-4")
def test_a_fault_of_ours_with_one_waiter_keeps_no_other_back() -> None:
    class Broken(Waiter):
        def refused(self, error: IopError) -> None:
            raise RuntimeError("planted")

    world = PoolWorld([P], [group("g", P)])
    sink: Any = SimpleNamespace(outcome=lambda record: None)
    runtime: Any = SimpleNamespace(wheel=Wheel(1000.0))
    dispatcher = Dispatcher(runtime, world.pool, EdgeMetrics(), sink)
    world.lease()
    waiters = [Waiter(), Broken(), Waiter(), Waiter()]
    for waiter in waiters:
        world.wait(owner=waiter)
    with pytest.raises(RuntimeError, match="planted"):
        dispatcher.perform(world.pool.shutdown(world.now))
    assert [waiter.error is not None for waiter in waiters] == [True, False, True, True]
