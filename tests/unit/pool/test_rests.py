"""Candidates that rest, targets that are lowered alone, and who waits for which (HEALTH-7, HEALTH-9)."""

from __future__ import annotations

import time

import pytest

from iop.errors import ProvidersResting, Unavailable
from iop.pool import Candidate, Granted, GroupSpec, QueueLimits, Refused, ReleaseCause, Ticket
from iop.pool.pool import MAX_REST_S
from tests.unit.pool.pool_world import PoolWorld, group, provider

P, Q = provider("p"), provider("q", "n2")


def two_targets() -> PoolWorld:
    """One provider with two slots and two targets, which are two candidates; ``t1`` is preferred."""
    one = provider("one", capacity=2)
    spec = GroupSpec("g", [Candidate("n1", "one", "t1"), Candidate("n1", "one", "t2", 1)])
    return PoolWorld([one], [spec])


def lower(world: PoolWorld, target: str, down: bool = True) -> list[object]:
    actions = world.pool.set_overlay("n1", world.generations["n1"], "one", down, world.now, target=target)
    world.pool.validate()
    return list(actions)


@pytest.mark.req("HEALTH-7", "POOL-3")
def test_two_targets_of_one_provider_are_two_candidates() -> None:
    world = two_targets()
    assert world.lease().target == "t1"
    lower(world, "t1")
    assert world.lease().target == "t2"
    lower(world, "t2")
    with pytest.raises(Unavailable):
        world.pool.submit(world.ticket(), world.now)
    lower(world, "t1", down=False)
    assert world.wait().waiting, "a candidate, and its provider is full"


@pytest.mark.req("HEALTH-9")
def test_a_candidate_that_rests_is_passed_over_until_its_time() -> None:
    world = PoolWorld([P, Q], [group("g", P, Q)])
    lease = world.lease()
    world.release(lease)
    assert world.pool.rest(lease, 7.0, world.now) == []
    assert world.lease().provider_id == "q"
    assert world.wait().waiting, "one that does not rest is full"
    assert world.pool.next_at is not None
    world.now += 7.0
    (granted,) = world.pool.on_time(world.now)
    assert isinstance(granted, Granted)
    assert granted.lease.provider_id == lease.provider_id


@pytest.mark.req("HEALTH-9")
@pytest.mark.parametrize(("asked_s", "told_s"), [(0.2, 1), (7.2, 8), (900.0, MAX_REST_S)])
def test_a_newcomer_whose_candidates_all_rest_is_told_the_shortest(asked_s: float, told_s: int) -> None:
    world = PoolWorld([P, Q], [group("g", P, Q)])
    leases = [world.lease(), world.lease()]
    for lease, seconds in zip(leases, (asked_s, 1000.0), strict=True):
        world.release(lease)
        world.pool.rest(lease, seconds, world.now)
        world.pool.validate()
    with pytest.raises(ProvidersResting) as told:
        world.pool.submit(world.ticket(), world.now)
    assert (told.value.status, told.value.retry_after_s) == (429, told_s)


@pytest.mark.req("HEALTH-9")
def test_a_waiter_stays_if_the_rest_ends_before_its_time_and_is_refused_otherwise() -> None:
    world = PoolWorld([P], [group("g", P)], QueueLimits(timeout_s=10.0))
    lease = world.lease()
    early = world.wait()
    world.now += 5.0
    late = world.wait()
    (refused,) = world.pool.rest(lease, 8.0, world.now)
    assert isinstance(refused, Refused)
    assert (refused.ticket, refused.error.code) == (early, "providers_resting")
    assert late.waiting
    world.release(lease)
    assert late.waiting, "it rests"
    world.now += 8.0
    (granted,) = world.pool.on_time(world.now)
    assert isinstance(granted, Granted)
    assert granted.ticket is late


@pytest.mark.req("HEALTH-9", "API-8")
@pytest.mark.parametrize("target", ["t1", None])
def test_whoever_was_refused_goes_there_no_more(target: str | None) -> None:
    world = two_targets()
    ticket = world.ticket()
    lease = world.pool.submit(ticket, world.now)
    assert lease is not None
    ticket.refused |= {("one", target)}
    (action,) = world.pool.readmit(ticket, lease, world.now, cause=ReleaseCause.TERMINAL, recovery=True)
    if target is None:
        assert isinstance(action, Refused)
        assert action.error.code == "unavailable"
    else:
        assert isinstance(action, Granted)
        assert action.lease.target == "t2"


@pytest.mark.req("HEALTH-9", "HEALTH-3", "CONF-2")
def test_a_rest_outlives_its_node_and_not_its_backend() -> None:
    world = PoolWorld([P], [group("g", P)])
    world.pool.rest(world.lease(), 30.0, world.now)
    world.lose()
    world.connect()
    with pytest.raises(ProvidersResting):
        world.pool.submit(world.ticket(), world.now)
    world.lose()
    world.providers = [provider("p", backend="another")]
    world.configure()
    world.connect()
    assert world.lease().provider_id == "p"
    assert world.pool.on_time(world.now + 60.0) == []


@pytest.mark.req("HEALTH-9")
def test_a_pause_that_was_asked_for_twice_lasts_for_the_longer_time() -> None:
    world = PoolWorld([P], [group("g", P)])
    lease = world.lease()
    for seconds in (20.0, 5.0, 0.0, -3.0):
        world.pool.rest(lease, seconds, world.now)
    world.release(lease)
    world.pool.on_time(world.now + 19.9)
    with pytest.raises(ProvidersResting):
        world.pool.submit(world.ticket(), world.now + 19.9)
    world.pool.on_time(world.now + 20.0)
    assert world.lease().provider_id == "p"
    assert world.pool.next_at is None


@pytest.mark.req("HEALTH-9", "POOL-9")
def test_a_rest_costs_no_look_at_those_who_stay() -> None:
    """Once they have been put in order; 100 times as many waiters cost less than 3 times as much each."""
    costs = []
    for waiters in (100, 10_000):
        limits = QueueLimits(timeout_s=1000.0, max_waiters=20_000, max_waiters_per_principal=20_000)
        world = PoolWorld([P], [group("g", P)], limits)
        lease = world.lease()
        for _ in range(waiters):
            ticket = world.ticket()
            assert world.pool.submit(ticket, world.now) is None
        best = 1e9
        for attempt in range(30):
            began = time.thread_time()
            assert world.pool.rest(lease, 0.01 * (attempt + 1), world.now) == []
            best = min(best, time.thread_time() - began)
        costs.append(best)
    assert costs[1] < 3 * costs[0], costs


@pytest.mark.req("HEALTH-9", "HEALTH-7")
def test_the_snapshot_and_the_trace_show_what_rests_and_what_is_lowered() -> None:
    world = two_targets()
    lease = world.lease()
    world.pool.rest(lease, 12.0, world.now)
    lower(world, "t2")
    rows = {c["target"]: c["status"] for c in world.pool.snapshot(world.now)["models"][0]["candidates"]}
    assert rows == {"t1": "resting", "t2": "unavailable"}
    assert world.row("one")["resting"] == {"t1": 12.0}
    ticket = Ticket("r", "alice", "g")
    assert [row[3] for row in world.pool.explain(ticket, 5)[0]] == ["resting", "lowered"]
    ticket.refused = frozenset({("one", None)})
    lower(world, "t2", down=False)
    assert [row[3] for row in world.pool.explain(ticket, 5)[0]] == ["refused", "refused"]
