"""The overlay: which evidence lowers and restores a provider, and when it is asked about (HEALTH)."""

from __future__ import annotations

import pytest

from iop.execution.failure import HealthReason, ListFault, LivenessClassification, ProviderHealth
from iop.pool.evidence import (
    Change,
    Evidence,
    Identity,
    Known,
    Look,
    Lowering,
    OverlayState,
    Question,
    Result,
    Source,
    Verdict,
)
from iop.pool.overlay import FIRST_ASK_S, JITTER, LAST_ASK_S, Overlay

KNOWN = {
    ("n1", "p"): Known("vllm", "http://a", frozenset({"t", "u"})),
    ("n1", "q"): Known("vllm", "http://b", frozenset({"t"})),
    ("n2", "r"): Known("ollama", "http://c", frozenset({"t"})),
}
P = Identity("n1", 1, "p", "vllm", "t")
DOWN, UP, UNKNOWN = "unavailable", "available", "unknown"
REFUSED, FAILING, NOT_LISTED, STALLED = HealthReason
MEANS = {UP: "request_stalled", DOWN: "provider_unhealthy", UNKNOWN: "health_unknown"}


class World:
    """An overlay with both nodes ready and looked at, at 100 s."""

    def __init__(self, jitter: float = 0.0) -> None:
        self.overlay = Overlay(lambda: jitter)
        self.overlay.configure(KNOWN)
        self.overlay.begin("n1", 1)
        self.overlay.begin("n2", 2)
        self.now = 100.0
        self.put: dict[Identity, Question] = {}
        self.see()

    def see(self) -> None:
        """All looks that are due find nothing wrong."""
        for question in self.overlay.due(self.now):
            assert question.targets
            self.overlay.seen(question, Look(), self.now)
        self.overlay.validate()

    def stall(self, seq: int, health: str = DOWN, said: Identity = P, meaning: str = "") -> Result:
        evidence = Evidence(Source.TERMINAL, said, health, meaning or MEANS.get(health, health), seq)
        return self._checked(self.overlay.heard(evidence, self.now))

    def observe(
        self, seq: int, health: str = DOWN, said: Identity = P, *, why: HealthReason | None = REFUSED
    ) -> Result:
        """With ``why`` not listed, of the target alone."""
        evidence = Evidence(Source.OBSERVATION, said, health, None, seq, why, why is NOT_LISTED)
        return self._checked(self.overlay.heard(evidence, self.now))

    def answer(self, seq: int, health: str = UP, *, asked: Identity = P, said: Identity | None = None) -> Result:
        """To the last question about ``asked``."""
        return self._checked(self.overlay.answered(self.put[asked], said or asked, health, seq, self.now))

    def _checked(self, verdict: Verdict) -> Result:
        self.overlay.validate()
        assert (verdict.result is Result.APPLIED) == (verdict.change is not None)
        return verdict.result

    @property
    def lowered(self) -> set[str]:
        return {provider for node, provider in KNOWN if self.overlay.lowering(node, provider) is not None}

    def ask(self, said: Identity = P) -> None:
        """Lets the time come at which that is asked about."""
        while True:
            due = {question.asked: question for question in self.overlay.due(self.now)}
            self.put |= due
            if said in due:
                return
            assert self.overlay.next_at is not None
            self.now = self.overlay.next_at


@pytest.mark.req("HEALTH-2", "HEALTH-3")
def test_fresh_unavailable_lowers_that_provider_alone_and_tells_since_when() -> None:
    world = World()
    verdict = world.overlay.heard(Evidence(Source.TERMINAL, P, DOWN, MEANS[DOWN], 3), world.now)
    change = Change("n1", 1, "p", None, OverlayState.AVAILABLE, OverlayState.UNAVAILABLE)
    assert verdict == Verdict(Result.APPLIED, ProviderHealth.UNAVAILABLE, change)
    assert world.lowered == {"p"}
    lowering = Lowering(Source.TERMINAL, LivenessClassification.PROVIDER_UNHEALTHY, STALLED, 100.0)
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
    assert world.overlay.answered(world.put[P], None, "unknown", 0, world.now).result is Result.NOOP
    world.ask()
    assert world.answer(9) is Result.APPLIED
    assert world.lowered == set()
    world.see()
    assert world.overlay.next_at is None
    assert world.stall(10) is Result.APPLIED, "and down it goes again"


