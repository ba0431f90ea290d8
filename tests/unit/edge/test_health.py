"""What the edge makes of evidence: who is a candidate, who is asked what and when, and what is told (HEALTH, OBS)."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from iop.edge.nodes.commands import MAX_OUTSTANDING, Commands
from iop.edge.nodes.health import ANSWER_S, ASKED_AT_ONCE, Health
from iop.errors import Unavailable
from iop.net.wheel import TICK_S, Wheel
from iop.observability.metrics import EdgeMetrics
from iop.pool import Granted, Lease, Refused
from iop.pool.evidence import Known
from iop.wire import messages as m
from tests.unit.pool.pool_world import PoolWorld, group, provider

P, Q = provider("p"), provider("q", "n2")
AVAILABLE, UNAVAILABLE, UNKNOWN = m.ProviderHealth.AVAILABLE, m.ProviderHealth.UNAVAILABLE, m.ProviderHealth.UNKNOWN
MEANS = {
    AVAILABLE: m.LivenessClassification.REQUEST_STALLED,
    UNAVAILABLE: m.LivenessClassification.PROVIDER_UNHEALTHY,
    UNKNOWN: m.LivenessClassification.HEALTH_UNKNOWN,
}
SECRETS = ("n1", "t-p", "t1", "p1", "a1", "vllm")


class Link:
    """A node's connection with a test in its place."""

    def __init__(self) -> None:
        self.asked: list[m.NodeCommandRequest] = []
        self.commands = Commands(self._send)

    def _send(self, request: m.NodeCommandRequest) -> None:
        if not request.cancel:
            self.asked.append(request)

    def answer(self, health: m.ProviderHealth, seq: int, **other: Any) -> None:
        """To the last question, as it was asked unless ``other`` says otherwise."""
        asked = self.asked[-1]
        fields = {"provider_id": asked.provider_id, "adapter": asked.adapter, "target": asked.target, **other}
        answer = m.NodeCommandResponse(asked.command_id, provider_health=health, health_observation_seq=seq, **fields)
        self.commands.answered(answer)


class World:
    """A pool with two ready nodes that have one provider each, both in the group ``g``, and p alone in ``alone``."""

    def __init__(self) -> None:
        self.pool = PoolWorld([P, Q], [group("g", P, Q), group("alone", P)])
        self.wheel = Wheel(1000.0)
        self.metrics = EdgeMetrics()
        self.links = {"n1": Link(), "n2": Link()}
        self.did: list[Any] = []
        self.health = Health(
            self.wheel, self.pool.pool, self.metrics, self.did.extend, commands=self._commands, jitter=lambda: 0.0
        )
        self.known = {
            ("n1", "p"): Known("vllm", "b", frozenset({"t-p"})),
            ("n2", "q"): Known("vllm", "b", frozenset({"t-q"})),
        }
        self.health.configure(self.known)
        for node_id, generation in self.pool.generations.items():
            self.health.ready(node_id, generation)
        self.looks = self.see()

    def see(self) -> list[m.NodeCommandRequest]:
        """The looks at providers that are due are put, and find nothing wrong."""
        self.advance(2 * TICK_S)
        looks = []
        for link in self.links.values():
            while link.asked and link.asked[-1].targets:
                look = link.asked[-1]
                link.answer(AVAILABLE, 0)
                looks.append(link.asked.pop())
                assert look.command is m.NodeCommand.CAPABILITIES
        return looks

    def _commands(self, node_id: str, generation: int) -> Commands | None:
        return self.links[node_id].commands if self.pool.generations[node_id] == generation else None

    def lease(self, group_id: str = "alone") -> Lease:
        return self.pool.lease(group_id)

    def observe(self, health: m.ProviderHealth, seq: int, **other: Any) -> None:
        fields = {"provider_id": "p", "adapter": "vllm", "target": "t-p", **other}
        seen = m.HealthObservation(provider_health=health, health_observation_seq=seq, **fields)
        self.health.observed("n1", self.pool.generations["n1"], seen)

    def reconnect(self) -> None:
        """n1 is lost, as the node server tells it, and comes back with another connection."""
        old = self.pool.generations["n1"]
        self.links["n1"].commands.close()
        self.pool.pool.lost("n1", old, self.pool.now)
        self.health.lost("n1", old)
        self.links["n1"] = Link()
        self.pool.connect("n1")
        self.health.ready("n1", self.pool.generations["n1"])
        self.see()

    def advance(self, seconds: float) -> None:
        until = self.wheel.now + seconds
        while self.wheel.now < until - TICK_S / 2:
            self.wheel.advance(self.wheel.now + TICK_S)
            for link in self.links.values():
                link.commands.tick(self.wheel.now)

    def waits(self, count: int) -> list[float]:
        """Seconds from here to each of the next questions about p; each is answered at once, with no."""
        found, link, seq = [], self.links["n1"], 100
        for _ in range(count):
            before, asked = self.wheel.now, len(link.asked)
            while len(link.asked) == asked:
                self.advance(TICK_S)
            found.append(round(self.wheel.now - before, 1))
            seq += 1
            link.answer(UNAVAILABLE, seq)
        return found

    @property
    def evidence(self) -> dict[tuple[str, ...], int]:
        return {labels: int(value) for labels, value in self.metrics.health_evidence.read() if value}

    @property
    def transitions(self) -> dict[tuple[str, ...], int]:
        return {labels: int(value) for labels, value in self.metrics.health_transitions.read() if value}

    def shown(self, node_id: str = "n1", provider_id: str = "p") -> tuple[str, Any]:
        nodes: Any = self.pool.pool.snapshot(self.pool.now)["nodes"]
        row = {n["id"]: n["providers"][0] for n in nodes}[node_id]
        self.health.show(node_id, row)
        return row["health"], row["lowered"]


