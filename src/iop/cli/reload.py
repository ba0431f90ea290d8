"""``iop-edge reload``: let a running edge read its file again, and say what came of it (CONF-2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iop.cli.admin import ask, say_all
from iop.cli.program import Exit, say
from iop.config.fields import HostPort

__all__ = ["reload"]

TIMEOUT_S = 60.0  # longer than the edge allows itself for reading


def reload(admin: HostPort) -> int:
    """Ask, print, and return the exit code: 2 with all faults on stderr if the file was refused. Raises as ``ask``
    does."""
    status, answer = ask(admin, "POST", "/admin/reload", timeout_s=TIMEOUT_S)
    if status >= 300:
        error: dict[str, Any] = answer["error"]
        faults = error.get("faults")
        for fault in faults if isinstance(faults, list) else []:
            say(f"{fault}", error=True)
        say(f"iop-edge: {error.get('message', status)}", error=True)
        return Exit.USAGE if faults else Exit.FAILURE
    say_all(admin, _lines(answer))
    return Exit.OK


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    said = "took over" if answer.get("result") == "applied" else "nothing changed in"
    yield f"{said} revision {answer['revision']}"
    for name in _list(answer, "changed"):
        yield f"  changed: {name}"
    for name in _list(answer, "needs_restart"):
        yield f"  needs a restart, and stays as it is until then: {name}"
    if nodes := _list(answer, "nodes"):
        yield f"  told: {', '.join(nodes)}"
    if nodes := _list(answer, "unanswered"):
        yield f"  not answered yet: {', '.join(nodes)}; `iop-edge status` shows what they say to it"
    for row in answer.get("rejected", []):
        yield f"  rejected: {row['node']}/{row['provider']}: {row['detail']} ({row['code']})"


def _list(answer: dict[str, Any], key: str) -> list[str]:
    value = answer.get(key)
    return [str(item) for item in value] if isinstance(value, list) else []
