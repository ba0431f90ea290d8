"""``iop-node``: serve, check, join."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from iop.cli import completion, join
from iop.cli.program import (
    Exit,
    Parser,
    config_file,
    console_or_json,
    main_of,
    until_eof,
    version,
    watch_input,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``iop-node``; returns the exit code."""
    return main_of(command_line(), argv)


def command_line() -> Parser:
    """The whole of it: every command with its options."""
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

    join.add(commands)
    completion.add(commands, parser)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    from iop.config.load import load_node

    config = load_node(arguments.config)
    from iop.node.app import run

    watch_input(arguments)
    return run(config, log_format=arguments.log_format)


def _check(arguments: argparse.Namespace) -> int:
    from iop.config.load import load_node

    config = load_node(arguments.config)
    edge = config.node.edge
    how = "over TLS"
    if config.node.tls is None:
        how = "without TLS" + ("" if edge.is_loopback else ": who sees the network sees token and prompts")
    print(f"{arguments.config}: ok; dials {edge} {how}")
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
