"""``iop-edge status``: asks a running edge's admin listener and prints the answer as a table or as JSON."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

from iop.cli.admin import ask, understood
from iop.cli.program import Exit, Usage, shown
from iop.cli.table import aligned
from iop.config.fields import HostPort

__all__ = ["show", "table"]

TIMEOUT_S = 5.0
MAX_PRINCIPALS = 10  # the busiest; --json has more


def show(admin: HostPort, *, as_json: bool, every_s: float | None) -> int:
    """Print the status once, or with ``every_s`` again and again until interrupted.

    On a terminal each look takes the place of the one before; elsewhere each is a block of its own, with an empty line
    behind it, and as JSON a line. A look at which no edge answers says so on one line, in the watch: the edge may be
    about to restart. Without the watch that is a ConnectionError; :class:`Usage` if it is no edge that answers.
    """
    try:
        return _show(admin, as_json, every_s)
    except KeyboardInterrupt:
        if every_s is None:
            raise
        return Exit.OK  # how a watch ends


def _show(admin: HostPort, as_json: bool, every_s: float | None) -> int:
    while True:
        try:
            lines = _look(admin, as_json, every_s is not None)
        except ConnectionError as error:
            if every_s is None:
                raise
            text = f"{time.strftime('%H:%M:%S')}  {error.strerror}; looking again"
            lines = [json.dumps({"error": text})] if as_json else [text]
        if every_s is None:
            print("\n".join(lines), flush=True)
            return Exit.OK
        if as_json:
            print(lines[0], flush=True)
        elif sys.stdout.isatty():
            print(_in_place(lines), end="", flush=True)
        else:
            print("\n".join(lines), end="\n\n", flush=True)
        time.sleep(every_s)


def _look(admin: HostPort, as_json: bool, watch: bool) -> list[str]:
    status, answer = ask(admin, "GET", "/admin/status", timeout_s=TIMEOUT_S)
    if status >= 300:
        raise Usage(f"{admin} answered {status}; is it the admin address of an edge?")
    if as_json:
        return [json.dumps(answer, indent=None if watch else 2)]
    with understood(admin):
        return [shown(line) for line in table(answer)]


def _in_place(lines: list[str]) -> str:
    """Written over what is there, line by line, so that nothing flickers; what does not fit is told, not scrolled."""
    columns, rows = shutil.get_terminal_size()
    if len(lines) > rows - 1:
        lines = [*lines[: rows - 2], f"... {len(lines) - rows + 2} more lines"]
    return "\x1b[H" + "".join(f"{line[:columns]}\x1b[K\n" for line in lines) + "\x1b[J"


def table(status: dict[str, Any]) -> Iterator[str]:
    """The status as lines of text. Figures that the edge did not give are ``-``."""
    edge = status.get("edge", {})
    yield (
        f"edge {_text(edge, 'id')}  version {_text(edge, 'version')}  up {_duration(edge.get('uptime_s'))}"
        f"  revision {_text(edge, 'revision')}"
        f"  leases {_text(status, 'leases_in_use')}  waiting {_text(status, 'waiting')}"
    )
    yield ""
    nodes = status.get("nodes", [])
    providers = [
        (
            _text(node, "id"),
            "yes" if node.get("connected") else "no",
            *(_text(provider, key) for key in ("id", "kind", "status")),
            _health(provider),
            f"{_text(provider, 'in_use')}/{_text(provider, 'capacity')}",
            _text(provider, "lingering"),
            _text(provider, "engine_running"),
            _config(node),
        )
        for node in nodes
        for provider in node.get("providers", []) or [{}]
    ]
    head = ("NODE", "UP", "PROVIDER", "KIND", "STATUS", "HEALTH", "IN USE", "LINGERING", "ENGINE", "CONFIG")
    yield from aligned(head, providers)
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
    yield from aligned(("MODEL", "WAITING", "OLDEST MS", "CANDIDATES"), models)
    principals = [
        tuple(_text(row, key) for key in ("principal", "in_flight", "requests_last_minute", "tokens_last_minute"))
        for row in status.get("principals", [])[:MAX_PRINCIPALS]
    ]
    if principals:
        yield ""
        yield from aligned(("PRINCIPAL", "IN FLIGHT", "REQUESTS/MIN", "TOKENS/MIN"), principals)
    config = edge.get("config")
    notes = [
        *(note for node in nodes for provider in node.get("providers", []) for note in _provider_notes(provider)),
        *(f"needs a restart: {name}" for name in _list(config, "needs_restart")),
        *(f"the last reload was refused: {fault}" for fault in _list(config, "faults")),
        *(f"the keys file is refused: {fault}" for fault in _list(edge.get("keys"), "faults")),
        *(
            f"{_text(node, 'id')}/{_text(provider, 'id')} rejected by its node: {_text(provider, 'rejected')}"
            for node in nodes
            for provider in node.get("providers", [])
            if provider.get("rejected")
        ),
    ]
    if notes:
        yield ""
        yield from notes


def _config(node: dict[str, Any]) -> str:
    """The revision that a node has applied; the one that it is to have, if that is another; and what it refused."""
    applied, wanted, refused = _text(node, "applied_revision"), _text(node, "revision"), node.get("config_refused")
    text = applied if applied in (wanted, "-") else f"{applied}, not yet {wanted}"
    if node.get("connected") and wanted == "-":
        text = "removed, leaves"
    if isinstance(refused, dict):
        text += f" (refused {' '.join(_text(refused, key) for key in ('revision', 'code', 'ref'))})"
    return text


def _health(provider: dict[str, Any]) -> str:
    """The health, and for one that is lowered since when, and why."""
    text, lowered = _text(provider, "health"), provider.get("lowered")
    if not isinstance(lowered, dict) or not isinstance(since := lowered.get("since"), int | float):
        return text
    return f"{text} {_duration(max(0.0, time.time() - since))} ({_text(lowered, 'reason')})"


def _provider_notes(provider: dict[str, Any]) -> Iterator[str]:
    """What there is to say of its targets, and what a look at it has found."""
    name = _text(provider, "id")
    for target, lowered in _items(provider.get("lowered_targets")):
        reason = _text(lowered, "reason") if isinstance(lowered, dict) else "-"
        yield f"{name}: {shown(target)} is unavailable ({reason})"
    for target, left_s in _items(provider.get("resting")):
        yield f"{name}: {shown(target)} rests for {_duration(left_s)}"
    if provider.get("note"):
        yield f"{name}: {_text(provider, 'note')}"


def _items(value: object) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _list(item: object, key: str) -> list[str]:
    value = item.get(key) if isinstance(item, dict) else None
    return [shown(entry) for entry in value] if isinstance(value, list) else []


def _text(item: dict[str, Any], key: str) -> str:
    value = item.get(key)
    if value is None:
        return "-"
    return shown(f"{value:.0f}" if isinstance(value, float) else value)


def _duration(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"
