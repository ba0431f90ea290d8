"""``iop-node``: serve, check, join."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

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

if TYPE_CHECKING:
    from iop.config.node import NodeConfig


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
    _check_listeners(arguments.config, config)
    edge = config.node.edge
    how = "over TLS"
    if config.node.tls is None:
        how = "without TLS" + ("" if edge.is_loopback else ": who sees the network sees token and prompts")
    print(f"{arguments.config}: ok; dials {edge} {how}")
    for name in config.node.credentials:
        if not os.environ.get(name):
            _warn(arguments.config, f"node.credentials: {name} is not set here; a provider that names it is rejected")
    folder = _store_folder(config.store.url)
    if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
        _warn(arguments.config, f"store.url: {folder} is not a folder that can be written to; runs would not be stored")
    return Exit.OK


def _store_folder(url: str | None) -> Path | None:
    """Where the run store's file is to be; None for no store, or one in memory."""
    if url is None or "mode=memory" in url or ":memory:" in url:
        return None
    return Path(unquote(urlsplit(url).path)).parent


def _warn(file: Path, text: str) -> None:
    print(f"{file}: {text}", file=sys.stderr)


def _check_listeners(file: Path, config: NodeConfig) -> None:
    from iop.cli.listeners import check_listeners

    check_listeners(file, {"metrics.listen": config.metrics.listen})


if __name__ == "__main__":
    sys.exit(main())
