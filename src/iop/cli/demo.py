"""``iop-edge demo``: an edge, a real node process and a provider on this machine, wired over loopback.

The provider is a model server that answers on one of the usual ports, else the ``echo`` provider that nodes have built
in. The configuration lives in memory, its token is random, every port is whatever is free. The node is a child process
whose standard input this process holds open: whatever ends the demo, SIGKILL included, ends the node too.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import http.client
import json
import os
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from iop.config.load import parse_edge
from iop.edge.app import Edge
from iop.kinds import SERVERS, Server
from iop.net import loop as net_loop
from iop.net.loop import Runtime
from iop.observability import logs

__all__ = ["ECHO", "Provider", "find_provider", "run"]

MODEL = "demo"
NODE = "demo-node"
TOKEN_VARIABLE = "IOP_NODE_TOKEN"  # noqa: S105 - a name, not a token

PROBE_TIMEOUT_S = 0.5
PROBE_BYTES = 1 << 20
NODE_READY_S = 8.0
NODE_END_S = 5.0
DRAIN_S = 3.0
# What --once may take: with the two bounds above it stays under 30 s.
ONCE_S = 20.0
ONCE_TOKENS = 256

# Models of these names do not chat.
_OTHER_TRADES = ("embed", "rerank", "whisper", "tts", "bge-")


@dataclass(frozen=True, slots=True)
class Provider:
    """What the demo's model stands for. ``port`` 0 is the echo provider."""

    name: str
    kind: str
    target: str
    port: int = 0

    @property
    def label(self) -> str:
        if not self.port:
            return "echo, built into the node: it repeats what you say and is NOT a language model"
        return f"{self.target} of {self.name} on 127.0.0.1:{self.port}"


ECHO = Provider("echo", "echo", "echo")


class Failed(Exception):
    """The demo cannot go on; the text says why."""


# ---- a provider -----------------------------------------------------------------------------------------------------


