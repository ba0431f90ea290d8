"""``iop-edge`` as it is typed: output, errors in one line, exit codes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from iop.cli import status
from iop.cli.edge import main
from tests.unit.cli.fake_admin import STATUS, Admin
from tests.unit.cli.test_node_command import call as node_call

ROOT = Path(__file__).parents[3]


def call(argv: list[str]) -> int:
    """The exit code, also where argparse exits by itself."""
    try:
        return main(argv)
    except SystemExit as error:
        return int(error.code or 0)


def test_check_accepts_the_sample(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOP_TOKEN_GPU_1", "t")
    assert call(["check", "-c", str(ROOT / "configs/edge.yaml")]) == 0
    assert "ok; nodes: 1, providers: 1, models: 1" in capsys.readouterr().out


def test_check_says_which_settings_have_no_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IOP_TOKEN_GPU_1", "t")
    file = tmp_path / "edge.yaml"
    text = (ROOT / "configs/edge.yaml").read_text()
    file.write_text(text.replace("state_dir: ./state", "state_dir: ./elsewhere"))
    assert call(["check", "-c", str(file)]) == 0
    assert "edge.state_dir" in capsys.readouterr().err
    file.write_text(text.replace("stream_keepalive_sec: 15", "stream_keepalive_sec: 5"))
    assert call(["check", "-c", str(file)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.req("CONF-1")
def test_check_prints_every_fault_on_its_own_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text("http: {listn: x}\nqueue: {timeout_ms: 0}\n")
    assert call(["check", "-c", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        f"{file}:1: http.listn: unknown key; did you mean 'listen'?",
        f"{file}:2: queue.timeout_ms: should be greater than or equal to 1",
    ]


@pytest.mark.req("CONF-1")
@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_missing_file_is_one_line_and_exit_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([command, "-c", "/nowhere/edge.yaml"]) == 2
    assert capsys.readouterr().err == "/nowhere/edge.yaml: cannot read it: No such file or directory\n"


@pytest.mark.parametrize("program", [call, node_call])
def test_what_is_no_file_is_not_waited_for(
    program: Callable[[list[str]], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        assert program(["check", "-c", str(path)]) == 2
        assert capsys.readouterr().err.startswith(f"{path}: not a file")
    assert program(["check", "-c", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path}: ")


@pytest.mark.parametrize("argv", [[], ["frobnicate"], ["serve"], ["check", "--config"], ["status", "--admin", "x"]])
def test_bad_usage_is_one_line_and_exit_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(argv) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert captured.err.startswith("iop-edge")


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--help"]) == 0
    text = capsys.readouterr().out
    for command in ("serve", "check", "init", "token", "certify", "demo", "status"):
        assert command in text
    assert call(["--version"]) == 0
    assert capsys.readouterr().out == "iop-edge 0.1.0\n"


# ---- status ---------------------------------------------------------------------------------------------------------


def test_status_is_a_table(
    admin: tuple[type[Admin], str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setattr(time, "time", lambda: 67.0)
    assert call(["status", "--admin", admin[1]]) == 0
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "edge edge-1  version 0.1.0  up 1h02m  revision 3  leases 2  waiting 1",
        "",
        "NODE   UP   PROVIDER  KIND  STATUS       HEALTH             IN USE  LINGERING  ENGINE  CONFIG",
        "gpu-1  yes  p1        vllm  available    available          2/8     1          -       2, not yet 3",
        "gpu-1  yes  p2        vllm  unavailable  down 0m08s (ref?)  -/-     -          -       2, not yet 3",
        "gpu-2  no   -         -     -            -                  -/-     -          -       - (refused 3 bad p?2)",
        "",
        "MODEL  WAITING  OLDEST MS  CANDIDATES",
        "m?[2J  1        121        2",
        "",
        "PRINCIPAL  IN FLIGHT  REQUESTS/MIN  TOKENS/MIN",
        "alice      2          31            -",
        *(f"p{i}         0          1             -" for i in range(9)),
        "",
        "p2: t?1 is unavailable (not_listed)",
        "p2: t2 rests for 0m07s",
        "p2: not listed: t?3",
        "needs a restart: http.listen",
        "the last reload was refused: edge.yaml:3: capacity: ?[2J",
        "the keys file is refused: keys.json:1: not ?[2J JSON",
    ]


def test_status_as_json_and_by_file(
    admin: tuple[type[Admin], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "edge.yaml").write_text(f"admin: {{listen: '{admin[1]}'}}")
    assert call(["status", "--json", "-c", str(tmp_path / "edge.yaml")]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS


@pytest.mark.parametrize(("code", "body"), [(404, b"{}"), (200, b"<html>"), (200, b"[1]")])
def test_status_of_something_else(
    code: int, body: bytes, admin: tuple[type[Admin], str], capsys: pytest.CaptureFixture[str]
) -> None:
    admin[0].code, admin[0].body = code, body
    assert call(["status", "--admin", admin[1]]) == 2
    assert "is it the admin address of an edge?" in capsys.readouterr().err


def test_status_of_nobody(admin: tuple[type[Admin], str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["status", "--admin", "127.0.0.1:1"]) == 1
    err = capsys.readouterr().err
    assert "no edge answers on 127.0.0.1:1: Connection refused" in err
    assert len(err.splitlines()) == 1


def test_status_without_an_admin_listener(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "edge.yaml").write_text("admin: null")
    assert call(["status", "-c", str(tmp_path / "edge.yaml")]) == 2
    assert "disables the admin listener" in capsys.readouterr().err


def test_a_status_without_figures_is_still_a_table() -> None:
    assert next(iter(status.table({}))) == "edge -  version -  up -  revision -  leases -  waiting -"
