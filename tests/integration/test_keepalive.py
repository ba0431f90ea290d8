"""Keepalives: a streaming client hears something while nothing comes, and loses nothing by it (API-7b)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.aio import async_test
from tests.support.http import Broken, Client, Head, chat, post
from tests.support.provider import DONE, SSE_HEADERS, chat_delta, chat_event
from tests.support.stack import Scene, Stack, model, running_stack

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COMMENT = b": keepalive\n\n"  # between the events of an answer
QUEUED, PREFILL = b": keepalive queued\n\n", b": keepalive prefilling\n\n"
RECOVERING = b": keepalive recovering\n\n"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
ROLE = chat_event({"role": "assistant", "content": ""})
GOOD = [chat_delta("whole"), chat_event({}, "stop"), DONE]
THEIRS = b'{"error": {"message": "too long", "type": "invalid_request_error", "param": "messages", "code": 7}}'


@pytest.fixture(scope="module")
def beating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    pairs = {name: [{"node": "n1", "provider": p, "target": "t", "priority": i} for i, p in enumerate(name)]
             for name in ("ab", "cd")}  # fmt: skip
    models = [model("one"), model("fragile"), *({"id": name, "candidates": pair} for name, pair in pairs.items())]
    with running_stack(
        tmp_path_factory.mktemp("beating"),
        {"one": {"capacity": 1}, "fragile": {}, "a": {}, "b": {}, "c": {}, "d": {}},
        models,
        http={"stream_keepalive_sec": 0.2},
    ) as stack:
        yield stack


async def waiting(scene: Scene, path: str, name: str, sign: bytes, **more: Any) -> tuple[Client, Head]:
    """A streaming client that has had the head of a stream and two signs of life."""
    client = await scene.send(post(path, chat(name, stream=True, **more)))
    head = await client.head()
    assert head.status == 200
    assert head.get("content-type") == "text/event-stream"
    assert (head.get("x-request-id") or "").startswith("req_")
    assert head.get("x-iop-provider") is None
    assert await client.piece() == sign
    assert await client.piece() == sign
    return client, head


async def rest(client: Client, sign: bytes) -> tuple[bytes, bool]:
    """What else comes, signs of life taken out, and whether the end was clean."""
    clean = True
    try:
        body = await client.body()
    except Broken as exc:
        body, clean = exc.body, False
    for each in (sign, QUEUED, PREFILL, RECOVERING):
        body = body.replace(each, b"")
    return body, clean


@pytest.mark.req("API-7b")
@pytest.mark.parametrize(("path", "sign"), [(CHAT, PREFILL), (RESPONSES, PREFILL), (MESSAGES, PING)])
@async_test()
async def test_a_silent_prefill_is_bridged_and_the_stream_follows_whole(beating: Stack, path: str, sign: bytes) -> None:
    async with beating.scene() as scene:
        client, _ = await waiting(scene, path, "ab", sign)
        (await scene.provider.call()).stream(*GOOD)
        body, clean = await rest(client, sign)
        assert clean
        assert body == b"".join(GOOD)


@pytest.mark.req("API-7b")
@async_test()
async def test_a_request_that_waits_in_the_queue_hears_of_it(beating: Stack) -> None:
    async with beating.scene() as scene:
        await scene.send(post(CHAT, chat("one")))
        holder = await scene.provider.call()
        client, _ = await waiting(scene, CHAT, "one", QUEUED)
        await scene.in_use(1, waiting=1)
        holder.respond(b"{}")
        (await scene.provider.call()).stream(*GOOD)
        assert await rest(client, QUEUED) == (b"".join(GOOD), True)


@pytest.mark.req("API-7b", "API-8")
@async_test()
async def test_it_is_no_commit_so_another_provider_may_answer(beating: Stack) -> None:
    async with beating.scene() as scene:
        client, _ = await waiting(scene, CHAT, "cd", PREFILL)
        first = await scene.provider.call()
        first.start_stream()
        first.event(ROLE)
        first.reset()
        second = await scene.provider.call()
        while (sign := await client.piece()) == PREFILL:
            pass
        assert sign == RECOVERING
        second.stream(ROLE, *GOOD)
        assert await rest(client, RECOVERING) == (ROLE + b"".join(GOOD), True)


@pytest.mark.req("API-7b")
@pytest.mark.parametrize("early", [[], [ROLE]], ids=["head", "head and preamble"])
@pytest.mark.parametrize(("path", "sign"), [(CHAT, PREFILL), (RESPONSES, PREFILL), (MESSAGES, PING)])
@async_test()
async def test_a_head_that_came_before_the_prefill_is_not_written_behind_keepalives(
    beating: Stack, path: str, sign: bytes, early: list[bytes]
) -> None:
    """vLLM and llama.cpp send it at once. What is held of the preamble comes behind the keepalives, once."""
    async with beating.scene() as scene:
        client = await scene.send(post(path, chat("ab", stream=True)))
        call = await scene.provider.call()
        call.start_stream()
        if path == CHAT:
            for event in early:
                call.event(event)
        head = await client.head()
        assert head.get("x-iop-provider") is None
        assert await client.piece() == sign
        for event in GOOD:
            call.event(event)
        call.end_stream()
        held = b"".join(early) if path == CHAT else b""
        assert await rest(client, sign) == (held + b"".join(GOOD), True)


@pytest.mark.req("API-7b", "API-8b")
@async_test()
async def test_a_head_of_another_kind_that_came_before_its_body_becomes_an_event_behind_keepalives(
    beating: Stack,
) -> None:
    async with beating.scene() as scene:
        client = await scene.send(post(CHAT, chat("one", stream=True)))
        call = await scene.provider.call()
        call.start(400, framing=b"Content-Length: %d\r\n" % len(THEIRS))
        assert (await client.head()).status == 200
        assert await client.piece() == PREFILL
        call.send(THEIRS)
        body, clean = await rest(client, PREFILL)
        assert not clean
        assert error_in(CHAT, body) == json.loads(THEIRS)["error"]


@pytest.mark.req("API-7b", "TUN-10")
@async_test()
async def test_a_keepalive_behind_an_event_with_an_id_ends_no_event(beating: Stack) -> None:
    """Decoders that keep the id, openai-python's for one, dispatch an empty event at every further blank line."""
    async with beating.scene() as scene:
        client = await scene.send(post(CHAT, chat("ab", stream=True)))
        call = await scene.provider.call()
        call.start_stream()
        call.event(b"id: 1\n" + chat_delta("a"))
        await client.head()
        assert await client.piece() == b"id: 1\n" + chat_delta("a")
        for _ in range(2):
            assert await client.piece() == COMMENT[:-1]
        for event in GOOD:
            call.event(event)
        call.end_stream()
        body, clean = await rest(client, COMMENT[:-1])
        assert (body, clean) == (b"".join(GOOD), True)


