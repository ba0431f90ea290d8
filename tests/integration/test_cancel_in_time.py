"""A client leaves, or an attempt fails: how soon the node is told, and when it is told nothing (EXEC-7, API-8)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from iop._fast import frame
from iop.wire import codec
from iop.wire import messages as m
from tests.integration.test_provider_health import AVAILABLE, STALLED, Scene, scene
from tests.support.aio import async_test, until
from tests.support.http import Client, chat, post
from tests.support.provider import chat_delta
from tests.support.rawlink import RawLink

CHAT = "/v1/chat/completions"
WITHIN_S = 0.1
TRIES = 20
HEAD, BODY, PING = 1, 2, 77
SEMANTIC_AT_BOUNDARY = 2 | 16
SSE = b"content-type: text/event-stream\r\n"


async def leave(at: Scene, *, answering: bool) -> float:
    """A client comes and leaves; how long until its node has the cancel."""
    loop = asyncio.get_running_loop()
    client = await Client.connect(("127.0.0.1", at.edge.http_port))
    client.send(post(CHAT, chat("alone", stream=answering)))
    request = await at.request(at.one)
    if answering:
        at.one.send(frame.encode_tunnel_frame(request.stream_id, 0, HEAD, status=200, header_block=SSE))
        at.one.send(frame.encode_tunnel_frame(request.stream_id, 1, BODY, chat_delta("a"), SEMANTIC_AT_BOUNDARY))
        await client.head()
    left_at = loop.time()
    client.leave()
    cancel = await at.one.message()
    took_s = loop.time() - left_at
    assert isinstance(cancel, m.CancelRequest)
    assert (cancel.stream_id, cancel.reason) == (request.stream_id, m.CancelReason.CLIENT_GONE)
    failure = m.ExecutionFailure(m.ErrorCode.CANCELLED, close_confirmed=True)
    at.one.send(codec.tunnel_error(request.stream_id, 2 if answering else 0, failure))
    await until(lambda: at.edge.pool.leases_in_use == 0)
    await client.close()
    return took_s


@pytest.mark.req("EXEC-7", "API-7c")
@pytest.mark.parametrize("answering", [False, True], ids=["silent", "streaming"])
def test_the_node_has_the_cancel_within_100_ms(answering: bool) -> None:
    """One try of several has to do: a busy machine is late now and then, an edge that waits is late each time."""

    @async_test(timeout_s=60)
    async def body() -> None:
        async with scene() as at:
            late = []
            for _ in range(TRIES):
                if (took_s := await leave(at, answering=answering)) <= WITHIN_S:
                    return
                late.append(round(took_s, 3))
            raise AssertionError(f"cancels came after {late} s")

    body()


async def said_before_pong(link: RawLink) -> list[Any]:
    """What the edge had said on this link before it answers a heartbeat, questions about engines left aside."""
    link.send(frame.encode_heartbeat(PING))
    found: list[Any] = []
    while True:
        envelope = await link.frame()
        hot = frame.decode(envelope)
        if hot is None:
            message = codec.decode(envelope)
            if not isinstance(message, m.NodeCommandRequest):
                found.append(message)
        elif hot["payload"] == frame.HEARTBEAT_ACK and hot["seq"] == PING:
            return found


@pytest.mark.req("API-8", "EXEC-7")
@pytest.mark.parametrize(
    "failure",
    [
        {"code": m.ErrorCode.RESPONSE_STALLED, "retryable": True, "health_observation_seq": 1,
         "provider_health": AVAILABLE, "liveness_classification": STALLED},
        {"code": m.ErrorCode.PROVIDER_CONNECTION_LOST},
        {"code": m.ErrorCode.PROVIDER_TRUNCATED},
    ],
    ids=lambda failure: str(failure["code"].name.lower()),
)  # fmt: skip
def test_no_cancel_is_sent_for_an_attempt_that_is_made_up_for(failure: dict[str, Any]) -> None:
    """The node has said that it is over; the id of a cancel would be one that it has forgotten."""

    @async_test()
    async def body() -> None:
        async with scene() as at:
            client = await at.ask("both")
            first = await at.request(at.one)
            at.end(at.one, first, **failure)
            second = await at.request(at.two)
            assert await said_before_pong(at.one) == []
            at.end(at.two, second)
            await client.answer()
            assert await said_before_pong(at.one) == []
            assert await said_before_pong(at.two) == []

    body()


def decisions(at: Scene) -> dict[str, int]:
    return {"/".join(labels): int(n) for labels, n in at.edge.metrics.recovery_eligibility.read() if n}


@pytest.mark.req("API-8", "OBS-1b")
@pytest.mark.parametrize("decision", ["deadline", "not_retryable"])
def test_what_speaks_against_another_attempt_is_counted_by_its_name(decision: str) -> None:
    """A stall whose call was not seen to close in time; and a failure at the end of the request's time."""

    @async_test()
    async def body() -> None:
        async with scene() as at:
            client = await at.ask("both")
            request = await at.request(at.one)
            found = {"provider_health": AVAILABLE, "liveness_classification": STALLED, "health_observation_seq": 1}
            if decision == "deadline":
                (live,) = at.edge.dispatcher.live
                live._timer.at = at.edge.dispatcher.wheel.now  # it is due, and its tick has not come yet
            at.end(at.one, request, code=m.ErrorCode.RESPONSE_STALLED, retryable=decision != "not_retryable", **found)
            answer = await client.answer()
            assert (answer.status, answer.json["error"]["code"]) == (504, "response_stalled")
            assert decisions(at) == {f"chat/tunnel/{decision}": 1}
            assert await said_before_pong(at.two) == [], "nobody else was asked"

    body()
