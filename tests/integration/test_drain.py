"""SIGTERM of either program under a live stream: it finishes, nothing new starts, exit 0 (SUP-4, SUP-5)."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.aio import async_test
from tests.support.http import Answer, Broken, Client, chat, post
from tests.support.provider import Call, chat_delta, chat_event
from tests.support.stack import Stack, model, running_stack

CHAT = "/v1/chat/completions"
LAST = chat_event({}, "stop") + b"data: [DONE]\n\n"


@contextmanager
def stack(folder: Path, **sections: Any) -> Iterator[Stack]:
    with running_stack(folder, {"m": {}}, [model("m")], **sections) as running:
        yield running


async def live(scene: Any) -> tuple[Client, Call]:
    """A stream whose first event its client has read."""
    client = await scene.send(post(CHAT, chat("m", stream=True)))
    call = await scene.provider.call()
    call.start_stream()
    call.event(chat_delta("first"))
    await client.head()
    await client.read_through(b"first")
    return client, call


async def finish(client: Client, call: Call) -> None:
    call.event(chat_delta("second"))
    await client.read_through(b"second")
    call.event(LAST)
    call.end_stream()
    assert (await client.body()).endswith(b"[DONE]\n\n")


async def ask(running: Stack) -> Answer:
    client = await Client.connect(running.http)
    try:
        client.send(post(CHAT, chat("m")))
        return await client.answer()
    finally:
        await client.close()


@pytest.mark.req("SUP-4", "SUP-5")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_node_lets_a_stream_finish_and_takes_nothing_new(tmp_path: Path, number: int) -> None:
    with stack(tmp_path) as running:
        assert running.node is not None
        node = running.node

        @async_test()
        async def body() -> None:
            async with running.scene() as scene:
                client, call = await live(scene)
                node.signal(number)
                await asyncio.to_thread(running.edge.wait_event, "node_draining")
                assert (await ask(running)).status == 503
                await finish(client, call)
                assert await asyncio.to_thread(node.wait) == 0

        body()


@pytest.mark.req("SUP-5")
def test_an_edge_lets_a_stream_finish_refuses_what_is_new_and_says_goodbye(tmp_path: Path) -> None:
    with stack(tmp_path) as running:
        assert running.node is not None
        node = running.node

        @async_test()
        async def body() -> None:
            scene_of = running.scene()
            scene = await scene_of.__aenter__()
            client, call = await live(scene)
            kept = await scene.client()
            kept.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await kept.answer()
            running.edge.signal(signal.SIGTERM)
            await asyncio.to_thread(running.edge.wait_event, "draining")
            with pytest.raises(OSError):
                socket.create_connection(running.http, timeout=5.0)
            kept.send(post(CHAT, chat("m")))
            refused = await kept.answer()
            assert (refused.status, refused.json["error"]["code"]) == (503, "shutting_down")
            assert refused.get("retry-after")
            assert refused.get("connection") == "close"
            await finish(client, call)
            assert await asyncio.to_thread(running.edge.wait) == 0
            await asyncio.to_thread(node.wait_event, "edge_lost", reason="goodbye")
            await scene.close()
            for connection in scene.provider.open_connections:
                connection.transport.abort()
            await scene.provider.__aexit__()

        body()


@pytest.mark.req("SUP-5")
def test_what_does_not_finish_in_time_ends_typed(tmp_path: Path) -> None:
    with stack(tmp_path, edge={"drain_timeout_sec": 0.2}) as running:

        @async_test()
        async def body() -> None:
            scene_of = running.scene()
            scene = await scene_of.__aenter__()
            client, call = await live(scene)
            running.edge.signal(signal.SIGTERM)
            with pytest.raises(Broken) as cut:
                await client.body()
            assert b'"code": "shutting_down"' in cut.value.body
            await call.gone.wait()
            assert await asyncio.to_thread(running.edge.wait) == 0
            await scene.close()
            await scene.provider.__aexit__()

        body()


LONG = b'{"text":"' + b"x" * 600_000 + b'"}'
GOES_ON_S = 1.0  # an edge that does not wait is gone in a third of it


async def goes_on(running: Stack) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        await asyncio.to_thread(running.edge.process.wait, GOES_ON_S)


@pytest.mark.req("SUP-5", "TUN-5c")
@pytest.mark.parametrize("answer_bytes", [len(LONG), 50_000], ids=["long", "all handed to the transport"])
def test_an_edge_waits_until_answers_are_taken(tmp_path: Path, answer_bytes: int) -> None:
    """Its nodes have sent all there is; what is left is between the edge and its client."""
    answer = LONG[:answer_bytes]
    with stack(tmp_path) as running:

        @async_test()
        async def body() -> None:
            scene_of = running.scene()
            scene = await scene_of.__aenter__()
            client = await scene.client(receive_bytes=4096)
            client.send(post(CHAT, chat("m")))
            (await scene.provider.call()).respond(answer)
            await client.head()
            running.edge.signal(signal.SIGTERM)
            await asyncio.to_thread(running.edge.wait_event, "draining")
            await goes_on(running)
            assert await client.body() == answer
            assert await asyncio.to_thread(running.edge.wait) == 0
            await scene.close()
            await scene.provider.__aexit__()

        body()


@pytest.mark.req("SUP-5")
def test_an_edge_waits_until_uploads_are_whole(tmp_path: Path) -> None:
    """The client is told that it is refused, and does not see a reset."""
    with stack(tmp_path) as running:

        @async_test()
        async def body() -> None:
            scene_of = running.scene()
            scene = await scene_of.__aenter__()
            client = await scene.client()
            upload = post(CHAT, chat("m", text="x" * 50_000))
            client.send(upload[:20_000])
            running.edge.signal(signal.SIGTERM)
            await asyncio.to_thread(running.edge.wait_event, "draining")
            await goes_on(running)
            client.send_more(upload[20_000:])
            refused = await client.answer()
            assert (refused.status, refused.json["error"]["code"]) == (503, "shutting_down")
            assert await asyncio.to_thread(running.edge.wait) == 0
            await scene.close()
            await scene.provider.__aexit__()

        body()


@pytest.mark.req("SUP-5", "API-8b")
def test_who_has_not_taken_all_when_the_edge_ends_sees_a_reset(tmp_path: Path) -> None:
    with stack(tmp_path, edge={"drain_timeout_sec": 0.2}) as running:

        @async_test()
        async def body() -> None:
            scene_of = running.scene()
            scene = await scene_of.__aenter__()
            reader = await scene.client(receive_bytes=4096)
            reader.send(post(CHAT, chat("m")).replace(b"HTTP/1.1", b"HTTP/1.0"))
            (await scene.provider.call()).respond(LONG, headers=[(b"content-type", b"application/json")])
            await reader.head()
            running.edge.signal(signal.SIGTERM)
            assert await asyncio.to_thread(running.edge.wait) == 0
            with pytest.raises(Broken) as cut:
                await reader.body()
            assert cut.value.how == "rst"
            await scene.close()
            await scene.provider.__aexit__()

        body()
