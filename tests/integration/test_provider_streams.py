"""D16: whatever shape a provider's event stream has, the client gets its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.aio import async_test
from tests.support.http import Broken, chat, post
from tests.support.provider import DONE, SSE_HEADERS, chat_delta, chat_event, chat_stream, event
from tests.support.stack import Scene, Stack

CHAT = "/v1/chat/completions"
PLAIN = chat_stream("Hello", ", ", "wörld 🙂")
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}

SHAPES: dict[str, bytes] = {
    "lf": PLAIN,
    "crlf": PLAIN.replace(b"\n", b"\r\n"),
    "cr": PLAIN.replace(b"\n", b"\r"),
    "mixed": chat_delta("a").replace(b"\n", b"\r\n") + chat_delta("b").replace(b"\n", b"\r") + PLAIN,
    "mixed-within": b"data: 1\r\ndata: 2\n\r\n" + PLAIN,
    "bom": b"\xef\xbb\xbf" + PLAIN,
    "no-space": PLAIN.replace(b"data: ", b"data:"),
    "comments": b": hello\n\n:\n\n" + chat_delta("a") + b": ping\n\n" + PLAIN,
    "fields": b"id: 7\nretry: 10\nevent: chunk\nodd line\n" + PLAIN,
    "multi-line": PLAIN.replace(b', "object"', b',\ndata:  "object"'),
    "no-final-blank-line": PLAIN.removesuffix(b"\n"),
    "no-done": PLAIN.removesuffix(DONE),
    "done-in-content": chat_delta("[DONE]") + chat_delta("data: [DONE]\n\n") + PLAIN,
    "usage-last": PLAIN.removesuffix(DONE) + event({"choices": [], "usage": USAGE}) + DONE,
    "usage-on-all": chat_event({"content": "a"}, usage=USAGE) + chat_event({}, "stop", usage=USAGE) + DONE,
    "only-done": DONE,
    "bytes-behind-done": PLAIN + b": bye\n\n",
}


@pytest.mark.req("TUN-2", "TUN-10")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cut", ["whole", "each byte"])
@async_test()
async def test_D16_a_stream_passes_byte_for_byte(stack: Stack, shape: str, cut: str) -> None:
    body = SHAPES[shape]
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        call = await scene.provider.call()
        call.start_stream()
        size = len(body) if cut == "whole" else 1
        for i in range(0, len(body), size):
            call.event(body[i : i + size])
        call.end_stream()
        answer = await client.answer()
        assert answer.body == body
        line = await scene.outcome(answer.get("x-request-id"))
        assert line["outcome"] == "ok"
        if "usage" in shape:
            assert (line["input_tokens"], line["output_tokens"]) == (7, 2)


@pytest.mark.req("TUN-2")
@pytest.mark.parametrize("shape", ["lf", "crlf", "bom", "multi-line"])
@async_test()
async def test_D16_a_close_delimited_stream_passes_byte_for_byte(stack: Stack, shape: str) -> None:
    """HTTP/1.0 servers end a stream by closing; the client gets it in chunks, whole."""
    body = SHAPES[shape]
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        call = await scene.provider.call()
        call.start(headers=SSE_HEADERS)
        call.send(body)
        call.close()
        assert (await client.answer()).body == body


@pytest.mark.req("TUN-2")
@async_test()
async def test_D16_every_way_to_cut_one_event(stack: Stack) -> None:
    """Also inside a character and inside a line end, and each part reaches the client before the next is sent."""
    one = chat_delta("ä🙂").replace(b"\n", b"\r\n").replace(b"\\u00e4", "ä".encode())
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("first"))
        await client.head()
        assert await client.piece() == chat_delta("first")
        for i in range(1, len(one)):
            for part in (one[:i], one[i:]):
                call.event(part)
                got = b""
                while len(got) < len(part):
                    got += await client.piece()
                assert got == part
        call.event(DONE)
        call.end_stream()
        assert await client.body() == DONE


@pytest.mark.req("TUN-2", "WIRE-5")
@async_test()
async def test_D16_a_single_event_of_5_MB(stack: Stack) -> None:
    big = chat_delta("x" * 5_000_000)
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        call = await scene.provider.call()
        call.stream(big, chat_event({}, "stop"), DONE)
        assert (await client.answer()).body == big + chat_event({}, "stop") + DONE


@pytest.mark.req("TUN-10", "API-8b")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/responses",
            event({"type": "response.created", "response": {"id": "r"}}, "response.created")
            + event({"type": "response.output_text.delta", "delta": "a"}, "response.output_text.delta")
            + event({"type": "response.completed", "response": {"usage": None}}, "response.completed"),
        ),
        (
            "/v1/messages",
            event({"type": "message_start", "message": {"usage": {"input_tokens": 7}}}, "message_start")
            + event({"type": "ping"}, "ping")
            + event({"type": "content_block_delta", "delta": {"text": "a"}}, "content_block_delta")
            + event({"type": "message_delta", "usage": {"output_tokens": 2}}, "message_delta")
            + event({"type": "message_stop"}, "message_stop"),
        ),
        ("/v1/completions", event({"choices": [{"text": "a", "finish_reason": None}]}) + DONE),
    ],
)
@async_test()
async def test_the_streams_of_the_other_apis(stack: Stack, path: str, body: bytes) -> None:
    async with stack.scene() as scene:
        client = await scene.send(post(path, b'{"stream": true, "model": "m"}'))
        call = await scene.provider.call()
        call.start_stream()
        for i in range(0, len(body), 11):
            call.event(body[i : i + 11])
        call.end_stream()
        answer = await client.answer()
        assert answer.body == body
        line = await scene.outcome(answer.get("x-request-id"))
        assert line["outcome"] == "ok"
        if path == "/v1/messages":
            assert (line["input_tokens"], line["output_tokens"]) == (7, 2)


@pytest.mark.req("API-8b", "TUN-4")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@async_test()
async def test_a_stream_that_ends_without_its_last_event_is_not_taken_for_complete(stack: Stack, path: str) -> None:
    """SDKs take a clean end for success; the client gets the API's error event and a broken body."""
    events = {
        "/v1/chat/completions": chat_delta("a"),
        "/v1/responses": event({"type": "response.output_text.delta", "delta": "a"}),
        "/v1/messages": event({"type": "content_block_delta", "delta": {"text": "a"}}, "content_block_delta"),
    }
    async with stack.scene() as scene:
        client = await scene.send(post(path, b'{"stream": true, "model": "m"}'))
        (await scene.provider.call()).stream(events[path])
        head = await client.head()
        with pytest.raises(Broken) as broken:
            await client.body()
        told = broken.value.body.removeprefix(events[path])
        assert told.endswith(b"\n\n")
        data = json.loads(told.partition(b"data: ")[2])
        if path == "/v1/messages":
            assert told.startswith(b"event: error\n")
            assert (data["type"], data["error"]["type"]) == ("error", "api_error")
        elif path == "/v1/responses":
            assert told.startswith(b"event: error\n")
            assert (data["type"], data["code"]) == ("error", "provider_truncated")
        else:
            assert data["error"]["code"] == "provider_truncated"
        assert b"[DONE]" not in told
        assert (await scene.outcome(head.get("x-request-id")))["outcome"] == "provider_truncated"


