"""``/admin/events``: what an edge tells while it happens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from iop.edge.admin.listener import Admin
from iop.net.http.exchange import ServerLimits
from iop.net.http.server import HttpServer
from iop.net.loop import Runtime
from iop.observability.events import EventBus, NodeChanged
from iop.observability.metrics import EdgeMetrics
from iop.wire import limits
from tests.support.aio import async_test, until
from tests.support.http import Address, Client, chat, post
from tests.support.node import ScriptedNode
from tests.support.provider import chat_stream
from tests.support.rawlink import RawLink
from tests.support.stack import Scene, Stack

CHAT = "/v1/chat/completions"


async def listen(address: Address, query: str = "", *, receive_bytes: int | None = None) -> Client:
    client = await Client.connect(address, receive_bytes=receive_bytes)
    client.send(f"GET /admin/events{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    head = await client.head()
    assert (head.status, head.get("content-type")) == (200, "text/event-stream")
    assert (await client.piece()).startswith(b": ")
    return client


async def events(client: Client, count: int) -> list[dict[str, Any]]:
    """The next so many events; each data line names its event as the event line does."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        for block in (await client.piece()).decode().removesuffix("\n\n").split("\n\n"):
            if block.startswith(":"):
                continue
            name, data = block.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['event']}"
    return found


@pytest.mark.req("OBS-3", "OBS-4", "SEC-4")
@async_test()
async def test_a_request_is_told_from_its_start_to_its_end_without_its_text(stack: Stack) -> None:
    async with stack.scene() as scene:
        feed = await listen(stack.admin, "?kind=run")
        scene.clients.append(feed)
        client = await scene.send(post(CHAT, chat("m", stream=True, text="a secret prompt")))
        call = await scene.provider.call()
        (started,) = await events(feed, 1)
        assert started["event"] == "run_started"
        assert (started["api"], started["model"], started["provider"]) == ("chat", "m", "m")
        assert (started["node"], started["attempt"], started["stream"]) == ("n1", 1, True)
        call.stream(chat_stream("a secret answer"))
        answer = await client.answer()
        (ended,) = await events(feed, 1)
        assert (ended["event"], ended["outcome"], ended["status"]) == ("run_ended", "ok", 200)
        assert ended["request_id"] == started["request_id"] == answer.get("x-request-id")
        assert ended["bytes_out"] == len(answer.body)
        assert "secret" not in json.dumps([started, ended])


@pytest.mark.req("OBS-3")
@async_test()
async def test_a_node_that_comes_and_goes_is_told(stack: Stack) -> None:
    async with stack.scene() as scene:
        feed = await listen(stack.admin, "?kind=node")
        scene.clients.append(feed)
        async with ScriptedNode(stack.nodes, token="t1"):
            (connected,) = await events(feed, 1)
            await scene.send(post(CHAT, chat("nobody-asked-for-runs")))
        (gone,) = await events(feed, 1)
        assert (connected["event"], connected["node"]) == ("node_connected", "n2")
        assert (gone["event"], gone["node"], bool(gone["reason"])) == ("node_disconnected", "n2", True)


@pytest.mark.req("REG-2", "OBS-3")
@pytest.mark.parametrize(
    ("token", "version", "reason"),
    [("nobodys", limits.PROTOCOL_VERSION, "unknown_token"), ("t1", 999, "protocol_mismatch")],
)
def test_a_node_that_is_refused_is_told(stack: Stack, token: str, version: int, reason: str) -> None:
    @async_test()
    async def body() -> None:
        async with stack.scene() as scene:
            feed = await listen(stack.admin, "?kind=node")
            scene.clients.append(feed)
            link = await RawLink.connect(stack.nodes)
            assert not (await link.register(token, version=version)).accepted
            await link.close()
            (told,) = await events(feed, 1)
            assert (told["event"], told["reason"], "node" in told) == ("node_rejected", reason, False), (
                "it is nobody yet"
            )

    body()


