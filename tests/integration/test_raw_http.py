"""What is read as a request, and what is not, on real sockets and byte by byte: D1, D3, D4, D6, D8 to D11, D13, D15.

The table is in tests/support/rawcases.py. Each of its cases is followed by a second request, which is served if the
connection may be kept, and must never reach a provider otherwise: that is how requests are smuggled.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import pytest

from iop.errors import IopError
from iop.net.http.exchange import Exchange, ServerLimits
from iop.net.http.server import HttpConnection, HttpServer
from iop.net.loop import Runtime
from tests.support.aio import async_test
from tests.support.http import Answer, Client, chat, post
from tests.support.provider import Call, chat_answer
from tests.support.rawcases import ANSWERS, CASES, MAX_BODY_BYTES, Case
from tests.support.stack import Scene, Stack, rss_bytes

CHAT = "/v1/chat/completions"
SECOND = post(CHAT, chat("m", text="smuggled"))
pytestmark = pytest.mark.req("API-6")

# ---- the table, on the programs -------------------------------------------------------------------------------------


async def first_answer(client: Client) -> Answer:
    while (head := await client.head()).status < 200:
        pass
    return Answer(head.status, head.headers, await client.body())


async def tried(scene: Scene, case: Case, *, drip: bool) -> None:
    provider = scene.provider
    provider.calls.clear()
    client = await scene.client()
    data = case.wire + SECOND
    client.send(data[:1])
    for at in range(1, len(data), 1 if drip else len(data)):
        client.send_more(data[at : at + 1] if drip else data[at:])
        await asyncio.sleep(0)
    answer = await first_answer(client)
    assert answer.status == case.status
    assert answer.get("connection") == (None if case.keep else "close")
    if answer.status >= 400:
        assert re.fullmatch("req_[0-9a-f]{24}", answer.get("x-request-id") or "")
        assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    if case.keep:
        assert (await client.answer()).body == chat_answer("smuggled")
    else:
        assert await client.end() == "fin"
    texts = [call.json["messages"][0]["content"] for call in provider.calls]
    assert texts == ["hi"] * case.served + ["smuggled"] * case.keep
    for call in provider.calls:
        assert call.all_headers(b"content-length") == [str(len(call.body)).encode()]
        assert not {b"transfer-encoding", b"transfer_encoding", b"content_length"} & {
            n.lower() for n, _ in call.headers
        }
    await client.close()


@pytest.mark.parametrize("name", CASES)
@async_test()
async def test_each_case_whole_and_byte_by_byte(stack: Stack, name: str) -> None:
    case = CASES[name]
    async with stack.scene() as scene:
        scene.provider.answer = lambda call: call.respond(chat_answer(call.json["messages"][0]["content"]))
        await tried(scene, case, drip=False)
        if case.drip:
            await tried(scene, case, drip=True)


# ---- the table, on the server alone: every read has exactly one byte ------------------------------------------------


class Pipe:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.ended = False

    def write(self, data: bytes) -> None:
        self.out += data

    def writelines(self, parts: list[bytes]) -> None:
        self.out += b"".join(parts)

    def write_eof(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        return True

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Handler:
    """An App that answers everything and keeps what it was asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, bytes]] = []

    def head_received(self, ex: Exchange) -> None:
        ex.context = b""
        if ex.head.expect_continue and ex.head.framing:
            early = 404 if ex.head.path == b"/nowhere" else 405 if ex.head.method == b"DELETE" else 0
            if early:
                ex.respond(early, b"", b"")

    def body_piece(self, ex: Exchange, piece: bytes) -> None:
        ex.context += piece

    def request_complete(self, ex: Exchange) -> None:
        self.seen.append((ex.head.target, ex.context))
        ex.respond(200, b"", b"")

    def client_gone(self, ex: Exchange, reason: str) -> None: ...
    def rejected(self, code: str) -> None: ...
    @staticmethod
    def fail(ex: Exchange, error: IopError) -> None:
        ex.respond(error.status, b"", b"")


