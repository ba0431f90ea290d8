"""A strict HTTP/1 client that tells what came and how it ended, and a generated provider's side of a call."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from dataclasses import dataclass, field

from tests.oracle.answers import Answer
from tests.support.http import Address
from tests.support.provider import Call

SLOW_STEP_S = 0.01
SLOW_STEPS = 30  # a slow client waits so often at most; then it reads on as fast as its window lets it


@dataclass
class Got:
    """One answer as it came. ``fault`` says what was wrong with its framing, empty if it is whole."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = field(default=b"", repr=False)
    fault: str = ""

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, slow: bool) -> None:
        self.reader = reader
        self.writer = writer
        self._waits = SLOW_STEPS if slow else 0

    @classmethod
    async def connect(cls, address: Address, tls: ssl.SSLContext | None, *, slow: bool = False) -> Wire:
        sock = socket.socket()
        if slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError:
            sock.close()
            raise
        limit = 16384 if slow else 1 << 20
        name = address[0] if tls is not None else None
        return cls(*await asyncio.open_connection(sock=sock, limit=limit, ssl=tls, server_hostname=name), slow=slow)

    async def close(self) -> None:
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def answer(self) -> Got:
        """The next final response. Never raises for what the server does."""
        got = Got()
        try:
            while True:
                await self._head(got)
                if got.status >= 200:
                    break
            await self._body(got)
        except asyncio.IncompleteReadError as exc:
            got.body += exc.partial
            got.fault = "ended early"
        except ConnectionError:
            got.body += bytes(self.reader._buffer)  # type: ignore[attr-defined]  # it raises before it gives these
            got.fault = "reset"
        except (ValueError, asyncio.LimitOverrunError) as exc:
            got.fault = f"malformed: {exc}"
        return got

    async def ended(self) -> bool:
        """Whether the server closes now, without another byte."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    async def _pace(self) -> None:
        if self._waits:
            first, self._waits = self._waits == SLOW_STEPS, self._waits - 1
            await asyncio.sleep(0.1 if first else SLOW_STEP_S)

    async def _head(self, got: Got) -> None:
        await self._pace()
        raw = await self.reader.readuntil(b"\r\n\r\n")
        line, *fields = raw[:-4].split(b"\r\n")
        version, status, _ = line.split(b" ", 2)
        if version != b"HTTP/1.1":
            raise ValueError(f"version {version!r}")
        got.status = int(status)
        got.headers = []
        for one in fields:
            name, colon, value = one.partition(b":")
            if not colon:
                raise ValueError(f"field {one!r}")
            got.headers.append((name.lower(), value.strip()))

    async def _body(self, got: Got) -> None:
        if got.status in (204, 304):
            return
        if got.all(b"transfer-encoding") == [b"chunked"]:
            parts = bytearray()
            try:
                while size := int(await self.reader.readuntil(b"\r\n"), 16):
                    await self._some(size, parts)
                    if await self.reader.readexactly(2) != b"\r\n":
                        raise ValueError("a chunk without its end")
                while await self.reader.readuntil(b"\r\n") != b"\r\n":
                    pass
            finally:
                got.body = bytes(parts)
        elif lengths := got.all(b"content-length"):
            parts = bytearray()
            try:
                await self._some(int(lengths[0]), parts)
            finally:
                got.body = bytes(parts)
        else:
            parts = bytearray()
            try:
                while data := await self._read(1 << 18):
                    parts += data
            finally:
                got.body = bytes(parts)

    async def _some(self, left: int, into: bytearray) -> None:
        while left:
            data = await self._read(min(left, 1 << 18))
            if not data:
                raise asyncio.IncompleteReadError(b"", left)
            into += data
            left -= len(data)

    async def _read(self, most: int) -> bytes:
        await self._pace()
        return await self.reader.read(most)


async def play(call: Call, answer: Answer, asked: dict[str, object]) -> None:
    """Answers a whole request as it was drawn. A body that is not what was asked for is told so instead: so is one
    that has a content type or coding that a strict server does not read."""
    wrong = _misread(call, asked)
    if wrong:
        call.respond(json.dumps({"error": {"message": wrong, "type": "misread", "code": None}}).encode(), 415)
        return
    if answer.head_after_s:
        await asyncio.sleep(answer.head_after_s)
    framing = b""
    if answer.framing == "length":
        framing = b"Content-Length: %d\r\n" % len(answer.body)
    elif answer.framing == "chunked":
        framing = b"Transfer-Encoding: chunked\r\n"
    headers = [*answer.headers, (b"Connection", b"close")] if answer.close else answer.headers
    if call.gone.is_set():
        return
    if answer.interim:
        call.send(answer.interim)
    call.start(answer.status, headers, framing=framing)
    for piece in answer.pieces:
        if isinstance(piece, float):
            await asyncio.sleep(piece)
        elif call.gone.is_set():
            return
        elif answer.framing == "chunked":
            call.event(piece)
        else:
            call.send(piece)
    if call.gone.is_set():
        return
    if answer.framing == "chunked":
        call.send(b"0\r\n%b\r\n" % answer.trailer)
    if answer.close:
        call.close()


def _misread(call: Call, asked: dict[str, object]) -> str:
    kind = call.header(b"content-type")
    if kind is None or kind.partition(b";")[0].strip().lower() != b"application/json":
        return f"content-type {kind!r}"
    if call.header(b"content-encoding") is not None:
        return "a content-encoding"
    if json.loads(call.body) != {**asked, "model": f"real-{call.provider}"}:
        return "another body"
    return ""