@pytest.mark.req("HEALTH-3")
def test_a_provider_that_is_down_keeps_the_target_that_lowered_it() -> None:
    world = World()
    world.stall(1)
    assert world.stall(2, said=P._replace(target="u")) is Result.NOOP
    world.now += FIRST_ASK_S
    assert world.overlay.due(world.now) == [Question(P, None, STALLED)]


@pytest.mark.req("HEALTH-4")
def test_it_is_asked_about_after_a_second_and_then_ever_more_seldom() -> None:
    world = World()
    world.observe(1)
    waits, before, seq = [], world.now, 1
    for _ in range(8):
        next_at = world.overlay.next_at
        assert next_at is not None
        assert world.overlay.due(next_at - 0.001) == []
        assert world.overlay.due(next_at) == [Question(P, None, REFUSED)]
        world.put[P] = Question(P, None, REFUSED)
        assert world.overlay.next_at is None, "one question at a time"
        assert world.overlay.due(next_at + 1000) == []
        waits.append(next_at - before)
        world.now = before = next_at + 3  # the probe takes a while
        seq += 1
        assert world.answer(seq, DOWN) is Result.NOOP
    assert waits == [1, 2, 4, 8, 15, 15, 15, 15]
    world.ask()
    assert world.answer(seq + 1) is Result.APPLIED
    world.see()
    world.observe(seq + 2)
    assert world.overlay.next_at == world.now + FIRST_ASK_S, "patience begins anew"


@pytest.mark.req("HEALTH-4")
def test_a_question_that_could_not_be_put_comes_soon_again_and_costs_no_patience() -> None:
    world = World()
    world.observe(1)
    for _ in range(5):
        world.ask()
        world.overlay.postponed(world.put[P], world.now)
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
    assert world.overlay.end("n1", 1) == [Change("n1", 1, "p", None, down, gone)]
    assert world.overlay.end("n1", 1) == []
    assert (world.lowered, world.overlay.next_at) == (set(), None)
    assert world.answer(8) is Result.FOREIGN
    world.overlay.begin("n1", 3)
    world.see()
    assert world.answer(8) is Result.FOREIGN
    assert world.stall(8) is Result.FOREIGN
    assert world.lowered == set()
    new = P._replace(generation=3)
    assert world.stall(1, said=new) is Result.APPLIED, "its numbers begin again"
    world.ask(new)
    assert world.answer(9, asked=P) is Result.FOREIGN
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
    assert world.overlay.configure({**KNOWN, ("n1", "p"): now}) == [Change("n1", 1, "p", None, down, up)]
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
    world.overlay.postponed(world.put[P], world.now)
    assert (world.lowered, world.overlay.next_at) == (set(), None)


# ---- one target alone (HEALTH-7), and why (HEALTH-8) ----------------------------------------------------------------

U = P._replace(target="u")


def lowered_targets(world: World) -> dict[str | None, HealthReason]:
    return {target: lowering.reason for target, lowering in world.overlay.lowerings("n1", "p").items()}


@pytest.mark.req("HEALTH-7")
def test_evidence_about_a_target_lowers_it_and_nothing_else() -> None:
    world = World()
    evidence = Evidence(Source.OBSERVATION, P, DOWN, None, 1, NOT_LISTED, target_only=True)
    change = Change("n1", 1, "p", "t", OverlayState.AVAILABLE, OverlayState.UNAVAILABLE)
    assert world.overlay.heard(evidence, world.now).change == change
    assert lowered_targets(world) == {"t": NOT_LISTED}
    assert world.overlay.lowering("n1", "p") is None
    assert world.observe(2, why=NOT_LISTED) is Result.NOOP, "it is down already"
    assert world.observe(3, said=U, why=NOT_LISTED) is Result.APPLIED
    assert world.observe(4, why=REFUSED) is Result.APPLIED, "and the provider for itself"
    assert lowered_targets(world) == {"t": NOT_LISTED, "u": NOT_LISTED, None: REFUSED}


@pytest.mark.req("HEALTH-7", "HEALTH-8")
def test_a_stall_lowers_the_provider_whatever_it_says_of_its_scope() -> None:
    world = World()
    evidence = Evidence(Source.TERMINAL, P, DOWN, MEANS[DOWN], 1, NOT_LISTED, target_only=True)
    assert world.overlay.heard(evidence, world.now).result is Result.APPLIED
    assert lowered_targets(world) == {None: STALLED}


