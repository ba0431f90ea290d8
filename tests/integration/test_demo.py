"""``iop-edge demo`` as a person meets it: what it prints works when pasted, and nothing is left when it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from iop.cli.demo import ECHO, Provider, find_provider
from iop.kinds import Server
from tests.support.aio import async_test, run, until
from tests.support.programs import Program, command
from tests.support.provider import DONE, Call, ScriptedProvider, chat_delta, chat_event, listening_socket

HELLO = "hello big world"
PROMPT = "  $ "


def demo(*arguments: str, **more: Any) -> Program:
    return Program(command("iop-edge", "demo", "--log-format", "json", *arguments), **more)


def pasted(line: str) -> subprocess.CompletedProcess[str]:
    """A line as a shell takes it, in a folder that is not the demo's."""
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=30, check=False, cwd="/")


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(listed.strip()) and not listed.strip().startswith("Z")


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(child) for child, parent in map(str.split, listed.splitlines()) if int(parent) == pid]


def lines_to_paste(program: Program) -> list[str]:
    """What the demo tells people to paste, once it has said it all."""
    program.wait_line(lambda line: str(line.get("event", "")).startswith("node_connected"))
    run(until(lambda: "status --admin" in program.output.rpartition("\n")[0]), leaks=False)
    return [line.removeprefix(PROMPT) for line in program.output.splitlines() if line.startswith(PROMPT)]


@pytest.fixture(scope="module")
def running() -> Iterator[Program]:
    with demo("--echo") as program:
        yield program


@pytest.fixture(scope="module")
def lines(running: Program) -> list[str]:
    return lines_to_paste(running)


def the_one(lines: list[str], *words: str) -> str:
    (line,) = [line for line in lines if all(word in line for word in words)]
    return line


def test_it_says_what_answers(running: Program, lines: list[str]) -> None:
    assert "NOT a language model" in running.output


def test_the_whole_answer_line_works(lines: list[str]) -> None:
    (line,) = [line for line in lines if "curl" in line and '"stream"' not in line]
    ran = pasted(line)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["choices"][0]["message"]["content"] == "echo: hello there"


def test_the_streaming_line_works(lines: list[str]) -> None:
    ran = pasted(the_one(lines, "curl", '"stream"'))
    assert ran.returncode == 0, ran.stderr
    events = [line.removeprefix("data: ") for line in ran.stdout.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    said = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-1]]
    assert "".join(said) == "echo: hello there"


def test_the_openai_line_works(lines: list[str]) -> None:
    pytest.importorskip("openai")
    ran = pasted(the_one(lines, "openai"))
    assert (ran.returncode, ran.stdout) == (0, "echo: hello there\n"), ran.stderr


def test_the_status_line_works(lines: list[str]) -> None:
    line = the_one(lines, " status ")
    assert line.startswith("/")  # the other terminal has a PATH of its own
    ran = pasted(line)
    assert ran.returncode == 0, ran.stderr
    assert "demo-node  yes  echo" in ran.stdout


