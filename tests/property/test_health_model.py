"""The overlay against a model that keeps everything that was ever said, and looks all of it up again each time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from iop.pool.health import FIRST_ASK_S, LAST_ASK_S, Evidence, Identity, Known, Overlay, ProviderKey, Result, Source

NODES, PROVIDERS, ADAPTERS, TARGETS = ("n1", "n2"), ("p", "q"), ("vllm", "ollama"), ("t", "u")
HEALTHS = ("available", "unavailable", "unknown", "unspecified")
MEANS = {"available": "request_stalled", "unavailable": "provider_unhealthy", "unknown": "health_unknown"}
small = st.integers(0, 9)


def pick(choices: tuple[str, ...], index: int) -> str:
    return choices[index % len(choices)]


@dataclass
class Story:
    """What counted of one provider in one generation, in order."""

    heard: list[tuple[int, str, str, str]] = field(default_factory=list)  # number, adapter, target, health
    down: Identity | None = None
    backend: object = None
    asked: bool = False
    waits: int = 0  # answers since it was lowered


class HealthMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.overlay = Overlay(lambda: 0.0)
        self.now = 100.0
        self.generation = 0
        self.ready: dict[str, int] = {}
        self.known: dict[ProviderKey, Known] = {}
        self.stories: dict[tuple[ProviderKey, int], Story] = {}
        self.questions: list[Identity] = []
        self.lowered = self.restored = self.ended = 0  # changes, as the overlay told them
        self.configure(0, 0, 0)

    # -- what there is

    @rule(without=small, adapter=small, fewer=small)
    def configure(self, without: int, adapter: int, fewer: int) -> None:
        keys = [(node, provider) for node in NODES for provider in PROVIDERS]
        self.known = {
            key: Known(pick(ADAPTERS, adapter // 8), adapter // 9, frozenset(TARGETS if fewer % 3 else ("t",)))
            for i, key in enumerate(keys)
            if i != without - 1
        }
        expected = set()
        for (key, generation), story in list(self.stories.items()):
            if self.ready.get(key[0]) != generation:
                continue
            known, down = self.known.get(key), story.down
            if known is None:
                if down is not None:
                    expected.add((key, "offline"))
                del self.stories[key, generation]
            elif down is not None and (
                down.adapter != known.adapter or down.target not in known.targets or story.backend != known.backend
            ):
                expected.add((key, "available"))
                story.down = None
        changes = self.overlay.configure(self.known)
        assert {((c.node_id, c.provider_id), c.after) for c in changes} == expected
        assert all(c.before == "unavailable" and c.generation == self.ready[c.node_id] for c in changes)
        self.restored += sum(after == "available" for _, after in expected)
        self.ended += sum(after == "offline" for _, after in expected)

    @rule(node=small)
    def connect(self, node: int) -> None:
        node_id = pick(NODES, node)
        if node_id not in self.ready:
            self.generation += 1
            self.ready[node_id] = self.generation
            self.overlay.begin(node_id, self.generation)

    @rule(node=small, back=st.integers(0, 2))
    def disconnect(self, node: int, back: int) -> None:
        """With ``back``, the loss of a connection that is no longer the owner's."""
        node_id = pick(NODES, node)
        generation = self.ready.get(node_id, 0) - back
        changes = self.overlay.end(node_id, generation)
        if back or not generation:
            assert changes == []
            return
        down = {k[1] for (k, g), s in self.stories.items() if g == generation and s.down is not None}
        assert {c.provider_id for c in changes} == down
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

    @rule(node=small, provider=small, adapter=small, about=small, old=small, health=small, means=small, seq=small)
    def hear(
        self, node: int, provider: int, adapter: int, about: int, old: int, health: int, means: int, seq: int
    ) -> None:
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
        sound = word in MEANS and meaning in (None, MEANS[word])
        source = Source.OBSERVATION if meaning is None else Source.TERMINAL
        verdict = self.overlay.heard(Evidence(source, said, word, meaning, number), self.now)
        judged = self.judge(said, word, sound, number)
        if isinstance(judged, Result):
            assert (verdict.result, verdict.change) == (judged, None)
        elif word == "unavailable" and judged.down is None:
            assert verdict.result is Result.APPLIED
            assert verdict.change is not None
            judged.down, judged.backend, judged.waits = said, self.known[key].backend, 0
            self.lowered += 1
        else:
            assert (verdict.result, verdict.change) == (Result.NOOP, None)
        assert verdict.health == (word if sound else "unknown")

    # -- questions

    @rule(seconds=st.floats(0, 40))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = self.overlay.due(self.now)
        for asked in due:
            story = self.stories[asked[0:3:2], asked.generation]
            assert story.down == asked, "asked is exactly what lowered it"
            assert not story.asked, "two questions about one provider"
            story.asked = True
        self.questions += due
        for story in self.present():
            assert story.asked or story.down is None or self.overlay.next_at is not None
        if self.overlay.next_at is not None:
            assert 0 < self.overlay.next_at - self.now <= LAST_ASK_S

    @rule(index=small, health=small, seq=small, wrong=small)
    def answer(self, index: int, health: int, seq: int, wrong: int) -> None:
        if not self.questions:
            return
        asked = self.questions.pop(index % len(self.questions))
        said = [asked, asked._replace(target="other"), asked._replace(adapter=""), None][max(0, wrong - 6)]
        word = pick(HEALTHS, health // 2)
        story = self.stories.get((asked[0:3:2], asked.generation))
        if story is None or self.ready.get(asked.node_id) != asked.generation:
            result = self.overlay.answered(asked, said, word, 99, self.now)
            assert (result.result, result.change) == (Result.FOREIGN, None)
            return
        newest = max((n for n, *_ in story.heard), default=0)
        number = max(0, newest - 1 + seq)
        verdict = self.overlay.answered(asked, said, word, number, self.now)
        story.asked = False
        story.waits += 1
        if said is None:
            expected: Result | Story = Result.NOOP
        elif said != asked:
            expected = Result.FOREIGN if said.adapter else Result.AMBIGUOUS
        else:
            expected = self.judge_answer(story, said, word, number)
        if isinstance(expected, Result):
            assert (verdict.result, verdict.change) == (expected, None)
        elif word == "available" and story.down == asked:
            assert verdict.result is Result.APPLIED
            assert verdict.change is not None
            story.down = None
            self.restored += 1
        else:
            assert (verdict.result, verdict.change) == (Result.NOOP, None)

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
            asked = self.questions.pop(index % len(self.questions))
            self.overlay.postponed(asked, self.now)
            story = self.stories.get((asked[0:3:2], asked.generation))
            if story is not None:
                story.asked = False
                assert story.down is None or self.ready.get(asked.node_id) != asked.generation or (
                    self.overlay.next_at is not None and self.overlay.next_at <= self.now + FIRST_ASK_S
                )  # fmt: skip

    # -- what always holds

    def present(self) -> list[Story]:
        return [s for (key, generation), s in self.stories.items() if self.ready.get(key[0]) == generation]

    @invariant()
    def agrees(self) -> None:
        self.overlay.validate()
        down = {
            key
            for (key, generation), story in self.stories.items()
            if story.down is not None and self.ready.get(key[0]) == generation
        }
        keys = {(node, provider) for node in NODES for provider in PROVIDERS}
        assert {key for key in keys if self.overlay.lowering(*key) is not None} == down
        assert self.overlay.lowered == len(down) == self.lowered - self.restored - self.ended


TestHealth = HealthMachine.TestCase
TestHealth.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestHealth = pytest.mark.req("HEALTH-2", "HEALTH-3", "HEALTH-4", "HEALTH-5")(TestHealth)
