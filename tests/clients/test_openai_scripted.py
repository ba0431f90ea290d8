"""The official openai client through edge and node, against a provider that does exactly what the test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.aio import async_test
from tests.support.provider import DONE, Call, chat_answer, chat_delta, chat_event, event
from tests.support.stack import Scene, Stack

HELLO: Any = [{"role": "user", "content": "hi"}]
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def base_url(scene: Scene) -> str:
    return f"http://{scene.stack.http[0]}:{scene.stack.http[1]}/v1"


def async_client(scene: Scene, url: str | None = None) -> AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(base_url=url or base_url(scene), api_key="k", max_retries=0, http_client=http)


def tool_call(**fields: Any) -> bytes:
    return chat_event({"tool_calls": [{"index": 0, **fields}]})


@pytest.mark.req("TUN-2", "API-2", "API-7")
@async_test()
async def test_tokens_arrive_one_by_one(scripted: Stack) -> None:
    """The provider withholds each event until the client has read the one before."""
    async with scripted.scene() as scene, async_client(scene) as client:
        asked = asyncio.ensure_future(client.chat.completions.create(model="m", messages=HELLO, stream=True))
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_event({"role": "assistant", "content": ""}))
        call.event(chat_delta("0"))
        async with await asked as stream:
            words = []
            async for chunk in stream:
                text = chunk.choices[0].delta.content
                if not text:
                    continue
                words.append(text)
                if len(words) < 10:
                    call.event(chat_delta(str(len(words))))
                elif len(words) == 10:
                    call.event(chat_event({}, "stop"))
                    call.event(DONE)
                    call.end_stream()
        assert words == [str(i) for i in range(10)]


@pytest.mark.req("API-2")
@async_test()
async def test_tool_calls_and_usage_are_intact_in_a_stream(scripted: Stack) -> None:
    def answer(call: Call) -> None:
        assert call.json["tools"] == TOOLS
        assert call.json["stream_options"] == {"include_usage": True}
        call.stream(
            chat_event({"role": "assistant", "content": None}),
            tool_call(id="call_1", type="function", function={"name": "get_weather", "arguments": ""}),
            *[tool_call(function={"arguments": part}) for part in ('{"ci', 'ty": "P', 'aris"}')],
            chat_event({}, "tool_calls"),
            event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": USAGE}),
            DONE,
        )

    async with scripted.scene() as scene, async_client(scene) as client:
        scene.provider.answer = answer
        asked = client.chat.completions.create(
            model="m", messages=HELLO, tools=TOOLS, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in await asked]
        calls = [part for chunk in chunks if chunk.choices for part in chunk.choices[0].delta.tool_calls or []]
        assert calls[0].id == "call_1"
        assert calls[0].function is not None
        assert calls[0].function.name == "get_weather"
        arguments = "".join(part.function.arguments or "" for part in calls if part.function is not None)
        assert json.loads(arguments) == {"city": "Paris"}
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 9


def canned(call: Call) -> None:
    """Answers by path, always the same bytes."""
    if call.path.endswith(b"/embeddings"):
        data = [{"object": "embedding", "index": 0, "embedding": "AACAPwAAAEA="}]
        answer = {"object": "list", "data": data, "model": "real-m", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        call.respond(json.dumps(answer).encode())
    elif call.path.endswith(b"/responses"):
        text = {"type": "output_text", "text": "yes", "annotations": []}
        item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [text]}
        response = {"id": "r1", "object": "response", "created_at": 1, "model": "real-m", "output": [item]}
        call.respond(json.dumps(response).encode())
    elif call.json.get("stream"):
        words = [chat_delta(word) for word in ("a", "ä", "🙂")]
        call.stream(*words, chat_event({}, "stop"), b": comment\n\n", DONE)
    else:
        call.respond(chat_answer('{"answer": 42}', extra={"kept": [1, 2.50, None]}))


REQUESTS: dict[str, Callable[[Any], Any]] = {
    "chat": lambda c: c.chat.completions.with_streaming_response.create(model="m", messages=HELLO),
    "stream": lambda c: c.chat.completions.with_streaming_response.create(model="m", messages=HELLO, stream=True),
    "embeddings": lambda c: c.embeddings.with_streaming_response.create(model="m", input="x"),
    "responses": lambda c: c.responses.with_streaming_response.create(model="m", input="x"),
}


@pytest.mark.req("TUN-2", "API-2")
@pytest.mark.parametrize("name", REQUESTS)
@async_test()
async def test_body_bytes_equal_those_of_a_direct_call(scripted: Stack, name: str) -> None:
    async with scripted.scene() as scene:
        scene.provider.answer = canned
        host, port = scene.provider.address
        bodies = []
        for url in (base_url(scene), f"http://{host}:{port}/m/v1"):
            async with async_client(scene, url) as client, REQUESTS[name](client) as response:
                bodies.append(await response.read())
        assert bodies[0] == bodies[1] != b""
        through, direct = scene.provider.calls
        assert through.json == {**direct.json, "model": "real-m"}


@pytest.mark.req("API-2")
@async_test()
async def test_the_synchronous_client(scripted: Stack) -> None:
    """Whole, streamed, structured and embedded, on one kept connection."""

    def use(url: str) -> list[Any]:
        http = openai.DefaultHttpxClient(trust_env=False)
        with OpenAI(base_url=url, api_key="k", max_retries=0, http_client=http) as client:
            whole = client.chat.completions.create(model="m", messages=HELLO)
            with client.chat.completions.create(model="m", messages=HELLO, stream=True) as stream:
                text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            schema: Any = {"name": "a", "schema": {"type": "object"}}
            form: Any = {"type": "json_schema", "json_schema": schema}
            structured = client.chat.completions.create(model="m", messages=HELLO, response_format=form)
            vector = client.embeddings.create(model="m", input="x").data[0].embedding
            output = client.responses.create(model="m", input="x").output_text
            models = [entry.id for entry in client.models.list()]
            return [whole, text, json.loads(structured.choices[0].message.content or ""), vector, output, models]

    async with scripted.scene() as scene:
        scene.provider.answer = canned
        whole, text, structured, vector, output, models = await asyncio.to_thread(use, base_url(scene))
        assert whole.usage.total_tokens == 5
        assert whole.extra == {"kept": [1, 2.5, None]}
        assert text == "aä🙂"
        assert structured == {"answer": 42}
        assert vector == [1.0, 2.0]
        assert output == "yes"
        assert models == ["m"]
        assert scene.provider.calls[2].json["response_format"]["type"] == "json_schema"


@pytest.mark.req("API-5")
@async_test()
async def test_errors_become_the_clients_own(scripted: Stack) -> None:
    async with scripted.scene() as scene, async_client(scene) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="nobody", messages=HELLO)
        assert missing.value.code == "model_not_found"
        assert missing.value.request_id is not None
        bad: Any = {"store": "yes"}
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="m", messages=HELLO, extra_body=bad)
        assert refused.value.param == "store"

        scene.provider.answer = lambda call: call.respond(b'{"error":{"message":"slow down"}}', 429)
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="m", messages=HELLO)
        scene.provider.answer = lambda call: call.reset()
        with pytest.raises(openai.InternalServerError) as lost:
            await client.chat.completions.create(model="m", messages=HELLO)
        assert lost.value.code == "provider_connection_lost"


@pytest.mark.req("API-8b", "TUN-4")
@async_test()
async def test_a_stream_that_breaks_raises(scripted: Stack) -> None:
    """What the client takes for success is a clean end; it must not get one."""

    def answer(call: Call) -> None:
        call.start_stream()
        call.event(chat_delta("a"))
        call.close()

    async with scripted.scene() as scene, async_client(scene) as client:
        scene.provider.answer = answer
        words = []

        async def read() -> None:
            async for chunk in await client.chat.completions.create(model="m", messages=HELLO, stream=True):
                words.append(chunk.choices[0].delta.content)

        with pytest.raises(openai.APIError) as broken:
            await read()
        assert words == ["a"]
        assert broken.value.code == "provider_connection_lost"


@pytest.mark.req("API-7c", "EXEC-7")
@async_test()
async def test_a_stream_that_is_closed_early_ends_at_the_provider(scripted: Stack) -> None:
    async with scripted.scene() as scene, async_client(scene) as client:
        asked = asyncio.ensure_future(client.chat.completions.create(model="m", messages=HELLO, stream=True))
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("a"))
        async with await asked as stream:
            async for _ in stream:
                break
        async with asyncio.timeout(1):
            await call.gone.wait()


@pytest.mark.req("API-1", "API-8c")
@async_test()
async def test_audio_images_and_moderations(scripted: Stack) -> None:
    """Forms as the SDK writes them, whole and streamed, and JSON endpoints that IOP has never heard of."""
    sound = bytes(range(256)) * 4000
    async with scripted.scene() as scene, async_client(scene) as client:
        asked = asyncio.ensure_future(client.audio.transcriptions.create(model="m", file=("ä b.wav", sound)))
        call = await scene.provider.call()
        assert call.path.endswith(b"/v1/audio/transcriptions")
        assert sound in call.body
        assert b'name="model"\r\n\r\nreal-m\r\n' in call.body
        call.respond(b'{"text":"hello"}')
        assert (await asked).text == "hello"

        streaming = asyncio.ensure_future(client.audio.transcriptions.create(model="m", file=sound, stream=True))
        call = await scene.provider.call()
        call.stream(
            event({"type": "transcript.text.delta", "delta": "he"}),
            event({"type": "transcript.text.done", "text": "hello"}),
        )
        assert [piece.type async for piece in await streaming] == ["transcript.text.delta", "transcript.text.done"]

        edited = asyncio.ensure_future(client.images.edit(model="m", image=[sound, sound], prompt="ü", n=2))
        call = await scene.provider.call()
        assert call.body.count(sound) == 2
        assert "ü".encode() in call.body
        call.respond(b'{"created":1,"data":[{"b64_json":"aa"}]}')
        assert (await edited).data

        spoken = asyncio.ensure_future(client.audio.speech.create(model="m", voice="alloy", input="hi"))
        call = await scene.provider.call()
        assert call.json["model"] == "real-m"
        call.respond(b"\xff\xfb\x90", headers=[(b"Content-Type", b"audio/mpeg")])
        assert (await spoken).content == b"\xff\xfb\x90"

        with pytest.raises(openai.NotFoundError) as unknown:
            await client.audio.transcriptions.create(model="nobody", file=sound)
        assert unknown.value.code == "model_not_found"
