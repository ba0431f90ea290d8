"""A bare socket to the node port of an edge, for peers that break rules: frames are bytes, and so are answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping
from typing import Any

from iop import __version__
from iop._fast import frame
from iop.wire import codec, limits
from iop.wire import messages as m

WAIT_S = 10.0


class RawLink:
    """One connection. ``closed`` waits for the edge to close it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(
        cls, address: tuple[str, int], *, receive_bytes: int | None = None, tls: ssl.SSLContext | None = None
    ) -> RawLink:
        """``receive_bytes``: a small receive buffer, so that a peer that reads nothing is soon full."""
        sock = socket.socket()
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
        name = address[0] if tls is not None else None
        return cls(*await asyncio.open_connection(sock=sock, limit=16384, ssl=tls, server_hostname=name))

    def send(self, *data: bytes) -> None:
        self._writer.write(b"".join(data))

    def abort(self) -> None:
        """Ends the connection at once, with what is queued."""
        self._writer.transport.abort()

    async def drain(self) -> None:
        """Waits until the edge has taken most of what was sent."""
        await self._writer.drain()

    @property
    def at_eof(self) -> bool:
        """Whether the edge has ended the connection."""
        return self._reader.at_eof()

    async def drip(self, data: bytes) -> None:
        """One byte at a time, until the edge has had enough."""
        for i in range(len(data)):
            if self._reader.at_eof() or self._writer.is_closing():
                return
            self._writer.write(data[i : i + 1])
            await asyncio.sleep(0)

    async def frame(self) -> bytes:
        """The next envelope from the edge."""
        async with asyncio.timeout(WAIT_S):
            head = await self._reader.readexactly(4)
            return await self._reader.readexactly(int.from_bytes(head, "big"))

    async def message(self) -> m.Message:
        """The next cold message; hot frames before it are dropped, and the edge's questions about engines, which come
        when they come (POOL-13)."""
        while True:
            envelope = await self.frame()
            if frame.decode(envelope) is None:
                found = codec.decode(envelope)
                assert not isinstance(found, codec.HotFrame)
                if not isinstance(found, m.NodeCommandRequest):
                    return found

    async def question(self) -> m.NodeCommandRequest:
        """The next CAPABILITIES of the edge about what is lowered; everything else before it is dropped."""
        return await self._command(look=False)

    async def seen(self, **found: Any) -> m.NodeCommandRequest:
        """The next look at a provider, which is answered with what is ``found``; everything else before it is dropped
        (HEALTH-10)."""
        asked = await self._command(look=True)
        answer = m.NodeCommandResponse(
            asked.command_id, provider_id=asked.provider_id, adapter=asked.adapter, target=asked.target, **found
        )
        self.send(codec.encode(answer))
        return asked

    async def _command(self, *, look: bool) -> m.NodeCommandRequest:
        while True:
            envelope = await self.frame()
            found = codec.decode(envelope) if frame.decode(envelope) is None else None
            if not isinstance(found, m.NodeCommandRequest) or found.command is not m.NodeCommand.CAPABILITIES:
                continue
            if look == bool(found.targets):
                return found

    async def register(self, token: str, *, version: int = limits.PROTOCOL_VERSION) -> m.RegisterResponse:
        self.send(codec.encode(m.RegisterRequest(token, __version__, version, m.Capabilities(["openai_compat"]))))
        answer = await self.message()
        assert isinstance(answer, m.RegisterResponse)
        return answer

    async def ready(self, token: str, held: Mapping[str, int] | None = None) -> m.NodeConfigPayload:
        """Registers and becomes ready for dispatch, with so many slots per provider ``held`` from an earlier time."""
        answer = await self.register(token)
        assert answer.config is not None, answer
        slots = [m.HeldSlots(*entry) for entry in (held or {}).items()]
        self.send(codec.encode(m.NodeReadyRequest(answer.config.node_id, answer.config.revision, slots)))
        assert await self.message() == m.NodeReadyResponse(True)
        return answer.config

    async def closed(self, *, timeout_s: float = WAIT_S) -> bytes:
        """Waits for the end of the connection; returns what came before it."""
        async with asyncio.timeout(timeout_s):
            data = b""
            with contextlib.suppress(ConnectionError):
                while piece := await self._reader.read(65536):
                    data += piece
            return data

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
