"""Links that fall silent or stop reading, with clocks of a second instead of 45 (WIRE-6, WIRE-7)."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator

import pytest

from iop._fast import frame
from tests.support.aio import async_test
from tests.support.http import chat, post
from tests.support.programs import Program
from tests.support.provider import chat_answer
from tests.support.rawlink import RawLink
from tests.support.silence import a_long_silence
from tests.support.stack import Stack, model, rss_bytes, running_stack

INTERVAL_S, WAIT_S, KEEPALIVE_S = 0.2, 1.0, 0.2
BODY = b'{"model":"scripted","messages":[{"role":"user","content":"%b"}]}' % (b"x" * 400_000)


@pytest.fixture(scope="module")
def brisk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A pair whose heartbeats are brisk; ``scripted`` belongs to a node that a test may play."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IOP_TEST_TIMING", f"{INTERVAL_S},{WAIT_S}")
        with running_stack(
            tmp_path_factory.mktemp("brisk"),
            {"m": {}},
            [model("m"), model("scripted", node="n2")],
            other_providers={"scripted": {}},
            http={"stream_keepalive_sec": KEEPALIVE_S},
        ) as running:
            yield running


def node_of(stack: Stack) -> Program:
    assert stack.node is not None
    return stack.node


def settled(stack: Stack, lines: int) -> None:
    """Both programs have found each other again."""
    stack.edge.wait_event("node_connected", node="n1", after=lines)


@pytest.mark.req("WIRE-7", "LIVE-3", "API-7b")
def test_a_long_silence_of_the_provider_does_not_trip_it(brisk: Stack) -> None:
    """With the usual clocks: tests/chaos/test_silence.py."""

    @async_test()
    async def body() -> None:
        async with brisk.scene() as scene:
            await a_long_silence(scene, "m", int(1.6 * WAIT_S / KEEPALIVE_S), WAIT_S)

    body()


@pytest.mark.req("WIRE-7", "REG-5")
def test_a_frozen_node_is_noticed_and_its_requests_end(brisk: Stack) -> None:
    @async_test()
    async def body() -> None:
        async with brisk.scene() as scene:
            client = await scene.send(post("/v1/chat/completions", chat("m")))
            await scene.provider.call()
            lines = len(brisk.edge.lines)
            node_of(brisk).signal(signal.SIGSTOP)
            frozen_at = time.time()
            try:
                answer = await client.answer()
                assert answer.status == 502
                assert answer.json["error"]["code"] == "node_disconnected"
                closed = await asyncio.to_thread(brisk.edge.wait_event, "node_connection_closed", after=lines)
                assert closed["reason"] == "heartbeat_timeout"
                metrics = await scene.metrics()
                assert 'iop_edge_node_sessions_ended_total{reason="heartbeat_timeout"}' in metrics
                assert 'iop_edge_protocol_errors_total{reason="heartbeat_timeout"}' not in metrics, "it broke no rule"
                assert WAIT_S - INTERVAL_S - 0.6 <= closed["ts"] - frozen_at <= WAIT_S + 1.5
            finally:
                node_of(brisk).signal(signal.SIGCONT)
            await asyncio.to_thread(settled, brisk, lines)

    body()


@pytest.mark.req("WIRE-7", "SUP-1")
def test_a_frozen_edge_is_noticed_and_found_again(brisk: Stack) -> None:
    node = node_of(brisk)
    lines, edge_lines = len(node.lines), len(brisk.edge.lines)
    brisk.edge.signal(signal.SIGSTOP)
    frozen_at = time.time()
    try:
        lost = node.wait_event("edge_lost", after=lines)
        assert lost["reason"] == "heartbeat_timeout"
        assert lost["ts"] - frozen_at <= WAIT_S + 1.5
    finally:
        brisk.edge.signal(signal.SIGCONT)
    node.wait_event("edge_connected", after=lines)
    settled(brisk, edge_lines)


@pytest.mark.req("WIRE-6", "WIRE-9")
def test_e6_a_node_that_stops_reading_is_closed_and_nothing_else_suffers(brisk: Stack) -> None:
    """It still sends heartbeats, so only the bytes that do not leave tell. Sources pause at the queue's bound."""

    @async_test(timeout_s=60)
    async def body() -> None:
        async with brisk.scene() as scene:
            scene.provider.answer = lambda call: call.respond(chat_answer("hi"))
            link = await RawLink.connect(brisk.nodes, receive_bytes=16384)
            await link.ready("t1")
            lines = len(brisk.edge.lines)
            beating = asyncio.ensure_future(_beat(link))
            before = rss_bytes(brisk.edge)
            clients = [await scene.send(post("/v1/chat/completions", BODY)) for _ in range(60)]
            peak = before
            for client in clients:
                answer = await client.answer()
                assert answer.status == 502
                assert answer.json["error"]["code"] == "node_disconnected"
                peak = max(peak, rss_bytes(brisk.edge))
            closed = await asyncio.to_thread(brisk.edge.wait_event, "node_connection_closed", after=lines)
            assert closed["reason"] == "write_stalled"
            assert peak - before < 80 << 20, "60 bodies of 400 KB, each held once, and a bounded queue"
            beating.cancel()
            await asyncio.wait({beating})
            await link.close()
            client = await scene.send(post("/v1/chat/completions", chat("m")))
            assert (await client.answer()).status == 200
            assert not [x for x in brisk.edge.lines[lines:] if x["event"] == "node_disconnected" and x["node"] == "n1"]

    body()


async def _beat(link: RawLink) -> None:
    """At a node's pace: with more of them it would be the answers that fill the link."""
    while True:
        link.send(frame.encode_heartbeat(1))
        await asyncio.sleep(INTERVAL_S)
