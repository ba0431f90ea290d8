"""Nothing that a client or a provider wrote, and no secret, is found where operators look (SEC-4).

One word stands in prompts, outputs, tool arguments, ids, header fields, URLs, keys and tokens. Every fault of the wall,
recovery, keepalives, runs, an operator's commands and bad requests are played with it; then it is looked for in the
logs, metrics, status, requests, traces and events of both programs, in the run store, and in the errors that they make.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from iop.errors import IopError
from tests.support.aio import async_test, until
from tests.support.faultyprovider import (
    APIS,
    FAULTS,
    PATHS,
    SLOW,
    STREAM_PLACES,
    STREAMED,
    WHOLE_PLACES,
    Answer,
    Place,
    error_event,
    play,
    said,
    whole,
)
from tests.support.http import Broken, Client, post
from tests.support.programs import Program, command, edge_config, edge_program, node_config, node_program
from tests.support.provider import JSON_HEADERS, Call, ScriptedProvider, listening_socket

WORD = "5e471ne1"  # stands in everything that must not be seen
KEY, TOKEN, PROVIDER_KEY = f"sk-{WORD}-key", f"token-{WORD}", f"pk-{WORD}-provider"
ENV = {"IOP_KEY": KEY, "IOP_TOKEN": TOKEN, "IOP_NODE_TOKEN": TOKEN, "IOP_PROVIDER_KEY": PROVIDER_KEY}
AT_ONCE = 24
STALL_MS = 300

TOOL = {"type": "function", "function": {"name": f"tool_{WORD}", "description": WORD, "parameters": {"type": "object"}}}
CONTENT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": f"you know {WORD}"},
        {"role": "user", "content": f"prompt {WORD}"},
        {"role": "assistant", "tool_calls": [
            {"id": f"call_{WORD}", "type": "function", "function": {"name": "f", "arguments": f'{{"a": "{WORD}"}}'}}]},
        {"role": "tool", "tool_call_id": f"call_{WORD}", "content": f"result {WORD}"},
    ],
    "input": f"prompt {WORD}", "prompt": f"prompt {WORD}", "system": f"system {WORD}", "tools": [TOOL],
    "user": f"user-{WORD}", "metadata": {"user_id": f"user-{WORD}"}, "stop": [WORD],
}  # fmt: skip
FIELDS = {
    "Authorization": f"Bearer {KEY}", "Cookie": f"session={WORD}", "User-Agent": f"agent/{WORD}",
    "X-Whatever": WORD, "OpenAI-Organization": f"org-{WORD}",
}  # fmt: skip


class Told:
    """What the two programs said, by where they said it."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []

    def add(self, where: str, text: str | bytes) -> None:
        self.texts.append((where, text.decode("utf-8", "replace") if isinstance(text, bytes) else text))

    def check(self) -> None:
        spelt = {WORD, WORD.upper(), base64.b64encode(WORD.encode()).decode().rstrip("=")[:-1], WORD.encode().hex()}
        found = [
            f"{where}: ...{text[max(0, at - 100) : at + 60]}..."
            for where, text in self.texts
            for form in spelt
            if (at := text.find(form)) >= 0
        ]
        assert not found, "\n".join(found[:20])


@contextmanager
def programs(folder: Path, port: int) -> Iterator[tuple[Program, Program]]:
    base = {"kind": "openai_compat", "capacity": 40, "api_key_env": "IOP_PROVIDER_KEY", "reuse_delay_ms": 0}
    stall = {"response_stall_timeout_ms": STALL_MS}
    rows = [{"id": i, "base_url": f"http://127.0.0.1:{port}/{i}-{WORD}/v1", **base} for i in ("bad", "good", "slow")]
    rows[2] |= stall
    config = edge_config(
        http={"api_keys": [{"principal": "alice", "key_env": "IOP_KEY"}], "stream_keepalive_sec": 0.2},
        nodes=[{"id": "n1", "token_env": "IOP_TOKEN", "providers": rows}],
        models=[
            {"id": name, "request_timeout_ms": 3000, "candidates": [
                {"node": "n1", "provider": p, "target": f"real-{p}", "priority": i} for i, p in enumerate(providers)
            ]}
            for name, providers in (("pair", ["bad", "good"]), ("alone", ["bad"]), ("slow", ["slow", "good"]),
                                    ("slow-alone", ["slow"]))
        ],
    )  # fmt: skip
    with edge_program(folder, config, env=ENV) as edge:
        file = node_config(
            edge.address("nodes"), node={"credentials": ["IOP_PROVIDER_KEY"]}, metrics={"listen": "127.0.0.1:0"}
        )
        with node_program(folder, file, env=ENV) as node:
            edge.wait_event("node_connected")
            yield edge, node


