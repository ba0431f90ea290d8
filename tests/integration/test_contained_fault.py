"""A fault of ours in one request ends that request: not the link, not the streams beside it, and no slot leaks."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from iop.config.load import parse_edge
from iop.edge.app import Edge
from iop.edge.requests import client_request as request_module
from iop.net.loop import Runtime
from iop.observability.logs import Sink
from tests.support.aio import async_test, until
from tests.support.http import Client, chat, post
from tests.support.node import ScriptedNode
from tests.support.provider import chat_delta

TOKEN = "t"
CHAT = "/v1/chat/completions"


class Quiet(Sink):
    def __init__(self) -> None:
        self.dropped = 0

    def outcome(self, record: Any) -> None:
        """Not of interest here."""


def configured(port: int = 1) -> Any:
    """One node, whose provider is at ``port``; at 1 nobody is."""
    provider = {"id": "p", "kind": "openai_compat", "base_url": f"http://127.0.0.1:{port}/v1", "capacity": 9}
    token = hashlib.sha256(TOKEN.encode()).hexdigest()
    local = {"listen": "127.0.0.1:0"}
    config = {
        "http": local,
        "transport": local,
        "admin": {"listen": None},
        "nodes": [{"id": "n", "token_sha256": token, "providers": [provider]}],
        "models": [{"id": "m", "candidates": [{"node": "n", "provider": "p", "target": "t"}]}],
    }
    return parse_edge(json.dumps(config), source="test")


@pytest.mark.parametrize("where", ["head", "commit", "held end", "terminal"])
def test_a_raising_callback_costs_its_own_request_only(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[str] = []

    def planted(name: str, original: Any) -> Any:
        def method(self: Any, *arguments: Any) -> Any:
            if broken == [self.request_id]:
                broken.append("raised")
                raise RuntimeError("planted")
            return original(self, *arguments)

        return method

    cls = request_module.ClientRequest
    name = {"head": "on_head", "commit": "on_commit", "held end": "on_held_end", "terminal": "_completed"}[where]
    monkeypatch.setattr(cls, name, planted(name, getattr(cls, name)))

    @async_test()
    async def body() -> None:
        runtime = Runtime(asyncio.get_running_loop())
        runtime.start()
        edge = Edge(configured(), runtime, Quiet())
        await edge.start()
        address = ("127.0.0.1", edge.http_port)
        try:
            async with ScriptedNode(("127.0.0.1", edge.node_port), token=TOKEN) as node:
                other = await Client.connect(address)
                other.send(post(CHAT, chat("m", stream=True)))
                stream = await node.request()
                node.start_stream(stream)
                node.body(stream, chat_delta("first"))
                await other.head()
                await other.read_through(b"first")

                victim = await Client.connect(address)
                victim.send(post(CHAT, chat("m")))
                opened = await node.request()
                broken.append(opened.run_id)
                if where == "held end":
                    node.start_stream(opened)
                    node.streams[opened.stream_id].end()
                else:
                    node.answer(opened, b"{}")
                # Before the commit the client is told; behind the last byte its answer is whole already.
                assert (await victim.answer()).status == (200 if where == "terminal" else 500)
                assert broken[1:] == ["raised"]

                node.body(stream, chat_delta("second"))
                await other.read_through(b"second")
                other.leave()
                await until(lambda: stream.stream_id in node.cancelled)
                node.streams[stream.stream_id].end()
                await until(lambda: edge.pool.leases_in_use == 0)
                await victim.close()
                await other.close()
            await until(lambda: not edge.nodes.links)
        finally:
            edge.close()
            edge.http.close()
            await until(lambda: not edge.http.connections)
            runtime.close()

    body()