def error_in(path: str, body: bytes) -> Any:
    """The error object of the last event."""
    data = json.loads(body.rpartition(b"data: ")[2])
    return data if path == RESPONSES else data["error"]


@pytest.mark.req("API-7b", "API-8b")
@pytest.mark.parametrize(("path", "sign"), [(CHAT, PREFILL), (RESPONSES, PREFILL), (MESSAGES, PING)])
@pytest.mark.parametrize("status", [400, 429, 500])
@async_test()
async def test_a_providers_error_becomes_an_event_with_its_own_object(
    beating: Stack, path: str, sign: bytes, status: int
) -> None:
    async with beating.scene() as scene:
        client, head = await waiting(scene, path, "one", sign)
        (await scene.provider.call()).respond(THEIRS, status)
        body, clean = await rest(client, sign)
        assert not clean, "it looks like an answer that is whole"
        error = error_in(path, body)
        assert error["message"] == "too long"
        if path == CHAT:
            assert error == json.loads(THEIRS)["error"]
        if path == MESSAGES:
            assert body.startswith(b"event: error\n")
            assert error["type"] == "invalid_request_error"
        line = await scene.outcome(head.get("x-request-id"))
        assert (line["outcome"], line["status"]) == ("provider_error", 200)


@pytest.mark.req("API-7b", "API-8b")
@pytest.mark.parametrize("answer", ["json", "html", "huge", "gzip"])
@async_test()
async def test_an_answer_that_is_no_stream_becomes_an_error_event(beating: Stack, answer: str) -> None:
    async with beating.scene() as scene:
        client, _ = await waiting(scene, CHAT, "one", PREFILL)
        call = await scene.provider.call()
        if answer == "json":
            call.respond(b'{"id": "whole", "choices": []}')
        elif answer == "html":
            call.respond(b"<html>sign in</html>", 200, [(b"Content-Type", b"text/html")])
        elif answer == "huge":
            call.respond(b'{"error": {"message": "' + b"x" * 3_000_000 + b'"}}', 400)
        else:
            call.start_stream([*SSE_HEADERS, (b"Content-Encoding", b"gzip")])
            call.event(b"\x1f\x8b\x08")
            call.end_stream()
        body, clean = await rest(client, PREFILL)
        assert not clean
        assert error_in(CHAT, body)["code"] == "provider_protocol_error"
        await scene.in_use(0)


