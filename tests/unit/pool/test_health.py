"""The overlay: which evidence lowers and restores a provider, and when it is asked about (HEALTH)."""

from __future__ import annotations

import pytest

from iop.execution.failure import LivenessClassification, ProviderHealth
from iop.pool.health import (
    FIRST_ASK_S,
    JITTER,
    LAST_ASK_S,
    Change,
    Evidence,
    Identity,
    Known,
    Lowering,
    Overlay,
    OverlayState,
    Result,
    Source,
    Verdict,
)

KNOWN = {
    ("n1", "p"): Known("vllm", "http://a", frozenset({"t", "u"})),
    ("n1", "q"): Known("vllm", "http://b", frozenset({"t"})),
    ("n2", "r"): Known("ollama", "http://c", frozenset({"t"})),
}
P = Identity("n1", 1, "p", "vllm", "t")
DOWN, UP, UNKNOWN = "unavailable", "available", "unknown"
MEANS = {UP: "request_stalled", DOWN: "provider_unhealthy", UNKNOWN: "health_unknown"}


class World:
    """An overlay with both nodes ready, at 100 s."""

    def __init__(self, jitter: float = 0.0) -> None:
        self.overlay = Overlay(lambda: jitter)
        self.overlay.configure(KNOWN)
        self.overlay.begin("n1", 1)
        self.overlay.begin("n2", 2)
        self.now = 100.0

    def stall(self, seq: int, health: str = DOWN, said: Identity = P, meaning: str = "") -> Result:
        evidence = Evidence(Source.TERMINAL, said, health, meaning or MEANS.get(health, health), seq)
        return self._checked(self.overlay.heard(evidence, self.now))

    def observe(self, seq: int, health: str = DOWN, said: Identity = P) -> Result:
        return self._checked(self.overlay.heard(Evidence(Source.OBSERVATION, said, health, None, seq), self.now))

    def answer(self, seq: int, health: str = UP, *, asked: Identity = P, said: Identity | None = None) -> Result:
        return self._checked(self.overlay.answered(asked, said or asked, health, seq, self.now))

    def _checked(self, verdict: Verdict) -> Result:
        self.overlay.validate()
        assert (verdict.result is Result.APPLIED) == (verdict.change is not None)
        return verdict.result

    @property
    def lowered(self) -> set[str]:
        return {provider for node, provider in KNOWN if self.overlay.lowering(node, provider) is not None}

    def ask(self, said: Identity = P) -> None:
        """Lets the time come at which the provider is asked about."""
        while said not in self.overlay.due(self.now):
            assert self.overlay.next_at is not None
            self.now = self.overlay.next_at


@pytest.mark.req("HEALTH-2", "HEALTH-3")
def test_fresh_unavailable_lowers_that_provider_alone_and_tells_since_when() -> None:
    world = World()
    verdict = world.overlay.heard(Evidence(Source.TERMINAL, P, DOWN, MEANS[DOWN], 3), world.now)
    change = Change("n1", 1, "p", OverlayState.AVAILABLE, OverlayState.UNAVAILABLE)
    assert verdict == Verdict(Result.APPLIED, ProviderHealth.UNAVAILABLE, change)
    assert world.lowered == {"p"}
    lowering = Lowering(Source.TERMINAL, LivenessClassification.PROVIDER_UNHEALTHY, 100.0)
    assert world.overlay.lowering("n1", "p") == lowering
    assert world.observe(4, said=P._replace(provider_id="q")) is Result.APPLIED
    assert world.lowered == {"p", "q"}


@pytest.mark.req("HEALTH-2")
@pytest.mark.parametrize("health", [UP, UNKNOWN])
def test_nothing_but_unavailable_lowers(health: str) -> None:
    world = World()
    assert (world.stall(1, health), world.observe(2, health)) == (Result.NOOP, Result.NOOP)
    assert world.lowered == set()


@pytest.mark.req("HEALTH-2")
def test_evidence_counts_in_the_order_of_its_numbers_and_once() -> None:
    world = World()
    assert world.stall(0) is Result.STALE, "no observation is bound to it"
    assert world.stall(5, UP) is Result.NOOP
    assert world.observe(4) is Result.STALE, "older than the news that the provider is there"
    assert world.stall(5, UP) is Result.STALE
    assert world.observe(5) is Result.AMBIGUOUS, "two observations with one number"
    assert world.lowered == set()
    assert world.observe(6) is Result.APPLIED
    assert world.stall(6) is Result.STALE, "the same observation again, by another way"
    assert world.stall(7) is Result.NOOP, "it is down already"


