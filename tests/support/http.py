"""A raw-socket HTTP/1.1 client: sends the bytes that a test gives it, and tells exactly how an answer ended.

    client = await Client.connect(address)
    client.send(post("/v1/chat/completions", chat("m")))
    answer = await client.answer()              # status, headers, body
    piece = await client.piece()                # or piece by piece, after client.head()

Independent of the server's code on purpose: heads are split by hand, and a body that does not end as its framing says
raises :class:`Broken` with what came.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

WAIT_S = 10.0

Address = tuple[str, int]
End = Literal["fin", "rst"]


def chat(model: str, *, stream: bool = False, text: str = "hi", **more: Any) -> bytes:
    """The body of a chat request, model first."""
    request: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}]}
    if stream:
        request["stream"] = True
    return json.dumps({**request, **more}).encode()


def post(path: str, body: bytes, headers: Mapping[str, str] | None = None, *, host: str = "127.0.0.1") -> bytes:
    """A request with its length."""
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


class Broken(Exception):
    """A body that ended before its framing says so. ``how``: by FIN or by RST; ``body``: what had come."""

    def __init__(self, how: End, body: bytes) -> None:
        super().__init__(f"the body ended by {how} after {len(body)} bytes")
        self.how = how
        self.body = body


@dataclass
class Head:
    status: int
    headers: list[tuple[str, str]]

    def get(self, name: str) -> str | None:
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


@dataclass
class Answer(Head):
    body: bytes = field(default=b"")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection. Every wait is bounded."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._head: Head | None = None
        self._left: int | None = None  # of a body with a length
        self._chunked = False
        self._method = b"POST"
        self.closed = False
        self.last = False  # the head that came last said that its connection ends

    @classmethod
    async def connect(
        cls, address: Address, *, receive_bytes: int | None = None, tls: ssl.SSLContext | None = None
    ) -> Client:
        """``receive_bytes`` makes the socket's buffer small, for clients that read slowly."""
        sock = socket.socket()
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError:
            sock.close()
            raise
        limit = 65536 if receive_bytes is None else receive_bytes
        name = address[0] if tls is not None else None
        return cls(*await asyncio.open_connection(sock=sock, limit=limit, ssl=tls, server_hostname=name))

    def send(self, data: bytes) -> None:
        self._method = data.partition(b" ")[0] or self._method
        self._writer.write(data)

    def send_more(self, data: bytes) -> None:
        """More of the same request."""
        self._writer.write(data)

    async def drain(self) -> None:
        """Waits until most of what was sent has been taken by the kernel."""
        await self._writer.drain()

    def finish_sending(self) -> None:
        """FIN, and reading goes on."""
        self._writer.write_eof()

    @property
    def tls(self) -> ssl.SSLObject:
        """What the handshake came to."""
        found: ssl.SSLObject = self._writer.get_extra_info("ssl_object")
        return found

    # ---- reading ----------------------------------------------------------------------------------------------------

    async def head(self) -> Head:
        """The next response head, interim ones included. Raises Broken when the connection ends instead."""
        async with asyncio.timeout(WAIT_S):
            raw = await self._until(b"\r\n\r\n")
        line, *fields = raw[:-4].decode("latin-1").split("\r\n")
        version, status, _ = line.split(" ", 2)
        assert version == "HTTP/1.1"
        headers = []
        for text in fields:
            name, colon, value = text.partition(": ")
            assert colon, text
            headers.append((name, value))
        self._head = head = Head(int(status), headers)
        self.last = head.get("connection") == "close"
        self._chunked = head.get("transfer-encoding") == "chunked"
        length = head.get("content-length")
        assert not (self._chunked and length is not None)
        self._left = int(length) if length is not None else None
        if self._method == b"HEAD" or head.status in (204, 304) or head.status < 200:
            self._chunked, self._left = False, 0
        return head

    async def piece(self) -> bytes:
        """The next piece of the body: one chunk, or whatever a read gives; b"" at its clean end. Raises Broken."""
        async with asyncio.timeout(WAIT_S):
            if self._chunked:
                return await self._chunk()
            if self._left == 0:
                return b""
            try:
                data = await self._reader.read(65536 if self._left is None else min(65536, self._left))
            except ConnectionResetError:
                raise Broken("rst", b"") from None
            if self._left is not None:
                if not data:
                    raise Broken("fin", b"")
                self._left -= len(data)
            return data

    async def _chunk(self) -> bytes:
        size = int(await self._until(b"\r\n"), 16)
        data = (await self._exactly(size + 2))[:-2]
        if not size:
            self._chunked, self._left = False, 0
        return data

    async def body(self) -> bytes:
        """The rest of the body. Raises Broken with the part that came."""
        parts: list[bytes] = []
        while True:
            try:
                data = await self.piece()
            except Broken as exc:
                raise Broken(exc.how, b"".join(parts) + exc.body) from None
            if not data:
                return b"".join(parts)
            parts.append(data)

    async def read_through(self, text: bytes) -> bytes:
        """Pieces until ``text`` has come."""
        got = b""
        while text not in got:
            data = await self.piece()
            assert data, f"the body ended without {text!r}: {got!r}"
            got += data
        return got

    async def answer(self) -> Answer:
        """The next whole response."""
        head = await self.head()
        return Answer(head.status, head.headers, await self.body())

    async def end(self) -> End:
        """Waits for the server to close, without another byte."""
        async with asyncio.timeout(WAIT_S):
            try:
                data = await self._reader.read(1)
            except ConnectionResetError:
                return "rst"
        assert not data, f"unexpected {data!r}"
        return "fin"

    async def _until(self, mark: bytes) -> bytes:
        try:
            return await self._reader.readuntil(mark)
        except asyncio.IncompleteReadError as exc:
            raise Broken("fin", b"" if mark == b"\r\n" else exc.partial) from None
        except ConnectionResetError:
            raise Broken("rst", b"") from None

    async def _exactly(self, n: int) -> bytes:
        try:
            return await self._reader.readexactly(n)
        except asyncio.IncompleteReadError as exc:
            raise Broken("fin", exc.partial) from None
        except ConnectionResetError:
            raise Broken("rst", b"") from None

    # ---- leaving ----------------------------------------------------------------------------------------------------

    def leave(self, *, reset: bool = False) -> None:
        """Closes now: FIN, or RST."""
        if self.closed:
            return
        self.closed = True
        transport = self._writer.transport
        if reset:
            sock = transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    async def close(self) -> None:
        self.leave()
        with contextlib.suppress(ConnectionError, TimeoutError):
            await self._writer.wait_closed()
