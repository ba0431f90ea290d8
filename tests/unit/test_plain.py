"""No character of a peer's reaches a terminal or a log line that a terminal would act on (SEC-4, OBS-2)."""

from __future__ import annotations

import json
import os
import threading
import unicodedata
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from iop.cli.edge import main
from iop.observability import logs
from iop.plain import plain

#: All controls, and what changes the direction of text or ends a line.
CONTROLS = "".join(
    chr(code)
    for code in range(0x3000)
    if unicodedata.category(chr(code)) in ("Cc", "Zl", "Zp") or chr(code) in "\u061c\u200e\u200f\u202e\u2066"
)
HOSTILE = f"a{CONTROLS}\x1b]0;title\x07\x1b[2J\x9b31mz"


def harmless(text: str, keep: str = "\n") -> bool:
    return not any(c in text for c in CONTROLS if c not in keep)


def test_all_controls_are_spelled_out_or_marked_and_the_rest_stays() -> None:
    assert harmless(plain(HOSTILE), keep="")
    assert plain("\x1b\x9b\u202e\n") == "\\x1b\\x9b\\u202e\\n"
    assert plain("\x1b[2J\n", mark="?") == "?[2J?"
    assert plain("a\tb\n", keep="\n\t") == "a\tb\n"
    family = "größe \U0001f468\u200d\U0001f469 漢字 \u0646\u200c\u0645"
    assert plain(family) == family
    assert plain(7) == "7"
    plain("\ud800").encode()


@pytest.mark.req("OBS-2", "SEC-4")
@pytest.mark.parametrize("form", ["json", "console"])
def test_log_lines_have_none_of_them(form: Any) -> None:
    read_fd, write_fd = os.pipe()
    sink = logs.Sink(write_fd, form)
    outcome = {"ts": 1.0, "request_id": "r", "api": "chat", "outcome": "ok", "status": 200, "duration_ms": 1.0}
    sink.outcome(logs.RequestOutcome(**outcome, client_request_id=HOSTILE, model=HOSTILE, provider=HOSTILE))
    sink.message(
        logs.Message(
            ts=1.0, level="info", logger="x", event="e", fields={"detail": HOSTILE, HOSTILE: 1}, error=HOSTILE
        ),
        100,
        urgent=True,
    )
    sink.close()
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as stream:
        lines = stream.read().decode().splitlines()
    assert len(lines) == 2
    for line in lines:
        assert harmless(line, keep="")
    if form == "json":
        assert json.loads(lines[0])["model"] == json.loads(lines[1])["detail"] == HOSTILE, "and nothing is lost"


# ---- commands that are pointed at whatever answers ------------------------------------------------------------------


class Hostile(BaseHTTPRequestHandler):
    """Answers everything with texts of controls, in whatever place a command may look at."""

    wrong_types = False

    def do_GET(self) -> None:
        if int(self.headers.get("content-length") or 0):
            self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/admin/runs":
            events = [{"event": "delta", "text": HOSTILE}, {"event": "error", "error": {"message": HOSTILE}}]
            body = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
        else:
            body = json.dumps(self._answer()).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def _answer(self) -> Any:
        h = HOSTILE
        if self.wrong_types:
            return dict.fromkeys(
                ("nodes", "models", "events", "requests", "providers", "principals", "edge", "total"), 7
            )
        row = dict.fromkeys(("id", "api", "state", "principal", "model", "node", "provider", "attempts", "age_s"), h)
        candidate = dict.fromkeys(("node", "provider", "standing", "in_use", "capacity"), h)
        event = {"at_ms": h, "what": h, "node": h, "provider": h, h: h, "candidates": [candidate], "more_candidates": h}
        provider = dict.fromkeys(("id", "kind", "status", "health", "in_use", "capacity", "lingering"), h)
        return {
            **dict.fromkeys(("request_id", "api", "model", "principal", "outcome", "status", "state", "total_ms"), h),
            **dict.fromkeys(("attempts", "position", "waits_for", "kind", "name", "in_use", "result", "revision"), h),
            "found_by": h, "clocks": {h: h}, "events": [event], "requests": [row], "total": 99, "changed": [h],
            "needs_restart": [h], "providers": [provider], "waiting": h, "leases_in_use": h,
            "edge": {"id": h, "version": h, "revision": h, "config": {"faults": [h]}, "keys": {"faults": [h]}},
            "nodes": [{"id": h, "connected": True, "providers": [provider], "config_refused": {"code": h, "ref": h}}],
            "models": [{"id": h, "waiting": h, "oldest_wait_ms": h}], "principals": [{"principal": h, "in_flight": h}],
        }  # fmt: skip

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hostile() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


COMMANDS = [
    *(["status"], ["status", "--json"], ["requests"], ["requests", "--json"], ["trace", "r"], ["trace", "r", "--json"]),
    *(["drain", "n"], ["undrain", "n"], ["cancel", "r"], ["reload"]),
    *(["run", "--model", "m", "hi"], ["run", "--model", "m", "--json", "hi"]),
]


@pytest.mark.req("SEC-4")
@pytest.mark.parametrize("wrong_types", [False, True])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_show_none_of_them_whoever_answers(
    command: list[str],
    wrong_types: bool,
    hostile: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Hostile, "wrong_types", wrong_types)
    code = main([*command, "--admin", hostile])
    shown = capsys.readouterr()
    assert code in (0, 1, 2)
    assert harmless(shown.out, keep="\n\t")
    assert harmless(shown.err, keep="\n")
    assert shown.out or shown.err


@pytest.mark.req("SEC-4", "CONF-1")
def test_check_shows_none_of_them(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text(f"http: {{listen: {json.dumps(HOSTILE)}}}\n{json.dumps(HOSTILE)}: 1\n")
    assert main(["check", "-c", str(file)]) == 2
    shown = capsys.readouterr()
    assert harmless(shown.err)
    assert shown.err.count("edge.yaml") >= 2
