"""``--help``, hints for misspelt commands, and completion: what a person meets first."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from iop.cli import edge, node
from iop.cli.manual import EXAMPLES
from iop.cli.program import Parser
from tests.support.programs import command

PROGRAMS: dict[str, Callable[[], Parser]] = {"iop-edge": edge.command_line, "iop-node": node.command_line}


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


ALL = {p.prog: p for make in PROGRAMS.values() for p in parsers(make())}


@pytest.mark.parametrize("prog", ALL)
def test_every_command_says_what_it_is_for_and_shows_how(prog: str) -> None:
    parser = ALL[prog]
    text = parser.format_help()
    assert parser.description
    assert parser.description.endswith(".")
    assert "examples:\n  $ " in text
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            assert action.help, f"{prog} {action.option_strings or action.dest} has no help"


def test_there_are_no_examples_of_commands_that_do_not_exist() -> None:
    assert set(EXAMPLES) == set(ALL)


@pytest.mark.parametrize("line", [line for examples in EXAMPLES.values() for line, _ in examples])
def test_each_example_is_a_command_line_that_is_taken(line: str) -> None:
    words = shlex.split(re.sub(r"^[A-Z_]+=\S+ | [<>] .*$", "", line))
    PROGRAMS[words[0]]().parse_args(words[1:])


@pytest.mark.req("CONF-1")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("stats",), "there is no 'stats' here; did you mean 'status'?"),
        (("xyzzy",), "there is no 'xyzzy' here; known are"),
        (("key", "revok"), "did you mean 'revoke'?"),
        (("serve", "-c", "x", "--log-format", "jsn"), "did you mean 'json'?"),
    ],
)
def test_a_misspelt_word_gets_a_hint_in_one_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        edge.main(arguments)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("program", PROGRAMS)
def test_bash_completes_commands_options_and_files(program: str, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed here")
    script = subprocess.run(
        command(program, "completion", "bash"), capture_output=True, text=True, check=True, timeout=30
    ).stdout
    (tmp_path / "script").write_text(script)
    (tmp_path / "my.yaml").write_text("")
    ask = """
        source ./script
        complete_line() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            $(complete -p PROGRAM | sed 's/.*-F \\([^ ]*\\).*/\\1/') PROGRAM "${COMP_WORDS[COMP_CWORD]}"
            echo "${COMPREPLY[@]}"
        }
        complete_line PROGRAM ser
        complete_line PROGRAM serve --log
        complete_line PROGRAM serve -c my
    """.replace("PROGRAM", program)
    ran = subprocess.run([bash, "-c", ask], capture_output=True, text=True, cwd=tmp_path, timeout=30, check=False)
    assert ran.stdout.split() == ["serve", "--log-format", "my.yaml"], ran


@pytest.mark.parametrize("shell", ["zsh", "fish"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_other_shells_get_a_script_with_every_command(program: str, shell: str) -> None:
    script = subprocess.run(
        command(program, "completion", shell), capture_output=True, text=True, check=True, timeout=30
    ).stdout
    for prog in ALL:
        if prog.startswith(program + " "):
            assert prog.rpartition(" ")[2] in script