@pytest.mark.req("HEALTH-2")
def test_numbers_of_one_connection_count_per_provider() -> None:
    """They are drawn when a probe ends, and may arrive in another order when they are of different providers."""
    world = World()
    assert world.stall(9, UP, P._replace(provider_id="q")) is Result.NOOP
    assert world.stall(8) is Result.APPLIED


@pytest.mark.req("HEALTH-1")
@pytest.mark.parametrize(
    "said",
    [
        P._replace(generation=2),
        P._replace(generation=0),
        P._replace(node_id="n2"),
        P._replace(node_id="n2", generation=2),  # n2 has no such provider
        P._replace(node_id="n3", generation=1),
        P._replace(provider_id="r"),
        P._replace(adapter="llama_cpp"),
        P._replace(target="v"),
        P._replace(target=""),
    ],
)
def test_what_is_not_exactly_what_is_configured_is_foreign(said: Identity) -> None:
    world = World()
    assert (world.stall(1, said=said), world.observe(2, said=said)) == (Result.FOREIGN, Result.FOREIGN)
    assert world.lowered == set()
    assert world.stall(1) is Result.APPLIED, "its number was not taken from a stranger"


@pytest.mark.req("LIVE-7", "HEALTH-2")
@pytest.mark.parametrize("health", [UP, DOWN, UNKNOWN, "unspecified", ""])
@pytest.mark.parametrize("meaning", [*MEANS.values(), "unspecified"])
def test_pairs_that_do_not_exist_are_malformed_and_read_as_unknown(health: str, meaning: str) -> None:
    world = World()
    verdict = world.overlay.heard(Evidence(Source.TERMINAL, P, health, meaning, 1), world.now)
    if MEANS.get(health) == meaning:
        assert verdict.result in {Result.APPLIED, Result.NOOP}
        return
    assert verdict == Verdict(Result.MALFORMED, ProviderHealth.UNKNOWN)
    assert world.stall(1) is Result.APPLIED, "its number counts for nothing"


def test_an_observation_without_a_health_is_malformed() -> None:
    assert World().observe(1, "unspecified") is Result.MALFORMED


@pytest.mark.req("HEALTH-3", "HEALTH-5")
def test_only_a_newer_available_of_what_lowered_it_restores() -> None:
    world = World()
    world.stall(4)
    assert world.stall(5, UP) is Result.NOOP, "a stall's own probe restores nothing"
    assert world.observe(6, UP) is Result.NOOP
    for result, seq, health, said in [
        (Result.STALE, 6, UP, P),
        (Result.AMBIGUOUS, 6, DOWN, P),
        (Result.NOOP, 7, DOWN, P),
        (Result.NOOP, 8, UNKNOWN, P),
        (Result.MALFORMED, 9, "unspecified", P),
        (Result.FOREIGN, 9, UP, P._replace(provider_id="q")),
        (Result.FOREIGN, 9, UP, P._replace(target="u")),
        (Result.FOREIGN, 9, UP, P._replace(adapter="ollama")),
        (Result.AMBIGUOUS, 9, UP, P._replace(target="")),
        (Result.AMBIGUOUS, 9, UP, P._replace(adapter="")),
        (Result.AMBIGUOUS, 9, UP, P._replace(provider_id="")),
    ]:
        world.ask()
        assert world.answer(seq, health, said=said) is result
        assert world.lowered == {"p"}
    world.ask()
    assert world.overlay.answered(P, None, "unknown", 0, world.now).result is Result.NOOP
    world.ask()
    assert world.answer(9) is Result.APPLIED
    assert world.lowered == set()
    assert world.overlay.next_at is None
    assert world.stall(10) is Result.APPLIED, "and down it goes again"


@pytest.mark.req("HEALTH-3")
def test_a_provider_that_is_down_keeps_the_target_that_lowered_it() -> None:
    world = World()
    world.stall(1)
    assert world.stall(2, said=P._replace(target="u")) is Result.NOOP
    world.now += FIRST_ASK_S
    assert world.overlay.due(world.now) == [P]


@pytest.mark.req("HEALTH-4")
def test_it_is_asked_about_after_a_second_and_then_ever_more_seldom() -> None:
    world = World()
    world.observe(1)
    waits, before, seq = [], world.now, 1
    for _ in range(8):
        next_at = world.overlay.next_at
        assert next_at is not None
        assert world.overlay.due(next_at - 0.001) == []
        assert world.overlay.due(next_at) == [P]
        assert world.overlay.next_at is None, "one question at a time"
        assert world.overlay.due(next_at + 1000) == []
        waits.append(next_at - before)
        world.now = before = next_at + 3  # the probe takes a while
        seq += 1
        assert world.answer(seq, DOWN) is Result.NOOP
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    world.ask()
    assert world.answer(seq + 1) is Result.APPLIED
    world.observe(seq + 2)
    assert world.overlay.next_at == world.now + FIRST_ASK_S, "patience begins anew"


