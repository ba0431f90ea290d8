"""What each kind of provider is asked by a probe, and what its answers mean (EXEC-4, HEALTH-5, LIVE-7)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iop.wire import messages as m
from tests.simulation.virtual import BASE, Served, VirtualNode

Answers = dict[str, tuple[int, bytes] | str]  # by path: status and body, or what happens instead

LISTS = json.dumps({"object": "list", "data": [{"id": "other"}, {"id": "t", "owned_by": "x"}]}).encode()
LACKS = json.dumps({"data": [{"id": "other", "name": 7}]}).encode()
PS = json.dumps({"models": [{"name": "t:latest", "model": "t:latest", "size": 1}]}).encode()
NONE = b'{"models":[]}'
OK, GONE, BUSY = (200, b""), (404, b"no"), (503, b'{"error":{"message":"Loading model"}}')
SILENT, CLOSES, RESETS, GARBLED, CUT = "silent", "closes", "resets", "garbled", "cut"

CASES: list[tuple[str, Answers, str]] = [
    ("openai_compat", {"/v1/models": (200, LISTS)}, "AVAILABLE"),
    ("openai_compat", {"/v1/models": (200, LACKS)}, "AVAILABLE"),  # it may serve what it never listed
    ("openai_compat", {"/v1/models": (200, b'{"data":[]}')}, "AVAILABLE"),
    ("openai_compat", {"/v1/models": (200, b"{}")}, "UNKNOWN"),
    ("openai_compat", {"/v1/models": (200, b"<html>")}, "UNKNOWN"),
    ("openai_compat", {"/v1/models": (200, b"[" * 100_000)}, "UNKNOWN"),
    (
        "openai_compat",
        {"/v1/models": (200, b'{"data":[' + b'{"id":"x"},' * 120_000 + b"]}")},
        "AVAILABLE",
    ),  # too large to read
    ("openai_compat", {"/v1/models": (401, b"")}, "UNKNOWN"),
    ("openai_compat", {"/v1/models": (429, b"")}, "UNKNOWN"),
    ("openai_compat", {"/v1/models": (500, b"")}, "UNAVAILABLE"),
    ("openai_compat", {"/v1/models": BUSY}, "UNAVAILABLE"),
    ("openai_compat", {}, "UNKNOWN"),  # neither a list nor a word on its health
    ("openai_compat", {"/health": OK}, "AVAILABLE"),  # a server without a list
    ("openai_compat", {"/health": BUSY}, "UNAVAILABLE"),
    ("openai_compat", {"/v1/models": SILENT}, "UNAVAILABLE"),
    ("openai_compat", {"/v1/models": CLOSES}, "UNAVAILABLE"),
    ("openai_compat", {"/v1/models": RESETS}, "UNAVAILABLE"),
    ("openai_compat", {"/v1/models": CUT}, "UNAVAILABLE"),
    ("openai_compat", {"/v1/models": GARBLED}, "UNKNOWN"),
    ("vllm", {"/health": OK, "/v1/models": (200, LISTS)}, "AVAILABLE"),
    ("vllm", {"/health": OK, "/v1/models": (200, LACKS)}, "AVAILABLE"),
    ("vllm", {"/health": BUSY, "/v1/models": (200, LISTS)}, "UNAVAILABLE"),
    ("vllm", {"/health": OK}, "UNKNOWN"),
    ("vllm", {"/v1/models": (200, LISTS)}, "UNKNOWN"),
    ("vllm", {"/health": SILENT}, "UNAVAILABLE"),
    ("vllm", {"/health": OK, "/v1/models": SILENT}, "UNKNOWN"),
    ("vllm", {"/health": OK, "/v1/models": RESETS}, "UNAVAILABLE"),
    ("sglang", {"/health": OK, "/v1/models": (200, LISTS)}, "AVAILABLE"),
    ("sglang", {"/health": BUSY, "/v1/models": (200, LISTS)}, "UNAVAILABLE"),  # it is starting
    ("sglang", {"/health": SILENT}, "UNAVAILABLE"),
    ("llama_cpp", {"/health": OK, "/slots": (200, b"[]")}, "AVAILABLE"),
    ("llama_cpp", {"/health": OK, "/slots": (501, b"")}, "AVAILABLE"),
    ("llama_cpp", {"/health": OK}, "AVAILABLE"),
    ("llama_cpp", {"/health": BUSY}, "UNAVAILABLE"),
    ("llama_cpp", {"/health": OK, "/slots": BUSY}, "UNAVAILABLE"),
    ("llama_cpp", {"/health": OK, "/slots": SILENT}, "UNKNOWN"),  # in the middle of a long batch, or worse
    ("llama_cpp", {"/health": SILENT}, "UNAVAILABLE"),
    ("ollama", {"/api/ps": (200, PS)}, "AVAILABLE"),
    ("ollama", {"/api/ps": (200, NONE), "/api/tags": (200, PS)}, "AVAILABLE"),
    ("ollama", {"/api/ps": (200, NONE), "/api/tags": (200, NONE)}, "AVAILABLE"),
    ("ollama", {"/api/ps": (500, b"")}, "UNAVAILABLE"),
    ("ollama", {}, "UNKNOWN"),
    ("ollama", {"/api/ps": SILENT}, "UNAVAILABLE"),
]


def playing(answers: Answers) -> object:
    def probe(served: Served) -> None:
        answer = answers.get(served.path.decode(), GONE)
        transport = served.transport
        if isinstance(answer, tuple):
            served.answer(*answer)
        elif answer == CLOSES:
            transport.close()
        elif answer == RESETS:
            transport.peer.reset()
        elif answer == GARBLED:
            transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n")
        elif answer == CUT:
            transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
            transport.close()

    return probe


def health(world: VirtualNode, target: str = "t", **more: Any) -> str:
    world.ask(target, number=len(world.heard(m.NodeCommandResponse)) + 1, **more)
    world.pass_s(3.3)
    answer = world.heard(m.NodeCommandResponse)[-1]
    assert (answer.code, answer.adapter, answer.target) == (m.ErrorCode.UNSPECIFIED, world.kind, target)
    return str(answer.provider_health.name)


@pytest.mark.req("HEALTH-5", "LIVE-7", "EXEC-4")
@pytest.mark.parametrize(("kind", "answers", "found"), CASES, ids=[f"{k} {sorted(a)} {f}" for k, a, f in CASES])
def test_what_a_kind_of_provider_answers_is_its_health(kind: str, answers: Answers, found: str) -> None:
    with VirtualNode(kind) as world:
        world.probe = playing(answers)  # type: ignore[assignment]
        assert health(world) == found
        assert all(b"connection: close" in served.heard for served in world.probes)


@pytest.mark.req("HEALTH-5")
@pytest.mark.parametrize("kind", ["openai_compat", "vllm", "sglang", "llama_cpp", "ollama"])
def test_a_server_that_is_not_there_is_unavailable(kind: str) -> None:
    with VirtualNode(kind) as world:
        world.refuse()
        assert health(world) == "UNAVAILABLE"


@pytest.mark.req("HEALTH-5")
@pytest.mark.parametrize(
    ("target", "found"), [("t", "UNAVAILABLE"), ("t:latest", "UNAVAILABLE"), ("t:8b", "AVAILABLE")]
)
def test_a_name_without_a_tag_is_its_latest_at_ollama(target: str, found: str) -> None:
    """A target that is lost from the list was in it: under any of its names."""
    with VirtualNode("ollama") as world:
        world.probe = playing({"/api/ps": (200, NONE), "/api/tags": (200, PS)})  # type: ignore[assignment]
        assert health(world, target) == "AVAILABLE"
        world.probe = playing({"/api/ps": (200, NONE), "/api/tags": (200, NONE)})  # type: ignore[assignment]
        assert health(world, target) == found


@pytest.mark.req("HEALTH-5")
@pytest.mark.parametrize(
    ("kind", "base", "paths"),
    [
        ("vllm", "/v1", [b"/health", b"/v1/models"]),
        ("vllm", "/gpu/v1", [b"/gpu/health", b"/gpu/v1/models"]),
        ("llama_cpp", "/v1", [b"/health", b"/slots"]),
        ("openai_compat", "/api/openai", [b"/api/openai/models"]),
        ("ollama", "/v1", [b"/api/ps"]),
    ],
)
def test_what_is_asked_and_where(kind: str, base: str, paths: list[bytes]) -> None:
    with VirtualNode(kind, base_url=BASE.replace("/v1", base)) as world:

        def probe(served: Served) -> None:
            served.answer(200, PS if kind == "ollama" else LISTS)

        world.probe = probe
        assert health(world) == "AVAILABLE"
        assert [served.path for served in world.probes] == paths


@pytest.mark.req("HEALTH-5")
@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ((200, b"anything"), "AVAILABLE"),
        ((204, b""), "AVAILABLE"),
        ((302, b""), "UNKNOWN"),
        (GONE, "UNKNOWN"),
        (BUSY, "UNAVAILABLE"),
    ],
)
def test_a_configured_path_is_asked_in_the_place_of_all_else(answer: tuple[int, bytes], found: str) -> None:
    with VirtualNode("vllm", base_url=BASE.replace("/v1", "/gpu/v1"), health_path="/well?deep=1") as world:
        world.probe = playing({"/well?deep=1": answer})  # type: ignore[assignment]
        assert health(world) == found
        assert [served.path for served in world.probes] == [b"/well?deep=1"]


@pytest.mark.req("HEALTH-5")
def test_a_configured_bound_ends_a_probe_and_its_connection() -> None:
    with VirtualNode(health_timeout_ms=500) as world:
        world.ask()
        world.pass_s(0.4)
        assert world.heard(m.NodeCommandResponse) == []
        world.pass_s(0.2)
        assert world.heard(m.NodeCommandResponse)[0].provider_health.name == "UNAVAILABLE"
        assert world.probes[0].gone


@pytest.mark.req("HEALTH-5", "EXEC-8")
def test_a_probe_waits_behind_no_run_and_takes_no_slot() -> None:
    with VirtualNode(capacity=1) as world:
        world.probe = playing({"/v1/models": (200, LISTS)})  # type: ignore[assignment]
        world.open()
        assert world.backends.gate.held("p") == 1
        world.ask()
        world.pass_s(0.1)
        assert world.heard(m.NodeCommandResponse)[0].provider_health.name == "AVAILABLE"
        assert world.backends.gate.held("p") == 1


@pytest.mark.req("HEALTH-5")
def test_capabilities_are_those_of_a_target() -> None:
    with VirtualNode() as world:
        world.ask("")
        world.pass_s(0.1)
        assert world.heard(m.NodeCommandResponse)[0].code is m.ErrorCode.INVALID_ARGUMENT


# ---- what a probe is read by (HEALTH-7, HEALTH-8) --------------------------------------------------------------------

REFUSED, FAILING, NOT_LISTED, STALLED = list(m.HealthReason)[1:]
HTML = (200, b"<html>")
ERROR = (500, b"")
#: A server that has listed its target, by what it answers now: what that means where the target is lowered for no
#: reason, as refused, as failing (or stalled), and as not listed. + is available, - unavailable, ? unknown.
BY_REASON: list[tuple[str, Answers, str]] = [
    ("openai_compat", {"/v1/models": (200, LISTS)}, "++++"),
    ("openai_compat", {"/v1/models": (200, LACKS)}, "-+--"),
    ("openai_compat", {"/v1/models": ERROR}, "----"),
    ("openai_compat", {"/v1/models": (401, b"")}, "?+++"),
    ("openai_compat", {"/v1/models": HTML}, "?+++"),
    ("openai_compat", {}, "?+++"),
    ("openai_compat", {"/health": OK}, "++++"),
    ("openai_compat", {"/health": BUSY}, "-+--"),
    ("openai_compat", {"/v1/models": GARBLED}, "????"),
    ("openai_compat", {"/v1/models": RESETS}, "----"),
    ("openai_compat", {"/v1/models": SILENT}, "----"),
    ("vllm", {"/health": OK, "/v1/models": (200, LISTS)}, "++++"),
    ("vllm", {"/health": BUSY, "/v1/models": (200, LISTS)}, "----"),
    ("vllm", {"/health": OK, "/v1/models": (200, LACKS)}, "-+--"),
    ("vllm", {"/v1/models": (200, LISTS)}, "?+++"),
    ("llama_cpp", {"/health": OK}, "++++"),
    ("llama_cpp", {"/health": BUSY}, "----"),
    ("llama_cpp", {"/health": OK, "/slots": BUSY}, "-+--"),
    ("ollama", {"/api/ps": (200, NONE), "/api/tags": (200, PS)}, "++++"),
    ("ollama", {"/api/ps": (200, NONE), "/api/tags": (200, NONE)}, "-+--"),
]


@pytest.mark.req("HEALTH-8")
@pytest.mark.parametrize(("kind", "answers", "found"), BY_REASON, ids=[f"{k} {sorted(a)} {f}" for k, a, f in BY_REASON])
def test_what_lowered_a_target_says_how_its_probe_is_read(kind: str, answers: Answers, found: str) -> None:
    """Whatever lowered it, a server that serves has a way back, and one that does not has none."""
    marks = {"AVAILABLE": "+", "UNAVAILABLE": "-", "UNKNOWN": "?"}
    with VirtualNode(kind) as world:
        listing = {"/health": OK, "/v1/models": (200, LISTS), "/api/ps": (200, PS), "/slots": (200, b"[]")}
        for place, reason in enumerate((m.HealthReason.UNSPECIFIED, REFUSED, FAILING, NOT_LISTED)):
            world.probe = playing(listing)  # type: ignore[assignment]
            assert health(world) == "AVAILABLE"
            world.probe = playing(answers)  # type: ignore[assignment]
            assert marks[health(world, reason=reason)] == found[place], reason
            if reason is FAILING:
                assert marks[health(world, reason=STALLED)] == found[place]


@pytest.mark.req("HEALTH-5", "HEALTH-8")
@pytest.mark.parametrize("reason", list(m.HealthReason))
@pytest.mark.parametrize("kind", ["openai_compat", "vllm", "ollama", "llama_cpp", "configured"])
def test_a_server_whose_answers_are_too_large_to_read_comes_back(kind: str, reason: m.HealthReason) -> None:
    """A good status is enough for health; the body is needed for the list alone."""
    config = {"health_path": "/ready"} if kind == "configured" else {}
    large = (200, b'{"data":[' + b",".join([b'{"id":"another-model","object":"model"}'] * 30_000) + b"]}")
    with VirtualNode("openai_compat" if kind == "configured" else kind, **config) as world:
        world.refuse()
        assert health(world) == "UNAVAILABLE"
        world.listen()
        paths = ("/v1/models", "/health", "/slots", "/api/ps", "/api/tags", "/ready")
        world.probe = playing(dict.fromkeys(paths, large))  # type: ignore[assignment]
        assert health(world, reason=reason) == "AVAILABLE"


@pytest.mark.req("HEALTH-7", "HEALTH-8")
@pytest.mark.parametrize("reason", list(m.HealthReason))
def test_a_server_that_answers_to_names_which_it_does_not_list_comes_back(reason: m.HealthReason) -> None:
    """Whatever lowered it: it was gone, and is as it was before."""
    with VirtualNode() as world:
        world.probe = playing({"/v1/models": (200, LACKS)})  # type: ignore[assignment]
        assert health(world, reason=reason) == "AVAILABLE"
        world.refuse()
        assert health(world, reason=reason) == "UNAVAILABLE"
        world.listen()
        assert health(world, reason=reason) == "AVAILABLE"


@pytest.mark.req("HEALTH-7")
def test_what_a_server_listed_is_forgotten_with_it() -> None:
    """One that is back after it was gone is another one: what that never listed is no evidence."""
    with VirtualNode() as world:
        for answer, found in ((LISTS, "AVAILABLE"), (LACKS, "UNAVAILABLE")):
            world.probe = playing({"/v1/models": (200, answer)})  # type: ignore[assignment]
            assert health(world) == found
        world.refuse()
        assert health(world) == "UNAVAILABLE"
        world.listen()
        assert health(world) == "AVAILABLE"


@pytest.mark.req("LIVE-5", "HEALTH-5")
def test_a_probe_whose_own_node_was_stopped_says_nothing_of_its_provider() -> None:
    with VirtualNode() as world:
        world.ask()
        world.pass_s(0.1)
        world.suspend(60.0)
        world.pass_s(0.2)
        assert world.heard(m.NodeCommandResponse)[0].provider_health.name != "UNAVAILABLE"


# ---- one look at a provider (HEALTH-10) ------------------------------------------------------------------------------


def looked(world: VirtualNode, *targets: str) -> m.NodeCommandResponse:
    number = len(world.heard(m.NodeCommandResponse)) + 1
    world.ask(targets[0], number=number, targets=list(targets))
    world.pass_s(6.5)
    answer = world.heard(m.NodeCommandResponse)[-1]
    assert isinstance(answer, m.NodeCommandResponse)
    assert answer.command_id == number
    return answer


@pytest.mark.req("HEALTH-10", "HEALTH-7")
@pytest.mark.parametrize(
    ("kind", "base", "answers", "health", "not_listed", "not_an_api"),
    [
        ("openai_compat", "/v1", {"/v1/models": (200, LISTS)}, "AVAILABLE", ["wrong"], False),
        ("openai_compat", "/v1", {"/health": OK}, "AVAILABLE", [], False),
        ("openai_compat", "/v1", {"/v1/models": (401, b"")}, "AVAILABLE", [], False),
        ("openai_compat", "/v1", {"/v1/models": SILENT}, "UNKNOWN", [], False),
        ("openai_compat", "/v1", {"/v1/models": RESETS}, "UNKNOWN", [], False),
        ("openai_compat", "", {"/v1/models": (200, LISTS)}, "AVAILABLE", [], True),
        ("openai_compat", "", {"/models": HTML, "/health": OK}, "AVAILABLE", [], True),
        ("openai_compat", "", {"/models": (200, LISTS)}, "AVAILABLE", ["wrong"], False),
        ("openai_compat", "", {"/models": (401, b"")}, "AVAILABLE", [], False),
        ("vllm", "", {"/health": OK, "/v1/models": (200, LISTS)}, "AVAILABLE", [], True),
        ("llama_cpp", "/v1", {"/health": OK, "/v1/models": (200, LISTS)}, "AVAILABLE", [], False),
        ("ollama", "/v1", {"/api/ps": (200, PS), "/v1/models": (200, LISTS)}, "AVAILABLE", ["wrong"], False),
        ("ollama", "", {"/api/ps": (200, PS), "/v1/models": (200, LISTS)}, "AVAILABLE", [], True),
    ],
)
def test_one_look_tells_what_is_wrong_with_a_provider_and_its_targets(
    kind: str, base: str, answers: Answers, health: str, not_listed: list[str], not_an_api: bool
) -> None:
    with VirtualNode(kind, base_url=BASE.replace("/v1", base)) as world:
        world.probe = playing(answers)  # type: ignore[assignment]
        answer = looked(world, "t", "wrong")
        assert answer.provider_health.name == health
        assert (answer.not_listed, answer.not_an_api) == (not_listed, not_an_api)
        assert world.observations == [], "what is shown is no evidence"


@pytest.mark.req("HEALTH-7", "HEALTH-10")
@pytest.mark.parametrize(("listed", "found"), [("u", "UNAVAILABLE"), ("v", "AVAILABLE")])
def test_a_look_keeps_a_list_that_its_questions_did_not_reach(listed: str, found: str) -> None:
    """An Ollama server tells first what it runs, which decides for the first target; the look has all that it has."""
    with VirtualNode("ollama") as world:
        names = json.dumps({"data": [{"id": "t:latest"}, {"id": f"{listed}:latest"}]}).encode()
        world.probe = playing({"/api/ps": (200, PS), "/v1/models": (200, names)})  # type: ignore[assignment]
        looked(world, "t", "u")
        world.probe = playing({"/api/ps": (200, NONE), "/api/tags": (200, NONE)})  # type: ignore[assignment]
        assert health(world, "u") == found


@pytest.mark.req("HEALTH-10")
@pytest.mark.parametrize(
    ("models", "fault"),
    [
        ((200, LACKS), "UNSPECIFIED"),
        (GONE, "UNSPECIFIED"),
        ((501, b""), "UNSPECIFIED"),
        ((401, b""), "UNSPECIFIED"),
        (ERROR, "FAILING"),
        (BUSY, "FAILING"),
        (SILENT, "FAILING"),
        (RESETS, "FAILING"),
        (GARBLED, "FAILING"),
        ((200, b"x" * (1 << 21)), "TOO_LARGE"),
        ((404, b"x" * (1 << 21)), "UNSPECIFIED"),
    ],
)
@pytest.mark.parametrize(
    ("kind", "config"), [("openai_compat", {"health_path": "/ready"}), ("llama_cpp", {}), ("ollama", {})]
)
def test_a_list_that_cannot_be_had_is_noted_and_says_nothing_of_a_server_that_is_well(
    kind: str, config: dict[str, str], models: tuple[int, bytes] | str, fault: str
) -> None:
    with VirtualNode(kind, **config) as world:
        answers = {"/v1/models": models, "/ready": OK, "/health": OK, "/slots": (200, b"[]"), "/api/ps": (200, PS)}
        world.probe = playing(answers)  # type: ignore[assignment]
        answer = looked(world, "t")
        assert (answer.provider_health.name, answer.list_fault.name) == ("AVAILABLE", fault)
        assert not answer.not_an_api
        assert world.observations == []


@pytest.mark.req("HEALTH-10", "HEALTH-6")
@pytest.mark.parametrize("models", [(200, LISTS), GONE, ERROR])
def test_a_look_asks_what_the_next_probe_would_ask(models: tuple[int, bytes]) -> None:
    """A server whose own word is that it fails is lowered before the first request, whatever it lists."""
    with VirtualNode(health_path="/ready") as world:
        world.probe = playing({"/v1/models": models, "/ready": BUSY})  # type: ignore[assignment]
        assert looked(world, "t").provider_health is m.ProviderHealth.UNAVAILABLE
        (seen,) = world.observations
        assert seen.reason is FAILING
        assert health(world, reason=FAILING) == "UNAVAILABLE"


@pytest.mark.req("HEALTH-10", "HEALTH-6")
def test_a_look_at_a_dead_port_reports_it_before_anybody_asked_for_it() -> None:
    with VirtualNode() as world:
        world.refuse()
        answer = looked(world, "t", "u")
        (seen,) = world.observations
        assert (seen.target, seen.provider_health, seen.reason) == ("t", m.ProviderHealth.UNAVAILABLE, REFUSED)
        assert seen.scope is m.HealthScope.UNSPECIFIED
        assert (answer.health_observation_seq, seen.health_observation_seq) == (0, 1)


@pytest.mark.req("HEALTH-10", "HEALTH-6", "HEALTH-8")
@pytest.mark.parametrize("kind", ["openai_compat", "vllm", "llama_cpp", "ollama"])
def test_a_look_that_a_server_answers_with_5xx_reads_as_any_probe_does(kind: str) -> None:
    with VirtualNode(kind) as world:
        world.probe = playing(dict.fromkeys(("/v1/models", "/health", "/api/ps", "/api/version"), ERROR))  # type: ignore[assignment]
        assert looked(world, "t", "u").provider_health is m.ProviderHealth.UNAVAILABLE
        (seen,) = world.observations
        assert (seen.provider_health, seen.reason) == (m.ProviderHealth.UNAVAILABLE, FAILING)
        assert health(world, "t", reason=FAILING) == "UNAVAILABLE"


@pytest.mark.req("HEALTH-7", "HEALTH-10")
def test_what_a_look_saw_in_the_list_is_missed_when_it_is_gone() -> None:
    with VirtualNode() as world:
        world.probe = playing({"/v1/models": (200, LISTS)})  # type: ignore[assignment]
        looked(world, "u", "t")
        world.probe = playing({"/v1/models": (200, LACKS)})  # type: ignore[assignment]
        assert health(world, "t") == "UNAVAILABLE"
        assert health(world, "u") == "AVAILABLE"
