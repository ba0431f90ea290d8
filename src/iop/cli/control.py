"""``iop-edge drain``, ``undrain``, ``requests``, ``ollama`` and ``cancel``: what an operator does to a running edge."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from iop.cli.admin import admin_of, of_running_edge, say_all, success, understood
from iop.cli.program import Command, Exit, Usage, say, shown
from iop.cli.table import aligned
from iop.config.fields import HostPort

__all__ = ["add"]

LOOK_S = 0.5

_COLUMNS = {
    "REQUEST": "id",
    "API": "api",
    "STATE": "state",
    "AGE S": "age_s",
    "PRINCIPAL": "principal",
    "MODEL": "model",
    "NODE": "node",
    "PROVIDER": "provider",
    "ATTEMPTS": "attempts",
    "PLACE": "position",
    "WAITS FOR": "waits_for",
}


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
    return success(admin, "POST", f"/admin/{action}", {"name": name})


def _drain(arguments: argparse.Namespace, admin: HostPort) -> int:
    while True:
        answer = _act(admin, "drain", arguments.name)  # where it is drained already this only looks
        with understood(admin):
            in_use = int(answer["in_use"])
        if not (arguments.wait and in_use):
            break
        time.sleep(LOOK_S)
    say_all(admin, _lines(answer, "draining" if in_use else "drained"))
    return Exit.OK


def _undrain(arguments: argparse.Namespace, admin: HostPort) -> int:
    say_all(admin, _lines(_act(admin, "undrain", arguments.name), "undrained"))
    return Exit.OK


def _lines(answer: dict[str, Any], what: str) -> Iterator[str]:
    yield f"{what} {answer['kind']} {answer['name']}: {answer['in_use']} in use"
    for one in answer["providers"]:
        yield f"  {one['id']}: {one['status']}, {one['in_use']} in use"


def _requests(arguments: argparse.Namespace, admin: HostPort) -> int:
    answer = success(admin, "GET", "/admin/requests")
    if arguments.json:
        print(json.dumps(answer, indent=2))
        return Exit.OK
    with understood(admin):
        rows = [tuple(shown(row.get(key, "")) or "-" for key in _COLUMNS.values()) for row in answer["requests"]]
        more = int(answer["total"]) - len(rows)
    for line in aligned(tuple(_COLUMNS), rows):
        say(line)
    if more > 0:
        say(f"... and {more} more")
    return Exit.OK


def _ollama(arguments: argparse.Namespace, admin: HostPort) -> int:
    if (arguments.what == "show") is not bool(arguments.model):
        raise Usage("show needs a MODEL, and nothing else takes one")
    query = f"?model={quote(arguments.model, safe='')}" if arguments.model else ""
    path = f"/admin/ollama/{quote(arguments.provider, safe='')}/api/{arguments.what}{query}"
    print(json.dumps(success(admin, "GET", path), indent=2))
    return Exit.OK


def _cancel(arguments: argparse.Namespace, admin: HostPort) -> int:
    answer = _act(admin, "cancel", arguments.request)
    with understood(admin):
        line = f"cancelled {answer['request_id']}, which was {answer['state']}"
    say(line)
    return Exit.OK
