"""Choice, waiting, fairness, bounds (POOL-1 to POOL-6, POOL-11)."""

from __future__ import annotations

import pytest

from iop.errors import InvalidArgument, IopError, ModelNotFound, QueueFull, ShuttingDown, Unavailable
from iop.pool import Granted, QueueLimits, Refused, ReleaseCause
from iop.pool.deadlines import TICK_S
from tests.unit.pool.pool_world import PoolWorld, group, provider


def refused(actions: list[object]) -> list[tuple[str, str]]:
    return [(a.ticket.request_id, a.error.code) for a in actions if isinstance(a, Refused)]


def granted(actions: list[object]) -> list[str]:
    return [a.ticket.request_id for a in actions if isinstance(a, Granted)]


@pytest.mark.req("POOL-3")
def test_lower_priority_tier_wins_while_it_has_a_slot() -> None:
    near, far = provider("near", capacity=2), provider("far", capacity=9)
    w = PoolWorld([near, far], [group("g", far, near, priorities=[1, 0])])
    assert [w.lease().provider_id for _ in range(3)] == ["near", "near", "far"]


@pytest.mark.req("POOL-3")
def test_then_the_lowest_load_ratio_wins() -> None:
    small, large = provider("small", capacity=2), provider("large", capacity=8)
    w = PoolWorld([small, large], [group("g", small, large)])
    picks = [w.lease().provider_id for _ in range(10)]
    assert picks == ["small", *["large"] * 4, "small", *["large"] * 4]


@pytest.mark.req("POOL-3")
def test_ties_go_to_the_least_recently_used() -> None:
    three = [provider(f"p{i}", capacity=4) for i in range(3)]
    w = PoolWorld(three, [group("g", *three)])
    picks = []
    for _ in range(7):
        lease = w.lease()
        picks.append(lease.provider_id)
        w.release(lease)
    assert picks == ["p0", "p1", "p2", "p0", "p1", "p2", "p0"]


@pytest.mark.req("POOL-1")
def test_groups_share_a_provider_and_an_alias_is_its_group() -> None:
    p = provider("p", capacity=2)
    w = PoolWorld([p], [group("g", p, aliases=["other-name"]), group("h", p)])
    assert w.lease("other-name").target == "t-p"
    w.lease("h")
    w.wait("g")
    assert w.row("p")["in_use"] == 2


@pytest.mark.req("POOL-4")
def test_unknown_model_and_no_candidate_are_refused_at_once() -> None:
    p = provider("p")
    w = PoolWorld([p], [group("g", p), group("empty")])
    with pytest.raises(ModelNotFound):
        w.pool.submit(w.ticket("nope"), w.now)
    with pytest.raises(Unavailable):
        w.pool.submit(w.ticket("empty"), w.now)
    w.lose()
    with pytest.raises(Unavailable):
        w.pool.submit(w.ticket("g"), w.now)
    assert w.pool.stats.refused == {
        "model_not_found": 1,
        "unavailable": 2,
        "queue_full": 0,
        "queue_timeout": 0,
        "providers_resting": 0,
        "shutting_down": 0,
    }


@pytest.mark.req("POOL-4", "REG-5")
def test_waiters_that_lose_their_last_candidate_go_at_once_and_the_others_stay() -> None:
    p1, p2 = provider("p1", "n1"), provider("p2", "n2")
    w = PoolWorld([p1, p2], [group("one", p1), group("both", p1, p2)])
    w.lease("both")
    w.lease("both")
    doomed, lucky = w.wait("one"), w.wait("both")
    assert refused(w.lose("n1")) == [(doomed.request_id, "unavailable")]
    assert lucky.waiting
    w.pool.validate()


