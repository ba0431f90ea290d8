"""Forms and other endpoints through a real edge and node: transcriptions, images, whatever a provider has (API-1)."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.aio import async_test
from tests.support.http import Broken, chat, post
from tests.support.provider import SSE_HEADERS, chat_answer, event
from tests.support.stack import Stack

TRANSCRIBE = "/v1/audio/transcriptions"
BOUNDARY = "----iop-3f"
KIND = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def part(name: str, value: bytes, more: str = "") -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def upload(path: str, body: bytes, **headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in {**KIND, **headers}.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.req("API-1", "API-2", "API-8c", "TUN-2")
@pytest.mark.parametrize("size", [100, 5_000_000])
@async_test()
async def test_a_form_reaches_the_provider_with_its_model_and_nothing_else_replaced(stack: Stack, size: int) -> None:
    sound = bytes(range(256)) * (size // 256 + 1)
    parts = [part("file", sound, '; filename="a.wav"'), part("model", b"m"), part("temperature", b"0")]
    async with stack.scene() as scene:
        client = await scene.send(upload(f"{TRANSCRIBE}?x=1", form(*parts)))
        call = await scene.provider.call()
        want = form(parts[0], part("model", b"real-m"), parts[2])
        assert (call.method, call.target) == (b"POST", b"/m/v1/audio/transcriptions?x=1")
        assert call.header(b"content-type") == KIND["Content-Type"].encode()
        assert call.body == want
        call.respond(b"hello", headers=[(b"Content-Type", b"text/plain")])
        answer = await client.answer()
        assert (answer.status, answer.body, answer.get("content-type")) == (200, b"hello", "text/plain")
        line = await scene.outcome(answer.get("x-request-id"))
        assert (line["api"], line["model"], line["outcome"]) == ("other", "m", "ok")
        assert line["bytes_in"] == len(form(*parts))
        # And the connection is good for the next one.
        client.send(post("/v1/audio/speech", chat("m")))
        call = await scene.provider.call()
        assert (call.path, call.json["model"]) == (b"/m/v1/audio/speech", "real-m")
        call.respond(b"\xff\xfb" * 5000, headers=[(b"Content-Type", b"audio/mpeg")])
        assert (await client.answer()).body == b"\xff\xfb" * 5000


@pytest.mark.req("API-1", "TUN-2", "TUN-10")
@async_test()
async def test_a_transcription_streams_and_ends_as_its_api_ends(stack: Stack) -> None:
    """No event of an API that is not known is asked for as the last one; an end of the connection is still no end."""
    first, last = (event({"type": f"transcript.text.{kind}", "text": "a"}) for kind in ("delta", "done"))
    async with stack.scene() as scene:
        client = await scene.send(upload(TRANSCRIBE, form(part("stream", b"true"), part("model", b"m"))))
        call = await scene.provider.call()
        assert call.header(b"accept-encoding") == b"identity"
        call.start_stream()
        call.event(first)
        assert (await client.head()).status == 200
        assert await client.read_through(first) == first
        call.event(last)
        call.end_stream()
        assert await client.body() == last
        client.send(upload(TRANSCRIBE, form(part("stream", b"true"), part("model", b"m"))))
        call = await scene.provider.call()
        call.start_stream(SSE_HEADERS)
        call.event(first)
        await client.head()
        assert await client.read_through(first) == first
        call.close()
        with pytest.raises(Broken) as broken:
            await client.body()
        assert b"provider_connection_lost" in broken.value.body


@pytest.mark.req("API-8c", "API-5")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (form(), "model"),
        (form(part("model", b"m"), part("model", b"m")), "model"),
        (form(part("model", b"m" * 513)), "model"),
        (form(part("model", b"m", '; filename="m"')), "model"),
        (form(part("model", b"m"), part("stream", b"perhaps")), "stream"),
        (form(part("model", b"m"))[:-6], None),
        (chat("m"), None),
    ],
)
@pytest.mark.parametrize("drip", [False, True])
@async_test()
async def test_a_bad_form_is_a_400_that_names_it(stack: Stack, body: bytes, param: str | None, drip: bool) -> None:
    async with stack.scene() as scene:
        client = await scene.client()
        request = upload(TRANSCRIBE, body)
        for at in range(0, len(request), 1 if drip else len(request)):
            client.send_more(request[at : at + 1] if drip else request)
            await asyncio.sleep(0)
        answer = await client.answer()
        error = answer.json["error"]
        assert (answer.status, error["code"], error["param"]) == (400, "invalid_request_error", param)
        assert scene.provider.calls == []


@pytest.mark.req("API-2", "API-5")
@async_test()
async def test_a_boundary_that_the_target_contains_is_refused_and_the_slot_is_free_again(stack: Stack) -> None:
    """Its model would end its own part. Nothing is sent, and the lease is back, as the scene sees at its end."""
    body = form(part("model", b"a--b")).replace(BOUNDARY.encode(), b"b")
    async with stack.scene() as scene:
        client = await scene.send(upload(TRANSCRIBE, body, **{"Content-Type": "multipart/form-data; boundary=b"}))
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_request_error")
        assert "boundary" in answer.json["error"]["message"]
        assert (await scene.outcome(answer.get("x-request-id")))["status"] == 400
        client.send(upload(TRANSCRIBE, form(part("model", b"a--b"))))
        (await scene.provider.call()).respond(b"{}")
        assert (await client.answer()).status == 200


@pytest.mark.req("API-8", "TUN-5")
@pytest.mark.parametrize(
    ("path", "more", "times"),
    [
        (TRANSCRIBE, [], 2),
        ("/v1/images/edits", [], 2),
        (TRANSCRIBE, [part("background", b"true")], 1),
        ("/v1/jobs", [], 1),
    ],
)
@async_test()
async def test_what_may_do_more_than_compute_is_not_sent_twice(
    stack: Stack, path: str, more: list[bytes], times: int
) -> None:
    async with stack.scene() as scene:
        client = await scene.send(post("/v1/chat/completions", chat("m")))
        (await scene.provider.call()).respond(chat_answer("x"))
        await client.answer()
        client.send(upload(path, form(part("model", b"m"), *more)))
        (await scene.provider.call()).close()  # a kept connection that was given up
        if times == 2:
            (await scene.provider.call()).respond(b"{}")
        answer = await client.answer()
        assert answer.status == (200 if times == 2 else 502)
        assert len(scene.provider.calls) == 1 + times
