"""``iop-edge ollama`` and ``/admin/ollama/``: what an Ollama server says of itself, through its node (EXEC-8)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.aio import async_test
from tests.support.http import Answer, Client
from tests.support.programs import Program, command
from tests.support.provider import Call
from tests.support.stack import Scene, Stack, model, running_stack

TAGS = {"models": [{"name": "llama3.2:3b"}]}


@pytest.fixture(scope="module")
def ollama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """``o`` is an Ollama server, ``v`` is none, ``away`` is one whose node is not there."""
    with running_stack(
        tmp_path_factory.mktemp("ollama"),
        {"o": {"kind": "ollama"}, "v": {}},
        [model("o"), model("v")],
        other_providers={"away": {"kind": "ollama"}},
    ) as stack:
        yield stack


def server(call: Call) -> None:
    """What Ollama answers."""
    if call.path == b"/o/api/show":
        known = call.json == {"model": "a/b c"}
        call.respond(json.dumps({"details": {}} if known else {"error": "no"}).encode(), 200 if known else 404)
    elif call.path == b"/o/api/tags":
        call.respond(json.dumps(TAGS).encode())
    elif call.path == b"/o/api/version":
        call.respond(b'{"version": "0.6.1"}')
    else:
        call.respond(b'{"models": []}')


async def get(scene: Scene, path: str, *fields: str, method: str = "GET") -> Answer:
    client = await Client.connect(scene.stack.admin)
    scene.clients.append(client)
    lines = "".join(f"{field}\r\n" for field in fields)
    client.send(f"{method} /admin/ollama/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n".encode())
    return await client.answer()


@pytest.mark.req("EXEC-8", "OBS-4")
@async_test()
async def test_what_only_tells_is_answered_as_ollama_says_it(ollama: Stack) -> None:
    async with ollama.scene() as scene:
        scene.provider.answer = server
        for path, said in (
            ("o/api/tags", TAGS),
            ("o/api/ps", {"models": []}),
            ("o/api/version", {"version": "0.6.1"}),
            ("o/api/show?model=a%2Fb%20c", {"details": {}}),
        ):
            answer = await get(scene, path)
            assert (answer.status, answer.json) == (200, said), path


REFUSED: dict[str, tuple[str, tuple[str, ...], str, int, str]] = {
    "a path that generates": ("o/api/generate", (), "GET", 403, "forbidden"),
    "a path that pulls": ("o/api/pull", (), "GET", 403, "forbidden"),
    "a path elsewhere": ("o/api/../v1/models", (), "GET", 403, "forbidden"),
    "a model that it has not": ("o/api/show?model=b", (), "GET", 404, "provider_protocol_error"),
    "no model": ("o/api/show", (), "GET", 400, "invalid_request_error"),
    "a model too many": ("o/api/tags?model=b", (), "GET", 400, "invalid_request_error"),
    "another kind": ("v/api/tags", (), "GET", 400, "invalid_request_error"),
    "nobody": ("x/api/tags", (), "GET", 404, "not_there"),
    "a node that is not there": ("away/api/tags", (), "GET", 502, "node_disconnected"),
    "a change": ("o/api/tags", ("Content-Length: 0",), "POST", 405, "method_not_allowed"),
    "a page": ("o/api/tags", ("Sec-Fetch-Site: cross-site",), "GET", 403, "forbidden"),
}


@pytest.mark.req("EXEC-8", "OBS-4")
@pytest.mark.parametrize("what", REFUSED)
def test_everything_else_is_refused(ollama: Stack, what: str) -> None:
    path, fields, method, status, code = REFUSED[what]

    @async_test()
    async def body() -> None:
        async with ollama.scene() as scene:
            scene.provider.answer = server
            answer = await get(scene, path, *fields, method=method)
            assert (answer.status, answer.json["error"]["code"]) == (status, code)
            assert not [call for call in scene.provider.calls if call.path in (b"/o/api/generate", b"/o/api/pull")]

    body()


def run(stack: Stack, *arguments: str) -> tuple[int, str, list[Any]]:
    """The command's exit code, what it printed, and what it said on stderr."""
    host, port = stack.admin
    with Program(command("iop-edge", "ollama", *arguments, "--admin", f"{host}:{port}")) as program:
        return program.wait(), program.output, program.lines


@pytest.mark.req("EXEC-8")
@async_test()
async def test_the_command_prints_it(ollama: Stack) -> None:
    async with ollama.scene() as scene:
        scene.provider.answer = server
        code, printed, _ = await asyncio.to_thread(run, ollama, "o", "tags")
        assert (code, json.loads(printed)) == (0, TAGS)
        code, printed, _ = await asyncio.to_thread(run, ollama, "o", "show", "a/b c")
        assert (code, json.loads(printed)) == (0, {"details": {}})
        code, printed, said = await asyncio.to_thread(run, ollama, "v", "tags")
        assert (code, printed) == (2, "")
        assert "not ollama" in str(said)