@pytest.mark.req("API-7b", "API-8b")
@async_test()
async def test_an_event_stream_that_refuses_without_a_word_does_not_look_like_a_whole_answer(beating: Stack) -> None:
    async with beating.scene() as scene:
        client, _ = await waiting(scene, CHAT, "one", PREFILL)
        (await scene.provider.call()).respond(b"", 503, SSE_HEADERS)
        body, clean = await rest(client, PREFILL)
        assert not clean
        assert b"answered with status 503 instead of an event stream" in body


@pytest.mark.req("API-7b", "API-8b")
@async_test()
async def test_an_error_of_the_edges_own_becomes_an_event(beating: Stack) -> None:
    async with beating.scene() as scene:
        client, _ = await waiting(scene, CHAT, "fragile", PREFILL)
        (await scene.provider.call()).reset()
        body, clean = await rest(client, PREFILL)
        assert not clean
        assert error_in(CHAT, body)["code"] == "provider_connection_lost"


@pytest.mark.req("API-7b", "API-7c")
@async_test()
async def test_who_leaves_meanwhile_is_noticed(beating: Stack) -> None:
    async with beating.scene() as scene:
        client, _ = await waiting(scene, CHAT, "one", PREFILL)
        call = await scene.provider.call()
        await client.close()
        await call.gone.wait()
        await scene.in_use(0)


@pytest.mark.req("API-7b")
@async_test()
async def test_behind_the_commit_only_between_events(beating: Stack) -> None:
    async with beating.scene() as scene:
        client = await scene.send(post(CHAT, chat("one", stream=True)))
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("one"))
        await client.head()
        assert await client.piece() == chat_delta("one")
        assert await client.piece() == COMMENT
        half = chat_delta("ab")
        call.event(half[:20])
        got = await client.piece()
        while got == COMMENT:
            got = await client.piece()
        assert got == half[:20]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.7):  # three times the interval, in the middle of an event
                await client.piece()
        call.event(half[20:] + b"".join(GOOD))
        call.end_stream()
        assert await rest(client, COMMENT) == (half[20:] + b"".join(GOOD), True)


@pytest.mark.req("API-7b")
@async_test()
async def test_other_requests_hear_nothing_before_their_answer(beating: Stack) -> None:
    async with beating.scene() as scene:
        for request in (post(CHAT, chat("one")), post("/v1/embeddings", chat("one", stream=True))):
            client = await scene.send(request)
            call = await scene.provider.call()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.7):
                    await client.head()
            await client.close()
            await call.gone.wait()
            await scene.in_use(0)


@pytest.mark.req("API-7b", "API-8b")
@async_test()
async def test_an_old_client_gets_it_without_chunks(beating: Stack) -> None:
    async with beating.scene() as scene:
        request = post(CHAT, chat("one", stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        client = await scene.send(request)
        head = await client.head()
        assert (head.get("transfer-encoding"), head.get("connection")) == (None, "close")
        assert (await client.piece()).startswith(PREFILL)
        (await scene.provider.call()).stream(*GOOD)
        assert await rest(client, PREFILL) == (b"".join(GOOD), True)
