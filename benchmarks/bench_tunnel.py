"""Requests through a running edge and node, beside the same requests sent to the model server directly.

One at a time over a kept connection, which is latency; and one on each of 32 connections at once, which is closer to
what the pair can do. The load test (tunnel_load.py) measures streams.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.tunnel_load import Pair, Settings, running_pair

CONNECTIONS = 32
BODY = b'{"model":"load","messages":[{"role":"user","content":"hello"}]}'
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with running_pair(Settings(streams=CONNECTIONS, non_stream=True)) as running:
        yield running


def receive(sock: socket.socket) -> None:
    """One whole answer, which has to be a good one."""
    data = b""
    while True:
        head, blank, body = data.partition(b"\r\n\r\n")
        if blank:
            length = LENGTH.search(head + b"\r\n")
            assert length is not None
            if len(body) >= int(length[1]):
                break
        more = sock.recv(65536)
        assert more, data
        data += more
    assert head.startswith(b"HTTP/1.1 200 "), data


@pytest.mark.parametrize("through", [False, True], ids=["direct", "edge-and-node"])
@pytest.mark.parametrize("connections", [1, CONNECTIONS])
def test_answers(benchmark: BenchmarkFixture, pair: Pair, through: bool, connections: int) -> None:
    benchmark.group = f"{connections} at a time"
    address = ("127.0.0.1", pair.port if through else pair.provider_port)
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(connections)]

        def round_trip() -> None:
            for sock in sockets:
                sock.sendall(REQUEST)
            for sock in sockets:
                receive(sock)

        benchmark(round_trip)