def stall(health: m.ProviderHealth, seq: int, meaning: m.LivenessClassification | None = None) -> m.ExecutionFailure:
    meaning = MEANS[health] if meaning is None else meaning
    return m.ExecutionFailure(m.ErrorCode.RESPONSE_STALLED, True, health, meaning, seq, 1500, True)


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [{"event": r.getMessage(), "level": r.levelname, **vars(r)["fields"]} for r in caplog.records]


# ---- stalls ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("HEALTH-1", "HEALTH-2", "HEALTH-3")
def test_a_stall_of_a_dead_engine_takes_it_out_of_the_choice_before_its_slot_is_free() -> None:
    world = World()
    lease = world.lease()
    waiting = world.pool.wait("alone")
    assert world.health.stall_reported(lease, stall(UNAVAILABLE, 1)) == UNAVAILABLE
    (refused,) = world.did
    assert isinstance(refused, Refused)
    assert (refused.ticket, refused.error.code) == (waiting, "unavailable")
    with pytest.raises(Unavailable):
        world.lease()
    assert world.lease("g").provider_id == "q", "requests go elsewhere"
    health, lowered = world.shown()
    assert (health, lowered["source"], lowered["classification"]) == ("unavailable", "terminal", "provider_unhealthy")
    assert abs(lowered["since"] - time.time()) < 60
    assert world.pool.pool.holds(lease), "its own lease ends with its terminal, as ever"


@pytest.mark.req("HEALTH-1", "HEALTH-2", "LIVE-7")
@pytest.mark.parametrize(
    ("failure", "handed", "counted"),
    [
        (stall(AVAILABLE, 1), AVAILABLE, ("available", "noop")),
        (stall(UNKNOWN, 1), UNKNOWN, ("unknown", "noop")),
        (stall(UNAVAILABLE, 0), UNAVAILABLE, ("unavailable", "stale")),
        (stall(UNAVAILABLE, 1, m.LivenessClassification.REQUEST_STALLED), UNKNOWN, ("unknown", "malformed")),
        (stall(AVAILABLE, 1, m.LivenessClassification.PROVIDER_UNHEALTHY), UNKNOWN, ("unknown", "malformed")),
        (m.ExecutionFailure(m.ErrorCode.RESPONSE_STALLED), UNKNOWN, ("unknown", "malformed")),
    ],
)
def test_any_current_stall_is_handed_over_and_only_fresh_unavailable_lowers(
    failure: m.ExecutionFailure, handed: m.ProviderHealth, counted: tuple[str, str]
) -> None:
    world = World()
    assert world.health.stall_reported(world.lease(), failure) == handed
    assert world.shown() == ("available", None)
    assert world.evidence == {("terminal", *counted): 1}
    assert world.transitions == {}


