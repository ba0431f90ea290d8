"""A scripted provider: an HTTP/1.1 server in the test's own loop that does exactly what the test says, byte for byte.

    async with ScriptedProvider(socket) as provider:
        call = await provider.call()            # the next request, whole
        call.start_stream()
        call.event(chat_delta("a"))             # nothing leaves until the test says so
        await call.gone.wait()                  # the node closed the connection

``provider.answer`` answers every request by itself instead. A test that wants to see a request before its body is
whole sets ``hold_bodies`` and releases each with ``call.read_body()``. Nothing here knows IOP: what
arrived is kept as it came.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

WAIT_S = 10.0
PROBE_S = 0.5

Headers = list[tuple[bytes, bytes]]

JSON_HEADERS: Headers = [(b"Content-Type", b"application/json")]
SSE_HEADERS: Headers = [(b"Content-Type", b"text/event-stream; charset=utf-8")]
DONE = b"data: [DONE]\n\n"


def listening_socket(port: int = 0) -> socket.socket:
    """A bound and listening loopback socket; a provider serves duplicates of it, so its port outlives each of them.
    ``port``: of one that was closed before, for a server that comes back."""
    sock = socket.create_server(("127.0.0.1", port), backlog=4096)
    sock.setblocking(False)
    return sock


def unix_listening_socket(path: Path) -> socket.socket:
    """The same on a unix socket."""
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen(4096)
    sock.setblocking(False)
    return sock


# ---- what providers say ---------------------------------------------------------------------------------------------


def event(value: Mapping[str, Any], name: str = "") -> bytes:
    """One event of a stream, as most servers write it."""
    line = b"data: %b\n\n" % json.dumps(value).encode()
    return b"event: %b\n%b" % (name.encode(), line) if name else line


def chat_event(delta: Mapping[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": dict(delta), "finish_reason": finish_reason}
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "real-m"}
    return event({**base, "choices": [choice], **more})


def chat_delta(text: str) -> bytes:
    return chat_event({"content": text})


def chat_stream(*texts: str) -> bytes:
    """A whole, ordinary chat stream."""
    events = [chat_event({"role": "assistant", "content": ""}), *map(chat_delta, texts), chat_event({}, "stop"), DONE]
    return b"".join(events)


def chat_answer(text: str, **more: Any) -> bytes:
    """A whole, ordinary chat answer."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    answer: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "real-m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
    }
    return json.dumps({**answer, **more}).encode()


ENGINE_PATHS = (b"/metrics", b"/slots", b"/api/ps")

# ---- one request ----------------------------------------------------------------------------------------------------


class Call:
    """One request as it arrived, and every way to treat it. ``gone`` is set once the node has closed the connection
    while this call was the last on it; ``gone_at`` is the loop's time of that."""

    def __init__(self, connection: Connection, head: bytes) -> None:
        self.connection = connection
        self.head = head
        line, *lines = head[:-4].split(b"\r\n")
        self.method, self.target, self.version = line.split(b" ")
        self.headers: Headers = []
        for field in lines:
            name, _, value = field.partition(b":")
            self.headers.append((name, value.strip(b" ")))
        self.body = b""
        self.complete = asyncio.Event()
        self.gone = asyncio.Event()
        self.gone_at = 0.0
        self.number = connection.calls  # on its connection, from 1
        self._left = int(self.header(b"content-length") or 0)

    def header(self, name: bytes) -> bytes | None:
        """The one value of a field, or None; several are an error."""
        values = self.all_headers(name)
        assert len(values) <= 1, f"{name!r} came {len(values)} times"
        return values[0] if values else None

    def all_headers(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]

    @property
    def path(self) -> bytes:
        return self.target.partition(b"?")[0]

    @property
    def provider(self) -> str:
        """The first segment of the path: which of the configured providers was meant."""
        return self.target.split(b"/")[1].decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def missing_bytes(self) -> int:
        return self._left

    def take(self, data: bytes) -> bytes:
        """Body bytes from the connection; returns what does not belong to this call."""
        mine, rest = data[: self._left], data[self._left :]
        self._left -= len(mine)
        self.body += mine
        if not self._left and not self.complete.is_set():
            self.complete.set()
            self.connection.provider.arrived(self)
        return rest

    def read_body(self) -> None:
        """Reads on, where ``hold_bodies`` stopped."""
        self.connection.transport.resume_reading()

    # ---- answers ----------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Exactly these bytes, now."""
        self.connection.transport.write(data)

    def start(self, status: int = 200, headers: Headers = JSON_HEADERS, *, framing: bytes = b"") -> None:
        """A response head; ``framing`` is its last field line."""
        lines = b"".join(b"%b: %b\r\n" % field for field in headers)
        self.send(b"HTTP/1.1 %d Whatever\r\n%b%b\r\n" % (status, lines, framing))

    def respond(self, body: bytes, status: int = 200, headers: Headers = JSON_HEADERS) -> None:
        """A whole answer with its length."""
        self.start(status, headers, framing=b"Content-Length: %d\r\n" % len(body))
        self.send(body)

    def start_stream(self, headers: Headers = SSE_HEADERS, status: int = 200) -> None:
        """The head of a chunked answer."""
        self.start(status, headers, framing=b"Transfer-Encoding: chunked\r\n")

    def event(self, data: bytes) -> None:
        """One chunk."""
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self.send(b"0\r\n\r\n")

    def stream(self, *events: bytes) -> None:
        """A whole chunked answer, a chunk for each event."""
        self.start_stream()
        for data in events:
            self.event(data)
        self.end_stream()

    def close(self) -> None:
        """FIN, behind what was sent."""
        self.connection.transport.close()

    def reset(self) -> None:
        """RST, now."""
        sock = self.connection.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.transport.abort()


