"""A node with a good token and bad manners: nothing is forged, nobody is blamed, nothing spins (D15, SEC-4, EXEC-3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from iop._fast.body import FRAMING_LENGTH, BodyDecoder
from iop.edge.app import Edge
from iop.net.loop import Runtime
from iop.wire import messages as m
from tests.integration.test_contained_fault import CHAT, TOKEN, Quiet, configured
from tests.support.aio import async_test, until
from tests.support.http import Client, chat, post
from tests.support.node import ScriptedNode


@asynccontextmanager
async def edge_and_node() -> AsyncIterator[tuple[Edge, ScriptedNode, Client]]:
    runtime = Runtime(asyncio.get_running_loop())
    runtime.start()
    edge = Edge(configured(), runtime, Quiet())
    await edge.start()
    try:
        async with ScriptedNode(("127.0.0.1", edge.node_port), token=TOKEN) as node:
            client = await Client.connect(("127.0.0.1", edge.http_port))
            client.send(post(CHAT, chat("m")))
            yield edge, node, client
            await client.close()
        await until(lambda: not edge.nodes.links and edge.pool.leases_in_use == 0)
    finally:
        edge.close()
        edge.http.close()
        await until(lambda: not edge.http.connections)
        runtime.close()


@pytest.mark.req("TUN-9")
@pytest.mark.parametrize(
    ("status", "block"),
    [
        *((status, b"content-length: 2\r\n") for status in (0, 1, 99, 100, 101, 103, 199, 600, 999, 1000, 2**32 - 1)),
        (200, b"content-length: 2\r\ncontent-length: 3\r\n"),
        (200, b"content-length: two\r\n"),
        (200, b"a: b\r\n\r\nHTTP/1.1 200 OK\r\n"),
    ],
)
def test_d15_an_answer_that_is_none_becomes_a_502(status: int, block: bytes) -> None:
    @async_test()
    async def body() -> None:
        async with edge_and_node() as (_, node, client):
            request = await node.request()
            stream = node.streams[request.stream_id]
            stream.head(status, block)
            stream.begin(BodyDecoder(FRAMING_LENGTH, 2))
            stream.feed(b"{}")
            answer = await client.answer()
            assert (answer.status, answer.json["error"]["code"]) == (502, "provider_protocol_error")
            await until(lambda: request.stream_id in node.cancelled)
            stream.end()

    body()


@pytest.mark.req("EXEC-3")
def test_a_node_that_is_full_without_reason_does_not_spin_for_ever() -> None:
    @async_test()
    async def body() -> None:
        async with edge_and_node() as (_, node, client):
            answering = asyncio.ensure_future(client.answer())
            opened = 0
            while not answering.done():
                request = asyncio.ensure_future(node.request())
                await asyncio.wait({request, answering}, return_when=asyncio.FIRST_COMPLETED)
                if request.done():
                    opened += 1
                    node.refuse(request.result(), m.ErrorCode.CAPACITY_EXCEEDED, slots_held=0)
                else:
                    request.cancel()
            answer = await answering
            assert answer.status == 503
            assert opened <= 101

    body()


@pytest.mark.req("SEC-4", "API-5")
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (m.ErrorCode.CANCELLED, 503),  # that nobody asked for: a node that leaves
        (m.ErrorCode.FORBIDDEN, 500),
        (m.ErrorCode.INVALID_ARGUMENT, 500),
    ],
)
def test_a_nodes_word_never_blames_the_client_and_never_names_a_url(code: m.ErrorCode, status: int) -> None:
    @async_test()
    async def body() -> None:
        async with edge_and_node() as (_, node, client):
            request = await node.request()
            node.refuse(request, code, message=b"see http://secret:1/ for it")
            answer = await client.answer()
            assert answer.status == status
            assert b"secret" not in answer.body

    body()
