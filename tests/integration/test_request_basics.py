"""Requests that go well: bodies and headers both ways, whole and streamed, every way to frame them."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import pytest

from tests.support.aio import async_test
from tests.support.http import Client, chat, post
from tests.support.provider import DONE, SSE_HEADERS, Call, chat_answer, chat_delta, chat_event, chat_stream
from tests.support.stack import Scene, Stack

CHAT = "/v1/chat/completions"


@pytest.mark.req("TUN-1", "TUN-2", "API-2", "API-9")
@async_test()
async def test_an_answer_comes_back_byte_for_byte(stack: Stack) -> None:
    async with stack.scene() as scene:
        request = (
            b'{ "messages":[{"role":"user","content":"\xc3\xa4\\u00e4"}],"x":{"model":"m"} , "model" :"m","y":1e2}'
        )
        client = await scene.send(post(CHAT + "?beta=true&a=%2F", request, {"X-Beta": "a", "x-beta": "b"}))
        call = await scene.provider.call()
        assert (call.method, call.target) == (b"POST", b"/m/v1/chat/completions?beta=true&a=%2F")
        assert call.body == request.replace(b'"model" :"m"', b'"model" :"real-m"')
        assert call.all_headers(b"x-beta") == [b"a", b"b"]
        body = b'{"usage": null, "odd":  "\xf0\x9f\x99\x82\\/" }\n'
        call.respond(body, headers=[(b"Content-Type", b"application/json"), (b"X-Extra", b"1"), (b"X-Extra", b"2")])
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, body)
        assert answer.all("x-extra") == ["1", "2"]
        assert answer.get("x-iop-provider") == "m"
        assert answer.get("x-iop-attempts") == "1"
        assert answer.get("x-iop-queue-ms") == "0"
        assert (await scene.outcome(answer.get("x-request-id")))["outcome"] == "ok"


@pytest.mark.req("TUN-2", "API-7")
@async_test()
async def test_each_event_leaves_when_it_comes(stack: Stack) -> None:
    """The provider holds event N back until the client has event N-1."""
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        call = await scene.provider.call()
        assert call.header(b"accept-encoding") == b"identity"
        call.start_stream()
        opening = chat_event({"role": "assistant", "content": ""})
        call.event(opening)
        first = chat_delta("0")
        call.event(first)
        head = await client.head()
        assert head.get("content-type") == "text/event-stream; charset=utf-8"
        assert await client.read_through(first) == opening + first
        for i in range(1, 20):
            event = chat_delta(str(i))
            call.event(event)
            assert await client.piece() == event
        # Half an event is passed on as well: nothing waits for its end.
        event = chat_delta("cut")
        call.event(event[:30])
        assert await client.piece() == event[:30]
        call.event(event[30:])
        assert await client.piece() == event[30:]
        call.event(chat_event({}, "stop") + DONE)
        call.end_stream()
        assert await client.body() == chat_event({}, "stop") + DONE
        # The connection is good for the next request.
        client.send(post(CHAT, chat("m")))
        (await scene.provider.call()).respond(chat_answer("x"))
        assert (await client.answer()).body == chat_answer("x")


@pytest.mark.req("TUN-9")
@async_test()
async def test_private_headers_stay_on_their_side(stack: Stack) -> None:
    async with stack.scene() as scene:
        private = {
            "Authorization": "Bearer secret",
            "X-Api-Key": "secret",
            "Api-Key": "secret",
            "Cookie": "secret",
            "Proxy-Authorization": "secret",
            "Proxy-Anything": "secret",
            "Forwarded": "for=secret",
            "X-Forwarded-For": "secret",
            "X-Iop-Provider": "secret",
            "TE": "secret",
            "Upgrade": "secret",
            "Connection": "x-hop, keep-alive",
            "X-Hop": "secret",
            "Keep-Alive": "secret",
        }
        client = await scene.send(post(CHAT, chat("m"), {**private, "X-Public": "yes", "Anthropic-Beta": "b1"}))
        call = await scene.provider.call()
        assert b"secret" not in call.head
        assert call.header(b"x-public") == b"yes"
        assert call.header(b"anthropic-beta") == b"b1"
        assert call.header(b"host") is not None
        hidden = [
            (b"Set-Cookie", b"hidden"),
            (b"Server", b"hidden"),
            (b"Date", b"hidden"),
            (b"Alt-Svc", b"hidden"),
            (b"Strict-Transport-Security", b"hidden"),
            (b"Access-Control-Allow-Origin", b"hidden"),
            (b"WWW-Authenticate", b"hidden"),
            (b"X-Iop-Provider", b"hidden"),
            (b"Connection", b"x-own"),
            (b"X-Own", b"hidden"),
            (b"Keep-Alive", b"hidden"),
        ]
        own = [(b"X-Request-Id", b"theirs"), (b"X-RateLimit-Left", b"3"), (b"Content-Type", b"application/json")]
        call.respond(chat_answer("x"), headers=hidden + own)
        answer = await client.answer()
        assert not [field for field in answer.headers if "hidden" in field[1]]
        assert answer.get("x-iop-provider-request-id") == "theirs"
        assert answer.get("x-request-id") not in (None, "theirs")
        assert answer.get("x-ratelimit-left") == "3"
        assert answer.get("x-iop-provider") == "m"
        assert answer.get("date") is not None


@pytest.mark.req("TUN-2")
@pytest.mark.parametrize("coding", ["gzip", "br"])
@async_test()
async def test_D17_an_encoded_answer_passes_untouched(stack: Stack, coding: str) -> None:
    """Whatever is in it: br is not even decodable here."""
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m"), {"Accept-Encoding": "gzip, br;q=0.5"}))
        call = await scene.provider.call()
        assert call.header(b"accept-encoding") == b"gzip, br;q=0.5"
        body = gzip.compress(chat_answer("x" * 1000)) if coding == "gzip" else bytes(range(256)) * 20
        fields = [(b"Content-Type", b"application/json"), (b"Content-Encoding", coding.encode()), (b"Vary", b"*")]
        call.respond(body, headers=fields)
        answer = await client.answer()
        assert answer.body == body
        assert answer.get("content-encoding") == coding
        assert answer.get("vary") == "*"


@pytest.mark.req("TUN-2")
@async_test()
async def test_D17_an_encoded_event_stream_passes_untouched(stack: Stack) -> None:
    """A provider that encodes although it was asked not to: its first byte commits, and nothing is read into it."""
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        call = await scene.provider.call()
        body = gzip.compress(chat_stream("a", "b"))
        call.start_stream([*SSE_HEADERS, (b"Content-Encoding", b"gzip")])
        call.event(body[:7])
        head = await client.head()
        assert head.get("content-encoding") == "gzip"
        assert await client.piece() == body[:7]
        call.event(body[7:])
        call.end_stream()
        assert await client.body() == body[7:]


@pytest.mark.req("API-8c")
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@async_test()
async def test_D17_an_encoded_request_reaches_the_provider_plain(stack: Stack, coding: str) -> None:
    """Inflated, without its content-encoding."""
    plain = chat("m")
    async with stack.scene() as scene:
        body = gzip.compress(plain) if coding == "gzip" else zlib.compress(plain)
        client = await scene.send(post(CHAT, body, {"Content-Encoding": coding}))
        call = await scene.provider.call()
        assert call.header(b"content-encoding") is None
        assert call.body == plain.replace(b'"m"', b'"real-m"')
        call.respond(chat_answer("x"))
        assert (await client.answer()).status == 200


@pytest.mark.req("API-8c", "API-5")
@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        ("br", b"abc", 415),
        ("gzip, gzip", b"abc", 415),
        ("gzip", b"not gzip", 400),
        ("gzip", gzip.compress(chat("m"))[:-9], 400),
        ("gzip", gzip.compress(chat("m")) + b"x", 400),
        ("gzip", gzip.compress(b" " * 40_000_000), 413),
    ],
)
@async_test()
async def test_a_bad_encoding_is_refused(stack: Stack, coding: str, body: bytes, status: int) -> None:
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, body, {"Content-Encoding": coding}))
        assert (await client.answer()).status == status
        assert scene.provider.calls == []


async def chunked(scene: Scene, client: Client, body: bytes, cuts: int) -> Call:
    """Sends ``body`` in chunks of ``cuts`` bytes, each in a segment of its own as far as the system allows."""
    client.send(b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT.encode())
    for i in range(0, len(body), cuts):
        piece = body[i : i + cuts]
        client.send_more(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
        await asyncio.sleep(0)
    client.send_more(b"0\r\nTrailer: x\r\n\r\n")
    return await scene.provider.call()


@pytest.mark.req("API-1", "API-6")
@pytest.mark.parametrize("cuts", [1, 7, 1000])
@async_test()
async def test_a_chunked_request_arrives_whole(stack: Stack, cuts: int) -> None:
    async with stack.scene() as scene:
        client = await scene.client()
        body = chat("m", text="y" * 500)
        call = await chunked(scene, client, body, cuts)
        assert call.header(b"content-length") == b"%d" % len(call.body)
        assert call.header(b"transfer-encoding") is None
        assert call.body == body.replace(b'"m"', b'"real-m"')
        call.respond(chat_answer("x"))
        assert (await client.answer()).status == 200


@pytest.mark.req("API-1")
@async_test()
async def test_a_client_that_asks_first_is_told_to_continue(stack: Stack) -> None:
    async with stack.scene() as scene:
        client = await scene.client()
        body = chat("m")
        whole = post(CHAT, body, {"Expect": "100-continue"})
        client.send(whole[: -len(body)])
        assert (await client.head()).status == 100
        client.send_more(body)
        call = await scene.provider.call()
        assert call.header(b"expect") is None
        call.respond(chat_answer("x"))
        assert (await client.answer()).status == 200


@pytest.mark.req("API-1", "API-6")
@async_test()
async def test_an_http_1_0_client_is_served(stack: Stack) -> None:
    """Whole answers have a length; a stream ends with the connection, cleanly when it is complete."""
    body = chat("m")
    head = b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body))
    async with stack.scene() as scene:
        client = await scene.send(head + body)
        (await scene.provider.call()).respond(chat_answer("x"))
        answer = await client.answer()
        assert answer.body == chat_answer("x")
        assert answer.get("connection") == "close"
        assert await client.end() == "fin"

        body = chat("m", stream=True)
        head = b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body))
        client = await scene.send(head + body)
        (await scene.provider.call()).stream(*chat_stream("a").splitlines(keepends=True))
        answer = await client.answer()
        assert answer.get("transfer-encoding") is None
        assert answer.body == chat_stream("a")


@pytest.mark.req("API-1", "API-6")
@async_test()
async def test_an_http_1_0_client_may_keep_its_connection(stack: Stack) -> None:
    body = chat("m")
    head = b"POST %b HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body))
    async with stack.scene() as scene:
        client = await scene.client()
        for _ in range(2):
            client.send(head + body)
            (await scene.provider.call()).respond(chat_answer("x"))
            answer = await client.answer()
            assert answer.get("connection") == "keep-alive"
            assert answer.body == chat_answer("x")


@pytest.mark.req("API-1")
@async_test()
async def test_aliases_and_models_are_listed(stack: Stack) -> None:
    async with stack.scene() as scene:
        client = await scene.send(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        names = [row["id"] for row in (await client.answer()).json["data"]]
        assert names[:2] == ["m", "gpt-4o-mini"]
        client.send(post(CHAT, chat("gpt-4o-mini")))
        call = await scene.provider.call()
        assert call.json["model"] == "real-m"
        call.respond(chat_answer("x"))
        assert (await client.answer()).status == 200


@pytest.mark.req("API-2")
@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/completions", b'{"object":"text_completion"}'),
        ("/responses", b'{"object":"response"}'),
        ("/embeddings", b'{"object":"list"}'),
        ("/messages", b'{"type":"message"}'),
        ("/messages/count_tokens", b'{"input_tokens":3}'),
    ],
)
@async_test()
async def test_every_api_is_tunnelled(stack: Stack, path: str, answer: bytes) -> None:
    async with stack.scene() as scene:
        client = await scene.send(post("/v1" + path, b'{"model":"m","input":["a",{"b":[]}]}'))
        call = await scene.provider.call()
        assert call.target == b"/m/v1" + path.encode()
        assert call.body == b'{"model":"real-m","input":["a",{"b":[]}]}'
        call.respond(answer)
        assert (await client.answer()).body == answer


@pytest.mark.req("API-2", "API-8c", "WIRE-5")
@async_test()
async def test_a_large_body_with_its_model_last_arrives_whole(stack: Stack) -> None:
    """5 MB, far beyond the window: it follows its opening in chunks, under credit."""
    async with stack.scene() as scene:
        content = json.dumps("é\n" * 1_200_000)
        body = b'{"messages":[{"role":"user","content":%b}],"model":"m"}' % content.encode()
        client = await scene.send(post(CHAT, body))
        call = await scene.provider.call()
        assert call.body == body[:-4] + b'"real-m"}'
        call.respond(chat_answer("x"))
        assert (await client.answer()).status == 200


@pytest.mark.req("WIRE-5")
@async_test()
async def test_a_provider_that_reads_slowly_holds_back_its_own_client_alone(stack: Stack) -> None:
    """The node buffers a window of a body that its provider does not take, not the body; others pass meanwhile."""
    async with stack.scene() as scene:
        provider = scene.provider
        provider.hold_bodies = True
        body = chat("m", text="z" * 20_000_000)
        slow = await scene.send(post(CHAT, body))
        held = await provider.call_begun()
        provider.hold_bodies = False
        client = await scene.client()
        for _ in range(20):
            client.send(post(CHAT, chat("m")))
            (await provider.call()).respond(chat_answer("x"))
            assert (await client.answer()).status == 200
        held.read_body()
        assert await provider.call() is held
        assert len(held.body) == len(body) + len("real-")
        held.respond(chat_answer("slow"))
        assert (await slow.answer()).body == chat_answer("slow")


@pytest.mark.req("TUN-8")
@async_test()
async def test_kept_connections_are_used_again(stack: Stack) -> None:
    async with stack.scene() as scene:
        provider = scene.provider
        provider.answer = lambda call: call.respond(chat_answer("x"))
        client = await scene.client()
        for _ in range(20):
            client.send(post(CHAT, chat("m")))
            assert (await client.answer()).status == 200
        assert len(provider.connections) == 1


@pytest.mark.req("TUN-8")
@async_test()
async def test_no_client_library_limits_concurrency(stack: Stack) -> None:
    async with stack.scene() as scene:
        clients = [await scene.send(post(CHAT, chat("m"))) for _ in range(300)]
        calls = [await scene.provider.call() for _ in clients]
        assert len(scene.provider.open_connections) == 300
        for call in calls:
            call.respond(chat_answer("x"))
        for client in clients:
            assert (await client.answer()).status == 200
