"""The HTTP server on real sockets: framing, pipelining, early answers, clocks (API-6)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from iop.errors import IopError
from iop.net.http.exchange import Exchange, ServerLimits
from iop.net.http.server import DISCARD_S, HttpServer
from iop.net.loop import Runtime
from tests.support.aio import async_test, until
from tests.support.http import Broken, Client


class Recorder:
    """An App that answers each request with what it got, unless told to wait or to refuse the head."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, bytes]] = []
        self.gone: list[str] = []
        self.rejections: list[str] = []
        self.waiting: list[Exchange] = []
        self.hold = False
        self.refuse: IopError | None = None

    def head_received(self, ex: Exchange) -> None:
        if self.refuse is not None:
            self.fail(ex, self.refuse)

    def body_piece(self, ex: Exchange, piece: bytes) -> None:
        ex.context = (ex.context or b"") + piece

    def request_complete(self, ex: Exchange) -> None:
        self.seen.append((ex.head.path, ex.context or b""))
        if self.hold:
            self.waiting.append(ex)
        else:
            self.answer(ex)

    def answer(self, ex: Exchange) -> None:
        ex.respond(200, b"x-path: %b\r\n" % ex.head.path, ex.context or b"")

    def client_gone(self, ex: Exchange, reason: str) -> None:
        self.gone.append(reason)

    def rejected(self, code: str) -> None:
        self.rejections.append(code)

    @staticmethod
    def fail(ex: Exchange, error: IopError) -> None:
        ex.respond(error.status, b"", json.dumps({"code": error.code}).encode())


@asynccontextmanager
async def serving(app: Recorder, **limits: float) -> AsyncIterator[tuple[HttpServer, tuple[str, int]]]:
    runtime = Runtime(asyncio.get_running_loop())
    runtime.start()
    server = HttpServer(runtime, app, app.fail, ServerLimits(**limits))  # type: ignore[arg-type]
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, ("127.0.0.1", port)
    finally:
        server.close()
        await until(lambda: not server.connections)
        await server.wait_closed()
        runtime.close()
    assert server.stats.buffered_body_bytes == 0


GET = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.req("API-6")
@async_test()
async def test_any_cut_of_two_requests_gives_the_same_two_exchanges() -> None:
    app = Recorder()
    wire = (
        b"POST /one HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
        b"POST /two HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nwxyz"
    )
    async with serving(app) as (_, address):
        for step in (1, 2, 5, 17, len(wire)):
            app.seen.clear()
            client = await Client.connect(address)
            for at in range(0, len(wire), step):
                client.send_more(wire[at : at + step])
                await asyncio.sleep(0)
            assert [(await client.answer()).body, (await client.answer()).body] == [b"abcde", b"wxyz"]
            assert app.seen == [(b"/one", b"abcde"), (b"/two", b"wxyz")]
            await client.close()


@pytest.mark.req("API-6")
@async_test()
async def test_d9_ten_thousand_pipelined_requests_are_bounded_and_answered_in_order() -> None:
    app = Recorder()
    app.hold = True
    async with serving(app) as (server, address):
        client = await Client.connect(address)
        client.send(b"".join(GET % i for i in range(10_000)))
        await until(lambda: bool(app.waiting))
        (connection,) = server.connections
        await until(lambda: not connection._reading)
        assert len(app.seen) == 1
        assert connection._waiting_bytes < 65536 + 262144  # the bound, and the one read that crossed it
        app.hold = False
        app.answer(app.waiting.pop())
        for i in range(10_000):
            assert (await client.answer()).get("x-path") == f"/{i}"
        await client.close()


@pytest.mark.req("API-6")
@async_test()
async def test_an_early_answer_is_read_although_the_body_is_still_coming() -> None:
    app = Recorder()
    app.refuse = IopError()
    async with serving(app) as (_, address):
        client = await Client.connect(address)
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n")
        assert (await client.answer()).status == 500
        app.refuse = None
        client.send_more(b"x" * 500_000 + GET % 7)
        assert (await client.answer()).get("x-path") == "/7"
        assert app.seen == [(b"/7", b"")]
        await client.close()