# ---- the provider ----------------------------------------------------------------------------------------------------


def answered(call: Call) -> None:
    """A provider that says the word wherever it says anything, and fails as the request's query asks."""
    if call.method != b"POST":
        call.respond(json.dumps({"error": WORD}).encode(), 404)
        return
    assert call.header(b"authorization") == f"Bearer {PROVIDER_KEY}".encode()
    asked = json.loads(call.header(b"x-fault") or b"{}")
    api, stream = asked.get("api", "chat"), bool(call.json.get("stream"))
    answer = Answer(call, api, Place(2), stream=stream, text=f"output {WORD} ")
    secrets = [(b"X-Provider-Secret", WORD.encode()), (b"X-Request-Id", WORD.encode())]
    answer.headers += secrets
    fault = asked.get("fault")
    if fault is None or "/good-" in call.target.decode():
        answer.good()
        return
    answer.place = place(answer, asked["at"])
    if fault[:3].isdigit():
        body = {"error": {"message": f"busy {WORD}", "type": "server_error", "code": WORD}}
        answer.respond(json.dumps(body).encode(), int(fault[:3]), [*JSON_HEADERS, *secrets])
    elif fault.startswith("error event"):
        answer.begin()
        blames = "blames" in fault
        text = b"too long" if blames else b"cuda"
        answer.say(error_event(api, blames_client=blames).replace(text, b"%b %b" % (text, WORD.encode())))
        answer.end()
    elif fault == "no HTTP":
        call.send(f"SSH-{WORD}\r\n\r\n".encode())
    elif fault == "head with garbage":
        call.send(f"HTTP/1.1 200 OK\r\nX-{WORD}: {WORD}\r\n{WORD} no colon\r\n\r\n".encode())
    elif fault == "malformed chunk":
        answer.framing = b"Transfer-Encoding: chunked\r\n"
        answer.begin()
        call.send(f"{WORD[1:]}zz {WORD}\r\n".encode())
    else:
        play(fault, answer)


def place(answer: Answer, name: str) -> Place:
    if answer.stream:
        return STREAM_PLACES[name](said(answer.api, "x"))
    return WHOLE_PLACES[name](whole(answer.api, f"output {WORD} "))


# ---- what is played --------------------------------------------------------------------------------------------------


class Stage:
    def __init__(self, edge: Program, node: Program, told: Told) -> None:
        self.edge = edge
        self.node = node
        self.told = told
        self.http = edge.address("http")
        self.admin = edge.address("admin")
        self.request_ids: list[str] = []
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def ask(self, api: str, model: str, *, stream: bool, leave: bool = False, **fault: str) -> None:
        fields = {**FIELDS, "x-fault": json.dumps({"api": api, **fault})}
        body = json.dumps({"model": model, "stream": stream, **CONTENT}).encode()
        async with self._gate:
            client = await Client.connect(self.http)
            try:
                client.send(post(f"{PATHS[api]}?trace={WORD}&key={KEY}", body, fields))
                head = await client.head()
                self.request_ids.append(head.get("x-request-id") or "")
                if not leave:
                    self._hear(head.status, await _all(client), f"{api} {model} {fault}")
            finally:
                await client.close()

    def _hear(self, status: int, body: bytes, what: str) -> None:
        """An answer: what stands in it is the provider's but for the errors that the edge made."""
        last = body.rpartition(b"data: ")[2]
        try:
            error = json.loads(last)
        except ValueError:
            return
        ours = isinstance(error, dict) and (
            _code(error) in CODES or str(error.get("request_id", "")).startswith("req_")
        )
        if ours and not any(word in last for word in (b"busy", b"too long", b"cuda")):  # those are the provider's
            self.told.add(f"error of {what}", last)

    async def bad(self, request: bytes, what: str) -> None:
        client = await Client.connect(self.http)
        try:
            client.send(request)
            answer = await client.answer()
            assert answer.status >= 400, what
            self.told.add(f"answer to {what}", answer.body + str(answer.headers).encode())
        finally:
            await client.close()

    async def page(self, path: str, *, address: tuple[str, int] | None = None) -> None:
        client = await Client.connect(address or self.admin)
        try:
            client.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            answer = await client.answer()
            assert answer.status == 200, (path, answer.body)
            self.told.add(path, answer.body)
        finally:
            await client.close()

    async def run(self, *arguments: str) -> None:
        line = command("iop-edge", *arguments, "--admin", "{}:{}".format(*self.admin))
        ran = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, timeout=20, check=False)
        self.told.add(f"iop-edge {arguments[0]}", ran.stderr if arguments[0] == "run" else ran.stdout + ran.stderr)


