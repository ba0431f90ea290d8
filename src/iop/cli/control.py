"""``iop-edge drain``, ``undrain``, ``requests``, ``ollama`` and ``cancel``: what an operator does to a running edge."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from iop.cli.admin import admin_of, ask, of_running_edge, understood
from iop.cli.program import Command, Exit, Usage, say, shown
from iop.cli.table import aligned
from iop.config.fields import HostPort

__all__ = ["add"]

LOOK_S = 0.5


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the parsers."""
    drain = commands.add_parser(
        "drain",
        help="let a node or a provider finish, and send it nothing new",
        description="A drained node or provider gets no new request; what it has goes on. That outlives reconnects and "
        "reloads, and ends with `iop-edge undrain` or a restart of the edge. Waiting requests go to other providers; "
        "those that have none are refused.",
    )
    drain.add_argument("name", metavar="NODE|PROVIDER", help="its id; node:ID or provider:ID if both have that one")
    drain.add_argument("--wait", action="store_true", help="return when nothing runs there any more")
    of_running_edge(drain)
    drain.set_defaults(run=_at_edge(_drain))

    undrain = commands.add_parser(
        "undrain",
        help="send a drained node or provider work again",
        description="Takes the word of `iop-edge drain` back.",
    )
    undrain.add_argument("name", metavar="NODE|PROVIDER", help="as it was drained")
    of_running_edge(undrain)
    undrain.set_defaults(run=_at_edge(_undrain))

    requests = commands.add_parser(
        "requests",
        help="list the requests that are going on",
        description="Lists the requests that wait or run, oldest first, without anything of what is asked or answered.",
    )
    requests.add_argument("--json", action="store_true", help="print /admin/requests as it is")
    of_running_edge(requests)
    requests.set_defaults(run=_at_edge(_requests))

    ollama = commands.add_parser(
        "ollama",
        help="ask an Ollama server what it has, runs, or knows of a model",
        description="Prints what Ollama's own API says, through the edge and the server's node: ps lists the models in "
        "memory, tags those on disk, show tells about one, and version about the server.",
    )
    ollama.add_argument("provider", metavar="PROVIDER", help="the id of a provider of kind ollama")
    ollama.add_argument(
        "what", choices=("ps", "tags", "show", "version"), metavar="ps|tags|show|version", help="what to ask"
    )
    ollama.add_argument("model", metavar="MODEL", nargs="?", help="for show: its name there")
    of_running_edge(ollama)
    ollama.set_defaults(run=_at_edge(_ollama))

    cancel = commands.add_parser(
        "cancel",
        help="cancel one request",
        description="Ends a request wherever it stands: its client gets an error, its provider's call is closed, and "
        "its slot comes back when that is confirmed.",
    )
    cancel.add_argument("request", metavar="REQUEST", help="its id: x-request-id of the answer, or `iop-edge requests`")
    of_running_edge(cancel)
    cancel.set_defaults(run=_at_edge(_cancel))


def _at_edge(command: Callable[[argparse.Namespace, HostPort], int]) -> Command:
    """The command, with the address of the edge that it asks."""
    return lambda arguments: command(arguments, admin_of(arguments))


def _act(admin: HostPort, action: str, name: str) -> dict[str, Any]:
    status, answer = ask(admin, "POST", f"/admin/{action}", {"name": name})
    if status >= 300:
        raise Usage(shown(answer["error"].get("message", status)))
    return answer


def _drain(arguments: argparse.Namespace, admin: HostPort) -> int:
    in_use, lines = _set_drained(admin, "drain", arguments.name)
    while arguments.wait and in_use:
        time.sleep(LOOK_S)
        in_use, lines = _set_drained(admin, "drain", arguments.name)  # it is drained already: this only looks
    return _say(lines, "drained" if not in_use else "draining")


def _undrain(arguments: argparse.Namespace, admin: HostPort) -> int:
    _, lines = _set_drained(admin, "undrain", arguments.name)
    return _say(lines, "undrained")


def _set_drained(admin: HostPort, action: str, name: str) -> tuple[int, list[str]]:
    """How many slots are in use there now, and the lines that say so."""
    answer = _act(admin, action, name)
    with understood(admin):
        lines = [f"{answer['kind']} {answer['name']}: {answer['in_use']} in use"]
        lines += [f"  {one['id']}: {one['status']}, {one['in_use']} in use" for one in answer["providers"]]
        return int(answer["in_use"]), lines


def _say(lines: list[str], what: str) -> int:
    say(f"{what} {lines[0]}")
    for line in lines[1:]:
        say(line)
    return Exit.OK


def _requests(arguments: argparse.Namespace, admin: HostPort) -> int:
    status, answer = ask(admin, "GET", "/admin/requests")
    if status >= 300:
        raise Usage(shown(answer["error"].get("message", status)))
    if arguments.json:
        print(json.dumps(answer, indent=2))
        return Exit.OK
    head = (
        "REQUEST",
        "API",
        "STATE",
        "AGE S",
        "PRINCIPAL",
        "MODEL",
        "NODE",
        "PROVIDER",
        "ATTEMPTS",
        "PLACE",
        "WAITS FOR",
    )
    keys = (
        "id",
        "api",
        "state",
        "age_s",
        "principal",
        "model",
        "node",
        "provider",
        "attempts",
        "position",
        "waits_for",
    )
    with understood(admin):
        rows = [tuple(shown(row.get(key, "")) or "-" for key in keys) for row in answer["requests"]]
        more = int(answer["total"]) - len(rows)
    for line in aligned(head, rows):
        say(line)
    if more > 0:
        say(f"... and {more} more")
    return Exit.OK


def _ollama(arguments: argparse.Namespace, admin: HostPort) -> int:
    if (arguments.what == "show") is not bool(arguments.model):
        raise Usage("show needs a MODEL, and nothing else takes one")
    query = f"?model={quote(arguments.model, safe='')}" if arguments.model else ""
    path = f"/admin/ollama/{quote(arguments.provider, safe='')}/api/{arguments.what}{query}"
    status, answer = ask(admin, "GET", path)
    if status >= 300:
        raise Usage(shown(answer["error"].get("message", status)))
    print(json.dumps(answer, indent=2))
    return Exit.OK


def _cancel(arguments: argparse.Namespace, admin: HostPort) -> int:
    answer = _act(admin, "cancel", arguments.request)
    with understood(admin):
        line = f"cancelled {answer['request_id']}, which was {answer['state']}"
    say(line)
    return Exit.OK
