"""The model server of a load test: OpenAI-shaped event streams, all paced by one timer, in a process of its own.

    python -m benchmarks.load_provider --rate 50 --slots 20

It prints ``{"port": N}`` and serves until its standard input ends. Each event carries the tag of its request, its
number and the instant at which it was written (``time.monotonic_ns``, which all processes of a machine share), so that
the client can check order and completeness and measure one-way latency. A stream goes on until ``POST /stop``, which
ends all of them as a model would; the last event tells how many there were. ``slots`` are the phases over which streams
are spread; with one, all of them speak in step, as those of a batching engine do.

A connection that does not take its events skips them: nothing piles up here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any, cast

import uvloop

from iop.net.loop import raise_file_limit

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"chatcmpl-load","object":"chat.completion.chunk","created":1,"model":"load","choices":[{"index":0,'
    b'"delta":{"content":" token"},"finish_reason":null}],"g":%d,"n":%d,"t":%d}\n\n'
)
FINISH = (
    b'data: {"id":"chatcmpl-load","object":"chat.completion.chunk","created":1,"model":"load","choices":[{"index":0,'
    b'"delta":{},"finish_reason":"stop"}],"g":%d,"total":%d}\n\ndata: [DONE]\n\n'
)
ANSWER = (
    b'{"id":"chatcmpl-load","object":"chat.completion","created":1,"model":"load","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"a token"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,'
    b'"completion_tokens":2,"total_tokens":3},"g":%d,"n":%d}'
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Pacer:
    """One timer: at each tick the streams of one slot speak, so that each stream does ``rate`` times a second."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rate: float, slots: int) -> None:
        self._loop = loop
        self._slots: list[dict[Speaker, None]] = [{} for _ in range(slots)]
        self._step_s = 1 / rate / slots
        self._next_slot = 0
        self._tick_count = 0
        self._began_at = loop.time()
        self.sent = self.skipped = self.aborted = 0
        self.late_s = 0.0
        loop.call_at(self._began_at + self._step_s, self._tick)

    def add(self, speaker: Speaker) -> dict[Speaker, None]:
        """Puts a stream into the next slot, which it leaves by itself."""
        self._next_slot = (self._next_slot + 1) % len(self._slots)
        slot = self._slots[self._next_slot]
        slot[speaker] = None
        return slot

    def _tick(self) -> None:
        self._tick_count += 1
        for speaker in self._slots[self._tick_count % len(self._slots)]:
            speaker.speak()
        due_at = self._began_at + (self._tick_count + 1) * self._step_s
        self.late_s = max(self.late_s, self._loop.time() - due_at)
        self._loop.call_at(due_at, self._tick)

    def stop(self) -> None:
        for slot in self._slots:
            for speaker in list(slot):
                speaker.finish()

    def stats(self) -> dict[str, Any]:
        return {
            "sent": self.sent,
            "skipped": self.skipped,
            "aborted": self.aborted,
            "late_ms": round(self.late_s * 1000, 1),
            "open": sum(map(len, self._slots)),
        }


class Speaker(asyncio.Protocol):
    """One connection, one request at a time."""

    transport: asyncio.Transport

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._buffer = b""
        self._slot: dict[Speaker, None] | None = None
        self._tag = 0
        self._count = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            place = head.find(b"\r\ncontent-length:")
            length = int(head[place + 17 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            self._serve(head.split(b" ", 2)[1], body)

    def _serve(self, path: bytes, body: bytes) -> None:
        if path == b"/stop":
            self._pacer.stop()
            self._answer(json.dumps(self._pacer.stats()).encode())
            return
        request = json.loads(body) if body else {}
        self._tag = request.get("tag", 0)
        if not request.get("stream"):
            self._answer(ANSWER % (self._tag, request.get("serial", 0)))
            return
        self._count = 0
        self._slot = self._pacer.add(self)
        self.transport.write(HEAD)
        self.speak()

    def _answer(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(head + body)

    def speak(self) -> None:
        """The next event, unless the connection is full."""
        if self._paused:
            self._pacer.skipped += 1
            return
        self.transport.write(chunk(EVENT % (self._tag, self._count, time.monotonic_ns())))
        self._count += 1
        self._pacer.sent += 1

    def finish(self) -> None:
        self._leave()
        self.transport.write(chunk(FINISH % (self._tag, self._count)) + b"0\r\n\r\n")

    def _leave(self) -> None:
        if self._slot is not None:
            self._slot.pop(self, None)
            self._slot = None

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._pacer.aborted += self._slot is not None
        self._leave()


async def serve(rate: float, slots: int) -> None:
    loop = asyncio.get_running_loop()
    pacer = Pacer(loop, rate, slots)
    server = await loop.create_server(lambda: Speaker(pacer), "127.0.0.1", 0, backlog=4096)
    ended = asyncio.Event()
    loop.add_reader(0, lambda: None if sys.stdin.buffer.raw.read(4096) else ended.set())
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await ended.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="The model server of a load test.")
    parser.add_argument("--rate", type=float, required=True, help="events a second and stream")
    parser.add_argument("--slots", type=int, required=True, help="phases over which the streams are spread")
    arguments = parser.parse_args()
    raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(arguments.rate, arguments.slots))


if __name__ == "__main__":
    main()
