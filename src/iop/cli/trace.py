"""``iop-edge trace``: what was decided about one request, and why (OBS-7)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from iop.cli.admin import admin_of, of_running_edge, say_all, success
from iop.cli.program import Exit, shown
from iop.cli.table import aligned

__all__ = ["add"]


_ELSEWHERE = frozenset({"at_ms", "what", "node", "provider", "candidates", "more_candidates"})
_FLAGS = frozenset({"long", "fallback", "connection_reused", "response_started"})  # said where they hold


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the parser."""
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
    admin = admin_of(arguments)
    answer = success(admin, "GET", f"/admin/trace/{quote(arguments.request, safe='')}")
    if arguments.json:
        print(json.dumps(answer, indent=2))
        return Exit.OK
    say_all(admin, _lines(answer))
    return Exit.OK


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    whose = " ".join(shown(answer[key]) for key in ("api", "model", "principal") if answer.get(key))
    outcome = f"{shown(answer['outcome'])} ({answer['status']})" if "outcome" in answer else answer["state"]
    tries = "1 attempt" if answer["attempts"] == 1 else f"{answer['attempts']} attempts"
    yield f"{shown(answer['request_id'])}: {whose}"
    if answer.get("found_by") == "client_request_id":
        yield "found by the id that its client gave it; others may have given the same"
    yield f"{outcome}, {tries}, {answer['total_ms']} ms"
    if "position" in answer:
        yield f"waits at place {answer['position']} of its principal: {shown(answer['waits_for'])}"
    clocks = [f"{name.removesuffix('_timeout_ms').replace('_', ' ')} {ms} ms"
              for name, ms in answer["clocks"].items() if ms is not None]  # fmt: skip
    yield f"time limits: {', '.join(clocks)}"
    rows = []
    for event in answer["events"]:
        rows.append((f"{event['at_ms']}", shown(event["what"]), _said(event)))
        for candidate in event.get("candidates", ()):
            use = f"{candidate['in_use']} of {candidate['capacity']} in use"
            where = f"{candidate['node']}/{candidate['provider']}"
            rows.append(("", "", f"  {shown(where)}: {shown(candidate['standing'])}, {use}"))
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
    return shown(" ".join([where, *left] if where else left))
