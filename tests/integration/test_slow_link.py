"""Two hundred streams whose clients read nothing, over a link that is slow itself (WIRE-5, WIRE-6, WIRE-7)."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.aio import async_test
from tests.support.faultproxy import FaultProxy, Weather
from tests.support.http import Client, chat, post
from tests.support.programs import Program, edge_config, edge_program, node_config, node_program
from tests.support.provider import ScriptedProvider, chat_delta, chat_event, listening_socket
from tests.support.stack import TOKEN_ENV, model, rss_bytes

STREAMS = 200
EVENT = chat_delta("x" * 4000)
EVENTS = 40  # 160 KB a stream, 32 MB in all
LINK_BYTES_PER_S = 8e6
HEARTBEAT = "0.3,1.2"  # seconds between heartbeats, seconds until the peer counts as dead: the load lasts longer
DONE = chat_event({}, "stop") + b"data: [DONE]\n\n"


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[tuple[Program, socket.socket]]:
    sock = listening_socket()
    port = sock.getsockname()[1]
    provider = {"id": "p", "kind": "openai_compat", "base_url": f"http://127.0.0.1:{port}/p/v1", "capacity": 1000}
    config = edge_config(nodes=[{"id": "n1", "token_env": "IOP_TOKEN", "providers": [provider]}], models=[model("p")])
    with edge_program(tmp_path, config, env={**TOKEN_ENV, "IOP_TEST_TIMING": HEARTBEAT}) as program:
        yield program, sock
    sock.close()


@pytest.mark.req("WIRE-5", "WIRE-6", "WIRE-7")
def test_two_hundred_stuck_readers_harm_nobody_else(edge: tuple[Program, socket.socket], tmp_path: Path) -> None:
    program, sock = edge

    @async_test(timeout_s=90)
    async def body() -> None:
        async with (
            FaultProxy(program.address("nodes"), held_bytes=64 << 10) as link,
            ScriptedProvider(sock) as provider,
        ):
            link.weather = Weather(bytes_per_s=LINK_BYTES_PER_S)
            with ExitStack() as programs:
                env = {**TOKEN_ENV, "IOP_TEST_TIMING": HEARTBEAT}
                starting = node_program(tmp_path, node_config(link.address), env=env)
                node = await asyncio.to_thread(programs.enter_context, starting)
                await asyncio.to_thread(program.wait_event, "node_connected")
                await _load(program, node, link, provider)
                await asyncio.to_thread(programs.close)

    body()


async def _load(edge: Program, node: Program, link: FaultProxy, provider: ScriptedProvider) -> None:
    address = edge.address("http")
    request = post("/v1/chat/completions", chat("p", stream=True))
    stuck = []
    for _ in range(STREAMS):
        client = await Client.connect(address, receive_bytes=4096)
        client.send(request)
        stuck.append(client)
    calls = [await provider.call() for _ in range(STREAMS)]
    before = rss_bytes(edge), rss_bytes(node)
    for call in calls:
        call.start_stream()
        for _ in range(EVENTS):
            call.event(EVENT)

    # Meanwhile others get their events, one by one, through the same link.
    slowest = 0.0
    for _ in range(5):
        client = await Client.connect(address)
        client.send(request)
        call = await provider.call()
        call.start_stream()
        for number in range(10):
            at = time.monotonic()
            call.event(chat_delta(f"token {number}"))
            await client.head() if number == 0 else None
            await client.read_through(b"token %d" % number)
            slowest = max(slowest, time.monotonic() - at)
        call.event(DONE)
        call.end_stream()
        assert b"[DONE]" in await client.body()
        await client.close()
    assert slowest < 1.0, f"an event of a healthy stream took {slowest:.2f} s"

    # The load is far longer than the time after which silence would end the link, and it is still there.
    total = STREAMS * EVENTS * len(EVENT)
    while link.passed_bytes < total * 0.9:
        await asyncio.to_thread(time.thread_time)
    after = rss_bytes(edge), rss_bytes(node)
    assert after[0] - before[0] < total * 1.5, "the edge holds more than one copy of what its clients do not read"
    assert after[1] - before[1] < 24 << 20, "the node holds what the link has not taken"

    # And when the stuck ones read at last, nothing is missing.
    expected = EVENT * EVENTS + DONE
    for call, client in zip(calls, stuck, strict=True):
        call.event(DONE)
        call.end_stream()
        await client.head()
        assert await client.body() == expected
        await client.close()
    assert not [line for line in edge.lines if line.get("event") in ("node_disconnected", "node_connection_closed")]
