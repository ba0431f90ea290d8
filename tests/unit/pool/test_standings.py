"""What the pool says of each candidate of a request, and that it changes nothing by that (OBS-7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from iop.pool import Ticket
from iop.pool.standings import SHOWN, Standing, spelled_out
from tests.unit.pool.pool_world import PoolWorld, group, provider

LONG = {"long_threshold_tokens": 100, "long_capacity": 1}


def world(**spec: object) -> PoolWorld:
    """Two providers on two nodes: ``a``, which has ``spec``, is preferred to ``b``."""
    a, b = provider("a", "n1", **{"capacity": 2, **spec}), provider("b", "n2", capacity=5)  # type: ignore[arg-type]
    return PoolWorld([a, b], [group("g", a, b, priorities=[0, 1])])


def told(w: PoolWorld, ticket: Ticket, most: int = 10) -> list[Standing]:
    return [Standing(*fields) for fields in w.pool.explain(ticket, most)[0]]


def _fill(w: PoolWorld) -> None:
    w.lease()
    w.lease()


def _reconfigure(w: PoolWorld, **change: object) -> None:
    w.providers[0] = replace(w.providers[0], **change)  # type: ignore[arg-type]
    w.configure()


REASONS: dict[str, Callable[[PoolWorld], object]] = {
    "open": lambda w: None,
    "full": _fill,
    "offline": lambda w: w.lose("n1"),
    "draining": lambda w: w.pool.drain("n1", w.generations["n1"], w.now),
    "drained": lambda w: w.pool.set_drained("n1", "a", True, w.now),
    "lowered": lambda w: w.pool.set_overlay("n1", w.generations["n1"], "a", True, w.now),
    "disabled": lambda w: _reconfigure(w, enabled=False),
    "pending": lambda w: _reconfigure(w, kind="ollama"),
}


@pytest.mark.req("OBS-7", "POOL-3")
@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_has_its_name(reason: str) -> None:
    w = world()
    REASONS[reason](w)
    found = told(w, w.ticket())
    assert [(s.node, s.provider, s.priority) for s in found] == [("n1", "a", 0), ("n2", "b", 1)]
    assert [s.standing for s in found] == [reason, "open"]
    w.pool.validate()


@pytest.mark.req("OBS-7", "POOL-2")
@pytest.mark.parametrize(("capacity", "standing"), [(1, "long_full"), (0, "no_long_slots")])
def test_long_requests_have_reasons_of_their_own(capacity: int, standing: str) -> None:
    w = world(capacity=5, long_threshold_tokens=100, long_capacity=capacity)
    if capacity:
        w.lease(tokens=200)
    assert [s.standing for s in told(w, w.ticket(tokens=200))] == [standing, "open"]
    assert [s.standing for s in told(w, w.ticket(tokens=99))] == ["open", "open"]


@pytest.mark.req("OBS-7", "POOL-11")
def test_who_is_avoided_is_said_unless_it_is_the_last_resort() -> None:
    w = world()
    strict = w.ticket(avoid_provider_id="a")
    assert [s.standing for s in told(w, strict)] == ["avoided", "open"]
    assert w.pool.has_candidate(strict)
    lenient = w.ticket(avoid_provider_id="a", allow_avoided_fallback=True)
    assert [s.standing for s in told(w, lenient)] == ["open", "open"]


@pytest.mark.req("OBS-7")
@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("tokens", [1, 200])
def test_a_grant_keeps_how_the_candidates_stood_before_it(reason: str, tokens: int) -> None:
    w = world(long_threshold_tokens=100, long_capacity=1)
    w.release(w.lease(tokens=tokens))
    REASONS[reason](w)
    if tokens == 200:
        w.lease(tokens=200)  # which leaves no long slot where one is open
    ticket = w.ticket(tokens=tokens)
    before = w.pool.explain(ticket, SHOWN)
    assert w.pool.submit(ticket, w.now) is not None
    w.lose("n1")
    assert ticket.stood is not None
    assert spelled_out(ticket.stood) == before


@pytest.mark.req("OBS-7")
def test_what_is_kept_of_many_candidates_is_bounded() -> None:
    providers = [provider(f"p{i}", "n1") for i in range(2 * SHOWN)]
    w = PoolWorld(providers, [group("g", *providers)])
    ticket = w.ticket()
    before = w.pool.explain(ticket, SHOWN)
    assert w.pool.submit(ticket, w.now) is not None
    assert ticket.stood is not None
    assert spelled_out(ticket.stood) == before
    assert (len(before[0]), before[1]) == (SHOWN, 2 * SHOWN)


@pytest.mark.req("OBS-7")
def test_a_request_that_waits_keeps_nothing_of_a_grant() -> None:
    p = provider("a", "n1", capacity=1)
    w = PoolWorld([p], [group("g", p)])
    w.lease()
    assert w.wait().stood is None


@pytest.mark.req("OBS-7")
def test_use_is_said_and_what_is_looked_at_is_bounded() -> None:
    w = world()
    _fill(w)
    found = told(w, w.ticket(), 1)
    assert [(s.in_use, s.capacity) for s in found] == [(2, 2)]
    assert w.pool.explain(w.ticket(), 1)[1] == 2
    assert w.pool.explain(w.ticket("other"), 1) == ([], 0)