@pytest.mark.req("HEALTH-8")
@pytest.mark.parametrize(
    ("said", "kept"), [(REFUSED, REFUSED), (FAILING, FAILING), (NOT_LISTED, NOT_LISTED), (None, FAILING)]
)
def test_a_question_carries_what_lowered_it(said: HealthReason | None, kept: HealthReason) -> None:
    world = World()
    world.observe(1, why=said)
    world.ask()
    assert world.put[P].reason is kept
    assert world.put[P].scope == ("t" if said is NOT_LISTED else None)


@pytest.mark.req("HEALTH-7", "HEALTH-8")
def test_provider_and_target_are_asked_about_and_restored_each_for_itself() -> None:
    world = World()
    world.observe(1, why=NOT_LISTED)
    world.observe(2, why=REFUSED)
    world.now += FIRST_ASK_S
    target, provider = sorted(world.overlay.due(world.now), key=lambda question: question.scope is None)
    assert (target.scope, provider.scope) == ("t", None)
    assert world.overlay.answered(provider, P, UP, 3, world.now).result is Result.APPLIED
    assert lowered_targets(world) == {"t": NOT_LISTED}
    assert world.overlay.answered(provider, P, UP, 4, world.now).result is Result.NOOP, "it is up"
    assert lowered_targets(world) == {"t": NOT_LISTED}
    assert world.overlay.answered(target, P, UP, 5, world.now).result is Result.APPLIED
    assert lowered_targets(world) == {}


@pytest.mark.req("HEALTH-8")
@pytest.mark.parametrize("why", list(HealthReason))
def test_whatever_is_lowered_is_back_within_30_s_of_being_able_to_serve(why: HealthReason) -> None:
    """However long it was down, and though a probe of it that hangs takes as long as one may."""
    for down_s in (0.5, 7.0, 61.0, 3600.0):
        world = World()
        assert world.stall(1) if why is STALLED else world.observe(1, why=why)
        well_at, seq = world.now + down_s, 1
        while lowered_targets(world):
            world.ask()
            asked_at, seq = world.now, seq + 1
            if asked_at < well_at:
                world.now += 10.0
                world.answer(seq, DOWN)
            else:
                world.answer(seq, UP)
        assert world.now - well_at <= 30.0


@pytest.mark.req("HEALTH-3", "HEALTH-7")
def test_a_target_that_is_not_configured_any_more_is_down_no_more() -> None:
    world = World()
    world.observe(1, why=NOT_LISTED)
    without = Known("vllm", "http://a", frozenset({"u"}))
    (change,) = world.overlay.configure({**KNOWN, ("n1", "p"): without})
    assert (change.target, change.after) == ("t", OverlayState.AVAILABLE)
    world.overlay.validate()


# ---- one look at each provider (HEALTH-10) ---------------------------------------------------------------------------


def looks(world: World) -> list[tuple[str, tuple[str, ...]]]:
    return [(q.asked.provider_id, q.targets) for q in world.overlay.due(world.now) if q.targets]


@pytest.mark.req("HEALTH-10")
def test_each_provider_of_a_node_that_becomes_ready_is_looked_at_once() -> None:
    world = World()
    assert world.overlay.looked("n1", "p") == Look()
    world.overlay.begin("n1", 3)
    assert world.overlay.looked("n1", "p") is None, "nothing is known of it yet"
    assert sorted(looks(world)) == [("p", ("t", "u")), ("q", ("t",))]
    assert looks(world) == [], "they are under way"
    world.overlay.validate()


@pytest.mark.req("HEALTH-10")
def test_what_a_look_finds_is_shown_and_lowers_nothing() -> None:
    world = World()
    world.overlay.begin("n1", 3)
    found = Look(frozenset({"u"}), not_an_api=True)
    for question in world.overlay.due(world.now):
        world.overlay.seen(question, found, world.now)
        world.overlay.seen(question, Look(), world.now)
    assert world.overlay.looked("n1", "p") == world.overlay.looked("n1", "q") == found
    assert world.overlay.lowered == 0


@pytest.mark.req("HEALTH-10")
@pytest.mark.parametrize("found", [Look(frozenset({"t"})), Look(not_an_api=True), Look(list_fault=ListFault.TOO_LARGE)])
def test_what_a_look_finds_wrong_is_looked_at_until_it_is_right(found: Look) -> None:
    world = World()
    world.overlay.begin("n2", 3)
    waits = []
    for _ in range(5):
        (question,) = world.overlay.due(world.now)
        world.overlay.seen(question, found, world.now)
        assert world.overlay.looked("n2", "r") == found
        assert world.overlay.next_at is not None
        waits.append(world.overlay.next_at - world.now)
        world.now = world.overlay.next_at
    assert waits == [2, 4, 8, 15, 15]
    world.see()
    assert (world.overlay.looked("n2", "r"), world.overlay.next_at) == (Look(), None)


