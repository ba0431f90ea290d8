"""A slow link: a TCP proxy that passes bytes at a bounded rate and buffers next to nothing."""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType

from tests.support.http import Address

STEP_BYTES = 16384


class SlowLink:
    """Listens on ``address`` and forwards to ``target``: towards it at ``bytes_per_s``, back without a limit."""

    def __init__(self, target: Address, bytes_per_s: float) -> None:
        self._target = target
        self._rate = bytes_per_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)  # before listen: accepted sockets inherit it
        self._sock.bind(("127.0.0.1", 0))
        self.address: Address = self._sock.getsockname()
        self.passed_bytes = 0

    async def __aenter__(self) -> SlowLink:
        self._server = await asyncio.start_server(self._serve, sock=self._sock, limit=STEP_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target, limit=STEP_BYTES)
        pair = (
            asyncio.ensure_future(self._pass(reader, there_writer, self._rate)),
            asyncio.ensure_future(self._pass(there_reader, writer, None)),
        )
        self._tasks.update(pair)
        self._writers += [writer, there_writer]
        await asyncio.wait(pair, return_when=asyncio.FIRST_COMPLETED)
        for task in pair:
            task.cancel()
        for end in (writer, there_writer):
            end.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: float | None) -> None:
        loop = asyncio.get_running_loop()
        due_at = loop.time()
        while data := await reader.read(STEP_BYTES):
            writer.write(data)
            await writer.drain()
            if rate is not None:
                self.passed_bytes += len(data)
                due_at = max(due_at, loop.time()) + len(data) / rate
                gate = loop.create_future()
                loop.call_at(due_at, gate.set_result, None)
                await gate
