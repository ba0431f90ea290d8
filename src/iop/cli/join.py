"""``iop-node join``: a node without a file (REG-1, SEC-1).

A join token says by which CA its edge is known, so it goes over TLS and to that edge alone, unless --ca or --tls says
otherwise: an edge may have got another certificate since. Any other token goes to this machine in the clear, and
elsewhere only over TLS, or if the one who types it says that the network may see it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from iop.cli.program import Usage, console_or_json, until_eof, watch_input
from iop.config.fields import HostPort

__all__ = ["add"]

TOKEN_VARIABLE = "IOP_NODE_TOKEN"  # noqa: S105 - a name, not a token


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the parser."""
    join = commands.add_parser(
        "join",
        help="run a node without a file",
        description="Runs a node with default settings and no file. A join token (iop-edge init, iop-edge token) names "
        "the CA of its edge: the token is sent to an edge of that CA only, over TLS. With any other token say how the "
        "edge is known, unless it is on this machine.",
    )
    join.add_argument("edge", metavar="HOST:PORT", help="the edge's transport address")
    join.add_argument(
        "--token", metavar="T", help=f"this node's token (default: ${TOKEN_VARIABLE}, which no shell's history keeps)"
    )
    how = join.add_mutually_exclusive_group()
    how.add_argument("--ca", metavar="FILE", type=Path, help="TLS, with an edge that this CA knows")
    how.add_argument("--tls", action="store_true", help="TLS, with an edge that the system's CAs know by its host name")
    how.add_argument("--plaintext", action="store_true", help="no TLS: who sees the network sees token and prompts")
    console_or_json(join)
    until_eof(join)
    join.set_defaults(run=_join)


def _hide(token: str) -> None:
    """Everybody on this machine can read a process's command line, its user alone its environment: starts this program
    again, as the same process, with the token there. Does nothing if the command line has none."""
    words = [word for word in sys.orig_argv if word != token and not word.endswith("=" + token)]
    if len(words) == len(sys.orig_argv):
        return
    words = [word for word in words if not (word.startswith("--t") and "--token".startswith(word))]
    os.execve(sys.executable, words, {**os.environ, TOKEN_VARIABLE: token})  # noqa: S606 - this very program


def _join(arguments: argparse.Namespace) -> int:
    if arguments.token:
        _hide(arguments.token)
    from iop.config.load import parse_node

    token = arguments.token or os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise Usage(f"join needs the node's token: --token T, or {TOKEN_VARIABLE} in the environment")
    try:
        edge = HostPort.parse(arguments.edge)
    except ValueError as error:
        raise Usage(f"{arguments.edge}: {error}") from None
    node = {"edge": arguments.edge, "token_env": TOKEN_VARIABLE, "tls": _tls(arguments, edge, token)}
    # Without a file there is no folder of ours to put a run store into.
    text = json.dumps({"node": node, "reconnect": {"max_attempts": 0}, "store": {"url": None}})
    config = parse_node(text, source="iop-node join", env={TOKEN_VARIABLE: token})
    from iop.node.app import run

    watch_input(arguments)
    return run(config, log_format=arguments.log_format)


def _tls(arguments: argparse.Namespace, edge: HostPort, token: str) -> dict[str, str] | None:
    """The ``node.tls`` that the line asks for. Raises Usage if the token would cross a network in the clear unasked."""
    from iop.tls.join_token import ca_of

    try:
        ca_sha256 = ca_of(token)
    except ValueError as error:
        raise Usage(str(error)) from None
    if arguments.ca is not None:
        return {"ca": str(arguments.ca.absolute())}
    if arguments.tls:
        return {}
    if ca_sha256 is not None:
        if arguments.plaintext:
            raise Usage("a join token is for an edge that speaks TLS; leave --plaintext out")
        return {"ca_sha256": ca_sha256}
    if not arguments.plaintext and not edge.is_loopback:
        raise Usage(
            f"without TLS the token and all prompts would travel to {edge} in the clear: use a join token (iop-edge "
            "token makes one if the edge has a CA), --tls or --ca FILE, or say --plaintext on a network that you trust"
        )
    return None