@pytest.mark.req("API-8b")
@pytest.mark.parametrize(("ends", "whole"), [((0,), False), ((0, 1), True)])
@async_test()
async def test_without_done_a_stream_is_whole_when_each_of_its_choices_has_finished(
    stack: Stack, ends: tuple[int, ...], whole: bool
) -> None:
    def of(index: int, **more: Any) -> bytes:
        return event({"choices": [{"index": index, "delta": {}, **more}]})

    events = [
        of(0, delta={"content": "a"}),
        of(1, delta={"content": "b"}),
        *(of(i, finish_reason="stop") for i in ends),
    ]
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True, n=2)))
        (await scene.provider.call()).stream(*events)
        head = await client.head()
        if whole:
            assert await client.body() == b"".join(events)
        else:
            with pytest.raises(Broken) as broken:
                await client.body()
            assert b"provider_truncated" in broken.value.body
        outcome = (await scene.outcome(head.get("x-request-id")))["outcome"]
        assert outcome == ("ok" if whole else "provider_truncated")


@pytest.mark.req("API-8b")
@pytest.mark.parametrize("cut", [1, 2])
@async_test()
async def test_an_error_event_without_its_blank_line_is_told_as_any_other(stack: Stack, cut: int) -> None:
    """It came with the end of the body, before anything was shown: held back, and the outcome says so."""
    fault = event({"error": {"message": "cuda", "type": "server_error", "code": 500}})[:-cut]
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        (await scene.provider.call()).stream(fault)
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, fault)
        assert (await scene.outcome(answer.get("x-request-id")))["outcome"] == "provider_error"