@pytest.mark.req("API-6")
@async_test()
async def test_a_head_that_is_too_large_is_a_431_of_its_own_code() -> None:
    async with serving(Recorder(), max_header_bytes=1024) as (_, address):
        client = await Client.connect(address)
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 2000 + b"\r\n\r\n")
        answer = await client.answer()
        told = answer.json["error"]
        assert (answer.status, told["type"], told["code"]) == (431, "invalid_request_error", "head_too_large")
        await client.close()


@pytest.mark.req("API-6")
@pytest.mark.parametrize(
    ("fields", "body", "status"),
    [
        ("Transfer-Encoding: chunked", b"zz\r\n", 400),
        ("Transfer-Encoding: chunked", b"3e9\r\n" + b"x" * 1001, 413),
        ("Content-Length: 1001", b"x", 413),
        ("Content-Length: 1000\r\nConnection: close", b"x", 500),
    ],
)
@async_test()
async def test_an_early_answer_that_is_the_last_one_is_followed_by_fin_at_once(
    fields: str, body: bytes, status: int
) -> None:
    app = Recorder()
    app.refuse = IopError() if status == 500 else None
    async with serving(app, max_body_bytes=1000) as (_, address):
        client = await Client.connect(address)
        client.send(f"POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n".encode() + body)
        answer = await client.answer()
        assert (answer.status, answer.get("connection")) == (status, "close")
        async with asyncio.timeout(DISCARD_S / 2):
            assert await client.end() == "fin"
        client.send_more(b"x" * 100_000)  # read and dropped: nothing of it starts a request
        assert app.seen == []
        await client.close()


@pytest.mark.req("API-6")
@async_test()
async def test_d10_an_end_in_the_middle_of_a_body_dispatches_nothing() -> None:
    app = Recorder()
    async with serving(app) as (server, address):
        client = await Client.connect(address)
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf")
        await until(lambda: bool(server.connections) and server.stats.buffered_body_bytes == 4)
        client.leave()
        await until(lambda: app.gone == ["client_gone"])
        assert app.seen == []


@pytest.mark.req("API-6")
@async_test()
async def test_all_clients_together_hold_no_more_than_the_common_bound() -> None:
    app = Recorder()
    async with serving(app, max_buffered_body_bytes=1000) as (server, address):
        first = await Client.connect(address)
        first.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 901\r\n\r\n" + b"x" * 900)
        await until(lambda: server.stats.buffered_body_bytes == 900)
        second = await Client.connect(address)
        second.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n" + b"x" * 101)
        assert (await second.answer()).status == 503
        first.send_more(b"x")
        assert (await first.answer()).status == 200
        await first.close()
        await second.close()


@pytest.mark.req("API-6")
@async_test()
async def test_d8_slow_heads_and_bodies_end_at_their_clock_counted_from_the_first_byte() -> None:
    app = Recorder()
    async with serving(app, header_timeout_s=0.2, body_timeout_s=0.2, idle_timeout_s=0.2) as (_, address):
        slow_head = await Client.connect(address)
        slow_body = await Client.connect(address)
        idle = await Client.connect(address)
        slow_body.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n")

        loop = asyncio.get_running_loop()
        for at, byte in enumerate(b"GET / HTTP/1.1\r\nHost: aaaaaaaa"):
            loop.call_later(0.01 * at, slow_head.send_more, bytes([byte]))
        for client in (slow_head, slow_body):
            answer = await client.answer()
            assert answer.status == 408
            assert (answer.get("x-request-id") or "").startswith("req_")
            told = answer.json["error"]
            assert (told["type"], told["param"], told["code"]) == ("invalid_request_error", None, "timeout")
        assert await idle.end() == "fin"
        assert app.gone == ["body_timeout"]
        assert app.rejections == ["timeout", "timeout"]
        for client in (slow_head, slow_body, idle):
            await client.close()


