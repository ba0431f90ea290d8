"""The leak checks and the process runner, on which integration tests rely."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.aio import async_test, run, until
from tests.support.leaks import Leftovers
from tests.support.programs import Program, command


@async_test()
async def test_a_clean_body_passes(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    assert tmp_path.name


def test_a_task_left_behind_is_named() -> None:
    tasks: list[asyncio.Task[None]] = []

    async def linger() -> None:
        await asyncio.Event().wait()

    async def body() -> None:
        tasks.append(asyncio.create_task(linger()))

    with pytest.raises(AssertionError, match=r"tasks left behind.*linger"):
        run(body())


def test_a_descriptor_left_open_is_named(tmp_path: Path) -> None:
    opened: list[int] = []

    async def body() -> None:
        opened.append(os.open(tmp_path, os.O_RDONLY))

    with pytest.raises(AssertionError, match="descriptors left open"):
        run(body())
    os.close(opened[0])


def test_a_child_left_behind_is_found() -> None:
    before = Leftovers.now()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in Leftovers.now().children - before.children
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait(10)
    before.assert_nothing_new()


def test_a_body_that_hangs_is_ended() -> None:
    async def body() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run(body(), timeout_s=0.05)


@async_test()
async def test_until_tells_what_it_waited_for() -> None:
    with pytest.raises(AssertionError, match="the moon"):
        await until(lambda: False, timeout_s=0.01, what="the moon")


def test_a_program_is_read_and_ended() -> None:
    before = Leftovers.now()
    with Program(command("iop-edge", "--version")) as program:
        assert program.wait() == 0
        assert program.output.startswith("iop-edge ")
    with Program(command("iop-edge", "serve", "-c", "/nowhere")) as program:
        assert program.wait() == 2
        assert program.lines == [{"text": "/nowhere: cannot read it: No such file or directory"}]
        with pytest.raises(AssertionError, match=r"ended first; stderr was:\n.*/nowhere"):
            program.wait_event("listening")
    script = 'import sys, time\nsys.stderr.write(\'{"event": "up"}\\n\')\nsys.stderr.flush()\ntime.sleep(60)'
    with Program([sys.executable, "-c", script]) as program:
        assert program.wait_event("up") == {"event": "up"}
    assert program.process.returncode == -15
    before.assert_nothing_new()
