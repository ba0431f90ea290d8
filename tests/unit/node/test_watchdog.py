"""The watchdog by itself: when silence is a stall, and when a stall can be told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop.execution.failure import LivenessClassification, ProviderHealth
from iop.node.calls.watchdog import INTERVALS, Do, Phase, Watchdog

AVAILABLE, UNAVAILABLE, UNKNOWN = ProviderHealth


def claimed(stall_ms: int = 1000) -> Watchdog:
    watchdog = Watchdog(stall_ms, None)
    assert watchdog.look(stall_ms / 1000, 0.0, progressed=True, held=False) is Do.CLAIM
    return watchdog


@pytest.mark.req("LIVE-1")
@pytest.mark.parametrize(
    ("stall_ms", "first_ms", "first_s", "then_s"),
    [
        (0, None, 300.0, 300.0),
        (5000, None, 5.0, 5.0),
        (0, 7000, 7.0, 300.0),
        (5000, 7000, 7.0, 5.0),
        (5000, 3000, 3.0, 5.0),
        (5000, 0, None, 5.0),
        (1, 86_400_000, 86_400.0, 0.001),
    ],
)
def test_one_clock_until_the_first_progress_and_another_behind_it(
    stall_ms: int, first_ms: int | None, first_s: float | None, then_s: float
) -> None:
    for progressed, limit_s in ((False, first_s), (True, then_s)):
        before = (limit_s or 1e6) * 0.999
        watchdog = Watchdog(stall_ms, first_ms)
        assert watchdog.look(10.0 + before, 10.0, progressed=progressed, held=False) is not Do.CLAIM
        stalled = watchdog.look(10.0 + (limit_s or 1e9) * 1.001, 10.0, progressed=progressed, held=False) is Do.CLAIM
        assert stalled == (limit_s is not None)
        assert (watchdog.phase is Phase.CLAIMED) == stalled


@pytest.mark.req("LIVE-4")
def test_nobody_is_to_blame_while_we_hold_the_provider_up() -> None:
    watchdog = Watchdog(1000, None)
    assert watchdog.look(1e6, 0.0, progressed=True, held=True) == 1e6
    assert watchdog.phase is Phase.FLOWING


@pytest.mark.req("LIVE-3", "LIVE-5")
@given(
    st.lists(st.tuples(st.floats(0.01, 3.0), st.booleans(), st.booleans()), max_size=30),
    st.integers(1, 4000),
    st.none() | st.integers(0, 4000),
)
def test_a_stall_is_claimed_when_its_limit_is_reached_and_only_once(
    steps: list[tuple[float, bool, bool]], stall_ms: int, first_ms: int | None
) -> None:
    """However it is looked at; it says in time when to look next."""
    watchdog = Watchdog(stall_ms, first_ms)
    now, since, progressed, stalled, next_at = 0.0, 0.0, False, False, 0.0
    for step_s, progress, held in steps:
        now += step_s
        if stalled:
            break
        if progress:
            since, progressed = now, True
        limit_s = stall_ms / 1000 if progressed or first_ms is None else first_ms / 1000 or None
        due = limit_s is not None and not held and since + limit_s - now <= 0
        look_at = watchdog.look(now, since, progressed=progressed, held=held)
        stalled = look_at is Do.CLAIM
        assert stalled == due
        if due and not held:
            assert now >= next_at or progress, "it would have been found too late"
        next_at = now if isinstance(look_at, Do) else look_at
    assert (watchdog.phase is Phase.CLAIMED) == stalled


@pytest.mark.req("LIVE-5", "LIVE-6", "LIVE-7")
@given(st.lists(st.sampled_from(["closed", "grace", *ProviderHealth]), max_size=8))
def test_it_is_told_once_after_the_last_of_close_and_probe(events: list[str]) -> None:
    watchdog = claimed()
    reported = 0
    closed = over = in_grace = False
    health: ProviderHealth | None = None
    for event in events:
        if event == "closed":
            if closed:
                continue
            due, closed, in_grace = watchdog.call_closed(), True, not over
        elif event == "grace":
            due, over = watchdog.grace_ended(), True
        else:
            due = watchdog.probed(ProviderHealth(event), 7)
            health = health or ProviderHealth(event)
        reported += due
        assert reported == (health is not None and (closed or over)), "too early, too late or again"
        assert watchdog.phase in (Phase.CLAIMED, Phase.REPORTED), "the claim was lifted"
        if due:
            assert health is not None
            failure = watchdog.failure()
            assert (failure.code, failure.provider_health, failure.health_observation_seq) == (
                "response_stalled",
                health,
                7,
            )
            assert failure.close_confirmed == closed
            assert failure.retryable == (closed and in_grace)


@pytest.mark.req("LIVE-6", "LIVE-7")
@pytest.mark.parametrize(
    ("health", "meaning"),
    [(AVAILABLE, "request_stalled"), (UNAVAILABLE, "provider_unhealthy"), (UNKNOWN, "health_unknown")],
)
def test_what_a_probe_said_is_evidence_and_grants_nothing(health: ProviderHealth, meaning: str) -> None:
    watchdog = claimed()
    assert not watchdog.probed(health, 3)
    assert watchdog.grace_ended()
    failure = watchdog.failure()
    assert (failure.provider_health, failure.liveness_classification) == (health, LivenessClassification(meaning))
    assert (failure.retryable, failure.close_confirmed, failure.idle_ms) == (False, False, 1000)


# ---- LIVE-2b: an answer that comes whole ----------------------------------------------------------------------------


@pytest.mark.req("LIVE-2b")
def test_an_explicit_first_response_timeout_is_a_clock_for_whole_answers_too() -> None:
    assert Watchdog(1000, 5000, whole=True).look(5.0, 0.0, progressed=False, held=False) is Do.CLAIM
    assert Watchdog(1000, None, whole=True).look(5.0, 0.0, progressed=False, held=False) is Do.PROBE


@pytest.mark.req("LIVE-2b")
@given(
    st.lists(st.tuples(st.sampled_from(ProviderHealth), st.booleans()), min_size=INTERVALS, max_size=INTERVALS),
    st.integers(0, INTERVALS),
)
def test_a_quiet_call_is_probed_at_each_interval_and_its_probes_decide(
    said: list[tuple[ProviderHealth, bool]], begins_at: int
) -> None:
    """Until a byte has come, at interval ``begins_at``: then the ordinary clock counts."""
    watchdog = Watchdog(1000, None, whole=True)
    now, unknown, idle = 0.0, 0, 0
    for interval, (health, engine_idle) in enumerate(said, 1):
        assert watchdog.look(now + 0.9, 0.0, progressed=False, held=False) == pytest.approx(now + 1.0)
        now += 1.0
        if interval == begins_at:
            assert watchdog.look(now, now, progressed=True, held=False) == now + 1.0
            assert watchdog.look(now + 1.0, now, progressed=True, held=False) is Do.CLAIM
            return
        wanted = Do.CLAIM if interval == INTERVALS else Do.PROBE
        assert watchdog.look(now, 0.0, progressed=False, held=False) is wanted
        if wanted is Do.CLAIM:
            break
        unknown = unknown + 1 if health is UNKNOWN else 0
        idle = idle + 1 if engine_idle else 0
        over = health is UNAVAILABLE or unknown == 2 or idle == 2
        assert watchdog.look(now + 0.1, 0.0, progressed=False, held=False) == now + 0.1, "it waits for its probe"
        assert watchdog.looked(now + 0.2, 0.0, health, idle=engine_idle, progressed=False) == over
        if over:
            break
    assert watchdog.phase is Phase.CLAIMED
    assert watchdog.awaits_probe


@pytest.mark.req("LIVE-2b")
@pytest.mark.parametrize("health", list(ProviderHealth))
def test_what_a_quiet_call_s_probe_says_behind_the_first_byte_counts_no_more(health: ProviderHealth) -> None:
    watchdog = Watchdog(1000, None, whole=True)
    assert watchdog.look(1.0, 0.0, progressed=False, held=False) is Do.PROBE
    assert not watchdog.looked(1.2, 0.0, health, idle=True, progressed=True)
    assert watchdog.look(1.3, 1.1, progressed=True, held=False) == pytest.approx(2.1)
