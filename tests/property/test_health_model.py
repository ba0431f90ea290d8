"""The overlay against a model that keeps everything that was ever said, and looks all of it up again each time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from iop.execution.failure import HealthReason
from iop.pool.evidence import Evidence, Identity, Known, Look, ProviderKey, Question, Result, Source
from iop.pool.overlay import FIRST_ASK_S, LAST_ASK_S, Overlay

NODES, PROVIDERS, ADAPTERS, TARGETS = ("n1", "n2"), ("p", "q"), ("vllm", "ollama"), ("t", "u")
HEALTHS = ("available", "unavailable", "unknown", "unspecified")
MEANS = {"available": "request_stalled", "unavailable": "provider_unhealthy", "unknown": "health_unknown"}
small = st.integers(0, 9)


def pick(choices: tuple[str, ...], index: int) -> str:
    return choices[index % len(choices)]


@dataclass
class Story:
    """What counted of one provider in one generation, in order. What is down is under its target, or None for the
    provider: what lowered it, and the backend that it had."""

    heard: list[tuple[int, str, str, str]] = field(default_factory=list)  # number, adapter, target, health
    down: dict[str | None, tuple[Question, object]] = field(default_factory=dict)
    asked: set[str | None] = field(default_factory=set)  # of what is down
    wanted: bool = True  # a look is to come, or under way
    looking: bool = False
    looked: Look | None = None
    back: bool = False  # it may be another server: a look is due at once


class HealthMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.overlay = Overlay(lambda: 0.0)
        self.now = 100.0
        self.generation = 0
        self.ready: dict[str, int] = {}
        self.known: dict[ProviderKey, Known] = {}
        self.stories: dict[tuple[ProviderKey, int], Story] = {}
        self.questions: list[Question] = []
        self.lowered = self.restored = self.ended = 0  # changes, as the overlay told them
        self.configure(0, 0, 0)

    # -- what there is

    @rule(without=small, adapter=small, fewer=small)
    def configure(self, without: int, adapter: int, fewer: int) -> None:
        keys = [(node, provider) for node in NODES for provider in PROVIDERS]
        configured = self.known
        self.known = {
            key: Known(pick(ADAPTERS, adapter // 8), adapter // 9, frozenset(TARGETS if fewer % 3 else ("t",)))
            for i, key in enumerate(keys)
            if i != without - 1
        }
        expected = set()
        for (key, generation), story in list(self.stories.items()):
            if self.ready.get(key[0]) != generation:
                continue
            known, before = self.known.get(key), configured.get(key)
            if known is None:
                expected |= {(key, scope, "offline") for scope in story.down}
                del self.stories[key, generation]
                continue
            for scope, (question, backend) in list(story.down.items()):
                said = question.asked
                if said.adapter != known.adapter or said.target not in known.targets or backend != known.backend:
                    expected.add((key, scope, "available"))
                    del story.down[scope]
                    story.asked.discard(scope)
            assert before is not None
            if known[:2] != before[:2]:
                story.looked = None
            if known != before and (known.targets - before.targets or story.looked is None or story.wanted):
                story.wanted, story.looking = True, False
        self.welcome()
        changes = self.overlay.configure(self.known)
        assert {((c.node_id, c.provider_id), c.target, c.after) for c in changes} == expected
        assert all(c.before == "unavailable" and c.generation == self.ready[c.node_id] for c in changes)
        self.restored += sum(after == "available" for *_, after in expected)
        self.ended += sum(after == "offline" for *_, after in expected)

    def welcome(self) -> None:
        """What is configured at a ready node and was not there before is to be looked at."""
        for key in self.known:
            generation = self.ready.get(key[0])
            if generation is not None:
                self.stories.setdefault((key, generation), Story())

    @rule(node=small)
    def connect(self, node: int) -> None:
        node_id = pick(NODES, node)
        if node_id not in self.ready:
            self.generation += 1
            self.ready[node_id] = self.generation
            self.overlay.begin(node_id, self.generation)
            self.welcome()

    @rule(node=small, back=st.integers(0, 2))
    def disconnect(self, node: int, back: int) -> None:
        """With ``back``, the loss of a connection that is no longer the owner's."""
        node_id = pick(NODES, node)
        generation = self.ready.get(node_id, 0) - back
        changes = self.overlay.end(node_id, generation)
        if back or not generation:
            assert changes == []
            return
        down = {(k[1], scope) for (k, g), s in self.stories.items() if g == generation for scope in s.down}
        assert {(c.provider_id, c.target) for c in changes} == down
        self.ended += len(changes)
        del self.ready[node_id]

    # -- evidence

    def judge(self, said: Identity, health: str, sound: bool, seq: int) -> Result | Story:
        """The result, or the story to which this is news."""
        known = self.known.get((said.node_id, said.provider_id))
        if self.ready.get(said.node_id) != said.generation or known is None or said.adapter != known.adapter:
            return Result.FOREIGN
        if said.target not in known.targets:
            return Result.FOREIGN
        story = self.stories.setdefault((said[0:3:2], said.generation), Story())
        if not sound:
            return Result.MALFORMED
        words = seq, said.adapter, said.target, health
        newest = max(story.heard, default=(0, "", "", ""))
        if seq <= newest[0]:
            return Result.AMBIGUOUS if seq == newest[0] and seq and words != newest else Result.STALE
        story.heard.append(words)
        return story

    @rule(
        node=small, provider=small, adapter=small, about=small, old=small, health=small, means=small, seq=small,
        why=st.sampled_from([None, *HealthReason]), alone=st.booleans(),
    )  # fmt: skip
    def hear(
        self, node: int, provider: int, adapter: int, about: int, old: int, health: int, means: int, seq: int,
        why: HealthReason | None, alone: bool,
    ) -> None:  # fmt: skip
        node_id = pick(NODES, node)
        key = node_id, pick(PROVIDERS, provider)
        known = self.known.get(key)
        spoken = known.adapter if known is not None and adapter else pick(ADAPTERS, adapter)
        generation = self.ready.get(node_id, 0) - (old == 9)
        said = Identity(node_id, generation, key[1], spoken, pick((*TARGETS, "t", "v"), about))
        word = pick(HEALTHS, health)
        story = self.stories.get((key, generation))
        number = max(0, max((n for n, *_ in story.heard), default=0) - 2 + seq // 2) if story is not None else seq
        meaning = None if means < 3 else MEANS.get(word, "unspecified") if means < 9 else "provider_unhealthy"
        self.say(said, word, meaning, number, why, alone=alone)

    @rule(index=small, why=st.sampled_from([None, *HealthReason]), alone=st.booleans())
    def fall(self, index: int, why: HealthReason | None, alone: bool) -> None:
        """News of a provider that is configured at a ready node: it is down, or one of its targets."""
        here = [(key, known) for key, known in self.known.items() if key[0] in self.ready]
        if here:
            key, known = here[index % len(here)]
            story = self.stories[key, self.ready[key[0]]]
            said = Identity(key[0], self.ready[key[0]], key[1], known.adapter, min(known.targets))
            self.say(said, "unavailable", None, self.newest(story) + 1, why, alone=alone)

    @staticmethod
    def newest(story: Story) -> int:
        return max((n for n, *_ in story.heard), default=0)

    def say(
        self, said: Identity, word: str, meaning: str | None, number: int, why: HealthReason | None, *, alone: bool
    ) -> None:
        sound = word in MEANS and meaning in (None, MEANS[word])
        source = Source.OBSERVATION if meaning is None else Source.TERMINAL
        verdict = self.overlay.heard(Evidence(source, said, word, meaning, number, why, alone), self.now)
        scope = said.target if alone and source is Source.OBSERVATION else None
        judged = self.judge(said, word, sound, number)
        if isinstance(judged, Result):
            assert (verdict.result, verdict.change) == (judged, None)
        elif word == "unavailable" and scope not in judged.down:
            assert verdict.result is Result.APPLIED
            assert verdict.change is not None
            assert verdict.change.target == scope
            reason = HealthReason.STALLED if source is Source.TERMINAL else why or HealthReason.FAILING
            judged.down[scope] = Question(said, scope, reason), self.known[said[0:3:2]].backend
            self.lowered += 1
        else:
            assert (verdict.result, verdict.change) == (Result.NOOP, None)
        assert verdict.health == (word if sound else "unknown")

    # -- questions

    @rule(seconds=st.floats(0, 40))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = self.overlay.due(self.now)
        for question in due:
            asked = question.asked
            story = self.stories[asked[0:3:2], asked.generation]
            if question.targets:
                known = self.known[asked[0:3:2]]
                assert question.targets == tuple(sorted(known.targets))
                assert (asked.adapter, story.wanted, story.looking) == (known.adapter, True, False), "a second look"
                story.looking = True
                continue
            assert story.down[question.scope][0] == question, "asked is exactly what lowered it, and why"
            assert question.scope not in story.asked, "two questions about one thing"
            story.asked.add(question.scope)
        self.questions += due
        for story in self.present():
            assert story.looking or not story.back, "who is back is not looked at"
            story.back = False
            assert story.asked >= set(story.down) or self.overlay.next_at is not None
            assert story.looking or not story.wanted or self.overlay.next_at is not None, "it is not looked at"
        if self.overlay.next_at is not None:
            assert 0 < self.overlay.next_at - self.now <= LAST_ASK_S

    @rule(index=small, health=small, seq=small, wrong=small)
    def answer(self, index: int, health: int, seq: int, wrong: int) -> None:
        if not self.questions:
            return
        question = self.questions.pop(index % len(self.questions))
        asked = question.asked
        if question.targets:
            found = Look(frozenset(question.targets[:health]), health % 2 > 0) if wrong < 7 else None
            self.see(question, found)
            return
        said = [asked, asked._replace(target="other"), asked._replace(adapter=""), None][max(0, wrong - 6)]
        word = pick(HEALTHS, health // 2)
        story = self.stories.get((asked[0:3:2], asked.generation))
        number = max(0, self.newest(story) - 1 + seq) if story is not None else 99
        self.check_answer(question, said, word, number)

    @rule(seconds=st.floats(0, 20))
    def recover(self, seconds: float) -> None:
        """Time passes, and all questions that are under way are answered: everything is well."""
        self.advance(seconds)
        questions, self.questions = self.questions, []
        for question in questions:
            asked = question.asked
            story = self.stories.get((asked[0:3:2], asked.generation))
            if question.targets:
                self.see(question, Look())
            else:
                self.check_answer(question, asked, "available", self.newest(story) + 1 if story is not None else 99)

    def check_answer(self, question: Question, said: Identity | None, word: str, number: int) -> None:
        asked, scope = question.asked, question.scope
        story = self.stories.get((asked[0:3:2], asked.generation))
        if story is None or self.ready.get(asked.node_id) != asked.generation:
            result = self.overlay.answered(question, said, word, number, self.now)
            assert (result.result, result.change) == (Result.FOREIGN, None)
            return
        verdict = self.overlay.answered(question, said, word, number, self.now)
        down = story.down.get(scope, (None, None))[0]
        if down == question:
            story.asked.discard(scope)
        if said is None:
            expected: Result | Story = Result.NOOP
        elif said != asked:
            expected = Result.FOREIGN if said.adapter else Result.AMBIGUOUS
        else:
            expected = self.judge_answer(story, said, word, number)
        if isinstance(expected, Result):
            assert (verdict.result, verdict.change) == (expected, None)
        elif word == "available" and down == question:
            assert verdict.result is Result.APPLIED
            assert verdict.change is not None
            assert verdict.change.target == scope
            del story.down[scope]
            self.restored += 1
            if scope is None:
                story.wanted = True  # unless a look is under way: that one counts
                story.back = not story.looking
        else:
            assert (verdict.result, verdict.change) == (Result.NOOP, None)

    def see(self, question: Question, found: Look | None) -> None:
        """What a look found, or that it found nothing."""
        asked = question.asked
        self.overlay.seen(question, found, self.now)
        story = self.stories.get((asked[0:3:2], asked.generation))
        if story is None or self.ready.get(asked.node_id) != asked.generation or not story.looking:
            return
        known = self.known[asked[0:3:2]]
        if question.targets == tuple(sorted(known.targets)) and asked.adapter == known.adapter:
            story.looking = False
            if found is not None:
                story.wanted, story.looked = found != Look(), found

    @staticmethod
    def judge_answer(story: Story, said: Identity, word: str, number: int) -> Result | Story:
        if word not in MEANS:
            return Result.MALFORMED
        words = number, said.adapter, said.target, word
        newest = max(story.heard, default=(0, "", "", ""))
        if number <= newest[0]:
            return Result.AMBIGUOUS if number == newest[0] and number and words != newest else Result.STALE
        story.heard.append(words)
        return story

    @rule(index=small)
    def postpone(self, index: int) -> None:
        if self.questions:
            question = self.questions.pop(index % len(self.questions))
            asked = question.asked
            self.overlay.postponed(question, self.now)
            story = self.stories.get((asked[0:3:2], asked.generation))
            if story is None or self.ready.get(asked.node_id) != asked.generation:
                return
            if question.targets:
                known = self.known[asked[0:3:2]]
                if question.targets == tuple(sorted(known.targets)) and asked.adapter == known.adapter:
                    story.looking = False
            elif story.down.get(question.scope, (None, None))[0] == question:
                story.asked.discard(question.scope)
                assert self.overlay.next_at is not None
                assert self.overlay.next_at <= self.now + FIRST_ASK_S

    # -- what always holds

    def present(self) -> list[Story]:
        return [s for (key, generation), s in self.stories.items() if self.ready.get(key[0]) == generation]

    @invariant()
    def agrees(self) -> None:
        self.overlay.validate()
        present = {key: s for (key, generation), s in self.stories.items() if self.ready.get(key[0]) == generation}
        down = {
            (key, scope, question.reason)
            for key, story in present.items()
            for scope, (question, _) in story.down.items()
        }
        keys = {(node, provider) for node in NODES for provider in PROVIDERS}
        found = {(k, scope, low.reason) for k in keys for scope, low in self.overlay.lowerings(*k).items()}
        assert found == down
        for key in keys:
            assert self.overlay.looked(*key) == (present[key].looked if key in present else None)
        assert self.overlay.lowered == len(down) == self.lowered - self.restored - self.ended


TestHealth = HealthMachine.TestCase
TestHealth.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestHealth = pytest.mark.req("HEALTH-2", "HEALTH-3", "HEALTH-4", "HEALTH-5", "HEALTH-7", "HEALTH-8", "HEALTH-10")(
    TestHealth
)
