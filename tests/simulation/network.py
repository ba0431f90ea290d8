"""Connections between the programs: bytes in order, whatever else may happen to them.

A connection has two :class:`Transport` ends. What one writes waits there until the network takes it to the other, in
pieces of any size, after any delay; a cable can be *cut*, and then nothing moves and nobody is told. The transports
keep asyncio's contract: pause above the high mark, resume below the low one, ``connection_lost`` once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.kernel import Kernel, Loop

__all__ = ["Cable", "Listener", "Network", "Transport"]

KERNEL_BYTES = 65536  # of a closed socket, still delivered by the system
PIECE_BYTES = 65536
MIN_LATENCY_S = 0.0001


@dataclass
class Weather:
    """How bad the network is. Chances are per delivery."""

    latency_s: float = 0.001
    split: float = 0.15
    delay: float = 0.01
    delay_s: float = 0.4


@dataclass(eq=False)
class Cable:
    """What joins the two ends of one connection. ``kind`` is the port's name."""

    kind: str
    cut: bool = False
    ends: list[Transport] = field(default_factory=list)


class Transport(asyncio.Transport):
    """One end. ``linger_s``: how long the system takes to close it after ``abort``."""

    def __init__(self, network: Network, cable: Cable, loop: Loop, name: str) -> None:
        self.network = network
        self.cable = cable
        self.loop = loop
        self.name = name
        self.protocol: Any = None
        self.peer: Transport
        self.linger_s = 0.0
        self.closed = False  # connection_lost was called, or its program is dead
        self._closing = False
        self._reading = True
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._eof = False  # nothing follows what is queued
        self._eof_told = False
        self._moving = False  # a delivery is scheduled
        self._high, self._low = 65536, 16384
        self._paused = False
        self._rng = random.Random(network.rng.random())

    # ---- asyncio's face

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50000) if name == "peername" else default

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high, self._low = high or 65536, low or 0

    def get_write_buffer_size(self) -> int:
        return self._size

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        if self._closing or self._eof or not data:
            return
        self._queue.append(bytes(data))
        self._size += len(data)
        if self._size > self._high and not self._paused:
            self._paused = True
            self.protocol.pause_writing()
        self._move()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        self._eof = True
        self._move()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.peer._move()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._eof = True
        self._move()
        if self._size <= KERNEL_BYTES:
            self._lose(None)

    def abort(self) -> None:
        if self.closed or (self._eof_told and self._closing):
            return
        self._closing = True
        if self._rng.random() < 0.5:
            self._queue.clear()  # it had not reached the system
            self._size = 0
        self._eof = True
        if self.linger_s:
            self.network.seen["slow close"] += 1
        self._lose(None, self.linger_s)

    # ---- the network's side

    def _lose(self, error: Exception | None, after_s: float = 0.0) -> None:
        if after_s:
            self.loop.call_later(after_s, self._lost, error)
        else:
            self.loop.call_soon(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        if self.closed:
            return
        self._gone()
        self.protocol.connection_lost(error)

    def _gone(self) -> None:
        self.closed = self._closing = self._eof = True
        if self.peer.closed:
            self.network.cables.pop(self.cable, None)
        self._move()
        self.peer._move()  # nobody takes it any more

    def reset(self) -> None:
        """The other side's system answers RST, or the network does."""
        self._queue.clear()
        self._size = 0
        self._closing = True
        self._lose(ConnectionResetError())

    def kill(self, *, orderly: bool) -> None:
        """The program of this end is gone; its system closes the socket, and sends what it had taken for it."""
        if not orderly and self._rng.random() < 0.5:
            self._queue.clear()
            self._size = 0
        self._gone()

    def _move(self) -> None:
        """See to it that what waits here gets to the other end."""
        if self._moving or self.cable.cut or not (self._queue or (self._eof and not self._eof_told)):
            return
        peer = self.peer
        if peer._closing:
            self._deliver()
            return
        if not peer._reading and self._queue:
            return
        self._moving = True
        weather, rng = self.network.weather, self._rng
        delay_s = MIN_LATENCY_S + rng.random() * weather.latency_s
        if rng.random() < weather.delay:
            self.network.seen["delay"] += 1
            delay_s += rng.random() * weather.delay_s
        peer.loop.call_later(delay_s, self._deliver)

    def _deliver(self) -> None:
        """Runs in the other end's program."""
        self._moving = False
        peer = self.peer
        if self.cable.cut:
            return
        if peer._closing:  # a closed socket reads no more
            gone = self._queue or not self._eof
            self._queue.clear()
            self._size = 0
            self._eof_told = True
            if self._closing:
                self._lose(None)
            elif gone:
                self.reset()
            return
        if self._queue:
            if not peer._reading:
                return
            data = self._take()
            size = len(data)
            peer.protocol.data_received(data)
            self._shrink(size)
        if not self._queue and self._eof and not self._eof_told and not peer._closing and peer._reading:
            self._eof_told = True
            if not peer.protocol.eof_received():
                peer.close()
        self._move()

    def _take(self) -> bytes:
        queue, rng = self._queue, self._rng
        data = b"".join(queue) if len(queue) > 1 else queue[0]
        queue.clear()
        n = len(data)
        if n > 1 and rng.random() < self.network.weather.split:
            self.network.seen["split"] += 1
            n = min(n - 1, rng.choice((1, 2, 5, 100, 1448)))
        n = min(n, PIECE_BYTES)
        if n < len(data):
            queue.append(data[n:])
            data = data[:n]
        return data

    def _shrink(self, size: int) -> None:
        self._size = max(0, self._size - size)
        if self.closed or self.loop.dead:
            return
        if self._paused and self._size <= self._low:
            self._paused = False
            self.loop.call_soon(self._resume)
        if self._closing and self._size <= KERNEL_BYTES:
            self._lose(None)

    def _resume(self) -> None:
        if not self.closed:
            self.protocol.resume_writing()


class Listener:
    """What a program listens with; quacks like asyncio's Server."""

    def __init__(self, network: Network, loop: Loop, factory: Callable[[], Any], port: int) -> None:
        self.loop = loop
        self.factory = factory
        self.port = port
        self.sockets = [self]
        self._network = network

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    def close(self) -> None:
        if self._network.listeners.get(self.port) is self:
            del self._network.listeners[self.port]

    async def wait_closed(self) -> None:
        return


class Network:
    """All listeners and cables. ``names`` tells a port's kind, for faults and traces."""

    def __init__(self, kernel: Kernel, rng: random.Random, seen: Counter[str], names: dict[int, str]) -> None:
        self.kernel = kernel
        self.rng = rng
        self.seen = seen
        self.names = names
        self.weather = Weather()
        self.listeners: dict[int, Listener] = {}
        self.cables: dict[Cable, None] = {}
        self.loops: list[Loop] = []  # of all programs that ever ran
        self.unreachable: set[int] = set()  # ports that do not even refuse
        self.joined: Callable[[Cable], None] = lambda cable: None

    def listen(self, loop: Loop, factory: Callable[[], Any], port: int) -> Listener:
        listener = self.listeners[port] = Listener(self, loop, factory, port)
        return listener

    async def dial(self, loop: Loop, factory: Callable[[], Any], port: int) -> tuple[Transport, Any]:
        """Raises ConnectionRefusedError; takes for ever when nobody answers."""
        arrived = loop.create_future()
        loop.call_later(MIN_LATENCY_S + self.rng.random() * self.weather.latency_s, _arrive, arrived)
        await arrived
        if port in self.unreachable:
            await loop.create_future()
        protocol = factory()
        return self.connect(loop, protocol, port), protocol

    def connect(self, loop: Loop, protocol: Any, port: int) -> Transport:
        """Raises ConnectionRefusedError."""
        listener = self.listeners.get(port)
        if listener is None or listener.loop.dead:
            raise ConnectionRefusedError
        cable = Cable(self.names.get(port, str(port)))
        near, far = Transport(self, cable, loop, "near"), Transport(self, cable, listener.loop, "far")
        near.peer, far.peer = far, near
        cable.ends = [near, far]
        self.cables[cable] = None
        near.protocol, far.protocol = protocol, listener.factory()
        listener.loop.call_soon(far.protocol.connection_made, far)
        protocol.connection_made(near)
        self.joined(cable)
        return near

    def kill(self, loop: Loop, *, silent: bool = False, orderly: bool = False) -> None:
        """The program on ``loop`` is gone. ``orderly``: it closed its sockets by itself. ``silent``: so is its machine,
        and the edge is not told."""
        loop.dead = True
        for listener in [one for one in self.listeners.values() if one.loop is loop]:
            listener.close()
        for cable in list(self.cables):
            for end in cable.ends:
                if end.loop is not loop:
                    continue
                if not end.closed:
                    cable.cut = cable.cut or (silent and cable.kind == "link")
                    end.kill(orderly=orderly)
                end.peer._moving = False  # what was on its way into that program
                end.peer._move()  # nobody takes it any more


def _arrive(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
