"""The official openai client through edge and node, against a real llama.cpp server with a real, tiny model."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.clients.conftest import Llama
from tests.support.aio import async_test, until

HELLO: Any = [{"role": "user", "content": "Name three colours."}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
# The same work each time: no randomness, nothing taken over from the request before.
SAME: Any = {"temperature": 0, "seed": 1, "extra_body": {"cache_prompt": False}}


def sync_client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="k", max_retries=0, http_client=openai.DefaultHttpxClient(trust_env=False))


def async_client(url: str) -> AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(base_url=url, api_key="k", max_retries=0, http_client=http)


def masked(body: bytes) -> str:
    """A body without what differs from call to call: ids, times, and the name that was asked for."""
    text = body.decode()
    text = re.sub(r'"(id|item_id|model)":"[^"]*"', r'"\1":"-"', text)
    text = re.sub(r'"(created|created_at|completed_at)":[0-9]+', r'"\1":0', text)
    return re.sub(r'"timings":\{[^}]*\}', '"timings":{}', text)


@pytest.mark.req("API-2", "TUN-2")
@pytest.mark.parametrize("stream", [False, True])
def test_bodies_equal_those_of_a_direct_call(llama: Llama, stream: bool) -> None:
    bodies = []
    for url in (llama.direct, llama.through):
        with sync_client(url) as client:
            create = client.chat.completions.with_streaming_response.create
            with create(model=llama.model, messages=HELLO, stream=stream, max_tokens=12, **SAME) as response:
                bodies.append(masked(response.read()))
    assert bodies[0] == bodies[1]
    assert bodies[0].count("data: ") > 10 if stream else '"content"' in bodies[0]


@pytest.mark.req("API-2", "EXEC-5")
def test_the_synchronous_client(llama: Llama) -> None:
    with sync_client(llama.through) as client:
        whole = client.chat.completions.create(model=llama.model, messages=HELLO, max_tokens=12, **SAME)
        text = whole.choices[0].message.content
        assert text
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 12
        asked = client.chat.completions.create(
            model=llama.model,
            messages=HELLO,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
            **SAME,
        )
        chunks = list(asked)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 12


@pytest.mark.req("API-2")
@async_test(timeout_s=60)
async def test_the_asynchronous_client(llama: Llama) -> None:
    """Four streams at once, each with its own text."""
    async with async_client(llama.through) as client:

        async def ask(word: str) -> str:
            said: Any = [{"role": "user", "content": f"Repeat: {word}"}]
            asked = client.chat.completions.create(
                model=llama.model, messages=said, max_tokens=8, stream=True, temperature=0
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in await asked])

        assert all(await asyncio.gather(*map(ask, ("red", "green", "blue", "white"))))


@pytest.mark.req("API-2")
def test_structured_output(llama: Llama) -> None:
    schema = {"type": "object", "properties": {"sky": {"enum": ["blue"]}}, "required": ["sky"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "sky", "strict": True, "schema": schema}}
    with sync_client(llama.through) as client:
        answer = client.chat.completions.create(
            model=llama.model, messages=HELLO, response_format=form, max_tokens=40, temperature=0
        )
        assert json.loads(answer.choices[0].message.content or "") == {"sky": "blue"}


@pytest.mark.req("API-2")
@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings(llama: Llama, encoding: Any) -> None:
    vectors = []
    for url in (llama.direct, llama.through):
        with sync_client(url) as client:
            answer = client.embeddings.create(model=llama.model, input=["a", "b"], encoding_format=encoding)
            vectors.append([entry.embedding for entry in answer.data])
    assert vectors[0] == vectors[1]
    if encoding == "float":
        assert [len(vector) for vector in vectors[1]] == [576, 576]


@pytest.mark.req("API-2")
def test_other_endpoints(llama: Llama) -> None:
    with sync_client(llama.through) as client:
        completion = client.completions.create(model=llama.model, prompt="One, two,", max_tokens=4)
        assert completion.choices[0].text
        response = client.responses.create(model=llama.model, input="Hello", max_output_tokens=8)
        assert response.output_text


@pytest.mark.req("API-2")
@pytest.mark.parametrize("stream", [False, True])
def test_tools(llama_tools: Llama, stream: bool) -> None:
    """The grammar forces a call, so that even this model makes one."""
    with sync_client(llama_tools.through) as client:
        said: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
        options: Any = {"model": "small", "messages": said, "tools": TOOLS, "max_tokens": 64, **SAME}
        if stream:
            chunks = list(client.chat.completions.create(**options, tool_choice="required", stream=True))
            parts = [p for c in chunks if c.choices for p in c.choices[0].delta.tool_calls or []]
            assert len(parts) > 1
            name = "".join(p.function.name or "" for p in parts if p.function)
            arguments = "".join(p.function.arguments or "" for p in parts if p.function)
            assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"
        else:
            answer = client.chat.completions.create(**options, tool_choice="required")
            (call,) = answer.choices[0].message.tool_calls
            name, arguments = call.function.name, call.function.arguments
            assert answer.choices[0].finish_reason == "tool_calls"
        assert name == "get_weather"
        assert isinstance(json.loads(arguments)["city"], str)


@pytest.mark.req("TUN-5", "TUN-8")
def test_200_requests_back_to_back_on_kept_connections_lose_none(llama: Llama) -> None:
    """Every second one comes right after a stream, where this server drops what a kept connection brings."""
    options: Any = {"model": llama.model, "messages": HELLO, "max_tokens": 1, "temperature": 0}
    with sync_client(llama.through) as client:
        for _ in range(100):
            assert list(client.chat.completions.create(**options, stream=True))[-1].choices[0].finish_reason == "length"
            assert client.chat.completions.create(**options).choices[0].finish_reason == "length"
    outcomes = [line["outcome"] for line in llama.stack.edge.lines if line.get("event") == "request"]
    assert set(outcomes[-150:]) == {"ok"}


@pytest.mark.req("API-7c", "EXEC-7")
@async_test()
async def test_a_client_that_leaves_stops_the_model(llama: Llama) -> None:
    def processing() -> int:
        with urllib.request.urlopen(llama.direct.removesuffix("/v1") + "/slots", timeout=5) as answer:
            return sum(slot["is_processing"] for slot in json.load(answer))

    async with async_client(llama.through) as client:
        said: Any = [{"role": "user", "content": "Count from one to a thousand."}]
        asked = client.chat.completions.create(model=llama.model, messages=said, stream=True, max_tokens=3000)
        async with await asked as stream:
            async for _ in stream:
                break
            assert processing() == 1
        await until(lambda: processing() == 0, timeout_s=2)
