"""Turns among principals at one provider (POOL-5); shares over long runs are in tests/property/test_fairness.py."""

from __future__ import annotations

import pytest

from iop.pool import Granted, Lease, ReleaseCause
from tests.unit.pool.pool_world import PoolWorld, group, provider

pytestmark = pytest.mark.req("POOL-5")


def world(capacity: int = 1, **rest: object) -> PoolWorld:
    p = provider("p", capacity=capacity, **rest)
    return PoolWorld([p], [group("g", p), group("h", p)])


def served(w: PoolWorld, lease: Lease, count: int) -> list[str]:
    """The principals of the next ``count`` grants, one slot being released and taken each time."""
    order = []
    for _ in range(count):
        (action,) = w.release(lease)
        assert isinstance(action, Granted)
        order.append(action.ticket.principal)
        lease = action.lease
    return order


def test_principals_take_turns_whatever_number_each_has_waiting() -> None:
    w = world()
    lease = w.lease(principal="busy")
    for _ in range(40):
        w.wait(principal="busy")
    w.wait(principal="rare")
    w.wait("h", principal="rare")
    assert served(w, lease, 5) == ["busy", "rare", "busy", "rare", "busy"]


def test_a_principal_with_weight_three_gets_three_grants_for_one() -> None:
    w = world()
    lease = w.lease(principal="x")
    for _ in range(12):
        w.wait(principal="heavy", weight=3)
        w.wait(principal="light")
    order = served(w, lease, 12)
    assert order.count("heavy") == 9
    assert order.count("light") == 3


def test_within_a_principal_the_oldest_goes_first_over_all_groups() -> None:
    w = world()
    lease = w.lease(principal="x")
    mine = [w.wait(name, principal="alice").request_id for name in ("h", "g", "g", "h")]
    w.wait(principal="bob")
    found = []
    for _ in range(5):
        (action,) = w.release(lease)
        assert isinstance(action, Granted)
        lease = action.lease
        found.append(action.ticket.request_id)
    assert [request_id for request_id in found if request_id in mine] == mine


def test_a_principal_gains_nothing_by_having_been_idle() -> None:
    w = world()
    lease = w.lease(principal="busy")
    for _ in range(20):
        w.wait(principal="busy")
        w.wait(principal="also")
    for _ in range(10):
        (action,) = w.release(lease)
        assert isinstance(action, Granted)
        lease = action.lease
    for _ in range(10):
        w.wait(principal="late")
    order = served(w, lease, 9)
    assert {who: order.count(who) for who in ("busy", "also", "late")} == {"busy": 3, "also": 3, "late": 3}


def test_one_request_after_the_other_is_worth_one_turn_each() -> None:
    """A principal that sends its next request when the one before was granted gets no more than its share."""
    w = world()
    lease = w.lease(principal="queues")
    for _ in range(20):
        w.wait(principal="queues")
    order = []
    w.wait(principal="single")
    for _ in range(10):
        (action,) = w.release(lease)
        assert isinstance(action, Granted)
        lease = action.lease
        order.append(action.ticket.principal)
        if order[-1] == "single":
            w.wait(principal="single")
    assert order.count("single") == 5


def test_a_grant_that_came_to_nothing_costs_no_turn() -> None:
    w = world()
    lease = w.lease(principal="x")
    for who in ("a", "b", "a", "b"):
        w.wait(principal=who)
    order = []
    for failing in range(6):
        (action,) = w.release(lease)
        assert isinstance(action, Granted)
        if failing == 0:  # the first grant of `a` cannot be sent: it has the turn again
            (again,) = w.pool.readmit(action.ticket, action.lease, w.now, cause=ReleaseCause.SEND_FAILED)
            assert isinstance(again, Granted)
            assert again.ticket is action.ticket
            action = again
        lease = action.lease
        order.append(action.ticket.principal)
        if not w.pool.waiting:
            break
    assert order == ["a", "b", "a", "b"]


def test_a_long_waiter_goes_first_once_it_can_be_served_and_starts_no_burst() -> None:
    w = world(capacity=2, long_capacity=1, long_threshold_tokens=1000)
    long_lease = w.lease(principal="x", tokens=1000)
    lease = w.lease(principal="x")
    longs = [w.wait(principal="long", tokens=5000) for _ in range(4)]
    for _ in range(20):
        w.wait(principal="busy")
    for _ in range(6):  # no long slot: only the others are served
        (action,) = w.release(lease)
        assert isinstance(action, Granted)
        assert action.ticket.principal == "busy"
        lease = action.lease
    (action,) = w.release(long_lease)
    assert isinstance(action, Granted)
    assert action.ticket is longs[0]
    order = []
    for _ in range(6):
        (action,) = w.release(action.lease)
        assert isinstance(action, Granted)
        order.append(action.ticket.principal)
    assert order.count("long") <= 4
    assert order[:2].count("busy") >= 1


def test_turns_outlive_a_reload() -> None:
    w = world()
    lease = w.lease(principal="x")
    for who in ("a", "a", "b", "b"):
        w.wait(principal=who)
    first = served_once(w, lease)
    w.configure()
    second = served_once(w, first.lease)
    assert [first.ticket.principal, second.ticket.principal] == ["a", "b"]


def served_once(w: PoolWorld, lease: Lease) -> Granted:
    (action,) = w.release(lease)
    assert isinstance(action, Granted)
    return action
