"""A link's multiplexer alone: what a frame costs to queue and flush, to receive, and to route among many streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from iop._fast import frame
from iop._fast.mux import Mux, Stream
from iop._fast.out import Hub

N = 1000


class Null:
    """A transport that forgets."""

    def write(self, data: bytes) -> None: ...
    def writelines(self, parts: list[bytes]) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0


def made(*, edge: bool) -> tuple[Mux, list[Callable[[], None]]]:
    ready: list[Callable[[], None]] = []
    mux = Mux(Hub(ready.append, _raise), edge, _message, _raise, 4 << 20)
    mux.heartbeat_open = mux.data_open = True
    mux.attach(Null())
    return mux, ready


def _raise(error: Exception) -> None:
    raise error


def _message(envelope: bytes) -> None:
    raise AssertionError(envelope)


def per_frame(benchmark: Any) -> None:
    benchmark.extra_info["ns_per_frame"] = round(benchmark.stats.stats.min / N * 1e9)


@pytest.mark.benchmark(group="1000 frames received")
@pytest.mark.parametrize("size", [1 << 20, 1448, 100], ids=["one-read", "1448-byte-reads", "100-byte-reads"])
def test_receive(benchmark: Any, size: int) -> None:
    """Late frames of 240 bytes: framing, decoding and the look-up, nothing else."""
    mux, _ = made(edge=True)
    mux.adopt(Stream(), 5000, 1, 1)
    data = b"".join(frame.encode_tunnel_frame(n % 4000 + 1, n, 2, b"x" * 220, 2) for n in range(N))
    parts = [data[at : at + size] for at in range(0, len(data), size)]

    def feed() -> None:
        for part in parts:
            mux.feed(part)

    benchmark(feed)
    assert mux.late_frames
    per_frame(benchmark)


@pytest.mark.benchmark(group="1000 frames sent, ten in a round")
@pytest.mark.parametrize("congested", [False, True], ids=["free", "congested"])
def test_send(benchmark: Any, congested: bool) -> None:
    mux, ready = made(edge=True)
    streams = [Stream() for _ in range(10)]
    for stream in streams:
        mux.open(stream, 1, 1 << 40)
    data = frame.encode_tunnel_body(1, b"x" * 220)

    def send() -> None:
        for _ in range(N // 10):
            if congested:
                mux.pause()
            for stream in streams:
                mux.send(data, stream)
            if congested:
                mux.resume()
            while ready:
                ready.pop()()

    benchmark(send)
    assert mux.queued_bytes == 0
    per_frame(benchmark)


@pytest.mark.benchmark(group="1000 streams opened and forgotten")
@pytest.mark.parametrize("others", [0, 1000, 100_000])
def test_open_and_forget(benchmark: Any, others: int) -> None:
    """That it does not grow with the number of open streams."""
    mux, _ = made(edge=True)
    for _ in range(others):
        mux.open(Stream(), 1, 1)

    def cycle() -> None:
        for _ in range(N):
            stream = Stream()
            mux.open(stream, 1, 1)
            mux.forget(stream)

    benchmark.pedantic(cycle, rounds=20, iterations=1, warmup_rounds=2)
    assert mux.stream_count == others
    benchmark.extra_info["ns_per_stream"] = round(benchmark.stats.stats.min / N * 1e9)