@pytest.mark.req("HEALTH-1")
@pytest.mark.parametrize("code", [c for c in m.ErrorCode if c is not m.ErrorCode.RESPONSE_STALLED])
def test_no_other_terminal_is_evidence_or_hands_anything_over(code: m.ErrorCode) -> None:
    world = World()
    failure = stall(UNAVAILABLE, 1)
    failure.code = code
    assert world.health.stall_reported(world.lease(), failure) is None
    assert (world.shown(), world.evidence) == (("available", None), {})


@pytest.mark.req("HEALTH-1", "HEALTH-2")
def test_a_stall_of_another_generation_changes_nothing_and_is_counted() -> None:
    world = World()
    lease = world.lease()
    world.reconnect()
    assert world.health.stall_reported(lease, stall(UNAVAILABLE, 9)) is None
    assert world.evidence == {("terminal", "unavailable", "foreign"): 1}
    assert world.shown() == ("available", None)


@pytest.mark.req("HEALTH-1", "CONF-2")
def test_a_stall_of_what_is_no_longer_configured_is_handed_over_and_lowers_nothing() -> None:
    world = World()
    lease = world.lease()
    world.health.configure({**world.known, ("n1", "p"): Known("vllm", "b", frozenset({"new"}))})
    assert world.health.stall_reported(lease, stall(UNAVAILABLE, 1)) == UNAVAILABLE
    assert world.evidence == {("terminal", "unavailable", "foreign"): 1}
    assert world.shown() == ("available", None)


# ---- observations ---------------------------------------------------------------------------------------------------


@pytest.mark.req("HEALTH-6")
def test_a_node_s_own_observation_lowers_an_engine_that_looks_idle() -> None:
    world = World()
    world.observe(UNAVAILABLE, 1)
    assert world.shown()[1]["source"] == "observation"
    assert world.lease("g").provider_id == "q"
    assert world.transitions == {("available", "unavailable"): 1}


@pytest.mark.req("HEALTH-6", "HEALTH-2", "OBS-1")
def test_observations_that_are_none_are_counted_and_change_nothing() -> None:
    world = World()
    world.observe(AVAILABLE, 5)
    for other in ({"provider_id": "q"}, {"provider_id": ""}, {"adapter": "ollama"}, {"target": "t-q"}, {"target": ""}):
        world.observe(UNAVAILABLE, 6, **other)
    world.observe(m.ProviderHealth.UNSPECIFIED, 6)
    world.observe(UNAVAILABLE, 4)
    world.observe(UNAVAILABLE, 5)
    world.observe(UNKNOWN, 6)
    assert world.shown() == ("available", None)
    assert world.evidence == {
        ("observation", "available", "noop"): 1,
        ("observation", "unavailable", "foreign"): 5,
        ("observation", "unknown", "malformed"): 1,
        ("observation", "unavailable", "stale"): 1,
        ("observation", "unavailable", "ambiguous"): 1,
        ("observation", "unknown", "noop"): 1,
    }


