"""``iop-edge key`` as it is typed (API-11)."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.test_edge_command import call

pytestmark = pytest.mark.req("API-11")

Said = pytest.CaptureFixture[str]


class Desk:
    def __init__(self, folder: Path, said: Said) -> None:
        self.file = folder / "keys.json"
        self._said = said

    def __call__(self, action: str, *arguments: str, code: int = 0) -> str:
        assert call(["key", action, "--file", str(self.file), *arguments]) == code
        said = self._said.readouterr()
        return said.out if code == 0 else said.err

    def made(self, *arguments: str) -> Any:
        return json.loads(self("new", "--json", *arguments))

    def rows(self) -> Any:
        return json.loads(self("list", "--json"))


@pytest.fixture
def desk(tmp_path: Path, capsys: Said) -> Desk:
    return Desk(tmp_path, capsys)


def test_a_key_is_printed_once_alone_on_standard_output_and_kept_as_its_hash(desk: Desk, capsys: Said) -> None:
    assert call(["key", "new", "--file", str(desk.file), "--principal", "alice"]) == 0
    said = capsys.readouterr()
    key, line = said.out.removesuffix("\n"), said.err.removesuffix("\n")
    assert re.fullmatch(r"sk-iop-[A-Za-z0-9_-]{43}", key)
    digest = hashlib.sha256(key.encode()).hexdigest()
    assert line == f"id {digest[:12]}; the key is shown this once"
    text = desk.file.read_text()
    assert digest in text
    assert key not in text
    assert key not in desk("list") + desk("list", "--json")
    assert desk("new", "--principal", "alice") != said.out


def test_everything_that_a_key_may_have(desk: Desk) -> None:
    made = desk.made(
        "--principal", "ci", "--models", "qwen*", "llama", "--max-concurrent", "2", "--rpm", "60", "--tpm", "1000",
        "--weight", "3", "--expires", "90d",
    )  # fmt: skip
    (row,) = desk.rows()
    assert {key: value for key, value in made.items() if key != "key"} == row
    assert row["models"] == ["qwen*", "llama"]
    assert (row["max_concurrent_requests"], row["requests_per_minute"], row["tokens_per_minute"]) == (2, 60, 1000)
    assert row["weight"] == 3
    left = datetime.fromisoformat(row["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=89, hours=23) < left <= timedelta(days=90)
    head, line = desk("list").splitlines()
    assert head.split()[:4] == ["ID", "PRINCIPAL", "STATE", "MODELS"]
    assert re.split(r"  +", line)[:8] == [row["id"], "ci", "active", "qwen* llama", "2", "60", "1000", "3"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--principal", "a b"], "--principal: use 1 to 64 letters"),
        (["--principal", "a", "--rpm", "0"], "--rpm: should be greater than or equal to 1"),
        (["--principal", "a", "--max-concurrent", "-1"], "--max-concurrent: should be"),
        (["--principal", "a", "--models", "qwen*,llama"], "repeat the option: --models 'qwen*' --models llama3"),
        (["--principal", "a", "--models", " "], "--models: use 1 to 512 bytes"),
        (["--principal", "a", "--expires", "soon"], "or a span such as 90d"),
        (["--principal", "a", "--expires", "2020-01-01"], "2020-01-01 is over already"),
        (["--principal", "a", "--expires", "0d"], "is over already"),
        (["--principal", "a", "--expires", "999999w"], "beyond the calendar"),
        ([], "--principal"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(desk: Desk, arguments: list[str], said: str) -> None:
    assert said in desk("new", *arguments, code=2)
    assert not desk.file.exists()


def test_models_may_be_named_one_by_one_or_together(desk: Desk) -> None:
    made = desk.made("--principal", "a", "--models", "b", "c", "--models", "d*")
    assert made["models"] == ["b", "c", "d*"]


def test_a_file_that_is_not_there_lists_nothing_and_says_so(desk: Desk, capsys: Said) -> None:
    for more in ([], ["--json"]):
        assert call(["key", "list", "--file", str(desk.file), *more]) == 0
        said = capsys.readouterr()
        assert said.err == f"{desk.file} is not there; `iop-edge key new` makes it\n"
        assert said.out.startswith("[]" if more else "ID ")


def test_revoking(desk: Desk) -> None:
    one, two, three = (desk.made("--principal", name)["id"] for name in ("alice", "alice", "bob"))
    assert desk("revoke", three[:6]) == f"{three} of bob: revoked\n"
    assert "bob: was revoked already" in desk("revoke", three)
    assert sorted(desk("revoke", "--principal", "alice").splitlines()) == sorted(
        [f"{one} of alice: revoked", f"{two} of alice: revoked"]
    )
    assert {row["state"] for row in desk.rows()} == {"revoked"}
    assert all(row["revoked_at"] for row in desk.rows())
    assert "revoked 20" in desk("list")
    assert "'carol' has no keys" in desk("revoke", "--principal", "carol", code=2)
    assert "there is no key 0123456789ab" in desk("revoke", "0123456789ab", code=2)
    for wrong in ([], [one, "--principal", "alice"]):
        assert "name either the id of a key, or --principal" in desk("revoke", *wrong, code=2)
    for no_id in ("abc", "xyzw", "sk-iop-0000", ""):
        assert "is no id" in desk("revoke", no_id, code=2)


def test_a_beginning_of_several_keys_revokes_none(desk: Desk) -> None:
    rows = [{"principal": "a", "key_sha256": f"abcd{i}{'0' * 59}"} for i in range(2)]
    desk.file.write_text(json.dumps({"keys": rows}))
    assert "is the beginning of abcd00000000, abcd10000000; write more" in desk("revoke", "abcd", code=2)
    assert desk("revoke", "abcd1") == "abcd10000000 of a: revoked\n"
    assert [row["state"] for row in desk.rows()] == ["active", "revoked"]


def test_states(desk: Desk) -> None:
    rows = [
        {"principal": "a", "key_sha256": "0" * 64, "enabled": False},
        {"principal": "b", "key_sha256": "1" * 64, "expires_at": "2020-01-01T00:00:00Z"},
        {"principal": "c", "key_sha256": "2" * 64, "revoked_at": "2020-01-01T00:00:00Z", "enabled": False},
    ]
    desk.file.write_text(json.dumps({"keys": rows}))
    assert [row["state"] for row in desk.rows()] == ["disabled", "expired", "revoked"]


def test_the_edges_file_names_the_keys_file(tmp_path: Path, capsys: Said) -> None:
    """Without the secrets that only the edge has, and whatever else is wrong with it."""
    edge = tmp_path / "edge.yaml"
    edge.write_text("http: {keys_file: sub/keys.json, api_keys: [{principal: a, key_env: NOT_SET_HERE}]}\nnodse: []\n")
    (tmp_path / "sub").mkdir()
    assert call(["key", "new", "-c", str(edge), "--principal", "alice"]) == 0
    assert (tmp_path / "sub" / "keys.json").exists()
    edge.write_text("http: {}")
    capsys.readouterr()
    for action in (["new", "--principal", "a"], ["list"], ["revoke", "0000"]):
        assert call(["key", action[0], "-c", str(edge), *action[1:]]) == 2
        assert "names no keys file; add `keys_file: keys.json` to its section `http:`" in capsys.readouterr().err
    assert call(["key", "list", "-c", str(tmp_path / "none.yaml")]) == 2
    assert call(["key", "list"]) == 2
    assert call(["key", "new", "--file", str(tmp_path / "no" / "folder"), "--principal", "a"]) == 1
    assert "No such file" in capsys.readouterr().err