@pytest.mark.req("API-7c", "API-6")
@async_test()
async def test_a_fin_is_noticed_while_reading_is_paused() -> None:
    app = Recorder()
    app.hold = True
    async with serving(app) as (server, address):
        client = await Client.connect(address)
        client.send(GET % 0 + b"x" * 400_000)
        await until(lambda: bool(app.waiting))
        (connection,) = server.connections
        await until(lambda: not connection._reading)
        client.leave(reset=True)
        await until(lambda: app.gone == ["client_gone"])


@pytest.mark.req("API-6", "API-7c", "API-10")
@async_test()
async def test_a_client_that_stops_and_goes_on_for_ever_costs_one_clock_for_each_direction() -> None:
    app = Recorder()
    app.hold = True
    async with serving(app) as (server, address):
        client = await Client.connect(address)
        client.send(GET % 0)
        await until(lambda: bool(app.waiting))
        (connection,) = server.connections

        def clocks() -> int:
            return sum(len(slot) for slot in server.runtime.wheel._slots)

        before = clocks()
        for number in range(20):
            client.send(
                b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\nx: %b\r\n\r\n" % (number, b"x" * 30_000) for _ in "123")
            )
            await until(lambda: not connection._reading, what="reading has stopped")
            for _ in "123":
                app.answer(app.waiting.pop())
                await until(lambda: bool(app.waiting))
            assert connection._reading
            connection.pause_writing()
            connection.resume_writing()
        assert clocks() <= before + 2
        await client.close()


@pytest.mark.req("API-10")
@async_test()
async def test_a_client_that_takes_nothing_is_given_up_and_one_that_reads_slowly_is_not() -> None:
    app = Recorder()
    app.hold = True
    async with serving(app, client_idle_timeout_s=0.3) as (_, address):
        client = await Client.connect(address, receive_bytes=4096)
        client.send(GET % 0)
        await until(lambda: bool(app.waiting))
        ex = app.waiting.pop()
        ex.writer.write(ex.head_bytes(200, b"", b"content-length: 9000000\r\n"))
        ex.writer.write(b"x" * 9_000_000)
        await until(lambda: app.gone == ["client_idle"])
        with pytest.raises(Broken):
            await client.answer()
        await client.close()


@pytest.mark.req("API-6")
@async_test()
async def test_connections_beyond_the_limit_are_told_so() -> None:
    app = Recorder()
    async with serving(app, max_connections=2) as (_, address):
        clients = [await Client.connect(address) for _ in range(2)]
        for client in clients:
            client.send(GET % 1)
            assert (await client.answer()).status == 200
        extra = await Client.connect(address)
        answer = await extra.answer()
        assert (answer.status, answer.get("retry-after")) == (503, "1")
        assert (answer.get("x-request-id") or "").startswith("req_")
        told = answer.json["error"]
        assert (told["type"], told["param"], told["code"]) == ("overloaded", None, "overloaded")
        assert app.rejections == ["overloaded"]
        await extra.close()
        for client in clients:
            await client.close()


@async_test()
async def test_stopping_lets_an_exchange_finish_and_answers_one_more_request_on_each_connection() -> None:
    """Not a FIN that crosses the next request; and the end of the server is no reset of who only waits."""
    app = Recorder()
    app.hold = True
    async with serving(app) as (server, address):
        kept, busy, idle = [await Client.connect(address) for _ in range(3)]
        busy.send(GET % 5)
        await until(lambda: bool(app.waiting) and len(server.connections) == 3)
        server.stop_accepting()
        app.answer(app.waiting.pop())
        assert (await busy.answer()).get("connection") is None, "its head was decided before"
        for client in (busy, kept):
            client.send(GET % 6)
            await until(lambda: bool(app.waiting))
            app.answer(app.waiting.pop())
            answer = await client.answer()
            assert (answer.status, answer.get("connection")) == (200, "close")
            assert await client.end() == "fin"
        server.close()
        assert await idle.end() == "fin"
        for client in (kept, busy, idle):
            await client.close()