@pytest.mark.req("HEALTH-6", "OBS-2")
def test_a_thousand_observations_a_second_cost_a_line_a_second_and_no_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "iop.edge.nodes.health")
    world = World()
    world.observe(UNAVAILABLE, 1)
    for i in range(45):
        for j in range(50):
            kind = [{}, {"target": f"t{j}"}, {"provider_id": f"p{j}"}, {"adapter": f"a{j}"}][j % 4]
            world.observe([UNAVAILABLE, AVAILABLE, UNKNOWN][j % 3], i * 50 + j, **kind)
        world.advance(0.05)
    assert sum(world.evidence.values()) == 2251
    assert len(world.health.overlay._nodes["n1"].records) == 1
    assert world.did == []
    named = [line for line in told(caplog) if line["event"] == "provider_lowered"]
    said = [line for line in told(caplog) if line not in named]
    assert [(line["node"], line["provider"]) for line in named] == [("n1", "p")]
    assert len(said) <= 4
    assert said[0] == {
        "event": "edge_provider_health_observation", "level": "WARNING", "source": "observation",
        "health": "unavailable", "result": "applied", "from": "available", "to": "unavailable",
    }  # fmt: skip
    assert sum(line.get("unsaid", 0) for line in said) > 1500
    assert not any(secret in str(said) for secret in SECRETS)


# ---- questions ------------------------------------------------------------------------------------------------------


@pytest.mark.req("HEALTH-4")
def test_a_lowered_provider_is_asked_about_at_the_agreed_times() -> None:
    world = World()
    world.observe(UNAVAILABLE, 1)
    assert world.waits(7) == pytest.approx([1, 2, 4, 8, 15, 15, 15], abs=3 * TICK_S)
    (asked, *_) = world.links["n1"].asked
    command = m.NodeCommand.CAPABILITIES, "p", "vllm", "t-p", int(ANSWER_S * 1000)
    assert asked == m.NodeCommandRequest(2, *command, reason=m.HealthReason.FAILING)
    assert world.links["n2"].asked == []


@pytest.mark.req("HEALTH-5", "POOL-4")
def test_a_good_answer_brings_it_back_and_who_waits_is_served() -> None:
    world = World()
    taken = world.lease("g"), world.lease("g")
    world.observe(UNAVAILABLE, 1)
    waiting = world.pool.wait("g")
    held = next(lease for lease in taken if lease.provider_id == "p")
    assert world.pool.release(held) == []
    world.advance(1.1)
    world.links["n1"].answer(AVAILABLE, 2)
    assert [(type(a), a.ticket) for a in world.did] == [(Granted, waiting)]
    assert world.shown() == ("available", None)
    assert world.transitions == {("available", "unavailable"): 1, ("unavailable", "available"): 1}
    assert [look.targets for look in world.see()] == [["t-p"]], "it may be another server"
    world.advance(60)
    assert len(world.links["n1"].asked) == 1, "nobody asks about a provider that is there"


@pytest.mark.req("HEALTH-5")
@pytest.mark.parametrize(
    ("health", "seq", "other", "result"),
    [
        (AVAILABLE, 1, {}, "ambiguous"),
        (UNAVAILABLE, 1, {}, "stale"),
        (AVAILABLE, 0, {}, "stale"),
        (UNAVAILABLE, 2, {}, "noop"),
        (UNKNOWN, 2, {}, "noop"),
        (m.ProviderHealth.UNSPECIFIED, 2, {}, "malformed"),
        (AVAILABLE, 2, {"provider_id": "q"}, "foreign"),
        (AVAILABLE, 2, {"adapter": "ollama"}, "foreign"),
        (AVAILABLE, 2, {"target": "t-q"}, "foreign"),
        (AVAILABLE, 2, {"target": ""}, "ambiguous"),
        (AVAILABLE, 2, {"code": m.ErrorCode.UNKNOWN_PROVIDER}, "noop"),
    ],
)
def test_no_other_answer_brings_it_back(health: m.ProviderHealth, seq: int, other: dict[str, Any], result: str) -> None:
    world = World()
    world.observe(UNAVAILABLE, 1)
    world.advance(1.1)
    world.links["n1"].answer(health, seq, **other)
    assert world.shown()[0] == "unavailable"
    ((labels, count),) = [item for item in world.evidence.items() if item[0][0] == "capabilities"]
    assert (labels[2], count) == (result, 1)
    world.advance(2.1)
    assert len(world.links["n1"].asked) == 2, "it is asked about again"


