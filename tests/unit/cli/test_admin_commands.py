"""``iop-edge reload`` and ``iop-edge status --watch`` as they are typed, against an edge that is played."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iop.cli import status
from iop.config.fields import HostPort
from iop.config.load import admin_address
from tests.unit.cli.fake_admin import STATUS, Admin
from tests.unit.cli.test_edge_command import call


@pytest.mark.req("CONF-2")
def test_the_admin_address_is_found_in_a_file_that_is_not_right_otherwise(
    admin: tuple[type[Admin], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever asks has neither the edge's secrets nor, always, a sound file."""
    file = tmp_path / "edge.yaml"
    file.write_text(
        f"admin: {{listen: '{admin[1]}'}}\nnodes: [{{id: n, token_env: NOBODY_SET_THIS}}]\nhttp: {{prot: 1}}"
    )
    assert call(["status", "-c", str(file)]) == 0
    for text, said in [
        ("admin: null", "disables the admin listener"),
        ("admin: {listen: nowhere}", "edge.yaml: admin.listen: write HOST:PORT"),
        ("admin: {", "not valid YAML"),
        ("[1]", "not the file of an edge"),
    ]:
        file.write_text(text)
        capsys.readouterr()
        assert call(["reload", "-c", str(file)]) == 2
        assert said in capsys.readouterr().err
    file.write_text("")
    assert admin_address(file) == HostPort.parse("127.0.0.1:9090")


COMMANDS: dict[str, list[str]] = {
    "reload": ["reload"],
    "drain": ["drain", "n"],
    "undrain": ["undrain", "n"],
    "requests": ["requests"],
    "cancel": ["cancel", "r"],
    "trace": ["trace", "r"],
}