def codes(kind: type[IopError]) -> set[str]:
    return {kind.code}.union(*map(codes, kind.__subclasses__()))


CODES = codes(IopError)


def _code(error: dict[str, Any]) -> str:
    inner = error.get("error")
    return str(inner.get("code") if isinstance(inner, dict) else error.get("code"))


async def _all(client: Client) -> bytes:
    try:
        return await client.body()
    except Broken as exc:
        return exc.body


async def _faults(stage: Stage) -> None:
    """Every fault at every place, for every API; those that a clock ends at one place."""
    asked = []
    for api in APIS:
        for stream in (True, False) if api in STREAMED else (False,):
            places = list(STREAM_PLACES if stream else WHOLE_PLACES)
            asked.append(stage.ask(api, "pair", stream=stream))
            for fault in FAULTS:
                slow = fault in SLOW
                for at in places[3:4] if slow else places:
                    if at == "before [DONE]" and api in ("responses", "messages"):
                        continue
                    for model in ("slow", "slow-alone") if slow else ("pair", "alone"):
                        asked.append(stage.ask(api, model, stream=stream, fault=fault, at=at))
    await asyncio.gather(*asked)


async def _runs(stage: Stage) -> None:
    for more in ({"model": "pair"}, {"node": "n1", "adapter": "bad", "target": "t"}, {"model": WORD}, {"model": 7}):
        body = json.dumps({"prompt": f"prompt {WORD}", "session_id": "s", "options": {"user": WORD}, **more}).encode()
        client = await Client.connect(stage.admin)
        try:
            client.send(post("/admin/runs", body))
            await client.head()
            await _all(client)
        finally:
            await client.close()
    await stage.run("run", "--model", "pair", f"prompt {WORD}")


