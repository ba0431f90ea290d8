"""``iop-edge status``: asks a running edge's admin listener and prints the answer as a table or as JSON."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from http.client import HTTPException
from typing import Any

from iop.cli.program import Exit, Usage
from iop.config.fields import HostPort

__all__ = ["show", "table"]

TIMEOUT_S = 5.0
WATCH_S = 2.0
ANSWER_BYTES = 64 << 20


def show(admin: HostPort, *, as_json: bool, watch: bool) -> int:
    """Prints the status once, or with ``watch`` until interrupted. Raises :class:`Usage` if there is no edge."""
    while True:
        answer = _fetch(admin)
        if as_json:
            print(json.dumps(answer, indent=None if watch else 2), flush=True)
        else:
            if watch and sys.stdout.isatty():
                print("\x1b[H\x1b[2J", end="")
            print("\n".join(table(answer)), flush=True)
        if not watch:
            return Exit.OK
        time.sleep(WATCH_S)


def _fetch(admin: HostPort) -> dict[str, Any]:
    # Without the handlers of the environment: a proxy has no business with this address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{admin}/admin/status", timeout=TIMEOUT_S) as response:
            answer = json.loads(response.read(ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            raise Usage(f"{admin} answered {error.code}; is it the admin address of an edge?") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise ConnectionError(
            0, f"no edge answers on {admin}: {text}; is it running, with this admin.listen?"
        ) from None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Usage(f"{admin} did not answer with JSON; is it the admin address of an edge?")
    return answer


def table(status: dict[str, Any]) -> Iterator[str]:
    """The status as lines of text. Figures that the edge did not give are ``-``."""
    edge = status.get("edge", {})
    yield (
        f"edge {_text(edge, 'id')}  version {_text(edge, 'version')}  up {_duration(edge.get('uptime_s'))}"
        f"  leases {_text(status, 'leases_in_use')}  waiting {_text(status, 'waiting')}"
    )
    yield ""
    nodes = status.get("nodes", [])
    providers = [
        (
            _text(node, "id"),
            "yes" if node.get("connected") else "no",
            *(_text(provider, key) for key in ("id", "kind", "status", "health")),
            f"{_text(provider, 'in_use')}/{_text(provider, 'capacity')}",
            _text(provider, "engine_running"),
        )
        for node in nodes
        for provider in node.get("providers", []) or [{}]
    ]
    yield from _aligned(("NODE", "UP", "PROVIDER", "KIND", "STATUS", "HEALTH", "IN USE", "ENGINE"), providers)
    yield ""
    models = [
        (
            _text(model, "id"),
            _text(model, "waiting"),
            _text(model, "oldest_wait_ms"),
            str(len(model.get("candidates", []))),
        )
        for model in status.get("models", [])
    ]
    yield from _aligned(("MODEL", "WAITING", "OLDEST MS", "CANDIDATES"), models)


def _text(item: dict[str, Any], key: str) -> str:
    value = item.get(key)
    if value is None:
        return "-"
    text = f"{value:.0f}" if isinstance(value, float) else str(value)
    return "".join(c if c.isprintable() else "?" for c in text)


def _duration(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def _aligned(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    grid = [head, *rows]
    widths = [max(len(row[column]) for row in grid) for column in range(len(head))]
    for row in grid:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
