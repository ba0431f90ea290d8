"""The node's reconnect policy (SUP-1 to SUP-3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop.errors import InvalidArgument, InvalidTransition
from iop.node.uplink.reconnect import (
    EXIT_CODES,
    JITTER,
    MIN_DELAY_S,
    TRANSITIONS,
    Ended,
    Exit,
    ReconnectPolicy,
    Retry,
    State,
    SupervisorPolicy,
)

FATAL = {
    Ended.BAD_CONFIG: 2,
    Ended.UNKNOWN_TOKEN: 3,
    Ended.IDENTITY_MISMATCH: 3,
    Ended.PROTOCOL_MISMATCH: 3,
    Ended.EDGE_UNTRUSTED: 3,
}
LOCAL = {Ended.LOCAL_SHUTDOWN, Ended.ATTEMPTS_EXHAUSTED}
RETRYABLE = sorted(set(Ended) - set(FATAL) - LOCAL)


def machine(max_attempts: int = 10, interval_s: float = 10.0) -> SupervisorPolicy:
    return SupervisorPolicy(ReconnectPolicy(max_attempts, interval_s))


def fail(m: SupervisorPolicy, reason: Ended = Ended.CONNECT_FAILED, jitter: float = 0.5) -> Retry | Exit:
    if m.state is State.WAITING:
        m.retry()
    return m.ended(reason, jitter)


@pytest.mark.req("SUP-2")
def test_defaults() -> None:
    assert (ReconnectPolicy().max_attempts, ReconnectPolicy().interval_s) == (10, 10.0)


@pytest.mark.req("SUP-2", "SUP-3")
def test_finite_attempts_are_counted_and_then_exhausted() -> None:
    m = machine(3)
    assert [fail(m) for _ in range(2)] == [
        Retry(1.0, Ended.CONNECT_FAILED, 1, 3),
        Retry(2.0, Ended.CONNECT_FAILED, 2, 3),
    ]
    assert fail(m) == Exit(4, Ended.ATTEMPTS_EXHAUSTED, Ended.CONNECT_FAILED)
    assert m.state is State.STOPPED


@pytest.mark.req("SUP-1", "SUP-2")
def test_a_ready_session_resets_the_count_and_its_loss_is_retried() -> None:
    m = machine(2)
    fail(m)
    for _ in range(5):
        m.retry()
        m.ready()
        assert m.ended(Ended.HEARTBEAT_TIMEOUT, 0.5) == Retry(1.0, Ended.HEARTBEAT_TIMEOUT, 0, 2)
    assert isinstance(fail(m), Retry)
    assert fail(m) == Exit(4, Ended.ATTEMPTS_EXHAUSTED, Ended.CONNECT_FAILED)


@pytest.mark.req("SUP-2")
def test_zero_is_unlimited() -> None:
    m = machine(0, 1.0)
    for attempt in range(1, 500):
        assert fail(m) == Retry(1.0, Ended.CONNECT_FAILED, attempt, 0)


@pytest.mark.req("SUP-2")
@pytest.mark.parametrize(("attempts", "interval"), [(0, 0), (-1, 10), (3, -0.1), (3, float("nan")), (0, float("inf"))])
def test_policies_that_mean_nothing_are_refused(attempts: int, interval: float) -> None:
    with pytest.raises(InvalidArgument, match="reconnect"):
        ReconnectPolicy(attempts, interval)


@pytest.mark.req("SUP-2")
@given(interval=st.floats(0, 1e6), jitter=st.floats(-1, 2))
def test_delays_spread_around_the_interval_and_are_never_a_busy_loop(interval: float, jitter: float) -> None:
    policy = machine(0 if interval else 9, interval)
    for _ in range(8):  # by then the delays have grown to the interval, unless that is longer
        decision = fail(policy, jitter=jitter)
    assert isinstance(decision, Retry)
    interval = min(interval, 128.0)
    assert decision.delay_s >= MIN_DELAY_S
    assert decision.delay_s == MIN_DELAY_S or (
        interval * (1 - JITTER) * 0.999 <= decision.delay_s <= interval * (1 + JITTER) * 1.001
    )


@pytest.mark.req("SUP-2")
def test_the_first_delays_are_short_and_grow_to_the_interval() -> None:
    m = machine(0, 10.0)
    assert [fail(m).delay_s for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]  # type: ignore[union-attr]
    m.retry()
    m.ready()
    lost = m.ended(Ended.CONNECTION_LOST, 0.5)
    assert isinstance(lost, Retry)
    assert [lost.delay_s, *(fail(m).delay_s for _ in range(2))] == [1.0, 2.0, 4.0]  # type: ignore[union-attr]


@pytest.mark.req("SUP-2")
def test_different_jitter_gives_different_delays() -> None:
    delays = [d.delay_s for j in (0.0, 0.3, 0.9) if isinstance(d := fail(machine(), jitter=j), Retry)]
    assert delays == sorted(set(delays))
    assert len(delays) == 3


@pytest.mark.req("SUP-3")
@pytest.mark.parametrize(("reason", "code"), FATAL.items())
@pytest.mark.parametrize("ready", [True, False])
def test_fatal_reasons_stop_at_once_with_their_code(reason: Ended, code: int, ready: bool) -> None:
    m = machine(0, 1.0)
    if ready:
        m.ready()
        if reason is Ended.EDGE_UNTRUSTED:
            return  # the next test
    assert m.ended(reason, 0.5) == Exit(code, reason, reason)
    assert m.state is State.STOPPED


@pytest.mark.req("SUP-3")
@given(st.lists(st.sampled_from([Ended.EDGE_UNTRUSTED, Ended.CONNECT_FAILED]), max_size=12), st.integers(2, 12))
def test_another_edge_at_the_address_of_one_that_was_trusted_is_retried_like_any_other_failure(
    reasons: list[Ended], limit: int
) -> None:
    m, like = machine(limit), machine(limit)
    for policy in (m, like):
        policy.ready()
        assert isinstance(policy.ended(Ended.CONNECTION_LOST, 0.5), Retry)
    for reason in reasons:
        if m.state is State.STOPPED:
            break
        got, plain = fail(m, reason), fail(like)
        assert type(got) is type(plain)
        assert (got.reason if isinstance(got, Retry) else got.last) is reason
    assert m.state is like.state
    if m.state is State.WAITING:
        m.retry()
        m.ready()
        assert m.attempts == 0


@pytest.mark.req("SUP-3")
def test_an_edge_that_was_never_ready_and_is_not_to_be_trusted_ends_it_after_other_failures_too() -> None:
    m = machine(0, 1.0)
    fail(m)
    assert fail(m, Ended.EDGE_UNTRUSTED) == Exit(3, Ended.EDGE_UNTRUSTED, Ended.EDGE_UNTRUSTED)


@pytest.mark.req("SUP-3")
@pytest.mark.parametrize("reason", RETRYABLE)
def test_everything_else_is_retryable(reason: Ended) -> None:
    assert isinstance(fail(machine(), reason), Retry)
    assert {Ended.DUPLICATE_CONNECTION, Ended.CONFIG_BUILD_FAILED, Ended.CONNECT_FAILED} <= set(RETRYABLE)


@pytest.mark.req("SUP-3")
@pytest.mark.parametrize("state", [State.CONNECTING, State.READY, State.WAITING])
def test_local_shutdown_exits_zero_from_every_state(state: State) -> None:
    m = machine()
    if state is State.READY:
        m.ready()
    elif state is State.WAITING:
        fail(m)
    assert m.shutdown() == Exit(0, Ended.LOCAL_SHUTDOWN)
    with pytest.raises(InvalidTransition):
        m.shutdown()


@pytest.mark.req("SUP-1")
def test_events_that_cannot_happen_are_refused_with_the_story() -> None:
    m = machine()
    m.ready()
    with pytest.raises(InvalidTransition, match="ready"):
        m.retry()
    fail(m)
    with pytest.raises(InvalidTransition, match="ready > failed"):
        m.ready()
    assert {state for state, _ in TRANSITIONS} == set(State) - {State.STOPPED}
    assert set(EXIT_CODES.values()) == {0, 2, 3, 4}