async def _bad_requests(stage: Stage) -> None:
    path, plain = PATHS["chat"], {**FIELDS}
    bodies = {
        "a body that is no JSON": f'{{"model": "pair", "messages": [{WORD}'.encode(),
        "a model that is no text": json.dumps({"model": {"x": WORD}, "messages": WORD}).encode(),
        "a key twice": f'{{"model": "pair", "model": "pair", "x": "{WORD}"}}'.encode(),
        "bytes that are no text": b'{"model": "pair", "x": "\xff%b"}' % WORD.encode(),
        "nothing": b"",
    }
    for what, body in bodies.items():
        await stage.bad(post(path, body, plain), what)
    await stage.bad(post(path, b"{}", {**plain, "Authorization": f"Bearer wrong-{WORD}"}), "a wrong key")
    await stage.bad(post(path, b"x" + WORD.encode(), {**plain, "Content-Encoding": "gzip"}), "what is no gzip")
    await stage.bad(post(path, WORD.encode(), {**plain, "Content-Encoding": WORD}), "an unknown coding")
    await stage.bad(post(f"/v1/{WORD}", b"{}", plain), "an unknown path")
    form = {**plain, "Content-Type": f"multipart/form-data; boundary={WORD}"}
    await stage.bad(post("/v1/audio/transcriptions", f"--{WORD}\r\n{WORD}".encode(), form), "a broken form")
    await stage.bad(f"POST {path} HTTP/1.1\r\nHost: a b {WORD}\r\n\r\n".encode(), "a bad host")
    await stage.bad(f"POST {path} HTTP/1.1\r\nHost: a\r\n{WORD} x\r\n\r\n".encode(), "a bad field")
    await stage.bad(f"{WORD} {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode(), "an unknown method")


async def _listen(stage: Stage) -> None:
    """The event bus, for as long as all lasts."""
    client = await Client.connect(stage.admin)
    try:
        client.send(b"GET /admin/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await client.head()
        while True:
            stage.told.add("/admin/events", await client.piece())
    except (Broken, TimeoutError):
        pass
    finally:
        await client.close()


async def _look_while_it_goes(stage: Stage, provider: ScriptedProvider) -> None:
    """Requests under way, and their traces; then their clients leave."""
    asked = [
        asyncio.ensure_future(stage.ask("chat", "slow-alone", stream=True, leave=True, fault="stall", at=at))
        for at in list(STREAM_PLACES)[2:6]
    ]
    before = len(provider.calls)
    await until(lambda: len(provider.calls) >= before + 4)
    await stage.page("/admin/requests")
    await stage.page("/admin/status")
    (text,) = [text for where, text in stage.told.texts if where == "/admin/requests"]
    for row in json.loads(text)["requests"]:
        await stage.page(f"/admin/trace/{row['id']}")
    await asyncio.gather(*asked)


@pytest.mark.req("SEC-4", "OBS-2", "OBS-7", "EXEC-9", "OBS-3", "OBS-1")
@async_test(timeout_s=90)
async def test_nothing_of_what_was_said_is_found_where_operators_look(tmp_path: Path) -> None:
    told = Told()
    with listening_socket() as sock, programs(tmp_path, sock.getsockname()[1]) as (edge, node):
        async with ScriptedProvider(sock) as provider:
            provider.answer = answered
            stage = Stage(edge, node, told)
            listening = asyncio.ensure_future(_listen(stage))
            await _faults(stage)
            await _look_while_it_goes(stage, provider)
            await _runs(stage)
            await _bad_requests(stage)
            for arguments in (("status",), ("drain", "bad"), ("undrain", "bad"), ("cancel", "req_none"), ("requests",)):
                await stage.run(*arguments)
            await stage.run("trace", stage.request_ids[-1])
            ids = {request_id for request_id in stage.request_ids if request_id}
            assert len(ids) > 500
            lines = {line.get("request_id"): line for line in edge.lines}
            outcomes = {line["outcome"] for request_id, line in lines.items() if request_id in ids}
            assert {"ok", "provider_error", "response_stalled", "provider_connection_lost"} <= outcomes
            assert await _traces(stage) > 500
            for path in ("/metrics", "/admin/status", "/admin/requests"):
                await stage.page(path)
            await stage.page("/metrics", address=node.address("metrics"))
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        await asyncio.to_thread(node.close)
        await asyncio.to_thread(edge.close)
        for program, name in ((edge, "the edge"), (node, "the node")):
            told.add(f"the log of {name}", json.dumps(program.lines, ensure_ascii=False) + program.output)
    for name, kept in _store(tmp_path):
        told.add(name, kept)
    kinds = {re.sub(r"/req_.*| of .*| to .*", "", where) for where, _ in told.texts}
    assert {"/admin/events", "/admin/trace", "/metrics", "/admin/status", "error", "answer", "iop.db"} <= kinds
    told.check()


def _store(folder: Path) -> list[tuple[str, bytes]]:
    return [(file.name, file.read_bytes()) for file in folder.glob("iop.db*")]


async def _traces(stage: Stage) -> int:
    """The traces of all requests that the edge has not forgotten; how many these are."""
    found = 0
    client = await Client.connect(stage.admin)
    try:
        for request_id in stage.request_ids:
            client.send(f"GET /admin/trace/{request_id or '-'} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            answer = await client.answer()
            found += answer.status == 200
            stage.told.add("/admin/trace", answer.body)
    finally:
        await client.close()
    return found


def test_the_word_would_be_found() -> None:
    """In each spelling, wherever it stands."""
    for text in (WORD, f"x{WORD}y", base64.b64encode(WORD.encode()).decode(), WORD.encode().hex(), WORD.upper()):
        told = Told()
        told.add("somewhere", text)
        with pytest.raises(AssertionError, match="somewhere"):
            told.check()