def test_every_line_to_paste_is_tested_above(lines: list[str]) -> None:
    assert len(lines) == (4 if any("openai" in line for line in lines) else 3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_edge_and_node_with_exit_0(number: int) -> None:
    with demo("--echo") as program:
        lines_to_paste(program)
        (node,) = children(program.pid)
        program.signal(number)
        assert program.wait() == 0
        assert not alive(node)
        assert "Traceback" not in program.output + json.dumps(program.lines)


def test_a_demo_that_is_killed_leaves_no_node_behind() -> None:
    with demo("--echo") as program:
        lines_to_paste(program)
        (node,) = children(program.pid)
        program.kill()
        run(until(lambda: not alive(node)), leaks=False)


def test_a_node_that_dies_ends_the_demo_with_one_line() -> None:
    with demo("--echo") as program:
        lines_to_paste(program)
        (node,) = children(program.pid)
        os.kill(node, signal.SIGKILL)
        assert program.wait() == 1
        (reason,) = [line["text"] for line in program.lines if "text" in line]
        assert reason == "iop-edge demo: the node ended with exit code -9"


def test_once_prints_the_reply_and_exits_0() -> None:
    with demo("--echo", "--once", HELLO) as program:
        assert program.wait(timeout_s=30) == 0
        assert program.output == f"echo: {HELLO}\n"
        (label,) = program.lines
        assert "NOT a language model" in label["text"]


@pytest.mark.parametrize("closed", ["2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors_are_no_fault(closed: str) -> None:
    """A service manager or a script may start a program without them. A listener must not get the number 2."""
    line = f'exec "$0" -m iop.cli.edge demo --echo --once "$1" {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable, HELLO], stdout=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stdout.decode() == ("" if ">&- 2" in closed else f"echo: {HELLO}\n")


# ---- with a model server on this machine --------------------------------------------------------------------------


def with_server(port: int, *, once: str | None, kind: str = "openai_compat") -> Program:
    """The demo, looking for a model server on ``port`` alone."""
    script = (
        "import sys; from iop.cli.demo import run; from iop.kinds import Server; "
        f"sys.exit(run({once!r}, log_format='json', servers=[Server('Some Server', 'some', {port}, {kind!r}, 1)]))"
    )
    return Program([sys.executable, "-c", script])


def serve(*events: bytes, models: bytes = b'{"data":[{"id":"nomic-embed"},{"id":"tiny"}]}', status: int = 200) -> Any:
    def answer(call: Call) -> None:
        if call.path == b"/v1/models":
            call.respond(models)
        elif status != 200:
            call.respond(b'{"error":{"message":"out\\nof cards"}}', status=status)
        else:
            call.stream(*events)

    return answer


@async_test()
async def test_a_model_server_that_answers_is_used() -> None:
    with listening_socket() as sock:
        async with ScriptedProvider(sock) as provider:
            reply = [chat_event({"role": "assistant", "content": ""}), chat_delta("Good "), chat_delta("day.")]
            provider.answer = serve(*reply, chat_event({}, "stop"), DONE)
            with with_server(sock.getsockname()[1], once=HELLO) as program:
                assert await asyncio.to_thread(program.wait) == 0, program.lines
            assert program.output == "Good day.\n"
            assert "tiny of Some Server" in program.lines[0]["text"]
            asked = provider.calls[-1].json
            assert (asked["model"], asked["stream"]) == ("tiny", True)
            assert asked["messages"] == [{"role": "user", "content": HELLO}]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (serve(status=500), "HTTP 500: out of cards"),
        (serve(b'data: {"error":{"message":"out of cards"}}\n\n', DONE), "out of cards"),
        (serve(chat_event({}, "stop"), DONE), "the model's reply was empty"),
        (serve(chat_delta("half a")), "provider some-server: the provider's event stream ended without its last event"),
    ],
)
def test_once_fails_with_one_line(answer: Any, reason: str) -> None:
    @async_test()
    async def body() -> None:
        with listening_socket() as sock:
            async with ScriptedProvider(sock) as provider:
                provider.answer = answer
                with with_server(sock.getsockname()[1], once=HELLO) as program:
                    assert await asyncio.to_thread(program.wait) == 1
                label, told = program.lines
                assert "tiny" in label["text"]
                assert told["text"] == f"iop-edge demo: {reason}"

    body()


def found_at(sock: socket.socket) -> Awaitable[Provider]:
    """What the demo finds on this socket's port, looked for in a thread as the program does before it has a loop."""
    servers = [Server("Nobody", "nobody", 1, "vllm", 1), Server("Some", "some", sock.getsockname()[1], "vllm", 1)]
    return asyncio.to_thread(find_provider, servers)


@async_test()
async def test_the_first_chat_model_is_taken() -> None:
    with listening_socket() as sock:
        async with ScriptedProvider(sock) as provider:
            provider.answer = serve(models=b'{"data":[{"id":"nomic-embed"},{"id":"tiny"},{"id":"big"}]}')
            assert await found_at(sock) == Provider("Some", "vllm", "tiny", sock.getsockname()[1])


@pytest.mark.parametrize(
    "models",
    [
        b'{"data":[{"id":"demo","owned_by":"iop"}]}',
        b'{"data":[{"id":"bge-m3"},{"id":"text-embedding-3"}]}',
        b'{"data":[]}',
        b'{"data":{"id":"x"}}',
        b'{"data":["x"]}',
        b'{"data":[{"id":7}]}',
        b'{"data":[{"id":"\\u001b[2J"}]}',
        b"[1]",
        b"<html>",
    ],
)
def test_something_else_on_that_port_is_left_alone(models: bytes) -> None:
    @async_test()
    async def body() -> None:
        with listening_socket() as sock:
            async with ScriptedProvider(sock) as provider:
                provider.answer = serve(models=models)
                assert await found_at(sock) == ECHO
                assert [call.path for call in provider.calls] == [b"/v1/models"]

    body()


@async_test()
async def test_a_server_that_accepts_and_says_nothing_holds_nobody_up() -> None:
    with listening_socket() as sock:
        async with ScriptedProvider(sock) as provider:
            assert await found_at(sock) == ECHO
            await until(lambda: not provider.open_connections)
