"""``completion``: a script with which a shell completes a program's commands and options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from iop.cli.program import Exit, Parser

__all__ = ["add"]

SHELLS = ("bash", "zsh", "fish")


def add(commands: argparse._SubParsersAction[Any], parser: Parser) -> None:
    """Add the command to ``parser``'s."""
    completion = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description=f"Prints a script with which a shell completes {parser.prog}'s commands, options and file names.",
    )
    completion.add_argument("shell", choices=SHELLS, help="whose language to write it in")
    completion.set_defaults(run=lambda arguments: _print(parser, arguments.shell))


def _print(parser: Parser, shell: str) -> int:
    import shtab

    _complete_files(parser, shtab.FILE)
    print(shtab.complete(parser, shell))
    return Exit.OK


def _complete_files(parser: argparse.ArgumentParser, how: object) -> None:
    """An argument that becomes a path is completed as one, in all commands below ``parser``."""
    for action in parser._actions:
        if action.type is Path:
            action.complete = how  # type: ignore[attr-defined]
        elif isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_files(command, how)
