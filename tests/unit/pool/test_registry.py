"""Ownership of nodes (REG)."""

from __future__ import annotations

import pytest

from iop.errors import InvalidTransition
from iop.pool import Claim, Granted, LossOutcome, OwnerAlive, OwnerProbe, ProbeVerdict, ReadyOutcome, Revoked
from iop.pool.registry import TRANSITIONS, NodeEvent, NodeRecord, NodeState, Registry
from tests.unit.pool.pool_world import PoolWorld, group, provider

P1 = provider("p1")


def world(*, ready: bool = True) -> PoolWorld:
    return PoolWorld([P1], [group("g", P1)], ready=ready)


@pytest.mark.req("REG-1", "REG-3")
def test_a_claim_is_pending_until_ready_and_takes_no_request() -> None:
    w = world(ready=False)
    generation = w.claim()
    assert w.pool.is_current("n1", generation)
    assert w.pool.snapshot(w.now)["nodes"][0]["connected"] is False
    with pytest.raises(Exception, match="no provider"):
        w.pool.submit(w.ticket(), w.now)
    assert w.pool.ready("n1", generation, {}, w.now).outcome is ReadyOutcome.ACTIVATED
    assert w.pool.snapshot(w.now)["nodes"][0]["connected"] is True
    assert w.lease().generation == generation


@pytest.mark.req("REG-2")
def test_a_node_that_is_not_configured_cannot_be_claimed() -> None:
    with pytest.raises(KeyError):
        world().pool.claim("n9", 0.0)


@pytest.mark.req("REG-2")
@pytest.mark.parametrize("ready", [True, False])
def test_a_duplicate_names_the_owner_and_does_not_disturb_it(ready: bool) -> None:
    w = world(ready=ready)
    owner = w.generations["n1"] if ready else w.claim()
    before = w.pool.snapshot(w.now)
    for _ in range(3):
        assert w.pool.claim("n1", w.now) == OwnerAlive("n1", owner)
    assert w.pool.snapshot(w.now) == before
    assert w.pool.is_current("n1", owner)


@pytest.mark.req("REG-2", "REG-4")
def test_when_the_probed_owner_is_dead_the_newcomer_gets_a_new_generation() -> None:
    w = world()
    old = w.generations["n1"]
    lease = w.lease()
    loss = w.pool.lost("n1", old, w.now)
    answer = w.pool.claim("n1", w.now)
    assert isinstance(answer, Claim)
    assert answer.generation > old
    assert [type(a) for a in loss.actions] == [Revoked]
    assert not w.pool.holds(lease)


@pytest.mark.req("REG-2")
def test_the_owner_is_dead_only_if_its_socket_failed_or_no_byte_came_in_two_seconds() -> None:
    probe = OwnerProbe(bytes_received=500, now=10.0)
    assert probe.due_at == 12.0
    assert probe.verdict(500, False, 11.9) is ProbeVerdict.UNDECIDED
    assert probe.verdict(500, False, 12.0) is ProbeVerdict.DEAD
    assert probe.verdict(501, False, 12.0) is ProbeVerdict.ALIVE
    assert probe.verdict(500, True, 10.1) is ProbeVerdict.DEAD


@pytest.mark.req("REG-4")
def test_a_repeated_ready_is_acknowledged_and_does_nothing() -> None:
    w = world()
    w.lease()
    before = w.pool.snapshot(w.now)
    again = w.pool.ready("n1", w.generations["n1"], {"p1": 1}, w.now)
    assert (again.outcome, list(again.actions)) == (ReadyOutcome.REPEATED, [])
    assert w.pool.snapshot(w.now) == before


