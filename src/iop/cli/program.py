"""What both programs share: how a command line is read, how a program ends with the one that started it, and what an
exit code means."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

import iop
from iop.cli.manual import Layout, epilog
from iop.errors import ConfigError, IopError
from iop.plain import plain

__all__ = [
    "Command",
    "Exit",
    "Parser",
    "Usage",
    "command_line",
    "config_file",
    "console_or_json",
    "invoked_as",
    "main_of",
    "say",
    "shown",
    "until_eof",
    "version",
    "watch_input",
]

Command = Callable[[argparse.Namespace], int]


class Exit(IntEnum):
    """Exit codes of both programs (SUP-3)."""

    OK = 0
    FAILURE = 1
    USAGE = 2  # bad usage or configuration
    IDENTITY = 3  # a credential, identity or protocol version was refused
    EXHAUSTED = 4  # reconnect.max_attempts are used up


#: Ctrl-C at a command that was to come to an end by itself, as shells have it: what follows behind && is not done.
INTERRUPTED = 130


class Usage(Exception):
    """A command cannot do what it was asked to; the text says what to do instead."""


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one line, with a hint for a misspelt command, and whose help ends with examples."""

    def __init__(self, *, prog: str, **more: Any) -> None:
        super().__init__(prog=prog, formatter_class=Layout, epilog=epilog(prog), **more)

    def error(self, message: str) -> NoReturn:
        wrong = re.match(r".*invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if wrong is not None:
            known = re.findall(r"[\w-]+", wrong[2])
            close = get_close_matches(wrong[1], known, 1)
            message = f"there is no {wrong[1][:64]!r} here; " + (
                f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
            )
        self.exit(Exit.USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def main_of(parser: Parser, argv: Sequence[str] | None) -> int:
    """Run the command that ``argv`` names and return the exit code; every expected failure becomes a line."""
    _open_standard_descriptors()
    arguments = parser.parse_args(argv)
    run: Command = arguments.run
    try:
        return int(run(arguments))
    except ConfigError as error:
        for fault in error.faults:
            _say(fault)
        return Exit.USAGE
    except Usage as error:
        _say(f"{parser.prog}: {error}")
        return Exit.USAGE
    except IopError as error:
        _say(f"{parser.prog}: {error.message}")
        return Exit.FAILURE
    except BrokenPipeError:
        # The reader of our output has left, as `| head` does. Nothing may be written at interpreter exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILURE
    except OSError as error:
        _say(f"{parser.prog}: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
        return Exit.FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED


def _open_standard_descriptors() -> None:
    """Open on /dev/null what of 0, 1 and 2 is closed. A socket or a file would get that number otherwise, and then
    whatever is written to stderr."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
            os.set_inheritable(fd, True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - it stays open
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def shown(text: object, keep: str = "") -> str:
    """A peer's text, fit for a terminal."""
    return plain(text, keep, mark="?")


def say(line: str, *, error: bool = False) -> None:
    """Print a line, whoever wrote what is in it: no control or escape reaches the terminal."""
    print(shown(line), file=sys.stderr if error else sys.stdout, flush=True)


def _say(line: str) -> None:
    say(line.replace("\n", " "), error=True)


def console_or_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--log-format``."""
    parser.add_argument(
        "--log-format",
        choices=("console", "json"),
        default="console" if sys.stderr is not None and sys.stderr.isatty() else "json",
        help="how log lines look (default: console on a terminal, else json)",
    )


def config_file(parser: argparse.ArgumentParser) -> None:
    """Add ``-c FILE``."""
    parser.add_argument("-c", "--config", metavar="FILE", type=Path, required=True, help="the configuration file")


def until_eof(parser: argparse.ArgumentParser) -> None:
    """Add ``--until-eof``; the command calls :func:`watch_input`."""
    parser.add_argument(
        "--until-eof",
        action="store_true",
        help="stop when standard input is closed, so that this ends with the program that started it",
    )


def watch_input(arguments: argparse.Namespace) -> None:
    """With ``--until-eof``: from here on the end of standard input is a SIGTERM. Unlike a parent-death signal this
    works on every system and for every way in which the starter may end."""
    if arguments.until_eof:

        def watch() -> None:
            while os.read(0, 4096):
                pass
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, name="iop-until-eof", daemon=True).start()


def version(parser: argparse.ArgumentParser) -> None:
    """Add ``--version``."""
    parser.add_argument("--version", action="version", version=f"%(prog)s {iop.__version__}")


def invoked_as(program: str) -> str:
    """How to call ``program`` (``iop-edge``, ``iop-node``) from the shell that called this one: its name if that is on
    the PATH, else its path beside this interpreter."""
    if shutil.which(program):
        return program
    beside = Path(sys.executable).with_name(program)
    try:
        return str(beside.relative_to(Path.cwd()))
    except ValueError:
        return str(beside)


def command_line(program: str, *arguments: str | Path) -> str:
    """A line to paste, quoted where needed."""
    return shlex.join([invoked_as(program), *map(str, arguments)])
