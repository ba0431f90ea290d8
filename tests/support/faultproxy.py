"""A TCP proxy that makes a link bad, in every way in which links go bad. Usable by hand as well:

    python -m tests.support.faultproxy 127.0.0.1:9001 127.0.0.1:9000 --latency-ms 50 --slice-bytes 3
    python -m tests.support.faultproxy 127.0.0.1:9001 127.0.0.1:9000 --seed 7      # mixed at random

In a test:

    async with FaultProxy(target) as proxy:
        proxy.weather = Weather(latency_s=0.05, bytes_per_s=100_000)    # from now on, for all connections
        proxy.half_open()       # what is open carries nothing any more, in either direction, and is not closed
        proxy.reset()           # RST to both ends; ``cut`` is FIN
        proxy.refusing = True   # whoever connects is reset

Towards the target is *up*, back is *down*. Everything that is held is bounded by ``held_bytes`` a direction.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import socket
import struct
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from tests.support.http import Address

__all__ = ["HARSH", "MILD", "FaultProxy", "Weather"]

STEP_BYTES = 65536
HELD_BYTES = 1 << 20


@dataclass(frozen=True)
class Weather:
    """How the link is: delays in seconds, on top of each other; ``bytes_per_s`` and ``slice_bytes`` are None for no
    limit. A slice is one write of 1 … ``slice_bytes`` bytes."""

    latency_s: float = 0.0
    up_delay_s: float = 0.0
    down_delay_s: float = 0.0
    bytes_per_s: float | None = None
    slice_bytes: int | None = None


class Direction:
    """One way of one connection: reads, holds what is not due yet, writes."""

    def __init__(
        self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool
    ) -> None:
        self.silent = False
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._up = up
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._changed = asyncio.Event()  # there is something to write, or it is the end
        self._room = asyncio.Event()  # to read more
        self._ended = False

    async def run(self) -> None:
        reading = asyncio.ensure_future(self._read())
        try:
            await self._write()
        finally:
            reading.cancel()
            await asyncio.wait({reading})

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(STEP_BYTES):
                if self.silent:
                    continue
                weather = self._proxy.weather
                delay_s = weather.latency_s + (weather.up_delay_s if self._up else weather.down_delay_s)
                self._held.append((loop.time() + delay_s, data))
                self._held_bytes += len(data)
                self._changed.set()
                if self._held_bytes > self._proxy.held_bytes:
                    self._room.clear()
                    await self._room.wait()
        self._ended = True
        self._changed.set()

    async def _write(self) -> None:
        """Ends when the reader has ended and everything was passed on; a silent direction never ends by itself."""
        loop = asyncio.get_running_loop()
        free_at = loop.time()
        while True:
            while not self._held or self.silent:
                if self._ended and not self.silent:
                    return
                self._changed.clear()
                await self._changed.wait()
            due_at, data = self._held.popleft()
            await _sleep_until(due_at)
            for piece in self._pieces(data):
                if self.silent:
                    break
                rate = self._proxy.weather.bytes_per_s
                if rate is not None:
                    free_at = max(free_at, loop.time()) + len(piece) / rate
                    await _sleep_until(free_at)
                self._writer.write(piece)
                await self._writer.drain()
                await asyncio.sleep(0)  # the transport writes at once; the other end may look in between
                self._proxy.passed_bytes += len(piece)
            self._held_bytes -= len(data)
            if self._held_bytes <= self._proxy.held_bytes:
                self._room.set()

    def _pieces(self, data: bytes) -> list[bytes]:
        weather, rng = self._proxy.weather, self._proxy.random
        most = weather.slice_bytes
        if most is None:
            most = len(data) if weather.bytes_per_s is None else max(1, int(weather.bytes_per_s / 50))
            return [data[at : at + most] for at in range(0, len(data), most)]
        pieces, at = [], 0
        while at < len(data):
            size = rng.randint(1, most)
            pieces.append(data[at : at + size])
            at += size
        return pieces

    def fall_silent(self) -> None:
        self.silent = True
        self._held.clear()
        self._room.set()  # reads on, and drops it


class FaultProxy:
    """See the module. ``connections`` counts those that were made."""

    def __init__(
        self, target: Address, *, listen: Address = ("127.0.0.1", 0), seed: int = 1, held_bytes: int = HELD_BYTES
    ) -> None:
        self.target = target
        self.held_bytes = held_bytes
        self.weather = Weather()
        self.refusing = False
        self.random = random.Random(seed)
        self.connections = 0
        self.passed_bytes = 0
        self._open: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, asyncio.StreamWriter, list[Direction]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: weakref.WeakSet[asyncio.StreamWriter] = weakref.WeakSet()
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Before listen, so that accepted sockets inherit it: what is held is held here, not in the kernel.
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        self._sock.bind(listen)
        self.address: Address = self._sock.getsockname()

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._accepted, sock=self._sock, limit=STEP_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:  # closed ones too: they may hold bytes that nobody will read
            writer.transport.abort()
        await asyncio.sleep(0)  # in which the sockets close

    # ---- faults of the moment ----------------------------------------------------------------------------------------

    def cut(self) -> None:
        """FIN to both ends of every open connection; what was held is lost."""
        self._end(reset=False)

    def reset(self) -> None:
        """RST to both ends."""
        self._end(reset=True)

    def half_open(self) -> None:
        """What is open now swallows everything and is closed by nobody; what is opened later works."""
        for _, _, directions in self._open.values():
            for direction in directions:
                direction.fall_silent()

    def _end(self, *, reset: bool) -> None:
        for task, (here, there, _) in list(self._open.items()):
            for writer in (here, there):
                _close(writer, reset=reset)
            task.cancel()

    # ---- connections -------------------------------------------------------------------------------------------------

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._serve(task, reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the end of one connection, whoever wanted it
        finally:
            self._tasks.discard(task)

    async def _serve(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.refusing:
            _close(writer, reset=True)
            return
        try:
            there_reader, there = await asyncio.open_connection(*self.target, limit=STEP_BYTES)
        except OSError:
            _close(writer, reset=True)
            return
        self.connections += 1
        self._writers.add(there)
        up = Direction(self, reader, there, up=True)
        down = Direction(self, there_reader, writer, up=False)
        self._open[task] = writer, there, [up, down]
        both = [asyncio.ensure_future(direction.run()) for direction in (up, down)]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)  # the end of one side is that of both
        finally:
            del self._open[task]
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            for end in (writer, there):
                end.close()


def _close(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    sock = writer.get_extra_info("socket")
    if not reset or sock is None:
        writer.close()
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _sleep_until(at: float) -> None:
    left_s = at - asyncio.get_running_loop().time()
    if left_s > 0:
        await asyncio.sleep(left_s)  # the latency of the link that this is


# ---- at random ------------------------------------------------------------------------------------------------------

#: Weather that costs time and nothing else.
MILD: dict[str, Callable[[random.Random], Weather]] = {
    "latency": lambda rng: Weather(latency_s=rng.uniform(0.01, 0.08)),
    "bandwidth": lambda rng: Weather(bytes_per_s=rng.uniform(150_000, 400_000)),
    "slicing": lambda rng: Weather(slice_bytes=rng.choice((1, 3, 17))),
    "delay up": lambda rng: Weather(up_delay_s=rng.uniform(0.02, 0.15)),
    "delay down": lambda rng: Weather(down_delay_s=rng.uniform(0.02, 0.15)),
    "all of it": lambda rng: Weather(0.02, rng.uniform(0.0, 0.05), rng.uniform(0.0, 0.05), 300_000, rng.randint(8, 64)),
}

#: What ends connections.
HARSH: dict[str, Callable[[FaultProxy], None]] = {
    "cut": FaultProxy.cut,
    "reset": FaultProxy.reset,
    "half-open": FaultProxy.half_open,
}


async def _storm(proxy: FaultProxy, seed: int) -> None:
    rng, seen = random.Random(seed), Counter[str]()
    while True:
        name = rng.choice([*MILD, *HARSH, "calm"])
        proxy.weather = MILD[name](rng) if name in MILD else Weather()
        if name in HARSH:
            HARSH[name](proxy)
        seen[name] += 1
        print(f"{name} {proxy.weather}")
        await asyncio.sleep(rng.uniform(0.5, 5.0))  # how long such weather lasts


async def _by_hand(arguments: argparse.Namespace) -> None:
    listen, target = (_address(text) for text in (arguments.listen, arguments.target))
    async with FaultProxy(target, listen=listen, seed=arguments.seed or 1) as proxy:
        print("listening on {}:{}".format(*proxy.address), flush=True)
        proxy.weather = Weather(
            latency_s=arguments.latency_ms / 1000,
            up_delay_s=arguments.up_ms / 1000,
            down_delay_s=arguments.down_ms / 1000,
            bytes_per_s=arguments.bytes_per_s,
            slice_bytes=arguments.slice_bytes,
        )
        if arguments.seed is not None:
            await _storm(proxy, arguments.seed)
        await asyncio.Event().wait()


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    parser = argparse.ArgumentParser(description="A TCP proxy that makes a link bad.")
    parser.add_argument("listen", metavar="LISTEN", help="HOST:PORT, port 0 for any")
    parser.add_argument("target", metavar="TARGET", help="HOST:PORT")
    for name, what in (("latency", "both ways"), ("up", "towards the target"), ("down", "back")):
        parser.add_argument(f"--{name}-ms", type=float, default=0.0, help=f"delay {what}")
    parser.add_argument("--bytes-per-s", type=float, help="bandwidth of each direction")
    parser.add_argument("--slice-bytes", type=int, help="write 1 … so many bytes at a time")
    parser.add_argument("--seed", type=int, help="change the weather and break connections at random")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_by_hand(parser.parse_args()))


if __name__ == "__main__":
    main()
