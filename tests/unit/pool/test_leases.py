"""Leases end once, on evidence; tickets keep their place; units linger (POOL-7, 8, 12; CONF-2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iop.pool import Granted, Lease, Pool, QueueLimits, Refused, ReleaseCause, Revoked
from tests.unit.pool.pool_world import PoolWorld, group, provider


@pytest.mark.req("POOL-7")
def test_a_lease_says_what_was_granted() -> None:
    p = provider("p", long_threshold_tokens=10)
    w = PoolWorld([p], [group("g", p)])
    lease = w.lease(tokens=10)
    assert (lease.node_id, lease.provider_id, lease.adapter, lease.target) == ("n1", "p", "vllm", "t-p")
    assert (lease.generation, lease.long, lease.request_id) == (w.generations["n1"], True, "r1")
    with pytest.raises(AttributeError):
        lease.extra = 1  # type: ignore[attr-defined]


@pytest.mark.req("POOL-7")
def test_e8_duplicate_late_unknown_and_foreign_returns_change_nothing() -> None:
    p, q = provider("p", "n1"), provider("q", "n2")
    w = PoolWorld([p, q], [group("g", p), group("h", q)])
    lease, other = w.lease("g"), w.lease("h")
    assert w.release(lease) == []
    free = w.row("p")
    for _ in range(3):
        assert w.release(lease) == []
    foreign = Lease(other.lease_id, "n1", "p", "vllm", "t-p", other.generation, False, other.request_id)
    elsewhere = Lease(other.lease_id, "n9", "zz", "vllm", "t", 1, False, "r9")
    twin = Lease(other.lease_id, "n2", "q", "vllm", "t-q", other.generation, False, other.request_id)
    never = Lease(999, "n1", "p", "vllm", "t-p", lease.generation, False, "r9")
    for bogus in (foreign, elsewhere, twin, never):
        assert w.release(bogus) == []
    assert w.row("p") == free
    assert w.pool.holds(other)
    assert (w.pool.stats.returned_twice, w.pool.stats.returned_unknown) == (6, 1)
    assert sum(w.pool.stats.released.values()) == 1
    stranger = PoolWorld([p, q], [group("g", p), group("h", q)]).lease("h")
    assert w.release(stranger) == [], "a lease from before a restart"


@pytest.mark.req("POOL-8")
def test_a_grant_that_went_stale_is_readmitted_at_its_old_place() -> None:
    p, q = provider("p", "n1"), provider("q", "n2")
    w = PoolWorld([p, q], [group("g", p, q)])
    first = w.ticket()
    lease = w.pool.submit(first, w.now)
    assert lease is not None
    w.lease()
    later = w.wait()
    (revoked,) = w.lose(lease.node_id)
    assert isinstance(revoked, Revoked)
    assert not w.pool.holds(lease)
    assert list(w.pool.readmit(first, lease, w.now, cause=ReleaseCause.STALE_GRANT)) == []
    assert first.place < later.place
    (action,) = w.connect(lease.node_id)
    assert isinstance(action, Granted)
    assert action.ticket is first
    assert w.pool.stats.returned_twice == 0


@pytest.mark.req("POOL-8")
def test_a_failed_send_goes_before_those_who_came_later() -> None:
    p = provider("p")
    w = PoolWorld([p], [group("g", p)])
    first = w.ticket()
    lease = w.pool.submit(first, w.now)
    assert lease is not None
    w.wait()
    (action,) = w.pool.readmit(first, lease, w.now, cause=ReleaseCause.SEND_FAILED)
    assert isinstance(action, Granted)
    assert action.ticket is first
    assert action.lease is not lease
    assert not w.pool.holds(lease)
    w.pool.validate()


@pytest.mark.req("POOL-8")
def test_readmitting_a_ticket_that_moved_on_is_a_counted_no_op() -> None:
    p = provider("p")
    w = PoolWorld([p], [group("g", p)])
    first = w.ticket()
    lease = w.pool.submit(first, w.now)
    assert lease is not None
    (action,) = w.pool.readmit(first, lease, w.now, cause=ReleaseCause.SEND_FAILED)
    assert list(w.pool.readmit(first, lease, w.now, cause=ReleaseCause.SEND_FAILED)) == []
    assert w.pool.stats.returned_twice == 1
    assert isinstance(action, Granted)
    assert w.pool.holds(action.lease)
    waiter = w.wait()
    assert list(w.pool.readmit(waiter, lease, w.now, cause=ReleaseCause.SEND_FAILED)) == []
    fresh = w.ticket()
    assert list(w.pool.readmit(fresh, lease, w.now, cause=ReleaseCause.SEND_FAILED)) == []
    w.pool.validate()


@pytest.mark.req("POOL-8", "POOL-4")
def test_readmission_without_candidate_is_refused_and_frees_the_old_slot() -> None:
    p = provider("p")
    w = PoolWorld([p], [group("g", p)])
    first = w.ticket()
    lease = w.pool.submit(first, w.now)
    assert lease is not None
    waiter = w.wait()
    first.avoid_provider_id = "p"
    refusal, grant = w.pool.readmit(first, lease, w.now, cause=ReleaseCause.TERMINAL, recovery=True)
    assert isinstance(refusal, Refused)
    assert (refusal.ticket, refusal.error.code) == (first, "unavailable")
    assert isinstance(grant, Granted)
    assert grant.ticket is waiter


@pytest.mark.req("POOL-6", "POOL-8")
def test_readmission_keeps_the_deadline_and_recovery_gets_a_new_one() -> None:
    p = provider("p", capacity=1)
    w = PoolWorld([p], [group("g", p)], QueueLimits(timeout_s=10))
    lease, first = w.lease(), w.wait()
    deadline = first.deadline_at
    w.now += 4
    (action,) = w.release(lease)
    assert isinstance(action, Granted)
    w.now += 3
    w.pool.readmit(first, action.lease, w.now, cause=ReleaseCause.CAPACITY_EXCEEDED, held=1)
    assert first.deadline_at == deadline
    assert first.waited_s == pytest.approx(4.0)
    w.now += 4
    (refusal,) = w.pool.on_time(w.now)
    assert isinstance(refusal, Refused)
    w.pool.readmit(first, action.lease, w.now, cause=ReleaseCause.TERMINAL, recovery=True)
    assert first.deadline_at == w.now + 10


@pytest.mark.req("POOL-12")
def test_an_unconfirmed_close_leaves_a_lingering_unit_until_call_closed() -> None:
    p = provider("p", capacity=2)
    w = PoolWorld([p], [group("g", p)])
    lease = w.lease()
    w.lease()
    waiter = w.wait()
    assert w.release(lease, lingering=True) == []
    assert (w.row("p")["in_use"], w.row("p")["lingering"], w.row("p")["capacity"]) == (1, 1, 1)
    (action,) = w.pool.call_closed("n1", w.generations["n1"], "p", w.now)
    assert isinstance(action, Granted)
    assert action.ticket is waiter
    assert list(w.pool.call_closed("n1", w.generations["n1"], "p", w.now)) == []
    assert w.pool.stats.surplus_call_closed == 1
    w.pool.validate()


@pytest.mark.req("POOL-12")
def test_no_timer_ever_ends_a_lease() -> None:
    p = provider("p")
    w = PoolWorld([p], [group("g", p)])
    lease = w.lease()
    assert list(w.pool.on_time(w.now + 10**9)) == []
    assert w.pool.holds(lease)
    assert w.pool.next_at is None


@pytest.mark.req("POOL-12", "REG-3")
def test_slots_held_from_before_linger_from_the_start_of_a_generation() -> None:
    p = provider("p", capacity=3)
    w = PoolWorld([p], [group("g", p)], ready=False)
    w.connect(held={"p": 2, "unknown": 7})
    w.lease()
    w.wait()
    w.lose()
    w.connect(held={})
    assert w.row("p")["lingering"] == 0
    w.pool.validate()


@pytest.mark.req("POOL-12", "REG-3", "CONF-2")
def test_slots_held_at_a_provider_that_comes_back_linger_from_its_start() -> None:
    """The edge was started with a file in which it had been left out, and its node had calls there."""
    kept, back = provider("kept"), provider("back", capacity=3)
    w = PoolWorld([kept], [group("g", kept)], ready=False)
    w.connect(held={"back": 2, "never": 7})
    w.pool.call_closed("n1", w.generations["n1"], "back", w.now)
    w.providers, w.groups = [kept, back], [group("g", back)]
    w.configure()
    w.pool.applied("n1", w.generations["n1"], w.now)
    assert w.row("back")["lingering"] == 1
    w.lease(), w.lease()
    w.wait()
    assert len(list(w.pool.call_closed("n1", w.generations["n1"], "back", w.now))) == 1
    w.lose()
    w.providers = [kept]
    w.configure()
    w.connect()
    w.providers = [kept, back]
    w.configure()
    assert w.row("back")["lingering"] == 0, "of a generation that is over"
    w.pool.validate()


@pytest.mark.req("POOL-12", "EXEC-3")
def test_capacity_exceeded_sets_lingering_to_what_our_leases_do_not_explain_and_keeps_the_place() -> None:
    p = provider("p", capacity=3)
    w = PoolWorld([p], [group("g", p)])
    w.lease()
    first = w.ticket()
    lease = w.pool.submit(first, w.now)
    assert lease is not None
    actions = w.pool.readmit(first, lease, w.now, cause=ReleaseCause.CAPACITY_EXCEEDED, held=3)
    assert list(actions) == []
    assert (w.row("p")["in_use"], w.row("p")["lingering"]) == (1, 2)
    later = w.wait()
    (action,) = w.pool.call_closed("n1", w.generations["n1"], "p", w.now)
    assert isinstance(action, Granted)
    assert action.ticket is first
    assert later.waiting
    assert w.row("p")["health"] == "available", "no health effect"


@pytest.mark.req("CONF-2")
def test_lowered_capacity_counts_at_once_and_raised_capacity_after_the_ack() -> None:
    p = provider("p", capacity=3)
    w = PoolWorld([p], [group("g", p)])
    leases = [w.lease() for _ in range(3)]
    w.providers = [replace(p, capacity=1)]
    assert w.configure() == []
    w.wait()
    for lease in leases[:2]:
        assert w.release(lease) == [], "free = max(0, capacity - outstanding)"
    w.providers = [replace(p, capacity=2)]
    assert w.configure() == []
    (action,) = w.pool.applied("n1", w.generations["n1"], w.now)
    assert isinstance(action, Granted)
    w.pool.validate()


@pytest.mark.req("CONF-2")
def test_refresh_keeps_waiters_in_order_and_refuses_those_whose_model_is_gone() -> None:
    p = provider("p")
    w = PoolWorld([p], [group("a", p), group("b", p)])
    lease = w.lease("a")
    gone, second, third = w.wait("b"), w.wait("a"), w.wait("a")
    w.groups = [group("a", p)]
    (refusal,) = w.configure()
    assert isinstance(refusal, Refused)
    assert (refusal.ticket, refusal.error.code) == (gone, "model_not_found")
    (action,) = w.release(lease)
    assert isinstance(action, Granted)
    assert action.ticket is second
    assert third.waiting
    assert w.pool.snapshot(w.now)["models"][0]["waiting"] == 1


@pytest.mark.req("CONF-2")
def test_a_removed_provider_drains_and_then_disappears() -> None:
    p, q = provider("p"), provider("q")
    w = PoolWorld([p, q], [group("g", p, q)])
    leases = {lease.provider_id: lease for lease in (w.lease(), w.lease())}
    waiter = w.wait()
    w.providers, w.groups = [p], [group("g", p)]
    w.configure()
    assert w.row("q")["status"] == "draining"
    assert w.release(leases["q"]) == []
    assert waiter.waiting
    with pytest.raises(StopIteration):
        w.row("q")
    w.pool.validate()


@pytest.mark.req("CONF-2")
def test_a_removed_node_disappears_when_it_is_gone() -> None:
    p, q = provider("p", "n1"), provider("q", "n2")
    w = PoolWorld([p, q], [group("g", p, q)])
    w.providers, w.groups = [p], [group("g", p)]
    w.configure()
    assert [n["id"] for n in w.pool.snapshot(w.now)["nodes"]] == ["n1", "n2"]
    w.lose("n2")
    assert [n["id"] for n in w.pool.snapshot(w.now)["nodes"]] == ["n1"]
    with pytest.raises(KeyError):
        w.pool.claim("n2", w.now)


@pytest.mark.req("CONF-2")
def test_a_provider_that_is_new_at_a_ready_node_waits_for_the_ack() -> None:
    p, q = provider("p"), provider("q")
    w = PoolWorld([p], [group("g", p)])
    w.lease()
    w.providers, w.groups = [p, q], [group("g", p, q)]
    w.configure()
    waiter = w.wait()
    (action,) = w.pool.applied("n1", w.generations["n1"], w.now)
    assert isinstance(action, Granted)
    assert (action.ticket, action.lease.provider_id) == (waiter, "q")
    assert list(w.pool.applied("n1", 999, w.now)) == []
    assert list(w.pool.refused("n1", 999, w.now)) == []


@pytest.mark.req("CONF-2", "POOL-4")
@pytest.mark.parametrize("taken", [True, False])
def test_requests_wait_for_a_provider_that_is_under_way_until_the_node_has_answered(taken: bool) -> None:
    """A model moves from one provider to a new one: nobody is refused while the node changes over."""
    p, q = provider("p"), provider("q")
    w = PoolWorld([p], [group("g", p)])
    lease, waiter = w.lease(), w.wait()
    w.providers, w.groups = [q], [group("g", q)]
    assert w.configure() == []
    assert w.release(lease) == []
    later = w.wait()
    assert (w.row("q")["status"], w.row("q")["capacity"]) == ("pending", 0)
    actions = list((w.pool.applied if taken else w.pool.refused)("n1", w.generations["n1"], w.now))
    w.pool.validate()
    if taken:
        (granted,) = actions
        assert isinstance(granted, Granted)
        assert (granted.ticket, later.waiting) == (waiter, True)
        assert w.row("q")["status"] == "available"
    else:
        assert [(a.ticket, a.error.code) for a in actions if isinstance(a, Refused)] == [
            (waiter, "unavailable"),
            (later, "unavailable"),
        ]
        assert (w.row("q")["status"], w.row("q")["health"]) == ("rejected", "unknown")


@pytest.mark.req("CONF-2")
@pytest.mark.parametrize("taken", [True, False])
def test_a_changed_backend_takes_nothing_until_the_node_has_changed_over(taken: bool) -> None:
    p = provider("p", capacity=2, backend="here")
    w = PoolWorld([p], [group("g", p)])
    w.lease()
    w.providers = [replace(p, backend="there", kind="llama_cpp", capacity=3)]
    assert w.configure() == []
    waiter = w.wait()
    (granted,) = list((w.pool.applied if taken else w.pool.refused)("n1", w.generations["n1"], w.now))
    assert isinstance(granted, Granted)
    assert granted.ticket is waiter
    # What a node refuses it does not have: it goes on with its old backend, and with no more than that took.
    assert (granted.lease.adapter, w.row("p")["capacity"]) == (("llama_cpp", 3) if taken else ("vllm", 2))
    w.pool.validate()


@pytest.mark.req("CONF-2")
@pytest.mark.parametrize("how", ["removed", "disabled"])
def test_a_provider_that_comes_back_waits_for_the_ack_again(how: str) -> None:
    """Its node may have dropped it meanwhile, and would refuse what comes too early."""
    p = provider("p", capacity=2)
    w = PoolWorld([p], [group("g", p)])
    lease = w.lease()
    w.providers = [] if how == "removed" else [replace(p, enabled=False)]
    w.pool.configure(nodes=["n1"], providers=w.providers, groups=w.groups, limits=w.limits, now=w.now)
    w.providers = [p]
    assert w.configure() == []
    waiter = w.wait()
    assert w.release(lease) == []
    (granted,) = w.pool.applied("n1", w.generations["n1"], w.now)
    assert isinstance(granted, Granted)
    assert granted.ticket is waiter
    w.pool.validate()


@pytest.mark.req("CONF-2", "REG-6")
def test_a_node_that_comes_back_has_all_that_is_configured_whether_it_acked_before_or_not() -> None:
    p = provider("p", capacity=1)
    w = PoolWorld([p], [group("g", p)])
    w.providers = [replace(p, capacity=5)]
    w.configure()
    w.lose()
    w.connect()
    assert w.row("p")["capacity"] == 5


@pytest.mark.req("CONF-2")
def test_what_a_node_is_not_told_counts_at_once() -> None:
    p = provider("p", capacity=2, long_capacity=0, long_threshold_tokens=10)
    w = PoolWorld([p], [group("g", p)])
    w.providers = [replace(p, long_capacity=2)]
    w.pool.configure(nodes=["n1"], providers=w.providers, groups=w.groups, limits=w.limits, now=w.now, acked={"n1"})
    w.lease(tokens=10)


@pytest.mark.req("REG-6")
def test_the_snapshot_adds_up() -> None:
    p = provider("p", capacity=2, long_threshold_tokens=10)
    w = PoolWorld([p], [group("g", p, aliases=["x"])])
    w.lease(tokens=10)
    w.lease()
    w.wait()
    w.now += 1.5
    w.wait()
    snapshot = w.pool.snapshot(w.now)
    assert (snapshot["leases_in_use"], snapshot["waiting"]) == (2, 2)
    (model,) = snapshot["models"]
    assert (model["id"], model["aliases"], model["waiting"], model["oldest_wait_ms"]) == ("g", ["x"], 2, 1500)
    assert model["candidates"] == [
        {"node": "n1", "provider": "p", "target": "t-p", "priority": 0, "status": "available"}
    ]
    assert w.row("p")["long_in_use"] == 1


@pytest.mark.req("POOL-7")
def test_an_empty_pool_is_quiet() -> None:
    pool = Pool()
    pool.validate()
    assert (pool.waiting, pool.leases_in_use, pool.leases_granted, pool.next_at) == (0, 0, 0, None)
    assert pool.snapshot(0.0) == {"leases_in_use": 0, "waiting": 0, "nodes": [], "models": []}
