"""What a changed file changes, and what has to wait for a restart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from iop.config.diff import LIVE, compare
from iop.config.edge import EdgeConfig
from iop.config.load import parse_edge
from iop.errors import ConfigError

ENV = {"T1": "token-1", "T2": "token-2", "K": "key"}
BASE: dict[str, Any] = {
    "nodes": [
        {
            "id": "n1",
            "token_env": "T1",
            "providers": [{"id": "p", "kind": "echo", "capacity": 2}, {"id": "q", "kind": "echo"}],
        },
        {"id": "n2", "token_env": "T2"},
    ],
    "models": [{"id": "m", "candidates": [{"node": "n1", "provider": "p", "target": "t"}]}],
}


def parsed(tree: Mapping[str, Any], env: Mapping[str, str] = ENV) -> EdgeConfig:
    return parse_edge(json.dumps(tree), source="edge.yaml", env=env)


def changed(**sections: Any) -> dict[str, Any]:
    return {**deepcopy(BASE), **sections}


@pytest.mark.req("CONF-2")
def test_the_same_file_changes_nothing() -> None:
    change = compare(parsed(BASE), parsed(BASE))
    assert (change.changed, change.needs_restart) == ((), ())
    assert change.config == parsed(BASE)


@pytest.mark.req("CONF-2")
def test_changes_are_named_by_path_and_id() -> None:
    tree = changed(queue={"timeout_ms": 5, "max_waiters": 7}, http={"api_keys": [{"principal": "a", "key_env": "K"}]})
    tree["nodes"][0]["providers"][0] |= {"capacity": 3, "idle_sec": 1}
    tree["nodes"][0]["providers"][1] = {"id": "r", "kind": "echo"}
    tree["nodes"][1] = {"id": "n3", "token_env": "T2"}
    tree["models"][0]["aliases"] = ["x"]
    tree["models"].append({"id": "m2", "candidates": [{"node": "n1", "provider": "r", "target": "t"}]})
    change = compare(parsed(BASE), parsed(tree))
    assert change.needs_restart == ()
    assert change.config == parsed(tree)
    assert change.changed == (
        "http.api_keys",
        "queue.timeout_ms",
        "queue.max_waiters",
        "nodes[n1].providers[p].capacity",
        "nodes[n1].providers[p].idle_sec",
        "nodes[n1].providers[q] removed",
        "nodes[n1].providers[r] added",
        "nodes[n2] removed",
        "nodes[n3] added",
        "models[m].aliases",
        "models[m2] added",
    )


@pytest.mark.req("CONF-2", "SEC-4")
def test_a_secret_that_changed_behind_its_name_is_seen_and_not_told() -> None:
    change = compare(parsed(BASE), parsed(BASE, {**ENV, "T1": "the-new-secret"}))
    assert change.changed == ("nodes[n1] token",)
    keyed = changed(http={"api_keys": [{"principal": "a", "key_env": "K"}]})
    change = compare(parsed(keyed), parsed(keyed, {**ENV, "K": "the-new-secret"}))
    assert change.changed == ("http.api_keys",)
    assert "secret" not in repr(change.changed)


@pytest.mark.req("CONF-2")
def test_another_order_is_a_change_too() -> None:
    """Models are listed in the order of the file, and equal candidates are chosen in it."""
    tree = changed(nodes=list(reversed(deepcopy(BASE["nodes"]))))
    assert compare(parsed(BASE), parsed(tree)).changed == ("nodes (order)",)


@pytest.mark.req("CONF-2")
def test_what_needs_a_restart_keeps_its_running_value() -> None:
    running = parsed(changed(edge={"id": "e1"}, admin={"listen": "127.0.0.1:9090"}))
    tree = changed(
        edge={"id": "e2", "state_dir": "/elsewhere", "drain_timeout_sec": 5},
        http={"listen": "127.0.0.1:1", "max_body_bytes": 1000},
        transport={"listen": "127.0.0.1:2"},
        admin=None,
    )
    change = compare(running, parsed(tree))
    assert change.needs_restart == ("edge.id", "edge.state_dir", "http.listen", "transport.listen", "admin.listen")
    assert change.changed == ("edge.drain_timeout_sec", "http.max_body_bytes")
    config = change.config
    assert (config.edge.id, config.edge.state_dir, config.edge.drain_timeout_sec) == ("e1", Path("state"), 5)
    assert (config.http.listen, config.http.max_body_bytes) == (running.http.listen, 1000)
    assert (config.transport.listen, config.admin.listen) == (running.transport.listen, running.admin.listen)
    # The next reload compares with what runs, so it is named until it is put back or the edge restarted.
    assert compare(config, parsed(tree)).needs_restart == change.needs_restart
    assert compare(config, parsed(tree)).changed == ()


@pytest.mark.req("CONF-2", "API-4")
def test_keys_cannot_go_while_the_edge_listens_to_other_machines() -> None:
    """Sound by itself: with the address that it names nobody else could come. But that address comes with a restart."""
    keyed = {"listen": "0.0.0.0:8080", "api_keys": [{"principal": "a", "key_env": "K"}]}
    running = parsed(changed(http=keyed))
    with pytest.raises(ConfigError, match=r"still listens on 0\.0\.0\.0:8080"):
        compare(running, parsed(changed(http={"listen": "127.0.0.1:8080"})))
    opened = compare(running, parsed(changed(http={"listen": "127.0.0.1:8080", "allow_anonymous": True})))
    assert opened.needs_restart == ("http.listen",)


def test_every_setting_that_is_named_as_changeable_exists() -> None:
    known = set()
    for name, field in EdgeConfig.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            known |= {f"{name}.{key}" for key in section.model_fields}
        else:
            known.add(name)
    assert known >= LIVE
    assert known - LIVE == {
        "edge.id",
        "edge.state_dir",
        "http.listen",
        "transport.listen",
        "transport.allow_plaintext",
        "admin.listen",
        *(f"security.{key}" for key in type(parsed(BASE).security).model_fields),
        "presets",
    }, "decide whether a running edge takes it over: then Edge has to do so, and config.diff.LIVE has to name it"