class Connection(asyncio.Protocol):
    """One connection from the node. ``calls`` counts what it carried, ``closed`` is set at its end."""

    transport: asyncio.Transport

    def __init__(self, provider: ScriptedProvider) -> None:
        self.provider = provider
        self.calls = 0
        self.closed = asyncio.Event()
        self.paused = asyncio.Event()  # the node stopped reading what we write
        self.unread = b""  # of a request that was answered unread: what comes is taken for more of it
        self._call: Call | None = None
        self._buffer = b""

    @property
    def story(self) -> str:
        call = self._call
        return f"call {self.calls}, {call.missing_bytes} body bytes missing" if call is not None else "idle"

    @property
    def asks_for_health(self) -> bool:
        """A node is about to ask, or has asked and not closed yet: what it hears decides whether it is asked again."""
        return self._call is None or self._call.method == b"GET"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.provider.connections.append(self)

    def pause_writing(self) -> None:
        self.paused.set()

    def resume_writing(self) -> None:
        self.paused.clear()

    def data_received(self, data: bytes) -> None:
        if self.unread:
            told = b"Bad request syntax: " + self.unread + data
            self.transport.write(b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n%b" % (len(told), told))
            return
        call = self._call
        if call is not None and not call.complete.is_set():
            data = call.take(data)
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            head, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
            self.calls += 1
            self._call = call = Call(self, head + b"\r\n\r\n")
            if self.provider.hold_bodies and not self.asks_for_health:
                self.transport.pause_reading()
                self.provider.begun.put_nowait(call)
            body, self._buffer = self._buffer, b""
            self._buffer = call.take(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        call = self._call
        if call is not None:
            call.gone_at = asyncio.get_running_loop().time()
            call.gone.set()


class ScriptedProvider:
    """See the module. ``calls`` are all whole requests so far, in the order in which they became whole."""

    def __init__(self, sock: socket.socket, *, tls: ssl.SSLContext | None = None) -> None:
        self._sock = sock
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._waiting: asyncio.Queue[Call] = asyncio.Queue()
        self.begun: asyncio.Queue[Call] = asyncio.Queue()
        self.calls: list[Call] = []
        self.connections: list[Connection] = []
        self.answer: Callable[[Call], None] | None = None
        self.asked: Callable[[Call], None] | None = None  # answers the questions of a node's probes
        self.hold_bodies = False

    def arrived(self, call: Call) -> None:
        if call.target.endswith((b"/v1/models", b"/health")) and call.target not in (b"/v1/models", b"/health"):
            # The node asks how one of a stack's is (HEALTH-6): without a list of models, and well while it is there.
            if self.asked is not None:
                self.asked(call)
            else:
                call.respond(b"{}", 200 if call.target.endswith(b"/health") else 404)
            return
        if call.target.endswith(ENGINE_PATHS) and self.answer is None:
            call.respond(b"{}", 404)  # and for figures (POOL-13); a test that cares answers everything
            return
        self.calls.append(call)
        if self.answer is not None:
            self.answer(call)
        else:
            self._waiting.put_nowait(call)

    async def call(self) -> Call:
        """The next whole request that nobody has asked for."""
        try:
            async with asyncio.timeout(WAIT_S):
                return await self._waiting.get()
        except TimeoutError:
            begun = [c.story for c in self.open_connections]
            raise AssertionError(f"no whole request came; open connections: {begun}") from None

    async def call_begun(self) -> Call:
        """The next request whose body is held."""
        async with asyncio.timeout(WAIT_S):
            return await self.begun.get()

    def forget(self) -> None:
        """Drops what has ended, for runs of a million calls."""
        self.calls.clear()
        self.connections = self.open_connections

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, for a client that goes there directly."""
        host, port = self._sock.getsockname()
        return host, port

    @property
    def open_connections(self) -> list[Connection]:
        return [c for c in self.connections if not c.closed.is_set()]

    async def __aenter__(self) -> ScriptedProvider:
        loop = asyncio.get_running_loop()
        create = loop.create_unix_server if self._sock.family == socket.AF_UNIX else loop.create_server
        self._server = await create(lambda: Connection(self), sock=self._sock.dup(), ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)  # what was accepted is a connection by now
        await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROBE_S):
                for connection in self.open_connections:
                    if connection.asks_for_health:
                        await connection.closed.wait()
        for connection in self.open_connections:
            connection.transport.abort()
        for connection in self.connections:
            await connection.closed.wait()