@pytest.mark.req("REG-4", "REG-5")
def test_a_stale_generation_changes_nothing() -> None:
    w = world()
    old = w.generations["n1"]
    w.lose()
    w.connect()
    w.lease()
    before = w.pool.snapshot(w.now)
    assert w.pool.ready("n1", old, {"p1": 5}, w.now).outcome is ReadyOutcome.STALE
    assert w.pool.lost("n1", old, w.now).outcome is LossOutcome.STALE
    assert w.pool.lost("n9", 1, w.now).outcome is LossOutcome.STALE
    assert not w.pool.drain("n1", old, w.now)
    assert not w.pool.call_closed("n1", old, "p1", w.now)
    assert w.pool.snapshot(w.now) == before
    assert w.pool.stats.stale_events == 4


@pytest.mark.req("REG-3")
def test_the_end_of_a_pending_claim_only_releases_the_claim() -> None:
    w = world(ready=False)
    loss = w.pool.lost("n1", w.claim(), w.now)
    assert (loss.outcome, list(loss.actions)) == (LossOutcome.PENDING, [])
    assert isinstance(w.pool.claim("n1", w.now), Claim)


@pytest.mark.req("REG-3")
def test_ready_serves_the_waiters() -> None:
    p2 = provider("p2", "n2")
    w = PoolWorld([P1, p2], [group("g", P1, p2)], ready=False)
    w.connect("n1")
    w.lease()
    waiter = w.wait()
    actions = w.connect("n2")
    assert [(type(a), a.ticket, a.lease.provider_id) for a in actions if isinstance(a, Granted)] == [
        (Granted, waiter, "p2")
    ]
    w.pool.validate()


@pytest.mark.req("REG-5", "POOL-7")
def test_a_lost_owner_returns_each_lease_once() -> None:
    wide = provider("wide", capacity=3)
    w = PoolWorld([wide], [group("g", wide)])
    leases = [w.lease() for _ in range(3)]
    actions = w.lose()
    assert [a.lease for a in actions if isinstance(a, Revoked)] == leases
    assert {a.error.code for a in actions if isinstance(a, Revoked)} == {"node_disconnected"}
    assert w.pool.leases_in_use == 0
    for lease in leases:
        assert w.release(lease) == []
    assert w.pool.stats.returned_twice == 3
    assert w.pool.stats.released["generation_dead"] == 3  # type: ignore[index]


@pytest.mark.req("REG-6")
def test_offline_nodes_stay_in_the_snapshot_and_come_back_whole() -> None:
    off = provider("off", enabled=False)
    wide = provider("wide", capacity=4)
    w = PoolWorld([wide, off], [group("g", wide, off)])
    w.lease()
    w.lose()
    assert w.pool.snapshot(w.now)["nodes"][0]["connected"] is False
    row = w.row("wide")
    assert (row["status"], row["health"]) == ("unavailable", "offline")
    assert (row["capacity"], row["in_use"], row["long_in_use"], row["lingering"]) == (0, 0, 0, 0)
    assert w.row("off")["status"] == "disabled"
    w.connect()
    assert (w.row("wide")["status"], w.row("wide")["health"], w.row("wide")["capacity"]) == (
        "available",
        "available",
        4,
    )


@pytest.mark.req("REG-4")
def test_the_table_is_total_and_its_story_is_told() -> None:
    record = NodeRecord("n1")
    record.move(NodeEvent.CLAIMED)
    record.move(NodeEvent.LOST)
    with pytest.raises(InvalidTransition, match=r"offline.*claimed.*lost"):
        record.move(NodeEvent.READIED)
    assert {state for state, _ in TRANSITIONS} == set(NodeState)
    assert {event for _, event in TRANSITIONS} == set(NodeEvent)


@pytest.mark.req("REG-4")
def test_generations_are_unique_over_all_nodes() -> None:
    registry = Registry()
    seen = []
    for i in range(20):
        node_id = registry.add(f"n{i % 3}").node_id
        claim = registry.claim(node_id)
        assert isinstance(claim, Claim)
        seen.append(claim.generation)
        registry.lost(node_id, claim.generation)
        registry.validate()
    assert seen == sorted(set(seen))
