"""The clients of a load test, all in one process: opens the streams, checks every event, measures, reports.

    python -m benchmarks.load_client --port 8080 --stop-port 9000 --streams 200 --seconds 5

It reports in JSON lines on stdout: ``progress`` twice a second, ``window`` when measuring begins and ends, and one
``result``. Events that come outside the window are checked like the others and not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import uvloop

from iop._fast.body import FRAMING_CHUNKED, FRAMING_LENGTH, BodyDecoder
from iop.net.loop import raise_file_limit

EVENT = re.compile(rb'"g":(\d+),"n":(\d+),"t":(\d+)')
TOTAL = re.compile(rb'"g":(\d+),"total":(\d+)')
ANSWER = re.compile(rb'"g":(\d+),"n":(\d+)')
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n")

OPENING_AT_ONCE = 64
OPEN_TIMEOUT_S = 30.0
END_TIMEOUT_S = 15.0
PROGRESS_S = 0.5
PERCENTILES = (50.0, 90.0, 99.0, 99.9)


def percentiles(values: Sequence[int]) -> dict[str, float]:
    """Milliseconds of ``values`` in microseconds: ``p50`` … ``p99.9``, ``max`` and ``mean``; empty for none."""
    if not values:
        return {}
    ordered = sorted(values)
    last = len(ordered) - 1
    found = {f"p{p:g}": ordered[min(last, int(len(ordered) * p / 100))] / 1000 for p in PERCENTILES}
    return {**found, "max": ordered[-1] / 1000, "mean": round(sum(ordered) / len(ordered) / 1000, 4)}


class Load:
    """What all connections of one run share."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.events = 0  # or answers
        self.measuring = False
        self.stopping = False
        self.latency_us = array("Q")
        self.first_us = array("Q")
        self.errors: Counter[str] = Counter()
        self.open = 0

    def request(self, tag: int, serial: int) -> bytes:
        a = self.arguments
        body = json.dumps(
            {
                "model": a.model,
                "messages": [{"role": "user", "content": "x" * a.prompt_bytes}],
                "stream": not a.non_stream,
                "tag": tag,
                "serial": serial,
            }
        ).encode()
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )


class Connection(asyncio.Protocol):
    """One client. ``opened`` is set with its first event or answer, ``ended`` when its last request is over."""

    transport: asyncio.Transport

    def __init__(self, load: Load, tag: int) -> None:
        self.load = load
        self.tag = tag
        self.opened = asyncio.Event()
        self.ended = asyncio.Event()
        self.serial = 0
        self._head = b""
        self._tail = b""
        self._decoder: BodyDecoder | None = None
        self._seen = 0
        self._total = -1
        self._sent_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.load.open += 1
        self.ask()

    def ask(self) -> None:
        self._head = self._tail = b""
        self._decoder = None
        self._sent_ns = time.monotonic_ns()
        self.transport.write(self.load.request(self.tag, self.serial))

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        if self._decoder is None:
            self._head += data
            head, blank, data = self._head.partition(b"\r\n\r\n")
            if not blank:
                return
            status = head.split(b" ", 2)[1].decode()
            if status != "200":
                self.fail(f"status {status}")
                return
            length = LENGTH.search(head.lower() + b"\r\n")
            self._decoder = (
                BodyDecoder(FRAMING_LENGTH, int(length[1])) if length is not None else BodyDecoder(FRAMING_CHUNKED)
            )
        pieces, _ = self._decoder.feed(data)
        text = self._tail + b"".join(pieces)
        if self.load.arguments.non_stream:
            self._tail = text
            if self._decoder.done:
                self._answered(text, now_ns)
            return
        cut = text.rfind(b"\n\n") + 2
        self._tail = text[cut:] if cut > 1 else text
        if cut > 1:
            self._take(text[:cut], now_ns)
        if self._decoder.done:
            whole = self._total == self._seen and b"data: [DONE]\n\n" in text
            self.over() if whole else self.fail("incomplete")

    def _take(self, text: bytes, now_ns: int) -> None:
        load = self.load
        measuring = load.measuring
        for tag, number, at_ns in EVENT.findall(text):
            if int(number) != self._seen or int(tag) != self.tag:
                return self.fail("order")
            if measuring:
                load.latency_us.append((now_ns - int(at_ns)) // 1000)
            if not self._seen:
                load.first_us.append((now_ns - self._sent_ns) // 1000)
                self.opened.set()
            self._seen += 1
            load.events += 1
        total = TOTAL.search(text)
        if total is not None:
            self._total = int(total[2])
        return None

    def _answered(self, text: bytes, now_ns: int) -> None:
        load = self.load
        found = ANSWER.search(text)
        if found is None or (int(found[1]), int(found[2])) != (self.tag, self.serial):
            self.fail("mixed up")
            return
        load.events += 1
        if load.measuring:
            load.latency_us.append((now_ns - self._sent_ns) // 1000)
        self.opened.set()
        self.serial += 1
        if load.stopping:
            self.over()
        elif load.arguments.rate:
            wait_s = 1 / load.arguments.rate - (now_ns - self._sent_ns) / 1e9
            asyncio.get_running_loop().call_later(max(0.0, wait_s), self._next)
        else:
            self.ask()

    def _next(self) -> None:
        if self.load.stopping:
            self.over()
        elif not self.ended.is_set():
            self.ask()

    def fail(self, what: str) -> None:
        if not self.ended.is_set():
            self.load.errors[what] += 1
        self.over()

    def over(self) -> None:
        self.opened.set()
        self.ended.set()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.load.open -= 1
        self.fail("connection lost")


def tell(kind: str, **fields: Any) -> None:
    print(json.dumps({"kind": kind, **fields}), flush=True)


async def progress(load: Load) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        tell("progress", open=load.open, events=load.events, errors=sum(load.errors.values()))


async def stop_streams(port: int) -> dict[str, Any]:
    """Tells the provider to end all streams; returns its figures."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST /stop HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(head)
        assert length is not None
        return cast("dict[str, Any]", json.loads(await reader.readexactly(int(length[1]))))
    finally:
        writer.close()


async def run(load: Load) -> None:
    a = load.arguments
    loop = asyncio.get_running_loop()
    opening = asyncio.Semaphore(OPENING_AT_ONCE)
    connections: list[Connection] = []

    async def open_one(tag: int) -> None:
        async with opening:
            try:
                _, connection = await loop.create_connection(lambda: Connection(load, tag), "127.0.0.1", a.port)
            except OSError as error:
                load.errors[f"connect: {error.strerror or type(error).__name__}"] += 1
                return
            connections.append(connection)
            await connection.opened.wait()

    reporting = asyncio.ensure_future(progress(load))
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            await asyncio.gather(*(open_one(tag) for tag in range(a.streams)))
    except TimeoutError:
        load.errors["not open in time"] += sum(not c.opened.is_set() for c in connections) or 1
    began_events, began_at = load.events, loop.time()
    load.measuring = True
    tell("window", at="start", events=load.events, open=load.open)
    await asyncio.sleep(a.seconds)
    load.measuring = False
    events, seconds, still_open = load.events - began_events, loop.time() - began_at, load.open
    tell("window", at="end", events=load.events, open=load.open)
    load.stopping = True
    provider = await stop_streams(a.stop_port)
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            for connection in connections:
                await connection.ended.wait()
    except TimeoutError:
        load.errors["not ended in time"] += sum(not c.ended.is_set() for c in connections)
        for connection in connections:
            connection.over()
    reporting.cancel()
    tell(
        "result",
        open=still_open,
        events=events,
        seconds=round(seconds, 3),
        events_per_s=round(events / seconds, 1),
        latency_ms=percentiles(load.latency_us),
        first_event_ms=percentiles(load.first_us),
        errors=dict(load.errors),
        provider={key: provider[key] for key in ("skipped", "aborted", "late_ms")},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The clients of a load test.")
    parser.add_argument("--port", type=int, required=True, help="where to send requests")
    parser.add_argument("--stop-port", type=int, required=True, help="the provider's own port, to end the streams")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=float, default=0.0, help="with --non-stream: requests a second, 0 = no pause")
    parser.add_argument("--non-stream", action="store_true")
    parser.add_argument("--prompt-bytes", type=int, default=100)
    parser.add_argument("--model", default="load")
    arguments = parser.parse_args()
    raise_file_limit()

    async def body() -> None:
        running = asyncio.ensure_future(run(Load(arguments)))
        # The end of standard input is the end of whoever wants the result.
        asyncio.get_running_loop().add_reader(0, lambda: os.read(0, 4096) or running.cancel())
        await running

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(body())
        except asyncio.CancelledError:
            sys.exit(1)


if __name__ == "__main__":
    main()