@pytest.mark.req("API-7", "API-8b")
@async_test()
async def test_a_preamble_without_more_is_a_502(stack: Stack) -> None:
    """What promises an answer and gives none is held back with its head, so a real error can be told."""
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        (await scene.provider.call()).stream(chat_event({"role": "assistant", "content": ""}))
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (502, "provider_truncated")


@pytest.mark.req("API-7")
@async_test()
async def test_an_error_event_that_blames_the_client_is_delivered_as_it_is(stack: Stack) -> None:
    fault = event({"error": {"message": "too long", "type": "invalid_request_error", "code": 400}})
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        (await scene.provider.call()).stream(fault, DONE)
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, fault + DONE)


@pytest.mark.req("API-2", "TUN-2")
@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503])
@async_test()
async def test_a_providers_own_error_comes_as_it_is(stack: Stack, status: int) -> None:
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        body = b'{"error":{"message":"theirs","code":%d}}' % status
        call = await scene.provider.call()
        call.respond(body, status, [(b"Content-Type", b"application/json"), (b"Retry-After", b"0")])
        answer = await client.answer()
        assert (answer.status, answer.body, answer.get("retry-after")) == (status, body, "0")
        assert (await scene.outcome(answer.get("x-request-id")))["outcome"] == "provider_error"


@pytest.mark.req("WIRE-5", "TUN-5")
@async_test()
async def test_a_connection_that_was_paused_at_the_end_of_a_stream_serves_the_next(stack: Stack) -> None:
    """A client that reads nothing stops the node's reading of its provider. Wherever in the stream that was, also when
    the last bytes were read already, the kept connection takes the next request."""
    async with stack.scene() as scene:
        most_on_one = 0
        for size in range(320_000, 704_000, 32_000):
            stuck = await scene.client(receive_bytes=4096)
            stuck.send(post(CHAT, chat("m", stream=True)))
            (await scene.provider.call()).stream(chat_delta("x" * size), chat_event({}, "stop"), DONE)
            await _nothing_moves(scene)
            assert (await stuck.answer()).body.endswith(DONE)
            await scene.in_use(0)
            client = await scene.send(post(CHAT, chat("m")))
            call = await scene.provider.call()
            call.respond(b"{}")
            assert (await client.answer()).body == b"{}"
            most_on_one = max(most_on_one, call.number)
        assert most_on_one > 1, "no connection was kept"


async def _nothing_moves(scene: Scene) -> None:
    """Waits until three looks in a row find that not one more byte has come from the node."""
    looks: list[str] = []
    while len(looks) < 3 or len(set(looks[-3:])) > 1:
        lines = (await scene.metrics()).splitlines()
        looks.append(next(line for line in lines if line.startswith('iop_edge_link_bytes_total{direction="in"}')))
