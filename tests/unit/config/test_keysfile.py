"""The keys file: what is right in it, and how it is changed (API-11, CONF-1)."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from iop.config import keysfile
from iop.config.keys import KeyRecord, instant
from iop.config.keysfile import REVOKED_KEPT, change_keys, conflicts, look, read_keys
from iop.config.load import keys_path, parse_edge
from iop.errors import ConfigError

pytestmark = pytest.mark.req("API-11")

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)


def record(name: str, **more: object) -> KeyRecord:
    return KeyRecord(principal="a", key_sha256=hashlib.sha256(name.encode()).hexdigest(), **more)  # type: ignore[arg-type]


def written(path: Path, *records: KeyRecord) -> None:
    change_keys(path, lambda old: [*old, *records])


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2030-01-31", "2030-01-31T00:00:00+00:00"),
        ("2030-01-31T12:00:00Z", "2030-01-31T12:00:00+00:00"),
        ("2030-01-31t12:00:00.75z", "2030-01-31T12:00:00+00:00"),
        ("2030-01-31 12:00:00+02:00", "2030-01-31T10:00:00+00:00"),
    ],
)
def test_instants(text: str, meant: str) -> None:
    assert instant(text).isoformat() == meant


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2030-01-31T12:00:00", "2030-13-01", "2030-02-30T00:00:00Z", "0001-01-01T00:00:00+23:59", "2030"],
)
def test_what_is_no_instant(text: str) -> None:
    with pytest.raises(ValueError, match="write an instant such as"):
        instant(text)


@pytest.mark.req("CONF-1")
@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("models: []", "models: should not be empty"),
        ("models: ['']", "models[0]: use 1 to 512 bytes"),
        ("max_concurrent_requests: 0", "max_concurrent_requests"),
        ("requests_per_minute: many", "requests_per_minute"),
        ("tokens_per_minute: -1", "tokens_per_minute"),
        ("expires_at: tomorrow", "expires_at: write an instant such as"),
        ("expires_at: 2030-01-31 12:00:00", "expires_at: write an instant such as"),
        ("requests_per_minut: 1", "unknown key; did you mean 'requests_per_minute'?"),
    ],
)
def test_faults_of_a_key_in_the_edges_file(rules: str, said: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_edge(f"http: {{api_keys: [{{principal: a, key_sha256: '{'0' * 64}', {rules}}}]}}")
    assert len(told.value.faults) == 1
    assert f"http.api_keys[0].{said}" in told.value.faults[0] or said in told.value.faults[0]


@pytest.mark.req("CONF-1")
def test_all_faults_of_the_file_are_told_and_no_value(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [{"principl": "sesame", "key_sha256": "sesame", "models": []}], "kays": 1}))
    with pytest.raises(ConfigError) as told:
        read_keys(file)
    assert sorted(fault.removeprefix(f"{file}: ") for fault in told.value.faults) == [
        "kays: unknown key; did you mean 'keys'?",
        "keys[0].key_sha256: write 64 hex digits: printf %s TOKEN | sha256sum",
        "keys[0].models: should not be empty",
        "keys[0].principal: required",
        "keys[0].principl: unknown key; did you mean 'principal'?",
    ]
    assert "sesame" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "keys.json:1: not valid JSON"),
        (b'{"keys": [\n}', "keys.json:2: not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "should be an object"),
        (b'{"keys": [], "keys": []}', "'keys' is given twice"),
        (b'{"keys": NaN}', "keys.json"),
        (b" " * (keysfile.FILE_BYTES + 1), "larger than 8 MiB"),
    ],
)
def test_hostile_files_are_refused_in_a_line(tmp_path: Path, text: bytes, said: str) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(text)
    with pytest.raises(ConfigError) as told:
        read_keys(file)
    assert len(told.value.faults) == 1
    assert said in told.value.faults[0]


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ConfigError, match="not a file"):
            read_keys(path)
    for path in (tmp_path / "none", tmp_path / "none" / "none"):
        assert read_keys(path).records == ()
        assert look(path) == ()


def test_twins(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    row = record("k").model_dump(mode="json", exclude_defaults=True)
    file.write_text(json.dumps({"keys": [row, {**row, "key_sha256": row["key_sha256"].upper()}]}))
    with pytest.raises(ConfigError, match=r"keys\[1\]: the same key as keys\[0\]"):
        read_keys(file)
    file.write_text(json.dumps({"keys": [row]}))
    config = parse_edge(f"http: {{api_keys: [{{principal: a, key_sha256: '{row['key_sha256']}'}}]}}")
    (fault,) = conflicts(config.http.api_keys, read_keys(file))
    assert "keys[0]: the same key as http.api_keys[0]" in fault


def test_a_key_goes_through_the_file_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    full = record(
        "full", models=("a", "b*"), max_concurrent_requests=1, requests_per_minute=2, tokens_per_minute=3,
        expires_at=NOW, enabled=False, created_at=NOW, revoked_at=NOW,
    )  # fmt: skip
    written(file, record("plain"), full)
    assert read_keys(file).records == (record("plain"), full)
    assert len(file.read_text().splitlines()) == 4  # a key a line, for whoever compares two of them
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_link_stays_one_and_a_group_keeps_what_it_may_read(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    file = tmp_path / "real" / "keys.json"
    written(file, record("1"))
    (tmp_path / "link").symlink_to(file)
    for given, kept in ((0o640, 0o640), (0o666, 0o640), (0o604, 0o600)):
        file.chmod(given)
        written(tmp_path / "link", record(str(given)))
        assert (tmp_path / "link").is_symlink()
        assert file.stat().st_mode & 0o777 == kept
    assert len(read_keys(file).records) == 4
    assert sorted(path.name for path in (tmp_path / "real").iterdir()) == ["keys.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_root_writes_the_edges_group_may_read(tmp_path: Path) -> None:
    edge, file = tmp_path / "edge.yaml", tmp_path / "keys.json"
    edge.write_text("")
    os.chown(edge, 0, 4321)
    edge.chmod(0o640)
    change_keys(file, lambda old: [*old, record("1")], beside=edge)
    assert (file.stat().st_gid, file.stat().st_mode & 0o777) == (4321, 0o640)
    os.chown(file, 1234, 4321)
    change_keys(file, lambda old: [*old, record("2")], beside=edge)
    assert (file.stat().st_uid, file.stat().st_gid, file.stat().st_mode & 0o777) == (1234, 4321, 0o640)


def test_what_does_not_change_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    written(file, record("1"))
    before = look(file)
    change_keys(file, lambda old: old)
    assert look(file) == before


def test_a_change_that_fails_leaves_the_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.json"
    written(file, record("1"))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        written(file, record("2"))
    assert read_keys(file).records == (record("1"),)
    assert [path.name for path in tmp_path.iterdir()] == ["keys.json"]


def test_what_a_killed_command_left_goes_with_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    written(file, record("1"))
    file.with_name(".keys.json.new").write_text("half")
    written(file, record("2"))
    assert [path.name for path in tmp_path.iterdir()] == ["keys.json"]
    assert read_keys(file).records == (record("1"), record("2"))


def test_who_holds_the_lock_for_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keysfile, "LOCK_S", 0.0)
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        with pytest.raises(ConfigError, match="another command has held its lock"):
            written(tmp_path / "keys.json", record("1"))
    finally:
        os.close(folder)
    written(tmp_path / "keys.json", record("1"))


def test_revoked_keys_are_kept_up_to_a_bound_the_latest_ones(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    old = [record(f"old{i}", revoked_at=instant("2029-01-01")) for i in range(3)]
    new = [record(f"new{i}", revoked_at=NOW) for i in range(REVOKED_KEPT - 1)]
    written(file, old[0], record("live"), *old[1:], *new)
    records = read_keys(file).records
    assert len(records) == REVOKED_KEPT + 1
    assert record("live") in records
    assert sum(one in records for one in old) == 1


def test_the_number_of_keys_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keysfile, "MAX_KEYS", 2)
    with pytest.raises(ConfigError, match="at most 2 keys; revoke some"):
        written(tmp_path / "keys.json", *map(record, "abc"))
    assert not (tmp_path / "keys.json").exists()


@pytest.mark.req("CONF-1", "API-4")
def test_where_the_keys_file_is(tmp_path: Path) -> None:
    edge = tmp_path / "edge.yaml"
    edge.write_text("http: {keys_file: sub/keys.json, api_keys: [{principal: a, key_env: NOT_SET}]}")
    assert keys_path(edge) == tmp_path / "sub" / "keys.json"
    edge.write_text("http: {keys_file: [1]}")
    with pytest.raises(ConfigError, match="keys_file: write the path"):
        keys_path(edge)
    edge.write_text("http:")
    assert keys_path(edge) is None
    # Keys may come from it alone, also where others come in.
    assert parse_edge("http: {listen: '192.0.2.1:80', keys_file: k}", base=tmp_path).http.keys_file == tmp_path / "k"
    with pytest.raises(ConfigError, match=r"http\.keys_file"):
        parse_edge("http: {listen: '192.0.2.1:80', keys_file: null}")