@pytest.mark.req("POOL-4")
def test_draining_and_lowering_the_last_candidate_refuse_its_waiters_too() -> None:
    for close in ("drain", "overlay"):
        p = provider("p")
        w = PoolWorld([p], [group("g", p)])
        lease, waiter = w.lease(), w.wait()
        generation = w.generations["n1"]
        if close == "drain":
            actions = list(w.pool.drain("n1", generation, w.now))
        else:
            actions = list(w.pool.set_overlay("n1", generation, "p", True, w.now))
        assert refused(actions) == [(waiter.request_id, "unavailable")]
        assert w.pool.holds(lease), "what runs goes on"
        assert w.release(lease) == []


@pytest.mark.req("POOL-3", "HEALTH-3")
def test_an_unavailable_overlay_excludes_and_a_new_generation_starts_clean() -> None:
    p1, p2 = provider("p1", "n1", capacity=5), provider("p2", "n2", capacity=5)
    w = PoolWorld([p1, p2], [group("g", p1, p2)])
    w.pool.set_overlay("n1", w.generations["n1"], "p1", True, w.now)
    assert {w.lease().provider_id for _ in range(4)} == {"p2"}
    assert w.row("p1")["health"] == "unavailable"
    w.lose("n1")
    w.connect("n1")
    assert w.lease().provider_id == "p1"


@pytest.mark.req("POOL-5")
def test_a_freed_slot_goes_to_the_oldest_waiter_over_all_groups() -> None:
    p = provider("p")
    w = PoolWorld([p], [group("a", p), group("b", p)])
    lease = w.lease("a")
    order = [w.wait(name).request_id for name in ("b", "a", "a", "b", "a")]
    served = []
    for _ in order:
        (action,) = w.release(lease)
        assert isinstance(action, Granted)
        served.append(action.ticket.request_id)
        lease = action.lease
    assert served == order


@pytest.mark.req("POOL-5")
def test_a_newcomer_never_overtakes() -> None:
    p = provider("p")
    w = PoolWorld([p], [group("g", p)])
    lease, first = w.lease(), w.wait()
    assert granted(w.release(lease)) == [first.request_id]
    w.wait()


@pytest.mark.req("POOL-2", "POOL-5")
def test_a_long_waiter_neither_blocks_normal_ones_nor_starves() -> None:
    p = provider("p", capacity=3, long_capacity=1, long_threshold_tokens=1000)
    w = PoolWorld([p], [group("g", p)])
    long_lease = w.lease(tokens=1000)
    assert long_lease.long
    waiting_long = w.wait(tokens=5000)
    normal = [w.lease(tokens=999), w.lease()]  # a long waiter without a long slot does not block
    assert not any(lease.long for lease in normal)
    late = [w.wait(), w.wait()]
    assert granted(w.release(normal[0])) == [late[0].request_id]
    assert granted(w.release(long_lease)) == [waiting_long.request_id]  # oldest first, once its slot exists
    assert late[1].waiting


@pytest.mark.req("POOL-2")
def test_long_is_a_matter_of_the_provider() -> None:
    big = provider("big", long_threshold_tokens=1000)
    plain = provider("plain")
    w = PoolWorld([big, plain], [group("g", big, plain)])
    assert [(lease.provider_id, lease.long) for lease in (w.lease(tokens=2000), w.lease(tokens=2000))] == [
        ("big", True),
        ("plain", False),
    ]


@pytest.mark.req("POOL-2", "POOL-4")
def test_without_any_long_slot_a_long_request_has_no_candidate() -> None:
    p = provider("p", capacity=4, long_capacity=0, long_threshold_tokens=10)
    w = PoolWorld([p], [group("g", p)])
    with pytest.raises(Unavailable):
        w.pool.submit(w.ticket(tokens=10), w.now)
    w.lease(tokens=9)