@pytest.mark.req("HEALTH-4")
def test_a_question_without_an_answer_ends_and_the_next_one_comes_later() -> None:
    world = World()
    world.observe(UNAVAILABLE, 1)
    world.advance(1 + ANSWER_S)
    assert len(world.links["n1"].asked) == 1, "one at a time"
    world.advance(2.2)
    assert len(world.links["n1"].asked) == 2
    assert world.evidence["capabilities", "unknown", "noop"] == 1
    world.links["n1"].answer(AVAILABLE, 2)
    assert world.shown() == ("available", None)


@pytest.mark.req("HEALTH-5", "REG-5")
def test_the_answer_of_a_connection_that_is_gone_is_nobody_s() -> None:
    world = World()
    world.observe(UNAVAILABLE, 1)
    world.advance(1.1)
    old = world.links["n1"]
    world.reconnect()
    assert world.shown() == ("available", None), "a new generation starts clean"
    assert world.transitions == {("available", "unavailable"): 1, ("unavailable", "offline"): 1}
    world.observe(UNAVAILABLE, 1)
    old.answer(AVAILABLE, 2)
    assert world.shown()[0] == "unavailable"
    assert world.evidence == {("observation", "unavailable", "applied"): 2}
    world.advance(1.1)
    world.links["n1"].answer(AVAILABLE, 2)
    assert world.shown() == ("available", None)


@pytest.mark.req("HEALTH-4", "EXEC-8")
def test_questions_leave_room_for_other_commands_and_come_again() -> None:
    world = World()
    commands = world.links["n1"].commands
    for _ in range(ASKED_AT_ONCE):
        commands.start(m.NodeCommand.TRANSPORT_STATUS, lambda answer: None, world.wheel.now, timeout_s=5.0)
    world.observe(UNAVAILABLE, 1)
    world.advance(3.0)
    assert commands.outstanding == ASKED_AT_ONCE < MAX_OUTSTANDING
    world.advance(4.0)
    assert world.links["n1"].asked[-1].command is m.NodeCommand.CAPABILITIES


@pytest.mark.req("HEALTH-10")
@pytest.mark.parametrize(
    ("found", "health", "note"),
    [
        ({"not_listed": ["t-p"]}, "available", "not listed: t-p"),
        ({"not_an_api": True}, "unknown", "not an API: /v1 missing?"),
        ({"list_fault": m.ListFault.FAILING}, "available", "no list of models: it answers with 5xx or not at all"),
        ({"list_fault": m.ListFault.TOO_LARGE}, "available", "the list of models is too large to compare with"),
        ({"list_fault": 99}, "available", None),  # of a later node
    ],
)
def test_what_a_look_finds_is_shown_and_the_provider_stays_a_candidate(
    found: dict[str, Any], health: str, note: str | None
) -> None:
    world = World()
    world.health.ready("n1", world.pool.generations["n1"])
    world.advance(2 * TICK_S)
    world.links["n1"].answer(AVAILABLE, 0, **found)
    row = {"id": "p", "health": "available"}
    world.health.show("n1", row)
    assert (row["health"], row["note"]) == (health, note)
    assert world.lease() is not None


@pytest.mark.req("HEALTH-3", "CONF-2")
def test_a_changed_target_brings_a_provider_back_and_a_removed_one_leaves_nothing() -> None:
    world = World()
    world.observe(UNAVAILABLE, 1)
    world.health.configure({**world.known, ("n1", "p"): Known("vllm", "b", frozenset({"new"}))})
    assert world.shown() == ("available", None)
    world.observe(UNAVAILABLE, 2, target="new")
    assert world.shown()[0] == "unavailable"
    world.health.configure({})
    assert world.shown() == ("available", None), "if it is configured again before its last lease is back"
    world.advance(5)
    assert world.links["n1"].asked == []
    assert world.transitions == {
        ("available", "unavailable"): 2, ("unavailable", "available"): 1, ("unavailable", "offline"): 1,
    }  # fmt: skip
