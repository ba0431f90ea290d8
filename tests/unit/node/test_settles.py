"""What an edge makes of what its node says comes to rest: a provider whose answers stay the same is lowered or restored
once, and not again (HEALTH-6, HEALTH-8, HEALTH-10). Node and overlay are the real ones, on a virtual clock."""

from __future__ import annotations

import json

import pytest

from iop.execution.failure import HealthReason
from iop.pool.evidence import Evidence, Identity, Known, Look, Question, Source
from iop.pool.overlay import Overlay
from iop.wire import messages as m
from tests.simulation.virtual import Served, VirtualNode

LISTS = (200, json.dumps({"data": [{"id": "t"}]}).encode())
LARGE = (200, b'{"data":[' + b",".join([b'{"id":"another-model","object":"model"}'] * 30_000) + b"]}")
OK, GONE, NOT_BUILT, FAULT, BUSY, DENIED = ((status, b"{}") for status in (200, 404, 501, 500, 503, 401))
SILENT, RESETS = "silent", "resets"
Answer = tuple[int, bytes] | str

#: The answers to the list of models (of Ollama, to its own list), and those to the other question of a kind.
TO_MODELS = {"lists": LISTS, "large": LARGE, "404": GONE, "501": NOT_BUILT, "500": FAULT, "503": BUSY, "401": DENIED}
TO_MODELS |= {"silent": SILENT, "resets": RESETS}
TO_HEALTH = {"200": OK, "404": GONE, "501": NOT_BUILT, "503": BUSY, "silent": SILENT, "resets": RESETS}

#: What a kind is asked for its health, in this order: up to an answer that decides.
ASKED = {
    "openai_compat": ["/v1/models", "/health"],
    "vllm": ["/health", "/v1/models"],
    "llama_cpp": ["/health", "/slots"],
    "ollama": ["/api/ps", "/api/tags"],
    "configured": ["/ready"],
}
DECIDES = {"/v1/models": ("lists", "large"), "/slots": tuple(TO_HEALTH), "/ready": tuple(TO_HEALTH)}
QUIET_S = 60.0


class Scene:
    """One provider ``p`` with the target ``t``, its node, and the overlay of its edge."""

    def __init__(self, world: VirtualNode) -> None:
        self.world = world
        self.overlay = Overlay(lambda: 0.5)
        self.overlay.configure({("n", "p"): Known(world.kind, 1, frozenset({"t"}))})
        self.overlay.begin("n", 1)
        self.changed_at: list[float] = []
        self._asked: dict[int, Question] = {}
        self._heard = 0

    def _said(self, provider_id: str, adapter: str, target: str) -> Identity:
        return Identity("n", 1, provider_id, adapter, target)

    def pass_s(self, seconds: float) -> None:
        end = self.world.now + seconds
        while self.world.now < end:
            for question in self.overlay.due(self.world.now):
                number = len(self._asked) + 1
                self._asked[number] = question
                reason = m.HealthReason[question.reason.name] if question.reason else m.HealthReason.UNSPECIFIED
                self.world.ask(question.asked.target, number=number, reason=reason, targets=list(question.targets))
            self.world.pass_s(0.05)
            self._hear()

    def _hear(self) -> None:
        messages, now = self.world.messages, self.world.now
        fresh, self._heard = messages[self._heard :], len(messages)
        for message in fresh:
            change = None
            if isinstance(message, m.EdgeNodeEvent) and message.health_observation is not None:
                seen = message.health_observation
                said = self._said(seen.provider_id, seen.adapter, seen.target)
                evidence = Evidence(
                    Source.OBSERVATION, said, seen.provider_health.name.lower(), None, seen.health_observation_seq,
                    HealthReason[seen.reason.name] if seen.reason else None, seen.scope is m.HealthScope.TARGET,
                )  # fmt: skip
                change = self.overlay.heard(evidence, now).change
            elif isinstance(message, m.NodeCommandResponse):
                question = self._asked[message.command_id]
                if question.targets:
                    available = message.provider_health is m.ProviderHealth.AVAILABLE
                    look = Look(frozenset(message.not_listed), message.not_an_api) if available else None
                    self.overlay.seen(question, look, now)
                else:
                    said = self._said(message.provider_id, message.adapter, message.target)
                    health = message.provider_health.name.lower()
                    change = self.overlay.answered(question, said, health, message.health_observation_seq, now).change
            if change is not None:
                self.changed_at.append(now)
            self.overlay.validate()


def playing(answers: dict[str, Answer]) -> object:
    def probe(served: Served) -> None:
        answer = answers.get(served.path.decode(), GONE)
        if isinstance(answer, tuple):
            served.answer(*answer)
        elif answer == RESETS:
            served.transport.peer.reset()

    return probe


def health_of(kind: str, by_path: dict[str, str]) -> str:
    """What the health question says: ``well``, ``failing``, or ``unclear`` where a question has no answer."""
    for path in ASKED[kind]:
        name = by_path[path]
        if name in ("500", "503"):
            return "failing"
        if name in ("silent", "resets"):
            return "unclear"
        if name in DECIDES.get(path, ()):
            break
    return "well"


@pytest.mark.req("HEALTH-6", "HEALTH-8", "HEALTH-10")
@pytest.mark.parametrize("was_gone", [False, True], ids=["up", "was gone"])
@pytest.mark.parametrize("models", TO_MODELS)
@pytest.mark.parametrize("kind", ASKED)
def test_answers_that_stay_the_same_lower_and_restore_once(kind: str, models: str, was_gone: bool) -> None:
    """What lowers a provider and what restores it is one question, whatever else the server says of itself."""
    for other in TO_HEALTH:
        names = dict.fromkeys(("/health", "/slots", "/ready", "/api/tags", "/api/ps"), other) | {"/v1/models": models}
        if kind == "llama_cpp":
            names["/health"] = "200" if other != "503" else other
        answers = {path: (TO_MODELS | TO_HEALTH)[name] for path, name in names.items()}
        config = {"health_path": "/ready"} if kind == "configured" else {}
        with VirtualNode("openai_compat" if kind == "configured" else kind, **config) as world:
            world.probe = playing(answers)  # type: ignore[assignment]
            if was_gone:
                world.refuse()
            scene = Scene(world)
            if was_gone:
                scene.pass_s(2.0)
                assert scene.overlay.lowered == 1
                world.listen()
            scene.pass_s(40.0)
            settled_at = world.now
            scene.pass_s(QUIET_S)
            what = f"{kind}, models {models}, other {other}: changed at {scene.changed_at}"
            assert [at for at in scene.changed_at if at > settled_at] == [], what
            assert len(scene.changed_at) <= 3, what
            expected = health_of(kind, names)
            if expected != "unclear":
                assert scene.overlay.lowered == (expected == "failing"), what
            elif not was_gone:
                assert scene.overlay.lowered == 0, what