@pytest.mark.req("HEALTH-4")
def test_a_question_that_could_not_be_put_comes_soon_again_and_costs_no_patience() -> None:
    world = World()
    world.observe(1)
    for _ in range(5):
        world.ask()
        world.overlay.postponed(P, world.now)
        assert world.overlay.next_at == world.now + FIRST_ASK_S
    world.ask()
    world.answer(2, DOWN)
    assert world.overlay.next_at == world.now + 2 * FIRST_ASK_S


@pytest.mark.req("HEALTH-4")
def test_jitter_makes_waits_shorter_and_never_longer() -> None:
    world = World(jitter=1.0)
    world.observe(1)
    assert world.overlay.next_at == pytest.approx(world.now + FIRST_ASK_S * (1 - JITTER))
    for seq in range(2, 12):
        world.ask()
        world.answer(seq, DOWN)
        assert world.overlay.next_at is not None
        assert world.overlay.next_at - world.now <= LAST_ASK_S


@pytest.mark.req("HEALTH-3", "REG-5")
def test_a_new_generation_starts_clean_and_the_old_one_s_answers_are_nobody_s() -> None:
    world = World()
    world.stall(7)
    world.ask()
    down, gone = OverlayState.UNAVAILABLE, OverlayState.OFFLINE
    assert world.overlay.end("n1", 2) == [], "another node's generation"
    assert world.overlay.end("n1", 1) == [Change("n1", 1, "p", down, gone)]
    assert world.overlay.end("n1", 1) == []
    assert (world.lowered, world.overlay.next_at) == (set(), None)
    assert world.answer(8) is Result.FOREIGN
    world.overlay.begin("n1", 3)
    assert world.answer(8) is Result.FOREIGN
    assert world.stall(8) is Result.FOREIGN
    assert world.lowered == set()
    new = P._replace(generation=3)
    assert world.stall(1, said=new) is Result.APPLIED, "its numbers begin again"
    world.ask(new)
    assert world.answer(9) is Result.FOREIGN
    assert world.answer(2, asked=new) is Result.APPLIED


@pytest.mark.req("HEALTH-3")
@pytest.mark.parametrize(
    "now",
    [
        Known("ollama", "http://a", frozenset({"t"})),
        Known("vllm", "http://elsewhere", frozenset({"t"})),
        Known("vllm", "http://a", frozenset({"u"})),
    ],
)
def test_what_lowered_it_is_no_longer_configured(now: Known) -> None:
    """Nothing could ever be asked that would restore it."""
    world = World()
    world.stall(5)
    world.ask()
    up, down = OverlayState.AVAILABLE, OverlayState.UNAVAILABLE
    assert world.overlay.configure({**KNOWN, ("n1", "p"): now}) == [Change("n1", 1, "p", down, up)]
    world.overlay.validate()
    assert world.lowered == set()
    assert world.answer(6) is Result.NOOP, "the answer to a question about what was there before"
    new = P._replace(adapter=now.adapter, target=next(iter(now.targets)))
    assert world.observe(6, said=new) in {Result.STALE, Result.AMBIGUOUS}, "numbers of this connection go on"
    assert world.observe(7, said=new) is Result.APPLIED


def test_an_unchanged_configuration_changes_nothing() -> None:
    world = World()
    world.stall(1)
    assert world.overlay.configure({**KNOWN, ("n1", "p"): Known("vllm", "http://a", frozenset({"t"}))}) == []
    assert world.lowered == {"p"}


@pytest.mark.req("HEALTH-3")
def test_a_provider_that_is_removed_takes_its_overlay_along() -> None:
    world = World()
    world.stall(5)
    world.observe(6, UP, P._replace(provider_id="q"))
    world.ask()
    rest = {key: known for key, known in KNOWN.items() if key[0] != "n1"}
    assert [change.after for change in world.overlay.configure(rest)] == [OverlayState.OFFLINE]
    world.overlay.validate()
    assert world.answer(6) is Result.FOREIGN
    world.overlay.postponed(P, world.now)
    assert (world.lowered, world.overlay.next_at) == (set(), None)
