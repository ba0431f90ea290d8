"""Asking a running edge's admin listener: which one, and what to say when it does not answer."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

from iop.cli.program import Usage, say, shown
from iop.config.fields import HostPort
from iop.config.rules import ADMIN_LISTEN

__all__ = ["admin_of", "ask", "of_running_edge", "say_all", "success", "understood"]

ANSWER_BYTES = 64 << 20
TIMEOUT_S = 10.0


def of_running_edge(parser: argparse.ArgumentParser) -> None:
    """Add ``--admin`` and ``-c``; the command calls :func:`admin_of`."""
    parser.add_argument(
        "--admin", metavar="HOST:PORT", help=f"admin address of the edge (default: the file's, else {ADMIN_LISTEN})"
    )
    parser.add_argument("-c", "--config", metavar="FILE", type=Path, help="the edge's file, to find its admin address")


def admin_of(arguments: argparse.Namespace) -> HostPort:
    """Where the running edge has its admin listener. Raises :class:`Usage` or ConfigError."""
    if arguments.admin is not None:
        try:
            return HostPort.parse(arguments.admin)
        except ValueError as error:
            raise Usage(f"--admin: {error}") from None
    if arguments.config is None:
        return HostPort.parse(ADMIN_LISTEN)
    from iop.config.load import admin_address

    listen = admin_address(arguments.config)
    if listen is None:
        raise Usage(f"{arguments.config} disables the admin listener; set admin.listen")
    return listen


@contextmanager
def understood(admin: HostPort) -> Iterator[None]:
    """Around the reading of an answer, which may come from another program. Raises :class:`Usage` for one that lacks
    what an edge's has."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, IndexError):
        raise Usage(f"{admin} does not answer as an edge of this version; is it the admin address of one?") from None


def ask(
    admin: HostPort, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S
) -> tuple[int, dict[str, Any]]:
    """Status and JSON object of an answer to a request with this JSON ``body``; of those that are no success only an
    error object's.

    Raises ConnectionError if nobody answers and :class:`Usage` for an answer that is not of an edge.
    """
    # Without the handlers of the environment: a proxy has no business with this address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{admin}{path}", data, {"content-type": "application/json"}, method=method)
    try:
        try:
            with opener.open(request, timeout=timeout_s) as response:
                status, answered = response.status, response.read(ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                status, answered = error.code, error.read(ANSWER_BYTES)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise ConnectionError(
            0, f"no edge answers on {admin}: {text}; is it running, with this admin.listen?"
        ) from None
    try:
        answer = json.loads(answered)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or (status >= 300 and not isinstance(answer.get("error"), dict)):
        said = "did not answer with JSON" if status < 300 else f"answered {status}"
        raise Usage(f"{admin} {said}; is it the admin address of an edge?")
    return status, answer


def success(admin: HostPort, method: str, path: str, body: object = None) -> dict[str, Any]:
    """The JSON object of a successful answer. Raises as :func:`ask` does, and :class:`Usage` with the edge's own words
    for an answer that is none."""
    status, answer = ask(admin, method, path, body)
    if status >= 300:
        raise Usage(shown(answer["error"].get("message", status)))
    return answer


def say_all(admin: HostPort, lines: Iterable[str]) -> None:
    """Print lines that are made of an answer, once all of them are made. Raises as :func:`understood` does, and then
    nothing is printed."""
    with understood(admin):
        made = list(lines)
    for line in made:
        say(line)
