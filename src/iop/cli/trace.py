"""``iop-edge trace``: what was decided about one request, and why (OBS-7)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from iop.cli.admin import admin_of, ask, of_running_edge, printable
from iop.cli.program import Exit, Usage
from iop.cli.table import aligned

__all__ = ["add"]


_ELSEWHERE = frozenset({"at_ms", "what", "node", "provider", "candidates", "more_candidates"})
_FLAGS = frozenset({"long", "fallback", "connection_reused", "response_started"})  # said where they hold


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the parser."""
    trace = commands.add_parser(
        "trace",
        help="show what was decided about one request",
        description="Shows one request step by step: whom it could go to and what spoke against each, its waits, its "
        "attempts and how they failed, when its answer began and how it ended. The edge keeps the last 1000 requests "
        "that went straight and the last 500 others, without anything of what was asked or answered.",
    )
    trace.add_argument("request", metavar="REQUEST", help="x-request-id of the answer, or the one that its client sent")
    trace.add_argument("--json", action="store_true", help="print /admin/trace/REQUEST as it is")
    of_running_edge(trace)
    trace.set_defaults(run=_trace)


def _trace(arguments: argparse.Namespace) -> int:
    status, answer = ask(admin_of(arguments), "GET", f"/admin/trace/{quote(arguments.request, safe='')}")
    if status >= 300:
        raise Usage(printable(answer["error"].get("message", status)))
    if arguments.json:
        print(json.dumps(answer, indent=2))
        return Exit.OK
    for line in _lines(answer):
        print(line)
    return Exit.OK


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    whose = " ".join(printable(answer[key]) for key in ("api", "model", "principal") if answer.get(key))
    outcome = f"{printable(answer['outcome'])} ({answer['status']})" if "outcome" in answer else answer["state"]
    tries = "1 attempt" if answer["attempts"] == 1 else f"{answer['attempts']} attempts"
    yield f"{printable(answer['request_id'])}: {whose}"
    yield f"{outcome}, {tries}, {answer['total_ms']} ms"
    if "position" in answer:
        yield f"waits at place {answer['position']} of its principal: {printable(answer['waits_for'])}"
    clocks = [f"{name.removesuffix('_timeout_ms').replace('_', ' ')} {ms} ms"
              for name, ms in answer["clocks"].items() if ms is not None]  # fmt: skip
    yield f"time limits: {', '.join(clocks)}"
    rows = []
    for event in answer["events"]:
        rows.append((f"{event['at_ms']}", printable(event["what"]), _said(event)))
        for candidate in event.get("candidates", ()):
            use = f"{candidate['in_use']} of {candidate['capacity']} in use"
            where = f"{candidate['node']}/{candidate['provider']}"
            rows.append(("", "", f"  {printable(where)}: {printable(candidate['standing'])}, {use}"))
        if more := event.get("more_candidates"):
            rows.append(("", "", f"  ... and {more} more"))
    yield from aligned(("AT MS", "WHAT", "MORE"), rows)


def _said(event: Mapping[str, Any]) -> str:
    """The other members of an event: where, and then name and value of each."""
    where = f"{event['node']}/{event['provider']}" if event.get("provider") else ""
    left = [
        f"{key}={json.dumps(value) if isinstance(value, bool) else value}"
        for key, value in event.items()
        if key not in _ELSEWHERE and value is not None and not (key in _FLAGS and not value)
    ]
    return printable(" ".join([where, *left] if where else left))