@pytest.mark.req("HEALTH-10", "HEALTH-8")
def test_a_provider_that_is_back_may_be_another_server_and_is_looked_at() -> None:
    world = World()
    world.observe(1)
    world.ask()
    assert world.answer(2) is Result.APPLIED
    assert looks(world) == [("p", ("t", "u"))]
    assert world.overlay.looked("n1", "p") == Look(), "what was seen of it stands meanwhile"


@pytest.mark.req("HEALTH-10", "HEALTH-8")
def test_who_is_back_is_looked_at_at_once_also_where_the_next_look_was_to_come_later() -> None:
    world = World()
    world.overlay.begin("n1", 1)
    for _ in range(4):  # then a look is to come in 15 s
        for question in world.overlay.due(world.now):
            world.overlay.seen(question, Look(not_an_api=True), world.now)
        assert world.overlay.next_at is not None
        world.now, before = world.overlay.next_at, world.now
    world.now = before
    world.observe(1)
    world.ask()
    assert world.answer(2) is Result.APPLIED
    assert looks(world) == [("p", ("t", "u"))]


@pytest.mark.req("HEALTH-10", "HEALTH-7")
def test_a_target_that_is_back_says_nothing_new_of_its_provider() -> None:
    world = World()
    world.observe(1, why=NOT_LISTED)
    world.ask()
    assert world.answer(2) is Result.APPLIED
    assert looks(world) == []


@pytest.mark.req("HEALTH-10", "HEALTH-4")
def test_a_look_that_found_nothing_comes_again_ever_more_seldom() -> None:
    world = World()
    world.overlay.begin("n2", 3)
    waits = []
    for _ in range(7):
        (question,) = world.overlay.due(world.now)
        world.overlay.seen(question, None, world.now)
        assert world.overlay.next_at is not None
        waits.append(world.overlay.next_at - world.now)
        world.now = world.overlay.next_at
    assert waits == [2, 4, 8, 15, 15, 15, 15]
    world.see()
    assert world.overlay.looked("n2", "r") == Look()


@pytest.mark.req("HEALTH-10", "CONF-2")
@pytest.mark.parametrize(
    ("now", "again"),
    [
        (Known("vllm", "http://elsewhere", frozenset({"t", "u"})), True),
        (Known("ollama", "http://a", frozenset({"t", "u"})), True),
        (Known("vllm", "http://a", frozenset({"t", "u", "v"})), True),
        (Known("vllm", "http://a", frozenset({"t"})), False),
        (Known("vllm", "http://a", frozenset()), False),
    ],
)
def test_what_a_configuration_brings_is_looked_at(now: Known, again: bool) -> None:
    world = World()
    world.overlay.configure({**KNOWN, ("n1", "p"): now, ("n1", "new"): Known("vllm", "d", frozenset({"w"}))})
    kept = now[:2] == KNOWN["n1", "p"][:2]
    assert world.overlay.looked("n1", "p") == (Look() if kept else None), "what was seen of it stands meanwhile"
    expected = {"new", "p"} if again else {"new"}
    assert {provider_id for provider_id, _ in looks(world)} == expected
    world.overlay.validate()


@pytest.mark.req("HEALTH-10")
def test_a_look_at_what_was_there_before_is_nobody_s() -> None:
    world = World()
    world.overlay.begin("n2", 3)
    (old,) = world.overlay.due(world.now)
    world.overlay.configure({**KNOWN, ("n2", "r"): Known("ollama", "http://d", frozenset({"t", "v"}))})
    world.overlay.seen(old, Look(frozenset({"t"})), world.now)
    assert world.overlay.looked("n2", "r") is None, "what is there now has another backend"
    world.see()
    assert world.overlay.looked("n2", "r") == Look()


def test_what_is_down_is_asked_about_before_what_was_not_seen_yet() -> None:
    world = World()
    world.overlay.begin("n2", 3)
    world.observe(1)
    world.now += FIRST_ASK_S
    assert [bool(question.targets) for question in world.overlay.due(world.now)] == [False, True]