@pytest.mark.req("OBS-4")
@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_of_somebody_else_is_one_line(
    admin: tuple[type[Admin], str], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    rows: list[object] = [1, None, "text", [1], [None], [{}], [["a"]], {"a": 1}]
    whole = {"revision": 1, "kind": "node", "name": "n", "in_use": 0, "total": 0}
    answers: list[dict[str, object]] = [{}, whole]
    answers += [whole | dict.fromkeys(("rejected", "providers", "requests", "events", "clocks"), row) for row in rows]
    for answer in answers:
        admin[0].body = json.dumps(answer).encode()
        code = call([*COMMANDS[command], "--admin", admin[1]])
        told = capsys.readouterr()
        assert code == 0 or (code == 2 and not told.out)
        if code:
            assert told.err.count("\n") == 1
            assert "does not answer as an edge of this version" in told.err


@pytest.mark.req("OBS-4")
def test_a_fault_of_the_command_itself_is_not_laid_at_the_edge_s_door(
    admin: tuple[type[Admin], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a fault of ours")

    monkeypatch.setattr("iop.cli.control.aligned", broken)
    admin[0].body = b'{"requests": [], "total": 0}'
    with pytest.raises(KeyError):
        call(["requests", "--admin", admin[1]])


@pytest.mark.req("OBS-4")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_reads_the_file_once(
    admin: tuple[type[Admin], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    read: list[Path] = []

    def address(file: Path) -> HostPort:
        read.append(file)
        return HostPort.parse(admin[1])

    monkeypatch.setattr("iop.config.load.admin_address", address)
    admin[0].body = b"{}"
    call([*COMMANDS[command], "-c", str(tmp_path / "edge.yaml")])
    assert len(read) == 1


# ---- reload ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("CONF-2")
def test_reload_says_what_changed(admin: tuple[type[Admin], str], capsys: pytest.CaptureFixture[str]) -> None:
    answer: dict[str, Any] = {"result": "applied", "revision": 4, "changed": ["queue.timeout_ms"]}
    answer |= {"needs_restart": ["http.listen"], "nodes": ["n1", "n\x1b2"], "unanswered": ["n\x1b2"]}
    answer["rejected"] = [
        {"node": "n1", "provider": "p", "code": "upstream_not_allowed", "detail": "not allowed\x1b[2J"}
    ]
    admin[0].body = json.dumps(answer).encode()
    assert call(["reload", "--admin", admin[1]]) == 0
    assert admin[0].asked == [("POST", "/admin/reload")]
    assert capsys.readouterr().out.splitlines() == [
        "took over revision 4",
        "  changed: queue.timeout_ms",
        "  needs a restart, and stays as it is until then: http.listen",
        "  told: n1, n?2",
        "  not answered yet: n?2; `iop-edge status` shows what they say to it",
        "  rejected: n1/p: not allowed?[2J (upstream_not_allowed)",
    ]
    admin[0].body = b'{"result": "unchanged", "revision": 4}'
    assert call(["reload", "--admin", admin[1]]) == 0
    assert capsys.readouterr().out == "nothing changed in revision 4\n"


@pytest.mark.req("CONF-2")
def test_reload_prints_every_fault_and_exits_2(
    admin: tuple[type[Admin], str], capsys: pytest.CaptureFixture[str]
) -> None:
    faults = ["edge.yaml:3: nodes[0].id: required", "edge.yaml:9: queue: \x1b[2J"]
    error = {"code": "config_error", "message": "the file was refused", "faults": faults}
    admin[0].code, admin[0].body = 400, json.dumps({"error": error}).encode()
    assert call(["reload", "--admin", admin[1]]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [faults[0], "edge.yaml:9: queue: ?[2J", "iop-edge: the file was refused"]


def test_reload_of_an_edge_that_leaves_or_is_not_there(
    admin: tuple[type[Admin], str], capsys: pytest.CaptureFixture[str]
) -> None:
    admin[0].code, admin[0].body = 503, b'{"error": {"code": "shutting_down", "message": "the edge is shutting down"}}'
    assert call(["reload", "--admin", admin[1]]) == 1
    assert capsys.readouterr().err == "iop-edge: the edge is shutting down\n"
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert call(["reload", "--admin", f"127.0.0.1:{nobody.getsockname()[1]}"]) == 1
    assert "no edge answers on" in capsys.readouterr().err


# ---- drain --wait ----------------------------------------------------------------------------------------------------


def test_a_wait_for_a_drain_that_is_broken_off_is_no_success(
    admin: tuple[type[Admin], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``drain --wait gpu-1 && reboot`` must not go on after Ctrl-C."""
    answer = {"kind": "node", "name": "gpu-1", "in_use": 1, "providers": []}
    admin[0].body = json.dumps(answer).encode()
    Watch(monkeypatch, lambda: None)
    assert call(["drain", "--wait", "gpu-1", "--admin", admin[1]]) == 130
    assert len(admin[0].asked) == 2
    assert capsys.readouterr().out == ""


# ---- status --watch --------------------------------------------------------------------------------------------------


class Watch:
    """Stops the watch after so many looks, and changes the edge between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *between: Callable[[], object]) -> None:
        self._between = iter(between)
        self.slept: list[float] = []
        monkeypatch.setattr(status.time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        step = next(self._between, None)
        if step is None:
            raise KeyboardInterrupt
        step()


def test_a_watch_that_is_no_terminal_writes_a_block_for_each_look(
    admin: tuple[type[Admin], str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch, lambda: None)
    assert call(["status", "--watch", "--interval", "0.5", "--admin", admin[1]]) == 0
    assert watch.slept == [0.5, 0.5]
    block = "\n".join(status.table(STATUS)) + "\n\n"
    assert capsys.readouterr().out == block * 2
    Watch(monkeypatch, lambda: None)
    assert call(["status", "--watch", "--json", "--admin", admin[1]]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [STATUS] * 2


def test_a_watch_lives_through_a_restart_of_the_edge(
    admin: tuple[type[Admin], str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> tuple[int, dict[str, Any]]:
        raise ConnectionError(0, "no edge answers on 127.0.0.1:9: refused; is it running?")

    there = status.ask
    Watch(
        monkeypatch,
        lambda: monkeypatch.setattr(status, "ask", away),
        lambda: monkeypatch.setattr(status, "ask", there),
    )
    assert call(["status", "--watch", "--admin", admin[1]]) == 0
    block = "\n".join(status.table(STATUS)) + "\n\n"
    before, line, after = capsys.readouterr().out.partition(
        f"{time.strftime('%H:')}"  # of the line's clock
    )
    assert (before, after.partition("\n\n")[2]) == (block, block)
    assert line + after.partition("\n\n")[0] == line + after[:5] + "  no edge answers on 127.0.0.1:9: refused; " + (
        "is it running?; looking again"
    )


def test_a_watch_on_a_terminal_writes_over_itself(
    admin: tuple[type[Admin], str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Watch(monkeypatch, lambda: None)
    monkeypatch.setattr(status.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(status.shutil, "get_terminal_size", lambda: os.terminal_size((40, 6)))
    assert call(["status", "--watch", "--admin", admin[1]]) == 0
    looks = capsys.readouterr().out.split("\x1b[H")
    assert looks[0] == ""
    assert looks[1] == looks[2]
    lines = looks[1].removesuffix("\x1b[J").splitlines()
    assert len(lines) == 5, "one line is left free, or the terminal scrolls"
    assert all(line.endswith("\x1b[K") and len(line) <= 43 for line in lines)
    assert lines[-1] == "... 24 more lines\x1b[K"


def test_an_interval_that_makes_no_sense_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("0", "-1", "nan", "soon"):
        assert call(["status", "--watch", "--interval", text]) == 2
        assert "write seconds" in capsys.readouterr().err
