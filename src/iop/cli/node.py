"""``iop-node``: serve, check, join."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from iop.cli.program import (
    Exit,
    Parser,
    Usage,
    config_file,
    console_or_json,
    main_of,
    until_eof,
    version,
    watch_input,
)
from iop.config.fields import HostPort

TOKEN_VARIABLE = "IOP_NODE_TOKEN"  # noqa: S105 - a name, not a token


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``iop-node``; returns the exit code."""
    parser = Parser(prog="iop-node", description="A node of IOP: runs beside LLM servers and dials out to the edge.")
    version(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="run the node", description="Runs the node until SIGINT or SIGTERM.")
    config_file(serve)
    console_or_json(serve)
    until_eof(serve)
    serve.set_defaults(run=_serve)

    check = commands.add_parser(
        "check", help="check a configuration file", description="Reads the file, reports every fault, starts nothing."
    )
    config_file(check)
    check.set_defaults(run=_check)

    join = commands.add_parser(
        "join", help="run a node without a file", description="Runs a node with default settings and no file."
    )
    join.add_argument("edge", metavar="HOST:PORT", help="the edge's transport address")
    join.add_argument(
        "--token", metavar="T", help=f"this node's token (default: ${TOKEN_VARIABLE}, which other users cannot read)"
    )
    console_or_json(join)
    until_eof(join)
    join.set_defaults(run=_join)
    return main_of(parser, argv)


def _serve(arguments: argparse.Namespace) -> int:
    from iop.config.load import load_node

    config = load_node(arguments.config)
    from iop.node.app import run

    watch_input(arguments)
    return run(config, log_format=arguments.log_format)


def _check(arguments: argparse.Namespace) -> int:
    from iop.config.load import load_node

    config = load_node(arguments.config)
    print(f"{arguments.config}: ok; dials {config.node.edge}")
    return Exit.OK


def _join(arguments: argparse.Namespace) -> int:
    from iop.config.load import parse_node

    token = arguments.token or os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise Usage(f"join needs the node's token: --token T, or {TOKEN_VARIABLE} in the environment")
    try:
        HostPort.parse(arguments.edge)
    except ValueError as error:
        raise Usage(f"{arguments.edge}: {error}") from None
    # Without a file there is no folder of ours to put a run store into.
    text = json.dumps({"node": {"edge": arguments.edge, "token_env": TOKEN_VARIABLE}, "store": {"url": None}})
    config = parse_node(text, source="iop-node join", env={TOKEN_VARIABLE: token})
    from iop.node.app import run

    watch_input(arguments)
    return run(config, log_format=arguments.log_format)


if __name__ == "__main__":
    sys.exit(main())