@pytest.mark.req("POOL-6")
def test_queue_bounds_per_group_and_per_principal() -> None:
    p = provider("p")
    limits = QueueLimits(timeout_s=60, max_waiters=3, max_waiters_per_principal=2)
    w = PoolWorld([p], [group("g", p), group("h", p)], limits)
    w.lease()
    first = w.wait(principal="alice")
    w.wait(principal="alice")
    with pytest.raises(QueueFull, match="key"):
        w.pool.submit(w.ticket("h", principal="alice"), w.now)
    w.wait(principal="bob")
    with pytest.raises(QueueFull, match="model"):
        w.pool.submit(w.ticket(principal="carol"), w.now)
    w.wait("h", principal="carol")
    assert w.pool.cancel(first, w.now)
    w.wait(principal="alice")  # its place in the bounds is free at once


@pytest.mark.req("POOL-6")
def test_a_waiter_is_refused_when_its_time_is_up_and_not_before() -> None:
    p = provider("p")
    w = PoolWorld([p], [group("g", p)], QueueLimits(timeout_s=5))
    w.lease()
    first = w.wait()
    w.now += 1
    second = w.wait()
    assert w.pool.next_at is not None
    assert first.deadline_at < w.pool.next_at <= first.deadline_at + TICK_S + 1e-9
    assert list(w.pool.on_time(104.9)) == []
    assert refused(list(w.pool.on_time(105.0))) == [(first.request_id, "queue_timeout")]
    assert refused(list(w.pool.on_time(200.0))) == [(second.request_id, "queue_timeout")]
    assert w.pool.next_at is None
    assert first.waited_s == pytest.approx(5.0)
    w.pool.validate()


@pytest.mark.req("POOL-6")
def test_deadlines_within_one_tick_are_told_apart() -> None:
    p = provider("p")
    w = PoolWorld([p], [group("g", p)], QueueLimits(timeout_s=5))
    w.lease()
    w.now = 100.01
    first = w.wait()
    w.now = 100.03
    second = w.wait()
    assert refused(list(w.pool.on_time(105.02))) == [(first.request_id, "queue_timeout")]
    assert second.waiting
    w.pool.validate()


@pytest.mark.req("POOL-6")
def test_cancelling_what_does_not_wait_changes_nothing() -> None:
    p = provider("p")
    w = PoolWorld([p], [group("g", p)])
    ticket = w.ticket()
    assert not w.pool.cancel(ticket, w.now)
    lease = w.pool.submit(ticket, w.now)
    assert lease is not None
    assert not w.pool.cancel(ticket, w.now), "a lease ends on evidence, not on a wish"
    assert w.pool.holds(lease)


@pytest.mark.req("POOL-6", "POOL-9")
def test_ten_thousand_cancelled_waiters_leave_nothing_behind() -> None:
    p = provider("p")
    w = PoolWorld([p], [group("g", p)], QueueLimits(max_waiters=10**6, max_waiters_per_principal=10**6))
    lease = w.lease()
    oldest = w.wait()
    tickets = [w.ticket() for _ in range(10_000)]
    for ticket in tickets:
        w.pool.submit(ticket, w.now)
    for ticket in tickets[::2] + tickets[1::2]:
        assert w.pool.cancel(ticket, w.now)
    assert w.pool.waiting == 1
    line = oldest.line
    assert line is not None
    assert len(line.queue) < 50, "tombstones are swept"
    w.pool.validate()
    assert granted(w.release(lease)) == [oldest.request_id]


@pytest.mark.req("POOL-11")
def test_an_alternate_is_preferred_to_the_avoided_provider() -> None:
    bad, good = provider("bad"), provider("good", capacity=2)
    w = PoolWorld([bad, good], [group("g", bad, good, priorities=[0, 9])])
    assert w.lease(avoid_provider_id="bad", allow_avoided_fallback=True).provider_id == "good"
    assert w.lease(avoid_provider_id="bad").provider_id == "good"
    waiter = w.wait(avoid_provider_id="bad")
    assert w.lease().provider_id == "bad", "who avoids nothing is not held up"
    assert waiter.waiting


