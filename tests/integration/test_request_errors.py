"""What a client is told when a request cannot be served: status, shape, headers (API-5), and the clocks (API-10)."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from iop.wire import messages as m
from tests.support.aio import async_test
from tests.support.http import Answer, Broken, Client, chat, post
from tests.support.node import ScriptedNode
from tests.support.provider import chat_answer, chat_delta, chat_event
from tests.support.stack import Scene, Stack

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"


def told(answer: Answer) -> tuple[int, str]:
    """Status and code of an error of ours; its shape is checked on the way."""
    assert re.fullmatch("req_[0-9a-f]{24}", answer.get("x-request-id") or "")
    assert answer.get("content-type") == "application/json"
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return answer.status, error["code"]


# ---- the client's own mistakes --------------------------------------------------------------------------------------

BAD_BODIES: dict[str, tuple[bytes, str | None]] = {
    "empty": (b"", None),
    "not-json": (b"model=m", None),
    "array": (b'[{"model":"m"}]', None),
    "cut": (b'{"model":"m"', None),
    "trailing": (b'{"model":"m"}x', None),
    "no-model": (b'{"messages":[]}', "model"),
    "model-in-messages-only": (b'{"messages":[{"model":"m"}]}', "model"),
    "model-null": (b'{"model":null}', "model"),
    "model-number": (b'{"model":7}', "model"),
    "model-empty": (b'{"model":""}', "model"),
    "model-twice": (b'{"model":"m","model":"m"}', "model"),
    "model-twice-escaped": (b'{"model":"m","mod\\u0065l":"one"}', "model"),
    "model-long": (b'{"model":"%b"}' % (b"m" * 600), "model"),
    "stream-string": (b'{"model":"m","stream":"yes"}', "stream"),
    "deep": (b'{"model":"m","x":%b%b}' % (b"[" * 600, b"]" * 600), None),
    "bad-utf-8": (b'{"model":"m","x":"\xff"}', None),
    "nan": (b'{"model":"m","x":NaN}', None),
}


@pytest.mark.req("API-5", "API-8c")
@pytest.mark.parametrize("name", BAD_BODIES)
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@async_test()
async def test_a_bad_body_is_a_400_in_the_shape_of_its_api(stack: Stack, name: str, path: str) -> None:
    body, param = BAD_BODIES[name]
    async with stack.scene() as scene:
        client = await scene.send(post(path, body))
        answer = await client.answer()
        assert answer.status == 400
        if path == CHAT:
            assert told(answer) == (400, "invalid_request_error")
            assert answer.json["error"]["param"] == param
        else:
            assert answer.json["type"] == "error"
            assert answer.json["error"]["type"] == "invalid_request_error"
            assert answer.json["request_id"] == answer.get("x-request-id")
        assert scene.provider.calls == []
        # The connection is still good.
        client.send(post(CHAT, chat("m")))
        (await scene.provider.call()).respond(chat_answer("x"))
        assert (await client.answer()).status == 200


@pytest.mark.req("API-5")
@async_test()
async def test_an_unknown_model_is_a_404_in_both_shapes(stack: Stack) -> None:
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("nobody")))
        answer = await client.answer()
        assert told(answer) == (404, "model_not_found")
        assert "nobody" in answer.json["error"]["message"]
        client.send(post(MESSAGES, chat("nobody")))
        answer = await client.answer()
        assert answer.status == 404
        assert answer.json["error"]["type"] == "not_found_error"
        assert answer.json["request_id"] == answer.get("x-request-id")


@pytest.mark.req("API-5", "API-1")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("GET /v1/no", (404, "not_found")),
        ("GET /admin/status", (404, "not_found")),
        ("GET /v1/chat/completions", (405, "method_not_allowed")),
        ("POST /v1/models", (405, "method_not_allowed")),
    ],
)
@async_test()
async def test_an_unknown_path_is_a_404_and_a_wrong_method_a_405(
    stack: Stack, line: str, expected: tuple[int, str]
) -> None:
    async with stack.scene() as scene:
        client = await scene.send(f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        answer = await client.answer()
        assert told(answer) == expected


@pytest.mark.req("API-5")
@async_test()
async def test_a_clients_own_request_id_is_only_logged(stack: Stack) -> None:
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m"), {"X-Request-Id": "mine"}))
        call = await scene.provider.call()
        call.respond(chat_answer("x"))
        answer = await client.answer()
        assert answer.get("x-request-id") != "mine"
        assert (await scene.outcome(answer.get("x-request-id")))["client_request_id"] == "mine"


NO_ENDPOINT = [
    (404, b'{"detail":"Not Found"}'),
    (405, b'{"detail":"Method Not Allowed"}'),
    (404, b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}'),
    (404, b"404 page not found"),
    (405, b""),
    (404, b"{}"),
    (404, b"<html>"),
]
OWN_WORDS = [
    (404, b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError"}}'),
    (
        404,
        b'{"object":"error","message":"The model `x` does not exist.","type":"NotFoundError","param":null,"code":404}',
    ),
    (404, b'{"detail":"LoRA adapter x is not loaded"}'),
    (404, b'{"detail":[{"msg":"no such adapter"}]}'),
    (405, b'{"error":"pooling is off for this model"}'),
    (404, b'{"code":17}'),
]


@pytest.mark.req("API-6b", "API-5")
@pytest.mark.parametrize(("status", "body"), NO_ENDPOINT)
@async_test()
async def test_a_provider_without_the_endpoint_is_said_to_have_none(stack: Stack, status: int, body: bytes) -> None:
    async with stack.scene() as scene:
        for stream in (False, True):
            client = await scene.send(post(MESSAGES, chat("m", stream=stream)))
            (await scene.provider.call()).respond(body, status=status)
            answer = await client.answer()
            assert (answer.status, answer.json["error"]["type"]) == (404, "not_found_error")
            assert answer.json["error"]["message"].endswith("this server has no /v1/messages")


@pytest.mark.req("API-6b")
@pytest.mark.parametrize(("status", "own"), OWN_WORDS)
@async_test()
async def test_a_provider_that_says_why_is_passed_on(stack: Stack, status: int, own: bytes) -> None:
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m")))
        (await scene.provider.call()).respond(own, status=status)
        answer = await client.answer()
        assert (answer.status, answer.body) == (status, own)


# ---- no provider ----------------------------------------------------------------------------------------------------


@pytest.mark.req("API-5", "SEC-4")
@pytest.mark.parametrize(("path", "name"), [(CHAT, "down"), (MESSAGES, "down-too")])
@async_test()
async def test_a_provider_that_is_down_is_a_502_that_names_its_id_and_not_its_url(
    stack: Stack, path: str, name: str
) -> None:
    """The first who is sent there; the others are not (HEALTH-6)."""
    async with stack.scene() as scene:
        stack.silent[name].close()
        client = await scene.send(post(path, chat(name)))
        answer = await client.answer()
        assert answer.status == 502
        message = answer.json["error"]["message"]
        assert name in message
        assert "127.0.0.1" not in message
        assert "http" not in message
        if path == CHAT:
            assert told(answer) == (502, "provider_unreachable")
        assert answer.get("x-iop-provider") == name


@pytest.mark.req("API-5", "POOL-4")
@async_test()
async def test_no_candidate_at_all_is_a_503_at_once(stack: Stack) -> None:
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("absent")))
        answer = await client.answer()
        assert told(answer) == (503, "unavailable")
        assert int(answer.get("retry-after") or 0) > 0
        client.send(post(MESSAGES, chat("absent")))
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["type"]) == (503, "overloaded_error")


@pytest.mark.req("POOL-4", "REG-5")
@async_test()
async def test_waiters_that_lose_their_last_candidate_do_not_wait_on(stack: Stack) -> None:
    """And a request that was under way ends as node_disconnected; one whose stream had begun, broken."""
    async with stack.scene() as scene:
        async with ScriptedNode(stack.nodes, token="t1") as node:
            clients = [await scene.send(post(CHAT, chat("scripted")))]
            await node.request()
            streaming = await scene.send(post(CHAT, chat("scripted", stream=True)))
            request = await node.request()
            clients.append(await scene.send(post(CHAT, chat("scripted"))))
            await scene.in_use(2, 1)
            node.start_stream(request)
            node.body(request, chat_delta("a"))
            assert (await streaming.head()).status == 200
            assert await streaming.read_through(chat_delta("a")) == chat_delta("a")
        assert told(await clients[0].answer()) == (502, "node_disconnected")
        assert told(await clients[1].answer()) == (503, "unavailable")
        with pytest.raises(Broken) as broken:
            await streaming.body()
        assert json.loads(broken.value.body.removeprefix(b"data: "))["error"]["code"] == "node_disconnected"


@pytest.mark.req("EXEC-3", "POOL-12")
@async_test()
async def test_capacity_exceeded_keeps_its_place(stack: Stack) -> None:
    """The node refuses what the edge believed to fit: the request goes back before those that came after it, the slot
    counts as lingering until the node says that it is free, and nobody hears of it."""
    async with stack.scene() as scene, ScriptedNode(stack.nodes, token="t1") as node:
        texts = ["first", "second", "third"]
        clients: list[Client] = []
        requests: list[m.ProviderTunnelRequest] = []
        for text in texts:
            clients.append(await scene.send(post(CHAT, chat("scripted", text=text))))
            if text != "third":
                requests.append(await node.request())
        await scene.in_use(2, 1)
        node.refuse(requests[1], m.ErrorCode.CAPACITY_EXCEEDED, retryable=True, slots_held=2)
        await scene.in_use(1, 2)
        node.answer(requests[0], chat_answer("first"))
        assert (await clients[0].answer()).body == chat_answer("first")
        again = await node.request()
        assert b'"second"' in again.body
        await scene.in_use(1, 1)  # one unit is lingering: the third still waits
        node.call_closed("scripted", requests[1])
        third = await node.request()
        assert b'"third"' in third.body
        node.answer(again, chat_answer("second"))
        node.answer(third, chat_answer("third"))
        answer = await clients[1].answer()
        assert (answer.body, answer.get("x-iop-attempts")) == (chat_answer("second"), "2")
        assert (await clients[2].answer()).body == chat_answer("third")


@pytest.mark.req("CONF-2", "SUP-5")
@pytest.mark.parametrize("code", [m.ErrorCode.UNKNOWN_PROVIDER, m.ErrorCode.NODE_DRAINING])
@async_test()
async def test_a_request_that_comes_to_its_node_while_that_changes_goes_back_to_its_place(
    stack: Stack, code: m.ErrorCode
) -> None:
    """It crossed a change of the node's configuration, or the start of its drain: nothing was called, and nobody hears
    of it. A node that goes on refusing is told after three of them."""
    async with stack.scene() as scene, ScriptedNode(stack.nodes, token="t1") as node:
        client = await scene.send(post(CHAT, chat("scripted")))
        for _ in range(3):
            node.refuse(await node.request(), code)
        node.answer(await node.request(), chat_answer("hi"))
        answer = await client.answer()
        assert (answer.body, answer.get("x-iop-attempts")) == (chat_answer("hi"), "4")
        client.send(post(CHAT, chat("scripted")))
        for _ in range(4):
            node.refuse(await node.request(), code)
        answer = await client.answer()
        assert answer.status in (502, 503)
        assert answer.json["error"]["code"] == code.name.lower()


# ---- the queue ------------------------------------------------------------------------------------------------------


async def busy(scene: Scene) -> Client:
    """A client whose request holds the only slot of ``one``."""
    client = await scene.send(post(CHAT, chat("one")))
    await scene.in_use(1)
    return client


@pytest.mark.req("POOL-6", "API-5")
@async_test()
async def test_a_full_queue_is_a_429_at_once(hasty: Stack) -> None:
    async with hasty.scene() as scene:
        await busy(scene)
        waiting = [await scene.send(post(CHAT, chat("one"))) for _ in range(2)]
        await scene.in_use(1, 2)
        client = await scene.send(post(CHAT, chat("one")))
        answer = await client.answer()
        assert told(answer) == (429, "queue_full")
        assert int(answer.get("retry-after") or 0) > 0
        client.send(post(MESSAGES, chat("one")))
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["type"]) == (429, "rate_limit_error")
        # A waiter that leaves makes room at once.
        waiting[0].leave()
        await scene.in_use(1, 1)


@pytest.mark.req("POOL-6", "API-5", "API-10")
@async_test()
async def test_a_waiter_is_served_in_turn_or_told_when_its_time_is_up(hasty: Stack) -> None:
    async with hasty.scene() as scene:
        await busy(scene)
        held = await scene.provider.call()
        first = await scene.send(post(CHAT, chat("one", text="waiter")))
        await scene.in_use(1, 1)
        held.respond(chat_answer("x"))
        call = await scene.provider.call()
        second = await scene.send(post(CHAT, chat("one")))
        answer = await second.answer()
        assert told(answer) == (503, "queue_timeout")
        assert int(answer.get("x-iop-queue-ms") or 0) >= 1000
        assert answer.get("x-iop-provider") is None
        call.respond(chat_answer("y"))
        answer = await first.answer()
        assert answer.body == chat_answer("y")
        assert (await scene.outcome(answer.get("x-request-id")))["outcome"] == "ok"


# ---- clocks ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("API-10", "API-5")
@async_test()
async def test_the_whole_time_of_a_silent_request_is_bounded(hasty: Stack) -> None:
    async with hasty.scene() as scene:
        client = await scene.send(post(CHAT, chat("late", stream=True)))
        call = await scene.provider.call()
        answer = await client.answer()
        assert told(answer) == (504, "deadline_exceeded")
        await call.gone.wait()
        client.send(post(MESSAGES, chat("late")))
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["type"]) == (504, "timeout_error")


@pytest.mark.req("API-10", "API-8b")
@async_test()
async def test_the_whole_time_ends_a_stream_that_keeps_going(hasty: Stack) -> None:
    async with hasty.scene() as scene:
        client = await scene.send(post(CHAT, chat("late", stream=True)))
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("a"))
        await client.head()
        while (piece := await client.piece()) == chat_delta("a"):
            if not call.gone.is_set():  # the call may have ended before its last event is read here
                call.event(chat_delta("a"))
        assert json.loads(piece.removeprefix(b"data: "))["error"]["code"] == "deadline_exceeded"
        with pytest.raises(Broken):
            await client.piece()
        await call.gone.wait()


@pytest.mark.req("API-10", "POOL-6")
@async_test()
async def test_the_whole_time_includes_the_queue(hasty: Stack) -> None:
    async with hasty.scene() as scene:
        await busy(scene)
        client = await scene.send(post(CHAT, chat("late-one")))
        assert told(await client.answer()) == (504, "deadline_exceeded")
        await scene.in_use(1)


@pytest.mark.req("API-10", "API-5")
@async_test()
async def test_a_provider_that_does_not_accept_connections_has_a_clock_of_its_own(hasty: Stack) -> None:
    async with hasty.scene() as scene:
        client = await scene.send(post(CHAT, chat("deaf")))
        answer = await client.answer()
        assert told(answer) == (502, "provider_unreachable")
        assert "connect_timeout_ms" in answer.json["error"]["message"]


@pytest.mark.req("API-10", "API-5")
@async_test()
async def test_a_provider_that_says_nothing_stalls(hasty: Stack) -> None:
    async with hasty.scene() as scene:
        client = await scene.send(post(CHAT, chat("mute", stream=True)))
        call = await scene.provider.call()
        assert told(await client.answer()) == (504, "response_stalled")
        await call.gone.wait()


@pytest.mark.req("API-10", "API-8b", "TUN-4")
@async_test()
async def test_a_stream_that_goes_silent_stalls(hasty: Stack) -> None:
    """Comments and pings are no progress."""
    async with hasty.scene() as scene:
        client = await scene.send(post(CHAT, chat("still", stream=True)))
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("a"))
        await client.head()
        assert await client.read_through(chat_delta("a")) == chat_delta("a")
        call.event(b": ping\n\n")
        with pytest.raises(Broken) as broken:
            await client.body()
        data = broken.value.body.removeprefix(b": ping\n\n").removeprefix(b"data: ")
        assert json.loads(data)["error"]["code"] == "response_stalled"
        await call.gone.wait()


@pytest.mark.req("API-10")
@async_test()
async def test_a_stream_that_goes_on_does_not_stall(hasty: Stack) -> None:
    """Longer in all than the stall clock, never silent for that long."""
    async with hasty.scene() as scene:
        client = await scene.send(post(CHAT, chat("still", stream=True)))
        call = await scene.provider.call()
        call.start_stream()
        loop = asyncio.get_running_loop()
        end = loop.time() + 1.0
        call.event(chat_delta("a"))
        await client.head()
        while loop.time() < end:
            assert await client.piece() == chat_delta("a")
            call.event(chat_delta("a"))
        call.event(chat_event({}, "stop"))
        call.end_stream()
        await client.body()


@pytest.mark.req("API-10", "API-5")
@async_test()
async def test_a_client_that_accepts_nothing_is_given_up(hasty: Stack) -> None:
    async with hasty.scene() as scene:
        client = await scene.client(receive_bytes=4096)
        client.send(post(CHAT, chat("m", stream=True)))
        call = await scene.provider.call()
        call.start_stream()
        while not call.connection.paused.is_set():
            call.event(chat_delta("x" * 10_000))
            await asyncio.sleep(0)
        head = await client.head()
        await call.gone.wait()
        await scene.in_use(0)
        line = await scene.outcome(head.get("x-request-id"))
        assert (line["outcome"], line["status"]) == ("client_idle", 200)


@pytest.mark.req("API-10", "WIRE-5")
@async_test()
async def test_a_paused_stream_does_not_stall(stack: Stack) -> None:
    """A provider that waits for a slow client is not to blame: its stall clock stands still."""
    async with stack.scene() as scene:
        client = await scene.client(receive_bytes=4096)
        client.send(post(CHAT, chat("still", stream=True)))
        call = await scene.provider.call()
        call.start_stream()
        sent = b""
        while not call.connection.paused.is_set():
            call.event(chat_delta("x" * 10_000))
            sent += chat_delta("x" * 10_000)
            await asyncio.sleep(0)
        # Meanwhile the same provider's clock runs out for a request that it does not answer, from its start to its end.
        silent = await scene.send(post(CHAT, chat("still", stream=True)))
        await scene.provider.call()
        assert (await silent.answer()).json["error"]["code"] == "response_stalled"
        call.event(chat_event({}, "stop"))
        call.end_stream()
        await client.head()
        assert await client.body() == sent + chat_event({}, "stop")
