"""The rates and the cap of a key, under any order of requests (API-11)."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from iop.edge.keys.limits import PERIOD_S, SPAN_S, Key, Keyring, KeySpec, Permit, Window
from iop.errors import ConcurrencyLimited, RateLimited, RequestOverTokenLimit, TokenRateLimited

pytestmark = pytest.mark.req("API-11")

START = 1_000_000.0
STEPS = (0.0, 0.001, 0.05, 0.19, 0.2, 0.21, 1.0, 7.3, 29.0, 59.85, 59.9, 60.0, 61.0, 200.0)
gaps = st.lists(st.sampled_from(STEPS) | st.floats(0, 2), min_size=1, max_size=150)


def ask(key: Key, now: float, tokens: int = 0) -> Permit | RateLimited:
    """A whole request, or why it is not let in."""
    permit: Permit | None = None
    try:
        permit = key.admit(now)
        permit.reserve(tokens, now)
    except RateLimited as refused:
        if permit is not None:
            permit.end(now)
        return refused
    return permit


@pytest.mark.parametrize(("limit", "said"), [(1, "1 request "), (2, "2 requests ")])
def test_one_is_one_request(limit: int, said: str) -> None:
    for spec in (KeySpec("a", requests_per_minute=limit), KeySpec("a", max_concurrent_requests=limit)):
        key = Key(spec)
        permits = [key.admit(START) for _ in range(limit)]
        with pytest.raises(RateLimited, match=said):
            key.admit(START)
        assert len(permits) == limit


def most_in_a_minute(times: list[float]) -> int:
    """The greatest number of instants in any half-open minute."""
    return max((i + 1 - bisect_right(times, at - PERIOD_S) for i, at in enumerate(times)), default=0)


@given(gaps=gaps, limit=st.integers(1, 12))
@example(gaps=[0.0, 0.19, 59.86, 0.05], limit=2)  # what is counted together leaves with its last
def test_no_minute_has_more_requests_than_the_limit_and_retry_after_is_true(gaps: list[float], limit: int) -> None:
    key, now = Key(KeySpec("a", requests_per_minute=limit)), START
    let_in: list[float] = []
    for gap in gaps:
        now += gap
        refused = ask(key, now)
        if isinstance(refused, RateLimited):
            assert refused.retry_after_s is not None
            assert 1 <= refused.retry_after_s <= PERIOD_S + SPAN_S + 1
            later = Key(KeySpec("a", requests_per_minute=limit))  # the same story, and nothing else until then
            for at in let_in:
                later.admit(at)
            later.admit(now + refused.retry_after_s)
            # Not longer than a client would have had to wait for an exact window, but for the rounding.
            exact = let_in[-limit] + PERIOD_S - now
            assert refused.retry_after_s <= exact + SPAN_S + 1.001
        else:
            let_in.append(now)
    assert most_in_a_minute(let_in) <= limit


@settings(max_examples=40)
@given(limit=st.integers(1, 3000), every=st.sampled_from([0.001, 0.01, 0.05, 0.1337]))
def test_a_steady_client_gets_what_the_limit_says(limit: int, every: float) -> None:
    """Asks at a steady pace, ten minutes long, and would get at least a tenth more if it were let in each time."""
    limit = min(limit, int(0.9 * PERIOD_S / every))
    key, let_in, step, steps = Key(KeySpec("a", requests_per_minute=limit)), 0, 0, int(10 * PERIOD_S / every)
    while step < steps:
        now = START + step * every
        wait_s = key.counters.requests.wait_s(now, 1, limit)
        if not wait_s:
            key.admit(now)
            let_in += 1
        step += max(1, int(wait_s / every))  # what it asks before that is refused
    assert 0.99 * 10 * limit <= let_in <= 10 * limit


@given(
    uses=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 40), st.integers(0, 400)), min_size=1, max_size=80),
    limit=st.integers(40, 200),
)
def test_tokens_over_the_limit_are_made_up_for(uses: list[tuple[float, int, int]], limit: int) -> None:
    """One request after the other, each as soon as it may: what is spent stays, over any time, within the limit's rate
    but for the last request before a refusal."""
    key, now = Key(KeySpec("a", tokens_per_minute=limit)), START
    spent = 0
    for gap, estimate, used in uses:
        now += gap
        permit = ask(key, now, estimate)
        for _ in range(
            2
        ):  # the head alone asks for one token; the whole request may have to wait once more for its own
            if isinstance(permit, TokenRateLimited):
                assert permit.retry_after_s is not None
                now += permit.retry_after_s
                permit = ask(key, now, estimate)
        assert isinstance(permit, Permit), "Retry-After was not true"
        if spent:
            assert spent <= limit * (1 + (now - START) / PERIOD_S) + 1e-6
        permit.end(now, (estimate, used, None, None))
        spent += estimate + used
        assert key.counters.reserved == 0


@given(
    uses=st.lists(st.tuples(st.floats(0, 100), st.integers(1, 3000)), min_size=1, max_size=40),
    count=st.integers(1, 100),
)
def test_the_wait_is_over_when_it_is_over(uses: list[tuple[float, int]], count: int) -> None:
    window, now, limit = Window(), START, 100
    for gap, used in uses:
        now += gap
        window.spend(now, used, limit)
    wait_s = window.wait_s(now, count, limit)
    if wait_s:
        twin, at = Window(), START
        for gap, used in uses:
            at += gap
            twin.spend(at, used, limit)
        assert twin.wait_s(now + wait_s - 0.001, count, limit) > 0
    assert window.wait_s(now + wait_s + 1e-6, count, limit) == 0


def test_a_window_is_small_and_an_idle_hour_costs_nothing() -> None:
    window = Window()
    for i in range(100_000):
        window.add(START + i * 0.003, 1)
    assert len(window._entries) <= PERIOD_S / SPAN_S + 1
    window.spend(START + 400, 10**9, 1000)
    assert window.held(START + 400) == 61 * 1000  # an hour beyond this minute
    assert window.held(START + 400 + 59.9) == 61_000
    assert window.held(START + 400 + 60) == 60_000
    assert window.held(START + 400 + 30.5 * 60) == 31_000
    assert window.held(START + 400 + 3600) == 1000
    assert window.held(START + 10**9) == 0
    assert not window._entries


def test_what_is_refused_for_its_tokens_or_its_place_is_no_request() -> None:
    key = Key(KeySpec("a", max_concurrent_requests=1, requests_per_minute=2, tokens_per_minute=10))
    assert isinstance(ask(key, START, 11), RequestOverTokenLimit)
    first = ask(key, START, 10)
    assert isinstance(first, Permit)
    assert isinstance(ask(key, START, 1), TokenRateLimited)
    first.end(START)
    second = ask(key, START, 5)
    assert isinstance(second, Permit)
    assert isinstance(ask(key, START, 5), RateLimited)
    second.end(START)
    assert key.counters.requests.held(START) == 2
    for _ in range(3):
        assert isinstance(ask(key, START + 61, 11), RequestOverTokenLimit)
    assert key.counters.requests.held(START + 61) == 0


@pytest.mark.parametrize(
    ("patterns", "good", "bad"),
    [
        (["m"], ["m"], ["mm", "m\n", "M", ""]),
        (["qwen*", "llama"], ["qwen", "qwen3:8b", "qwen\n", "llama"], ["aqwen", "llama3"]),
        (["*"], ["", "a", "a/b\nc"], []),
        (["a*b.c"], ["ab.c", "axxb.c"], ["abxc", "ab.cd"]),
        (["[x]+", "(", "a|b"], ["[x]+", "(", "a|b"], ["x", "a", "b"]),
    ],
)
def test_only_a_star_stands_for_something_else(patterns: list[str], good: list[str], bad: list[str]) -> None:
    key = Key(KeySpec("a", models=tuple(patterns)))
    assert [name for name in good if not key.may_use(name, "#")] == []
    assert [name for name in bad if key.may_use(name, "#")] == []
    assert key.may_use("#", good[-1])


class Cap(RuleBasedStateMachine):
    """Requests of one key come, are let in or not, and end in any way, while its limits are reloaded."""

    @initialize(cap=st.integers(1, 4))
    def start(self, cap: int) -> None:
        self.ring = Keyring()
        self.now = START
        self.cap: int | None = None
        self.under_way: list[Permit] = []
        self.over: list[Permit] = []
        self.configure(cap)

    @rule(cap=st.integers(1, 4))
    def configure(self, cap: int) -> None:
        self.cap = cap
        self.ring.configure({b"k": KeySpec("a", max_concurrent_requests=cap, tokens_per_minute=1000)})

    @rule()
    def same_again(self) -> None:
        before = self.ring.keys[b"k"]
        self.ring.configure({b"k": before.spec, b"other": KeySpec("b")})
        assert self.ring.keys[b"k"] is before

    @rule(wait=st.floats(0, 90))
    def time(self, wait: float) -> None:
        self.now += wait

    @rule(tokens=st.integers(0, 1500))
    def request(self, tokens: int) -> None:
        full = len(self.under_way) >= (self.cap or 0)
        told = ask(self.ring.keys[b"k"], self.now, tokens)
        if isinstance(told, ConcurrencyLimited):
            assert full
            assert told.retry_after_s == 1
        elif isinstance(told, RequestOverTokenLimit):
            assert tokens > 1000
            assert told.retry_after_s is None
        elif isinstance(told, Permit):
            assert not full
            assert tokens <= 1000
            self.under_way.append(told)

    @rule(index=st.integers(0, 9), tokens=st.none() | st.integers(0, 300))
    def end(self, index: int, tokens: int | None) -> None:
        if self.under_way:
            permit = self.under_way.pop(index % len(self.under_way))
            permit.end(self.now, None if tokens is None else (tokens, None, None, None))
            self.over.append(permit)

    @rule(index=st.integers(0, 9))
    def free_early(self, index: int) -> None:
        """The answer is there and the node's last word is not: the place is free, the tokens are still held."""
        if self.under_way:
            permit = self.under_way.pop(index % len(self.under_way))
            reserved = self.ring.keys[b"k"].counters.reserved
            permit.free()
            assert self.ring.keys[b"k"].counters.reserved == reserved
            permit.end(self.now)
            self.over.append(permit)

    @rule(index=st.integers(0, 9))
    def end_again(self, index: int) -> None:
        if self.over:
            used = self.ring.keys[b"k"].counters.tokens.held(self.now)
            permit = self.over[index % len(self.over)]
            permit.free()
            permit.end(self.now, (100, 100, None, None))
            assert self.ring.keys[b"k"].counters.tokens.held(self.now) == used

    @invariant()
    def places_add_up(self) -> None:
        counters = self.ring.keys[b"k"].counters
        assert counters.in_flight == len(self.under_way)
        assert counters.reserved >= 0
        assert self.under_way or counters.reserved == 0


TestCap = Cap.TestCase
TestCap.settings = settings(max_examples=60, stateful_step_count=40)
