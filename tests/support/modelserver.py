"""A model server in a process of its own, so that a test can freeze and kill it.

    with ModelServer() as server:
        server.port                             # it keeps its port through ``kill`` and ``start``
        server.program.signal(signal.SIGSTOP)

A chat request whose text is a number gets that many events, one every ``GAP_S``; anything else a whole answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

from tests.support.programs import Program
from tests.support.provider import DONE, Call, ScriptedProvider, chat_answer, chat_delta, chat_event

GAP_S = 0.02
ROOT = Path(__file__).resolve().parents[2]


class ModelServer:
    """The process, seen from a test."""

    def __init__(self) -> None:
        self.port = 0
        self.program: Program
        self.start()

    def start(self) -> None:
        """Listens where it listened before."""
        self.program = Program([sys.executable, "-m", "tests.support.modelserver", str(self.port)], cwd=ROOT)
        self.port = int(self.program.wait_event("listening")["port"])

    def kill(self) -> None:
        """SIGKILL, and the end of it."""
        self.program.kill()
        self.program.close()

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


async def _serve(port: int) -> None:
    tasks: set[asyncio.Task[None]] = set()

    def answer(call: Call) -> None:
        if call.method == b"GET":  # the node asks by itself, for figures and for health
            call.respond(b"{}", 200 if call.target == b"/health" else 404)
            return
        task = asyncio.get_running_loop().create_task(_answer(call))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    with socket.create_server(("127.0.0.1", port), backlog=128) as sock:
        sock.setblocking(False)
        async with ScriptedProvider(sock) as provider:
            provider.answer = answer
            line = {"event": "listening", "port": sock.getsockname()[1]}
            os.write(2, json.dumps(line).encode() + b"\n")
            await asyncio.Event().wait()


async def _answer(call: Call) -> None:
    text = call.json["messages"][0]["content"]
    if not text.isdigit():
        call.respond(chat_answer(text))
        return
    call.start_stream()
    for number in range(int(text)):
        if call.gone.is_set():
            return
        call.event(chat_delta(f"{number} "))
        await asyncio.sleep(GAP_S)
    call.event(chat_event({}, "stop") + DONE)
    call.end_stream()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