@pytest.mark.req("POOL-11", "POOL-4")
def test_without_alternate_the_flag_decides() -> None:
    bad = provider("bad")
    w = PoolWorld([bad], [group("g", bad)])
    with pytest.raises(Unavailable):
        w.pool.submit(w.ticket(avoid_provider_id="bad"), w.now)
    assert w.lease(avoid_provider_id="bad", allow_avoided_fallback=True).provider_id == "bad"


@pytest.mark.req("POOL-11")
def test_avoidance_holds_at_every_later_admission_and_ends_when_no_alternate_is_left() -> None:
    bad, good = provider("bad", "n1"), provider("good", "n2")
    w = PoolWorld([bad, good], [group("g", bad, good)])
    leases = {lease.provider_id: lease for lease in (w.lease(), w.lease())}
    strict = w.wait(avoid_provider_id="bad")
    lenient = w.wait(avoid_provider_id="bad", allow_avoided_fallback=True)
    plain = w.wait()
    assert granted(w.release(leases["bad"])) == [lenient.request_id]
    actions = w.lose("n2")
    assert refused(actions) == [(strict.request_id, "unavailable")]
    assert plain.waiting
    w.pool.validate()


@pytest.mark.req("POOL-11")
def test_those_that_were_tried_come_behind_all_others() -> None:
    first, second, third = provider("first"), provider("second"), provider("third")
    w = PoolWorld([first, second, third], [group("g", first, second, third, priorities=[0, 1, 2])])
    ticket = w.ticket()
    lease = w.pool.submit(ticket, w.now)
    assert lease is not None
    chosen = [lease.provider_id]
    for avoided in ("first", "second", "third"):
        ticket.avoid_provider_id = avoided
        ticket.tried |= {avoided}
        (action,) = w.pool.readmit(ticket, lease, w.now, cause=ReleaseCause.TERMINAL, recovery=True)
        assert isinstance(action, Granted)
        lease = action.lease
        chosen.append(lease.provider_id)
    assert chosen == ["first", "second", "third", "first"], "without anybody new the better one of the others"
    w.pool.validate()


@pytest.mark.req("POOL-3")
def test_ready_gives_each_waiter_its_own_best_choice() -> None:
    first, second = provider("first", "n1"), provider("second", "n1")
    up = provider("up", "n2")
    w = PoolWorld([first, second, up], [group("g", first, second, up, priorities=[5, 0, 7])], ready=False)
    w.connect("n2")
    w.lease()
    w.wait()
    (action,) = w.connect("n1")
    assert isinstance(action, Granted)
    assert action.lease.provider_id == "second"


@pytest.mark.req("POOL-4")
def test_shutdown_refuses_waiters_and_newcomers_and_leaves_leases() -> None:
    p = provider("p")
    w = PoolWorld([p], [group("g", p)])
    lease, waiter = w.lease(), w.wait()
    assert refused(list(w.pool.shutdown(w.now))) == [(waiter.request_id, "shutting_down")]
    with pytest.raises(ShuttingDown):
        w.pool.submit(w.ticket(), w.now)
    assert w.pool.holds(lease)
    assert list(w.pool.release(lease, ReleaseCause.SHUTDOWN, w.now)) == []
    assert w.pool.leases_in_use == 0


@pytest.mark.req("POOL-7")
def test_a_ticket_is_submitted_once() -> None:
    p = provider("p", capacity=2)
    w = PoolWorld([p], [group("g", p)])
    ticket = w.ticket()
    w.pool.submit(ticket, w.now)
    with pytest.raises(InvalidArgument):
        w.pool.submit(ticket, w.now)
    assert w.pool.leases_in_use == 1


@pytest.mark.req("POOL-4")
def test_a_refused_newcomer_left_no_trace_and_may_come_again() -> None:
    p = provider("p")
    w = PoolWorld([p], [group("g", p)], ready=False)
    ticket = w.ticket()
    with pytest.raises(IopError):
        w.pool.submit(ticket, w.now)
    w.connect()
    assert w.pool.submit(ticket, w.now) is not None