def find_provider(servers: Sequence[Server] = SERVERS) -> Provider:
    """The first of ``servers`` that answers ``GET /v1/models`` with a chat model within half a second, else ECHO."""
    found: dict[Server, str] = {}

    def probe(server: Server) -> None:
        target = _chat_model(server.port)
        if target:
            found[server] = target

    # Daemons, and not waited for beyond the bound: a server that accepts and says nothing holds nobody up.
    threads = [threading.Thread(target=probe, args=(server,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    deadline_at = time.monotonic() + PROBE_TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline_at - time.monotonic()))
    answers = dict(found)
    for server in servers:
        if server in answers:
            return Provider(server.label, server.kind, answers[server], server.port)
    return ECHO


def _chat_model(port: int) -> str:
    """The id of the first chat model of the OpenAI-compatible server on a loopback port, or "" if there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/v1/models")
        response = connection.getresponse()
        rows = json.loads(response.read(PROBE_BYTES))["data"] if response.status == 200 else []
        for row in rows:
            name = row["id"]
            ours = str(row.get("owned_by", "")).startswith("iop")  # another edge is no model server
            if name and name.isprintable() and not ours and not any(word in name.lower() for word in _OTHER_TRADES):
                return str(name)
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
        pass  # whatever listens there is no such server
    finally:
        connection.close()
    return ""


# ---- the program ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Demo:
    """One run of the demo: what it was asked, and what it has started."""

    provider: Provider
    once: str | None
    log_format: logs.LogFormat
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    node: asyncio.subprocess.Process | None = None


def run(
    once: str | None = None,
    *,
    log_format: logs.LogFormat = "console",
    echo: bool = False,
    servers: Sequence[Server] = SERVERS,
) -> int:
    """Runs the demo until SIGINT or SIGTERM, or with ``once`` until that prompt is answered; returns the exit code.

    ``echo`` takes the echo provider whatever answers at ``servers``.
    """
    provider = ECHO if echo else find_provider(servers)
    demo = _Demo(provider, once, log_format)
    with open(os.devnull, "wb") as nowhere:
        # With --once only the reply is of interest; a failure is told in one line.
        sink = logs.setup(log_format, fd=nowhere.fileno() if once is not None else None)
        try:
            return net_loop.run(lambda runtime: _demo(demo, runtime, sink))
        except Failed as failure:
            print(f"iop-edge demo: {failure}", file=sys.stderr)
            return 1
        finally:
            sink.close()


async def _demo(demo: _Demo, runtime: Runtime, sink: logs.Sink) -> int:
    token = secrets.token_urlsafe(32)
    edge = Edge(parse_edge(_config(demo, token), source="iop-edge demo"), runtime, sink)
    net_loop.on_signals(runtime.loop, lambda signum: demo.stop.set() if not demo.stop.is_set() else edge.hurry())
    try:
        try:
            await edge.start()
        except OSError:
            raise Failed("the demo needs free ports on loopback; see the line above") from None
        await _start_node(demo, edge, token)
        if demo.stop.is_set():
            return 0
        gc.freeze()
        await (_serve(demo, edge) if demo.once is None else _ask(demo, edge.http_port))
        return 0
    finally:
        await edge.drain()
        await _end_node(demo)
        edge.close()
        await edge.leave()


def _config(demo: _Demo, token: str) -> str:
    provider: dict[str, Any] = {"id": demo.provider.name.lower().replace(" ", "-"), "kind": demo.provider.kind}
    if demo.provider.port:
        provider["base_url"] = f"http://127.0.0.1:{demo.provider.port}/v1"
    provider["capacity"] = 4
    model: dict[str, Any] = {
        "id": MODEL,
        "candidates": [{"node": NODE, "provider": provider["id"], "target": demo.provider.target}],
    }
    if demo.once is not None:
        model["request_timeout_ms"] = int(ONCE_S * 1000)
    token_sha256 = hashlib.sha256(token.encode()).hexdigest()
    anywhere = {"listen": "127.0.0.1:0"}
    return json.dumps(
        {
            "edge": {"id": "demo", "drain_timeout_sec": DRAIN_S},
            "http": anywhere,
            "transport": anywhere,
            "admin": anywhere,
            "nodes": [{"id": NODE, "token_sha256": token_sha256, "providers": [provider]}],
            "models": [model],
        }
    ).replace("${", "$${")  # nothing in here names an environment variable


# ---- the node -------------------------------------------------------------------------------------------------------


async def _start_node(demo: _Demo, edge: Edge, token: str) -> None:
    """Starts the node and waits until it is ready, or until the demo is told to stop. Raises Failed."""
    arguments = ["-m", "iop.cli.node", "join", f"127.0.0.1:{edge.node_port}", "--until-eof"]
    demo.node = node = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        "--log-format",
        demo.log_format,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        # With --once its lines would stand between question and answer: only the last one is told, if it fails.
        stderr=asyncio.subprocess.PIPE if demo.once is not None else None,
        env={**os.environ, TOKEN_VARIABLE: token},
        start_new_session=True,  # Ctrl-C is for the demo, which ends the node in its turn
    )
    deadline_at = edge.runtime.loop.time() + NODE_READY_S
    while not edge.nodes.connected() and not demo.stop.is_set():
        if node.returncode is not None:
            raise Failed(f"the node ended with exit code {node.returncode}{await _last_words(node)}")
        if edge.runtime.loop.time() > deadline_at:
            raise Failed(f"the node was not ready within {NODE_READY_S:g} s")
        await asyncio.sleep(0.01)


async def _last_words(node: asyncio.subprocess.Process) -> str:
    if node.stderr is None:
        return ""
    lines = (await node.stderr.read()).decode("utf-8", "replace").split("\n")
    return next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")


async def _end_node(demo: _Demo) -> None:
    """Closes its standard input, which it takes as the word to stop; kills it if it does not stop in time."""
    node = demo.node
    if node is None:
        return
    assert node.stdin is not None
    node.stdin.close()
    try:
        await asyncio.wait_for(node.wait(), NODE_END_S)
    except TimeoutError:
        node.kill()
        await node.wait()


# ---- serving --------------------------------------------------------------------------------------------------------


async def _serve(demo: _Demo, edge: Edge) -> None:
    """Says what there is and how to use it, and waits. Raises Failed when the node ends by itself."""
    assert demo.node is not None
    print("\n".join(_introduction(demo, edge)), flush=True)
    stopped = asyncio.ensure_future(demo.stop.wait())
    node_ended = asyncio.ensure_future(demo.node.wait())
    try:
        await asyncio.wait({stopped, node_ended}, return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            raise Failed(f"the node ended with exit code {node_ended.result()}")
    finally:
        stopped.cancel()
        node_ended.cancel()


def _introduction(demo: _Demo, edge: Edge) -> Iterator[str]:
    url = f"http://127.0.0.1:{edge.http_port}"
    yield "IOP demo, all on this machine: client -> edge -> TCP link -> node -> provider"
    yield f"  provider  {demo.provider.label}"
    if not demo.provider.port:
        looked = ", ".join(f"{server.label} :{server.port}" for server in SERVERS)
        yield f"            (a model server would be used if one answered: {looked})"
    yield f"  model     {MODEL}"
    yield f"  clients   {url}/v1"
    yield ""
    yield "Paste these into another terminal. Ctrl-C here ends everything."
    yield ""
    body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hello there"}]}
    for title, request, option in (("A whole answer:", body, ""), ("Streamed:", {**body, "stream": True}, "N")):
        yield title
        line = ["curl", f"-sS{option}", f"{url}/v1/chat/completions", "-H", "content-type: application/json"]
        yield f"  $ {shlex.join([*line, '-d', json.dumps(request)])}; echo"
    yield "With the openai package:"
    client = f'OpenAI(base_url="{url}/v1", api_key="none").chat.completions'
    script = (
        f'from openai import OpenAI; stream = {client}.create(model="{MODEL}", stream=True, '
        'messages=[{"role": "user", "content": "hello there"}]); '
        '[print(c.choices[0].delta.content or "", end="", flush=True) for c in stream if c.choices]; print()'
    )
    line = [sys.executable, "-c", script]
    # What stands behind the dollar has to work as it stands.
    yield f"  $ {shlex.join(line)}" if find_spec("openai") else f"  (after pip install openai)  {shlex.join(line)}"
    yield "What the edge sees:"
    # By this interpreter's path: the other terminal is in any folder, and has a PATH of its own.
    line = [sys.executable, "-m", "iop.cli.edge", "status", "--admin", f"127.0.0.1:{edge.admin_port}"]
    yield f"  $ {shlex.join(line)}"


# ---- one question ---------------------------------------------------------------------------------------------------


async def _ask(demo: _Demo, port: int) -> None:
    """Sends the prompt through the whole path and prints the reply as it comes. Raises Failed."""
    assert demo.once is not None
    print(f"[{demo.provider.label}]", file=sys.stderr, flush=True)
    asking = asyncio.ensure_future(_chat(demo.once, port))
    stopped = asyncio.ensure_future(demo.stop.wait())
    try:
        async with asyncio.timeout(ONCE_S + 1):
            await asyncio.wait({asking, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            raise Failed("interrupted")
        asking.result()
    except TimeoutError:
        raise Failed(f"no whole reply within {ONCE_S:g} s") from None
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        raise Failed("the reply broke off") from None
    finally:
        asking.cancel()
        stopped.cancel()


async def _chat(prompt: str, port: int) -> None:
    """One streaming request over HTTP, as any client would send it."""
    request = {"model": MODEL, "stream": True, "max_tokens": ONCE_TOKENS}
    body = json.dumps({**request, "messages": [{"role": "user", "content": prompt}]}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1].decode("ascii", "replace")
        if status != "200":
            raise Failed(f"HTTP {status}: {_message(await reader.read(1 << 16))}")
        await _print_reply(reader)
    finally:
        writer.close()


async def _print_reply(reader: asyncio.StreamReader) -> None:
    """Reads a chunked event stream to its end; prints the text in it. Raises Failed for an error event, a stream that
    ends early, or a reply without a word."""
    said = finished = False
    pending = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pending += (await reader.readexactly(size + 2))[:-2]
        *lines, pending = pending.split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                finished = True
            if data == b"[DONE]" or not line.startswith(b"data:"):
                continue
            chunk = json.loads(data)
            if chunk.get("error"):
                raise Failed(_message(data))
            for choice in chunk.get("choices") or ():
                delta = choice.get("delta") or {}
                text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
                print(text, end="", flush=True)
                said = said or bool(text)
    if said:
        print(flush=True)
    if not finished or not said:
        raise Failed("the reply broke off" if not finished else "the model's reply was empty")


def _message(body: bytes) -> str:
    """What an error answer or event says, on one line."""
    start = body.find(b"{")  # behind the size of a chunk, if there is one
    try:
        error = json.JSONDecoder().raw_decode(body[start:].decode("utf-8", "replace"))[0]["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        text = "no message"
    return " ".join(text.split())[:500]
