"""The HTTP server on real sockets: framing, pipelining, early answers, clocks (API-6)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from threading import Thread

import pytest

from iop.errors import IopError
from iop.net.http.closing import LINGER_S, REFUSED_BYTES
from iop.net.http.exchange import Exchange, ServerLimits
from iop.net.http.server import RDHUP_S, HttpServer
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


class Faulty(Recorder):
    """An App that works on bodies in later turns, and raises once for a request of /bad: in the ``place`` named."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def raise_in(self, place: str, ex: Exchange) -> None:
        if place == self.place and ex.head.path == b"/bad":
            raise RuntimeError("a fault of ours")

    def body_piece(self, ex: Exchange, piece: bytes) -> None:
        self.raise_in("piece", ex)
        super().body_piece(ex, piece)
        steps = iter((True, True, False))

        def step() -> bool:
            self.raise_in("step", ex)
            return next(steps)

        ex.defer(step)

    def request_complete(self, ex: Exchange) -> None:
        self.raise_in("complete", ex)
        super().request_complete(ex)


@pytest.mark.req("API-6", "API-8c")
@pytest.mark.parametrize("place", ["piece", "step", "complete"])
@async_test()
async def test_a_fault_of_the_app_ends_its_connection_and_no_other_one(place: str) -> None:
    app = Faulty(place)
    told: list[BaseException | None] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context.get("exception")))
    post = b"POST /%b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
    async with serving(app) as (server, address):
        others = [await Client.connect(address) for _ in range(2)]
        bad_reader, bad_writer = await asyncio.open_connection(*address)
        others[0].send(post % b"good")
        bad_writer.write(post % b"bad")
        others[1].send(post % b"good")
        for other in others:
            assert (await other.answer()).body == b"abc"
        with suppress(ConnectionResetError):
            assert await bad_reader.read() == b""
        bad_writer.close()
        await until(lambda: len(server.connections) == 2)
        others[0].send_more(post % b"again")
        assert (await others[0].answer()).get("x-path") == "/again"
        for other in others:
            await other.close()
    assert [type(error) for error in told] == [RuntimeError]
    assert app.gone == ["client_gone"]


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
@pytest.mark.parametrize("fields", ["Transfer-Encoding: chunked", "Expect: 100-continue\r\nContent-Length: 1001"])
@async_test()
async def test_an_answer_behind_which_no_more_of_the_body_is_understood_is_followed_by_fin_at_once(fields: str) -> None:
    app = Recorder()
    async with serving(app, max_body_bytes=1000) as (_, address):
        client = await Client.connect(address)
        client.send(f"POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n".encode())
        if "chunked" in fields:
            client.send_more(b"zz\r\n")
        answer = await client.answer()
        assert (answer.status, answer.get("connection")) == (400 if "chunked" in fields else 413, "close")
        async with asyncio.timeout(LINGER_S / 2):
            assert await client.end() == "fin"
        client.send_more(b"x" * (REFUSED_BYTES // 2))  # read and dropped: nothing of it starts a request
        assert app.seen == []
        await client.close()


@pytest.mark.req("API-6b")
@pytest.mark.parametrize(
    ("fields", "start", "rest", "status"),
    [
        ("Transfer-Encoding: chunked", b"3e9\r\nx", b"x" * 1000 + b"\r\n0\r\n\r\n", 413),
        ("Content-Length: 1001", b"x", b"x" * 1000, 413),
        ("Content-Length: 1000\r\nConnection: close", b"x", b"x" * 999, 500),
    ],
)
@async_test()
async def test_the_rest_of_a_refused_body_is_read_before_the_connection_closes(
    fields: str, start: bytes, rest: bytes, status: int
) -> None:
    app = Recorder()
    app.refuse = IopError() if status == 500 else None
    async with serving(app, max_body_bytes=1000) as (server, address):
        client = await Client.connect(address)
        client.send(f"POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n".encode() + start)
        answer = await client.answer()
        assert (answer.status, answer.get("connection")) == (status, "close")
        (connection,) = server.connections
        assert await client.end() == "fin"
        assert connection.state == "discard"
        client.send_more(rest)
        if "chunked" in fields:  # where it ends nobody knows: it was refused at its size
            await until(lambda: connection._discarded >= len(rest))
            assert connection.state == "discard"
        else:
            await until(lambda: connection.state == "closed")
        assert app.seen == []
        await client.close()


@pytest.mark.req("API-6b")
@async_test()
async def test_a_refused_body_is_read_up_to_twice_the_largest_and_then_the_connection_closes() -> None:
    app = Recorder()
    app.refuse = IopError()
    async with serving(app, max_body_bytes=100_000) as (server, address):
        client = await Client.connect(address)
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n" + b"x" * 190_000)
        assert (await client.answer()).status == 500
        (connection,) = server.connections
        await until(lambda: connection._discarded == 190_000)
        assert connection.state == "discard"
        client.send_more(b"x" * 20_000)
        await until(lambda: connection.state == "closed")
        assert server.stats.buffered_body_bytes == 0
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


class Named(Recorder):
    """Each request is of the principal that its path names."""

    def head_received(self, ex: Exchange) -> None:
        ex.principal = ex.head.path[1:].decode()


@pytest.mark.req("API-10", "API-8c")
@async_test()
async def test_one_principal_holds_at_most_a_quarter_of_the_common_bound() -> None:
    def begun(name: str, size: int) -> bytes:
        head = f"POST /{name} HTTP/1.1\r\nHost: a\r\nContent-Length: {size + 1}\r\n\r\n"
        return head.encode() + b"x" * size

    app = Named()
    async with serving(app, max_buffered_body_bytes=4000, max_body_bytes=1000) as (server, address):
        clients = [await Client.connect(address) for _ in range(4)]
        clients[0].send(begun("a", 600))
        await until(lambda: server.stats.held_by == {"a": 600})
        clients[1].send(begun("a", 401))
        refused = await clients[1].answer()
        assert (refused.status, refused.json["code"]) == (429, "too_many_body_bytes")
        clients[1].send_more(b"x")  # the rest of what was refused
        clients[2].send(begun("b", 900))
        await until(lambda: server.stats.held_by == {"a": 600, "b": 900})
        clients[0].send_more(b"x")
        assert (await clients[0].answer()).status == 200
        assert server.stats.held_by == {"b": 900}
        clients[1].send(begun("a", 900) + b"x")  # there is room again, on the connection of the refusal
        assert (await clients[1].answer()).status == 200
        clients[2].send_more(b"x")
        assert (await clients[2].answer()).status == 200
        assert server.stats.held_by == {}
        for client in clients:
            await client.close()


@pytest.mark.req("API-10")
@async_test()
async def test_one_body_has_room_however_small_a_quarter_is() -> None:
    app = Named()
    async with serving(app, max_buffered_body_bytes=1000, max_body_bytes=900) as (_, address):
        client = await Client.connect(address)
        client.send(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n" + b"x" * 900)
        assert (await client.answer()).status == 200
        await client.close()


@pytest.mark.req("API-10")
@pytest.mark.parametrize(("pace_bytes", "steady"), [(2000, True), (60, False)])
@async_test()
async def test_a_body_may_take_long_as_long_as_it_goes_on(pace_bytes: int, steady: bool) -> None:
    """8 KiB/s are asked for, in any time of the body's clock: here 3 277 bytes in each 0.4 s."""
    app = Recorder()
    size = 32 * pace_bytes
    async with serving(app, body_timeout_s=0.4) as (_, address):
        client = await Client.connect(address)
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size)
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        due = [loop.call_later(0.04 * at, client.send_more, b"x" * pace_bytes) for at in range(32)]
        answer = await client.answer()
        passed_s = loop.time() - began_at
        for one in due:
            one.cancel()
        if steady:
            assert (answer.status, len(answer.body)) == (200, size)
            assert passed_s > 3 * 0.4
        else:
            assert answer.status == 408
            assert 0.4 <= passed_s < 1.0
            assert app.gone == ["body_timeout"]
        await client.close()


@pytest.mark.req("TUN-5c", "API-10")
@pytest.mark.parametrize("request_line", ["GET / HTTP/1.0", "GET / HTTP/1.1\r\nHost: a\r\nConnection: close"])
@async_test()
async def test_an_answer_is_handed_over_whole_although_the_connection_closes_behind_it(request_line: str) -> None:
    """The client reads slower than the answer is written, and stops for longer than a connection lingers."""
    app = Recorder()
    app.hold = True
    async with serving(app) as (server, address):
        client = await Client.connect(address, receive_bytes=4096)
        client.send(request_line.encode() + b"\r\n\r\n")
        await until(lambda: bool(app.waiting))
        app.waiting.pop().respond(200, b"", b"y" * 3_000_000)
        (connection,) = server.connections
        assert connection.state == "closed"
        await until(lambda: connection.writer.paused)
        connection._expired()  # as if the time to linger were over
        connection._deadline_at = 0.001
        connection._expired()
        answer = await client.answer()
        assert (answer.status, len(answer.body)) == (200, 3_000_000)
        assert await client.end() == "fin"
        assert app.gone == []
        await client.close()


def read_slowly(sock: socket.socket) -> tuple[bytes, bool]:
    """All that comes, and whether the end is a reset."""
    parts: list[bytes] = []
    try:
        while data := sock.recv(4096):
            parts.append(data)
    except ConnectionResetError:
        return b"".join(parts), True
    return b"".join(parts), False


@pytest.mark.req("API-6b", "API-10")
@async_test()
async def test_of_what_comes_behind_a_refusal_little_is_read() -> None:
    async with serving(Recorder()) as (server, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\n folded\r\n\r\n" + b"x" * 4_000_000)
        assert (await reader.read(12)) == b"HTTP/1.1 400"
        await until(lambda: server.stats.bytes_in > REFUSED_BYTES)
        wheel = server.runtime.wheel
        began_at = wheel.now
        await until(lambda: wheel.now > began_at + 0.3)
        assert server.stats.bytes_in < 1_000_000  # the loop reads up to 256 KiB at a time
        writer.transport.abort()
        server.close()  # it would wait for the client to close, and does not read that
        await until(lambda: not server.connections)


async def slow_client(address: tuple[str, int], app: Recorder) -> socket.socket:
    """A client with small buffers, whose request the app holds."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, address)
    sock.send(b"GET / HTTP/1.0\r\n\r\n")
    await until(lambda: bool(app.waiting))
    return sock


@pytest.mark.req("API-8b", "TUN-5c")
@async_test()
async def test_what_came_before_a_cut_is_read_and_then_the_reset() -> None:
    """Where only the close delimits a body, the error event that ends it would be lost with the reset behind it."""
    app = Recorder()
    app.hold = True
    async with serving(app) as (server, address):
        with await slow_client(address, app) as sock:
            ex = app.waiting.pop()
            ex.begin_stream(b"")
            ex.send(b"y" * 1_000_000)
            ex.send(b"the last event")
            ex.cut(reset=True)
            (connection,) = server.connections
            await until(lambda: connection.writer.paused)
            sock.setblocking(True)
            body, reset = await asyncio.to_thread(read_slowly, sock)
        assert body.endswith(b"y" * 1_000_000 + b"the last event")
        assert reset


@pytest.mark.req("API-7c", "TUN-5c")
@async_test()
async def test_a_fin_behind_pipelined_requests_takes_no_answer_away() -> None:
    """Those that were answered reach a client that reads slowly; nobody is owed the others (API-7c)."""
    app = Recorder()
    app.answer = lambda ex: ex.respond(200, b"", b"x" * 3000)  # type: ignore[method-assign]
    async with serving(app) as (server, address):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            await asyncio.to_thread(sock.connect, address)
            one = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"

            def send() -> None:
                sock.sendall(one * 4000)
                sock.shutdown(socket.SHUT_WR)

            sender = Thread(target=send)
            sender.start()
            await until(lambda: bool(server.connections))
            (connection,) = server.connections
            await until(lambda: connection.writer.paused and connection.state == "idle")
            await asyncio.to_thread(sender.join)
            wheel = server.runtime.wheel
            sent_at = wheel.now
            await until(lambda: wheel.now > sent_at + 3 * RDHUP_S)  # the FIN has been seen by then
            body, reset = await asyncio.to_thread(read_slowly, sock)
        assert not reset
        answers = body.split(b"HTTP/1.1 200 OK\r\n")[1:]
        assert len(answers) > 300
        assert all(answer.endswith(b"\r\n\r\n" + b"x" * 3000) for answer in answers)


LONG = b"y" * 9_000_000


def _whole(ex: Exchange) -> None:
    ex.respond(200, b"", LONG)


def _cut(ex: Exchange) -> None:
    ex.begin_stream(b"")
    ex.send(LONG)
    ex.cut(reset=True)


def _going_on(ex: Exchange) -> None:
    ex.begin_stream(b"")
    ex.send(LONG)


def _idle(server: HttpServer, sock: socket.socket) -> None:
    """Its clock is 0.3 s."""


def _server_closes(server: HttpServer, sock: socket.socket) -> None:
    server.close()


def _half_closed(server: HttpServer, sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)


@pytest.mark.req("TUN-5c", "API-8b", "API-10")
@pytest.mark.parametrize("end", [_idle, _server_closes, _half_closed])
@pytest.mark.parametrize("answer", [_whole, _cut, _going_on])
@async_test()
async def test_who_is_given_up_before_the_end_of_an_answer_sees_a_reset(
    answer: Callable[[Exchange], None], end: Callable[[HttpServer, socket.socket], None]
) -> None:
    """Where only the close delimits a body, a FIN would make the part that came look whole."""
    app = Recorder()
    app.hold = True
    idle_s = 60.0 if end is _server_closes else 0.3  # a server that closes waits for no clock
    async with serving(app, client_idle_timeout_s=idle_s) as (server, address):
        with await slow_client(address, app) as sock:
            answer(app.waiting.pop())
            assert len(server.connections) == 1
            end(server, sock)
            await until(lambda: not server.connections)
            sock.setblocking(True)
            body, reset = await asyncio.to_thread(read_slowly, sock)
        assert len(body) < len(LONG)
        assert reset


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
