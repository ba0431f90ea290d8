"""``providers: auto`` and ``models: auto``: what a file becomes when its open places are filled in (CONF-1, POOL-1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop.config.auto import Asks, Found, Server, asked_anew, asks, fill_in, matches
from iop.config.edge import EdgeConfig
from iop.config.load import parse_edge
from iop.edge.settings import values
from iop.errors import ConfigError

OLLAMA = Server("ollama", "ollama", 11434, 4, ("qwen3:8b", "llama3"))
VLLM = Server("vllm", "vllm", 8000, 32, ("Qwen/Qwen3-32B",))


def config(models: Any = "auto", providers: Any = "auto", *more: dict[str, Any]) -> EdgeConfig:
    nodes = [{"id": "n1", "token_sha256": "1" * 64, "providers": providers}, *more]
    return parse_edge(json.dumps({"nodes": nodes, "models": models}))


def node(node_id: str, providers: Any) -> dict[str, Any]:
    return {"id": node_id, "token_sha256": node_id[-1] * 64, "providers": providers}


def groups(filled: EdgeConfig) -> dict[str, list[tuple[str, str, str]]]:
    return {entry.id: [(c.node, c.provider, c.target) for c in entry.candidates] for entry in filled.models}


def providers(filled: EdgeConfig) -> list[tuple[str, str, str | None, int]]:
    return [(p.id, p.kind, p.base_url, p.capacity) for n in filled.nodes for p in n.providers]


@pytest.mark.req("CONF-1")
def test_servers_become_providers_and_their_models_groups() -> None:
    file = config()
    assert asks(file) == {"n1": Asks(True, True)}
    assert (providers(fill_in(file, {})), groups(fill_in(file, {}))) == ([], {})
    filled = fill_in(file, {"n1": Found((OLLAMA, VLLM))})
    assert providers(filled) == [
        ("n1-ollama", "ollama", "http://127.0.0.1:11434/v1", 4),
        ("n1-vllm", "vllm", "http://127.0.0.1:8000/v1", 32),
    ]
    assert groups(filled) == {
        "qwen3:8b": [("n1", "n1-ollama", "qwen3:8b")],
        "llama3": [("n1", "n1-ollama", "llama3")],
        "Qwen/Qwen3-32B": [("n1", "n1-vllm", "Qwen/Qwen3-32B")],
    }


@pytest.mark.req("CONF-1")
def test_what_engines_list_later_counts_over_what_they_listed_when_they_were_found() -> None:
    filled = fill_in(config(), {"n1": Found((OLLAMA,), {"n1-ollama": ("new",)})})
    assert list(groups(filled)) == ["new"]


@pytest.mark.req("CONF-1")
def test_the_settings_of_the_entry_are_those_of_each_server() -> None:
    entry = {"id": "gpu", "kind": "auto", "capacity": 2, "response_stall_timeout_ms": 1000}
    filled = fill_in(config(providers=[entry]), {"n1": Found((OLLAMA,))})
    (provider,) = filled.nodes[0].providers
    assert (provider.id, provider.capacity, provider.response_stall_timeout_ms) == ("gpu-ollama", 2, 1000)


@pytest.mark.req("CONF-1")
def test_what_is_written_down_is_not_found_again() -> None:
    mine = {"id": "mine", "kind": "ollama", "base_url": "http://localhost:11434/v1", "capacity": 7}
    taken = {"id": "n1-vllm", "kind": "echo"}
    file = config(providers=[mine, taken, {"id": "n1", "kind": "auto"}])
    filled = fill_in(file, {"n1": Found((OLLAMA, VLLM), {"mine": ("a",), "n1-vllm": ("echo",)})})
    assert [row[0] for row in providers(filled)] == ["mine", "n1-vllm"]
    assert groups(filled) == {"a": [("n1", "mine", "a")], "echo": [("n1", "n1-vllm", "echo")]}


@pytest.mark.req("CONF-1", "POOL-1")
def test_a_model_that_several_list_has_several_candidates() -> None:
    file = config("auto", "auto", node("n2", "auto"))
    filled = fill_in(file, {"n1": Found((OLLAMA,)), "n2": Found((OLLAMA,))})
    assert groups(filled)["llama3"] == [("n1", "n1-ollama", "llama3"), ("n2", "n2-ollama", "llama3")]


@pytest.mark.req("CONF-1")
def test_the_very_name_goes_before_one_of_another_letter_case() -> None:
    models: list[dict[str, Any]] = [{"id": "a", "candidates": "auto", "target": "qwen*"},
                                    {"id": "b", "candidates": "auto", "target": "QWEN3"}]  # fmt: skip
    server = OLLAMA._replace(models=("Qwen2", "QWEN3-big", "qwen3", "QWEN3"))
    filled = groups(fill_in(config(models), {"n1": Found((server,))}))
    assert filled == {"a": [("n1", "n1-ollama", "qwen3")], "b": [("n1", "n1-ollama", "QWEN3")]}


@pytest.mark.req("CONF-1")
def test_names_aliases_and_patterns() -> None:
    models: list[dict[str, Any]] = [
        {"id": "coder", "aliases": ["gpt-4o-mini"], "candidates": "auto", "target": "qwen*"},
        {"id": "Qwen/*", "request_timeout_ms": 7},
        {"id": "llama3"},
        {"id": "later", "target": "nobody-has-it"},
        {"id": "*"},
    ]
    filled = fill_in(config(models), {"n1": Found((OLLAMA, VLLM))})
    assert groups(filled) == {
        "coder": [("n1", "n1-ollama", "qwen3:8b"), ("n1", "n1-vllm", "Qwen/Qwen3-32B")],
        "Qwen/Qwen3-32B": [("n1", "n1-vllm", "Qwen/Qwen3-32B")],
        "llama3": [("n1", "n1-ollama", "llama3")],
        "later": [],
        "qwen3:8b": [("n1", "n1-ollama", "qwen3:8b")],
    }
    assert {m.id: m.request_timeout_ms for m in filled.models}["Qwen/Qwen3-32B"] == 7


@pytest.mark.req("CONF-1")
def test_a_disabled_provider_lists_nothing() -> None:
    file = config(providers=[{"id": "gpu", "kind": "auto", "enabled": False}])
    assert groups(fill_in(file, {"n1": Found((OLLAMA,))})) == {}


@pytest.mark.req("CONF-1")
def test_a_file_without_open_places_is_run_as_it_is() -> None:
    file = config(
        [{"id": "m", "candidates": [{"node": "n1", "provider": "e", "target": "t"}]}], [{"id": "e", "kind": "echo"}]
    )
    assert fill_in(file, {"n1": Found((OLLAMA,))}) is file
    assert asks(file) == {"n1": Asks(False, False)}


@pytest.mark.req("CONF-2")
def test_what_nodes_are_asked_anew_is_a_change_of_its_own() -> None:
    closed = config([], [{"id": "e", "kind": "echo"}])
    assert asked_anew(closed, config()) == ["nodes[n1].providers (auto)", "models (auto)"]
    assert asked_anew(config(), config()) == []
    assert asked_anew(config(), config([])) == ["models (auto)"]


@pytest.mark.req("CONF-1")
@pytest.mark.parametrize(
    ("name", "pattern", "fits"),
    [
        ("qwen3", "qwen*", True),
        ("qwen", "qwen*", True),
        ("Qwen/Qwen3-32B", "qwen*", True),
        ("qwen3", "QWEN*", True),
        ("Straße", "STRASSE", True),
        ("a qwen", "qwen*", False),
        ("a.b", "a?b", False),
        ("[x]", "[x]", True),
        ("org/model:tag", "*/*:tag", True),
        ("", "*", True),
    ],
)
def test_only_the_star_means_more_than_itself(name: str, pattern: str, fits: bool) -> None:
    assert matches(name, pattern) is fits


NAMES = st.text(max_size=70) | st.sampled_from(
    ["x", "../x", "a b\n", "n" * 500, "qwen3", " qwen3", "*", "qwen*", "\ufffd" * 512]
)
SERVERS = st.builds(
    Server,
    NAMES,
    st.sampled_from(["ollama", "vllm", "auto", "echo", "tgi", ""]),
    st.integers(-1, 70_000) | st.sampled_from([1, 2, 3]),
    st.integers(-1, 2**32),
    st.lists(NAMES, max_size=5).map(tuple),
)
REPORTS = st.builds(
    Found,
    st.lists(SERVERS, max_size=5).map(tuple),
    st.dictionaries(NAMES | st.just("e"), st.lists(NAMES, max_size=5).map(tuple), max_size=3),
)
OPEN = config(
    [{"id": "mine", "candidates": "auto", "target": "q*"}, {"id": "*"}],
    [{"id": "e", "kind": "echo"}, {"id": "a" * 40, "kind": "auto"}],
    node("n2", "auto"),
)
LISTED = {"n2": Found((OLLAMA,), {"n2-ollama": ("qwen3",)})}


@pytest.mark.req("CONF-1", "SEC-4")
@given(REPORTS)
def test_whatever_one_node_reports_the_others_keep_theirs_and_the_result_is_a_valid_file(report: Found) -> None:
    filled = fill_in(OPEN, {"n1": report, **LISTED})
    assert "n2-ollama" in [row[0] for row in providers(filled)]
    assert ("n2", "n2-ollama", "qwen3") in groups(filled)["qwen3"]
    for entry in (*filled.models, *(p for n in filled.nodes for p in n.providers)):
        if getattr(entry, "kind", "") != "auto":
            type(entry).model_validate_json(entry.model_dump_json())
    exact = [(name, target) for name, group in groups(filled).items() if name != "mine" for _, _, target in group]
    assert all(name == target for name, target in exact)
    values.pool_arguments(filled)


FAULTS = [
    (
        {"nodes": [node("n1", [{"id": "a" * 41, "kind": "auto"}])]},
        "providers[0].id: with kind: auto at most 40 characters",
    ),
    ({"nodes": [node("n" * 41 + "1", "auto")]}, "with kind: auto at most 40 characters"),
    ({"models": [{"id": "q*", "aliases": ["x"]}]}, "models[0].aliases: 'q*' stands for every model that it fits"),
    ({"models": [{"id": "q", "candidates": []}]}, "models[0].candidates: should not be empty; write auto"),
    ({"models": "all"}, "models: should be a list, or the word auto"),
    ({"nodes": [node("n1", "aut")]}, "nodes[0].providers: should be a list, or the word auto"),
    ({"nodes": [node("n1", [{"id": "g", "kind": "auto", "base_url": "http://h:1/v1"}])]}, "leave base_url out"),
    (
        {
            "nodes": [node("n1", "auto")],
            "models": [{"id": "m", "candidates": [{"node": "n1", "provider": "n1", "target": "t"}]}],
        },
        "'n1' stands for what is found; write candidates: auto",
    ),
]


@pytest.mark.req("CONF-1")
@pytest.mark.parametrize(("file", "message"), FAULTS)
def test_faults_say_what_to_write(file: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_edge(json.dumps(file))
    assert any(message in fault for fault in caught.value.faults), caught.value.faults