async def fed(data: bytes, step: int) -> tuple[list[tuple[bytes, bytes]], bytes, bool]:
    """What the handler saw, what was written (without what differs each time), whether that was the end."""
    runtime = Runtime(asyncio.get_running_loop())
    runtime.start()
    app = Handler()
    server = HttpServer(runtime, app, app.fail, ServerLimits())
    connection, pipe = HttpConnection(server), Pipe()
    connection.connection_made(cast("Any", pipe))
    for at in range(0, len(data), step):
        connection.data_received(data[at : at + step])
    for _ in range(5):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    assert server.stats.buffered_body_bytes == 0
    runtime.close()
    return app.seen, re.sub(rb"req_[0-9a-f]{24}|date: [^\r]*", b"", bytes(pipe.out)), pipe.ended


@pytest.mark.parametrize("name", CASES)
@async_test()
async def test_a_cut_changes_nothing_and_a_refused_head_is_no_request(name: str) -> None:
    case = CASES[name]
    data = case.wire + SECOND
    whole = await fed(data, len(data))
    seen, out, ended = whole
    for step in (1, 7) if case.drip else (4096,):
        assert await fed(data, step) == whole
    assert ended is not case.keep
    if case.keep:
        assert len(seen) == 2
        assert seen[1] == (b"/v1/chat/completions", chat("m", text="smuggled"))
    elif not case.served:
        assert seen == []
        assert out.startswith(b"HTTP/1.1 %d " % case.status)


# ---- providers ------------------------------------------------------------------------------------------------------


@pytest.mark.req("TUN-9", "TUN-2")
@pytest.mark.parametrize("name", ANSWERS)
@async_test()
async def test_an_odd_answer_is_passed_on_as_one_answer_or_is_a_502(stack: Stack, name: str) -> None:
    """Nothing of it is forged into another field or another answer, and the next request has its own."""
    case = ANSWERS[name]
    async with stack.scene() as scene:
        for drip in (False, True):
            client = await scene.send(post(CHAT, chat("m")))
            call = await scene.provider.call()
            step = 1 if drip and len(case.wire) < 2000 else len(case.wire)
            for at in range(0, len(case.wire), step):
                if call.connection.closed.is_set() or call.connection.transport.is_closing():  # it has seen enough
                    break
                call.send(case.wire[at : at + step])
                await asyncio.sleep(0)
            if name == "D15-until-eof":
                call.close()
            answer = await client.answer()
            assert (answer.status, answer.all("set-cookie"), answer.get("link")) == (case.status, [], None)
            assert [answer.get(name) for name in ("location", "content-location", "refresh")] == [None] * 3
            assert answer.get("x-iop-provider") == "m"
            if case.status == 502:
                assert answer.json["error"]["code"] == case.code
                await call.gone.wait()
            else:
                assert answer.body == case.body
            client.send(post(CHAT, chat("m", text="next")))
            following = await scene.provider.call()
            assert following.json["messages"][0]["content"] == "next"
            following.respond(chat_answer("next"))
            assert (await client.answer()).body == chat_answer("next")


# ---- what no table can say ------------------------------------------------------------------------------------------


@async_test()
async def test_D9_pipelined_requests_are_answered_in_order(stack: Stack) -> None:
    async with stack.scene() as scene:
        provider = scene.provider
        provider.answer = lambda call: call.respond(chat_answer(call.json["messages"][0]["content"]))
        client = await scene.send(b"".join(post(CHAT, chat("m", text=str(i))) for i in range(1000)))
        for i in range(1000):
            assert (await client.answer()).body == chat_answer(str(i))