@pytest.mark.parametrize("query", ["?kind=prompt", "?kind=run_", "?since=1", "?" + "kind=run&" * 17])
def test_a_filter_that_is_none_is_refused(stack: Stack, query: str) -> None:
    @async_test()
    async def ask() -> None:
        async with stack.scene() as scene:
            client = await Client.connect(stack.admin)
            scene.clients.append(client)
            client.send(f"GET /admin/events{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            answer = await client.answer()
            assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_request_error")
            assert "kind" in answer.json["error"]["message"]

    ask()


async def listeners(scene: Scene) -> str:
    (line,) = [line for line in (await scene.metrics()).splitlines() if line.startswith("iop_edge_event_subscribers ")]
    return line.split()[1]


@pytest.mark.req("OBS-3", "OBS-4")
@async_test()
async def test_listeners_are_bounded_and_one_that_leaves_makes_room(stack: Stack) -> None:
    async with stack.scene() as scene:
        feeds = [await listen(stack.admin) for _ in range(32)]
        scene.clients.extend(feeds)
        client = await Client.connect(stack.admin)
        scene.clients.append(client)
        client.send(b"GET /admin/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (503, "too_many_subscribers")
        assert answer.get("retry-after") is not None
        for feed in feeds:
            feed.leave()
        while await listeners(scene) != "0.0":
            pass
        scene.clients.append(await listen(stack.admin))


def _unasked(*_: object) -> Any:
    raise AssertionError("nobody asks for this here")


@asynccontextmanager
async def admin(bus: EventBus) -> AsyncIterator[Address]:
    """An admin listener around a bus, in this loop."""
    runtime = Runtime(asyncio.get_running_loop())
    runtime.start()
    app = Admin(
        runtime,
        EdgeMetrics(),
        dict,
        bus,
        reload=_unasked,
        runs=_unasked,
        operator=_unasked,
        ready=_unasked,
        local_only=True,
    )
    server = HttpServer(runtime, app, app.fail, ServerLimits())
    try:
        yield "127.0.0.1", await server.start("127.0.0.1", 0)
    finally:
        server.close()
        await until(lambda: not server.connections)
        await server.wait_closed()
        runtime.close()


@pytest.mark.req("OBS-3")
@async_test()
async def test_a_listener_that_does_not_read_loses_the_oldest_and_is_told_how_many() -> None:
    bus = EventBus(queue_events=64)
    async with admin(bus) as address:
        slow = await listen(address, receive_bytes=4096)
        quick = await listen(address)
        published, got = 0, 0
        while not bus.lost:  # the socket's buffers fill first
            for _ in range(32):
                bus.publish(NodeChanged("node_connected", float(published), "n" * 60))
                published += 1
            batch = await events(quick, 32)
            assert [event["ts"] for event in batch] == list(range(got, got + 32))
            got += 32
        at: list[float] = []
        lost = 0
        while not at or at[-1] < published - 1:
            for event in await events(slow, 1):
                if event["event"] == "lost":
                    lost += event["count"]
                else:
                    at.append(event["ts"])
        assert lost == bus.lost > 0
        assert len(at) + lost == published
        assert at == sorted(at)
        await slow.close()
        await quick.close()
        await until(lambda: bus.subscribers == 0)


@async_test()
async def test_an_old_client_gets_it_without_chunks_and_a_head_costs_no_place() -> None:
    bus = EventBus()
    async with admin(bus) as address:
        old = await Client.connect(address)
        old.send(b"GET /admin/events HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await old.head()).get("transfer-encoding") is None
        await old.read_through(b"\n\n")
        bus.publish(NodeChanged("node_connected", 1.0, "n1"))
        assert b'"node":"n1"' in await old.read_through(b"\n\n")
        head = await Client.connect(address)
        head.send(b"HEAD /admin/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await head.answer()).status == 200
        assert bus.subscribers == 1
        await old.close()
        await head.close()
        await until(lambda: bus.subscribers == 0)


@pytest.mark.req("OBS-4", "API-4")
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ("Sec-Fetch-Site: cross-site", 403),
        ("Sec-Fetch-Site: same-site", 403),
        ("Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site", 403),
        ("Origin: http://evil.example", 403),
        ("Origin: http://127.0.0.1:1", 403),
        ("Origin: null", 403),
        ("Sec-Fetch-Site: same-origin", 200),
        ("Sec-Fetch-Site: none", 200),
        ("Origin: http://127.0.0.1", 200),
        ("X: y", 200),
    ],
)
@async_test()
async def test_pages_of_other_origins_get_no_place(stack: Stack, fields: str, status: int) -> None:
    """An image's address is enough to ask, and browsers send no Origin with it."""
    client = await Client.connect(stack.admin)
    client.send(f"GET /admin/events HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}\r\n\r\n".encode())
    try:
        assert (await client.head()).status == status
    finally:
        await client.close()
