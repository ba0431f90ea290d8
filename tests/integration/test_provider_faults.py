"""Providers that die or close early: D18, TUN-4, TUN-5, API-8b. Nobody takes a part for the whole."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.aio import async_test
from tests.support.http import Broken, chat, post
from tests.support.provider import DONE, SSE_HEADERS, Call, chat_answer, chat_delta, chat_event, chat_stream
from tests.support.stack import Scene, Stack

CHAT = "/v1/chat/completions"
LENGTH_20 = b"Content-Length: 20\r\n"


async def first_use(scene: Scene) -> None:
    """One request that leaves a kept connection behind."""
    client = await scene.send(post(CHAT, chat("m")))
    (await scene.provider.call()).respond(chat_answer("x"))
    assert (await client.answer()).status == 200


@pytest.mark.req("TUN-5")
@async_test()
async def test_D18_a_kept_connection_that_was_closed_meanwhile_is_replaced(stack: Stack) -> None:
    async with stack.scene() as scene:
        await first_use(scene)
        scene.provider.calls[0].close()
        await scene.provider.calls[0].gone.wait()
        client = await scene.send(post(CHAT, chat("m")))
        call = await scene.provider.call()
        assert call.number == 1
        call.respond(chat_answer("y"))
        answer = await client.answer()
        assert (answer.status, answer.get("x-iop-attempts")) == (200, "1")


@pytest.mark.req("TUN-5", "EXEC-11")
@pytest.mark.parametrize("kept", [1, 3])
@pytest.mark.parametrize("how", ["close", "reset"])
@async_test()
async def test_D18_a_kept_connection_that_closes_on_the_request_is_retried_invisibly(
    stack: Stack, kept: int, how: str
) -> None:
    """Once, on a fresh connection: however many others were kept, they are as old as the one that died."""
    async with stack.scene() as scene:
        clients = [await scene.send(post(CHAT, chat("m"))) for _ in range(kept)]
        for call in [await scene.provider.call() for _ in range(kept)]:
            call.respond(chat_answer("x"))
        for client in clients:
            assert (await client.answer()).status == 200

        def answer(call: Call) -> None:
            if call.number == 1:
                call.respond(chat_answer("fresh"))
            else:
                getattr(call, how)()

        scene.provider.answer = answer
        client = await scene.send(post(CHAT, chat("m", text="again")))
        got = await client.answer()
        assert (got.status, got.body) == (200, chat_answer("fresh"))
        assert got.get("x-iop-attempts") == "2"
        sent = [call for call in scene.provider.calls if call.json["messages"][0]["content"] == "again"]
        assert [call.number == 1 for call in sent] == [False, True]
        assert sent[0].body == sent[1].body


@pytest.mark.req("TUN-5")
@async_test()
async def test_D18_a_large_body_is_retried_whole(stack: Stack) -> None:
    async with stack.scene() as scene:
        await first_use(scene)
        scene.provider.answer = lambda call: call.respond(chat_answer("y")) if call.number == 1 else call.close()
        body = chat("m", text="z" * 1_000_000)
        client = await scene.send(post(CHAT, body))
        assert (await client.answer()).body == chat_answer("y")
        assert scene.provider.calls[-1].body == body.replace(b'"m"', b'"real-m"', 1)


@pytest.mark.req("TUN-5")
@pytest.mark.parametrize(
    "more",
    [{"store": True}, {"background": True}, {"previous_response_id": "r"}, {"tools": [{"type": "web_search_preview"}]}],
)
@async_test()
async def test_a_request_with_effects_is_not_sent_twice(stack: Stack, more: dict[str, Any]) -> None:
    async with stack.scene() as scene:
        await first_use(scene)
        client = await scene.send(post("/v1/responses", chat("m", **more)))
        (await scene.provider.call()).close()
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (502, "provider_connection_lost")
        assert len(scene.provider.calls) == 2


@pytest.mark.req("TUN-5", "EXEC-11")
@pytest.mark.parametrize("how", ["close", "reset"])
@async_test()
async def test_a_fresh_connection_that_dies_is_not_retried(stack: Stack, how: str) -> None:
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m")))
        getattr(await scene.provider.call(), how)()
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (502, "provider_connection_lost")
        assert len(scene.provider.calls) == 1


@pytest.mark.req("TUN-5", "EXEC-11")
@pytest.mark.parametrize("part", [b"H", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"])
@async_test()
async def test_D18_a_kept_connection_that_closes_after_a_part_of_an_answer_is_not_retried(
    stack: Stack, part: bytes
) -> None:
    """Response bytes were seen: the provider has worked on the request."""
    async with stack.scene() as scene:
        await first_use(scene)
        client = await scene.send(post(CHAT, chat("m")))
        call = await scene.provider.call()
        assert call.number == 2
        call.send(part)
        call.close()
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (502, "provider_connection_lost")
        assert len(scene.provider.calls) == 2


@pytest.mark.req("TUN-4", "API-8b")
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("boundary", [True, False])
@async_test()
async def test_D18_a_stream_that_breaks_is_broken_for_the_client(stack: Stack, how: str, boundary: bool) -> None:
    """Never a clean end. The error event comes first where it does not land inside another event."""
    sent = chat_delta("a") if boundary else chat_delta("a") + b"data: {"
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        call = await scene.provider.call()
        call.start_stream()
        call.event(sent)
        head = await client.head()
        assert await client.read_through(sent) == sent
        getattr(call, how)()
        with pytest.raises(Broken) as broken:
            await client.body()
        told = broken.value.body
        if boundary:
            assert json.loads(told.removeprefix(b"data: "))["error"]["code"] == "provider_connection_lost"
            assert told.endswith(b"\n\n")
        else:
            assert told == b""
        assert (await scene.outcome(head.get("x-request-id")))["outcome"] == "provider_connection_lost"
        assert len(scene.provider.calls) == 1


@pytest.mark.req("TUN-4", "API-8b")
@async_test()
async def test_an_http_1_0_client_sees_a_broken_stream_as_a_reset(stack: Stack) -> None:
    """Only the close ends its body: FIN would look complete."""
    body = chat("m", stream=True)
    async with stack.scene() as scene:
        client = await scene.send(b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("a"))
        await client.head()
        assert await client.read_through(chat_delta("a")) == chat_delta("a")
        call.reset()
        with pytest.raises(Broken) as broken:
            await client.body()
        assert broken.value.how == "rst"


@pytest.mark.req("TUN-4", "API-8b")
@pytest.mark.parametrize("framing", ["length", "chunked"])
@async_test()
async def test_D18_a_whole_answer_that_breaks_is_broken_for_the_client(stack: Stack, framing: str) -> None:
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m")))
        call = await scene.provider.call()
        if framing == "length":
            call.start(framing=LENGTH_20)
            call.send(b'{"part')
        else:
            call.start_stream([(b"Content-Type", b"application/json")])
            call.event(b'{"part')
        assert (await client.head()).status == 200
        assert await client.read_through(b'{"part') == b'{"part'
        call.close()
        with pytest.raises(Broken) as broken:
            await client.body()
        assert broken.value.body == b""


@pytest.mark.req("REG-5", "API-8b")
@async_test()
async def test_an_answer_in_parts_after_its_head_is_broken_off_when_nothing_was_sent(stack: Stack) -> None:
    """The head alone is no commit: a provider that dies behind it is a plain 502."""
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m")))
        call = await scene.provider.call()
        call.start(framing=LENGTH_20)
        call.close()
        assert (await client.answer()).status == 502


@pytest.mark.req("API-6", "TUN-5")
@async_test()
async def test_bytes_behind_an_answer_are_no_answer_to_the_next_request(stack: Stack) -> None:
    """Response smuggling: a connection with bytes left over is not used again."""
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m")))
        call = await scene.provider.call()
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        assert (await client.answer()).body == b"{}"
        async with asyncio.timeout(1):  # an idle connection would be closed as well, but later
            await call.gone.wait()
        client.send(post(CHAT, chat("m")))
        (await scene.provider.call()).respond(chat_answer("x"))
        assert (await client.answer()).body == chat_answer("x")


@pytest.mark.req("TUN-5")
@async_test()
async def test_a_connection_rests_after_a_stream(stack: Stack) -> None:
    """llama.cpp drops what is sent on a kept connection right after a stream."""
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        (await scene.provider.call()).stream(chat_stream("a"))
        await client.answer()
        client.send(post(CHAT, chat("m")))
        call = await scene.provider.call()
        assert call.number == 1
        assert len([c for c in scene.provider.connections if not c.asks_for_health]) == 2
        call.respond(chat_answer("x"))
        await client.answer()


@pytest.mark.req("TUN-2", "API-8b")
@async_test()
async def test_an_answer_before_the_whole_request_is_passed_on(stack: Stack) -> None:
    """A provider may refuse a body that it has not read; what was still to be sent is dropped with its connection."""
    async with stack.scene() as scene:
        scene.provider.hold_bodies = True
        client = await scene.send(post(CHAT, chat("m", text="z" * 5_000_000)))
        call = await scene.provider.call_begun()
        call.respond(b'{"error":"too large"}', 413)
        answer = await client.answer()
        assert (answer.status, answer.body) == (413, b'{"error":"too large"}')
        call.read_body()
        async with asyncio.timeout(1):
            await call.connection.closed.wait()
        assert scene.provider.calls == []


@pytest.mark.req("TUN-4", "API-8b")
@async_test()
async def test_a_stream_that_is_complete_and_then_dies_is_complete(stack: Stack) -> None:
    """Its bytes all came: [DONE] and the last chunk; what happens to the connection afterwards is nobody's loss."""
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        call = await scene.provider.call()
        call.stream(chat_delta("a"), chat_event({}, "stop"), DONE)
        call.reset()
        answer = await client.answer()
        assert answer.body.endswith(DONE)


@pytest.mark.req("TUN-4", "API-8b")
@async_test()
async def test_a_finished_stream_without_its_last_chunk_is_broken(stack: Stack) -> None:
    """The events say that it is complete, its framing does not: the client hears the same."""
    body = chat_stream("a")
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        call = await scene.provider.call()
        call.start_stream(SSE_HEADERS)
        call.event(body)
        await client.head()
        assert await client.read_through(DONE) == body
        call.close()
        with pytest.raises(Broken):
            await client.body()