@async_test()
async def test_D9_nobody_s_ten_thousand_requests_hold_up_another_s_one(stack: Stack) -> None:
    """They wait behind the one that is answered, most of them in the kernel."""
    async with stack.scene() as scene:
        crowd = await scene.send(post(CHAT, chat("m", text="first")) * 10_000)
        first = await scene.provider.call()
        client = await scene.send(post(CHAT, chat("m", text="other")))
        other = await scene.provider.call()
        assert other.json["messages"][0]["content"] == "other"
        other.respond(chat_answer("x"))
        assert (await client.answer()).status == 200
        assert len(scene.provider.calls) == 2
        crowd.leave(reset=True)
        await first.gone.wait()


@pytest.mark.req("API-6")
@async_test()
async def test_D9_who_does_not_read_the_answers_gets_no_more_of_them_and_holds_up_nobody(stack: Stack) -> None:
    """Requests that the edge answers by itself, at once."""
    get = b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    async with stack.scene() as scene:
        held = rss_bytes(stack.edge)
        crowd = await scene.client(receive_bytes=4096)
        crowd.send(get % b"/openapi.json" * 20_000)
        for _ in range(30):
            client = await scene.send(get % b"/healthz")
            assert (await client.answer()).status == 200
            await client.close()
        assert rss_bytes(stack.edge) - held < 16 << 20
        crowd.leave(reset=True)
        whole = await scene.send(get % b"/healthz" * 3000)
        for _ in range(3000):
            assert (await whole.answer()).status == 200


@async_test()
async def test_D10_a_body_that_is_asked_for_and_does_not_come_dispatches_nothing(stack: Stack) -> None:
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m"), {"Expect": "100-continue"})[: -len(chat("m"))])
        assert (await client.head()).status == 100
        client.send_more(chat("m")[:-1])
        client.finish_sending()
        assert await client.end() == "fin"
        assert scene.provider.calls == []


@async_test()
async def test_D13_a_body_of_exactly_the_limit_passes(stack: Stack) -> None:
    async with stack.scene() as scene:
        body = chat("m")[:-1] + b',"x":"'
        body += b"x" * (MAX_BODY_BYTES - len(body) - 2) + b'"}'
        client = await scene.send(post(CHAT, body))
        call = await scene.provider.call()
        assert len(call.body) == MAX_BODY_BYTES + len("real-")
        call.respond(chat_answer("x"))
        assert (await client.answer()).status == 200
        client.send(
            b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT.encode()
            + b"%x\r\n%b\r\n1\r\n \r\n0\r\n\r\n" % (len(body), body)
        )
        assert (await client.answer()).status == 413
        assert len(scene.provider.calls) == 1


def still(call: Call) -> None:
    call.respond(chat_answer("x"))


@pytest.mark.req("API-10")
@async_test()
async def test_D8_500_slow_sockets_end_at_their_clocks_and_others_are_served_meanwhile(hasty: Stack) -> None:
    """Slow heads, slow bodies, idle ones, half-closed ones. The clocks count from the first byte, whatever drips."""
    long = post(CHAT, chat("m", text="x" * 10_000))
    async with hasty.scene() as scene:
        scene.provider.answer = still
        slow = [await scene.send(long[: 20 if i % 2 else 500]) for i in range(400)]
        half = [await scene.send(long[:20]) for _ in range(50)]
        idle = [await scene.client() for _ in range(50)]
        for client in half:
            client.finish_sending()

        over = False

        async def drip() -> None:
            while not over:
                for client in slow[:40]:
                    client.send_more(b"x")
                await scene.status()  # its pace: an answer of the edge lies between two bytes

        dripping = asyncio.ensure_future(drip())
        for _ in range(20):
            client = await scene.send(post(CHAT, chat("m")))
            assert (await client.answer()).status == 200
            await client.close()
        for client in slow:
            answer = await client.answer()
            assert (answer.status, answer.json["error"]["code"]) == (408, "timeout")
            assert await client.end() == "fin"
        over = True
        await dripping
        for client in half:
            assert await client.end() == "fin"
        assert len(scene.provider.calls) == 20
        for client in idle:
            client.send(post(CHAT, chat("m")))
            assert (await client.answer()).status == 200
