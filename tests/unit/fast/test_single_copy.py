"""A body is copied at most once per side, and nobody keeps the buffer that it was received in (WIRE-3).

While something is copied, the original and the copy are both in memory: so a second copy shows in the peak of what is
allocated. Transports keep what they are given, as one does whose socket is full.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable

import pytest

from iop._fast import frame
from iop._fast.body import FRAMING_LENGTH
from iop._fast.relay import RAW
from tests.support.halves import BODY, HEAD, Edge, Node

SIZE = 60_000
FRAME = SIZE + 200  # its envelope, and what objects cost


class Kept:
    """The transport of a link, or of a client, that takes references and joins nothing."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.parts.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.parts.extend(parts)

    def get_write_buffer_size(self) -> int:
        return 0


def allocated(body: Callable[[], None]) -> int:
    """The most bytes that ``body`` had allocated at a time, beyond what there was."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        body()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.req("WIRE-3")
@pytest.mark.parametrize("before", [b"", b"first"], ids=["the first bytes", "later ones"])
def test_the_edge_copies_an_answer_once(before: bytes) -> None:
    edge, client = Edge(RAW, 1 << 20), Kept()
    edge.writer.attach(client)
    edge.frame(HEAD)
    if before:
        edge.frame(BODY, before)
    received = frame.encode_tunnel_frame(1, edge.seq, BODY, b"x" * SIZE)
    references = sys.getrefcount(received)

    def body() -> None:
        edge.mux.feed(received)
        edge.round()

    assert SIZE <= allocated(body) <= FRAME + SIZE // 4
    assert b"".join(client.parts) == b"HEAD|" + before + b"x" * SIZE
    assert sys.getrefcount(received) == references


@pytest.mark.req("WIRE-3")
def test_the_edge_copies_a_request_once() -> None:
    edge, link = Edge(), Kept()
    edge.mux.attach(link)
    piece = b"y" * SIZE

    def body() -> None:
        edge.stream.send_body([piece])
        edge.round()

    assert SIZE <= allocated(body) <= FRAME + SIZE // 4
    assert b"".join(link.parts) == frame.encode_tunnel_body(1, piece, last=True)


@pytest.mark.req("WIRE-3")
def test_the_node_copies_an_answer_once() -> None:
    node, link = Node(FRAMING_LENGTH, SIZE), Kept()
    node.round()
    node.mux.attach(link)
    received = b"z" * SIZE
    references = sys.getrefcount(received)

    def body() -> None:
        node.stream.feed(received)
        node.round()

    assert SIZE <= allocated(body) <= FRAME + SIZE // 4
    assert b"z" * SIZE in b"".join(link.parts)
    assert sys.getrefcount(received) == references


@pytest.mark.req("WIRE-3")
def test_the_node_copies_a_request_once() -> None:
    node = Node(FRAMING_LENGTH, 0)
    received = frame.encode_tunnel_body(1, b"w" * SIZE, last=True)
    references = sys.getrefcount(received)
    assert SIZE <= allocated(lambda: node.mux.feed(received)) <= FRAME + SIZE // 4
    assert node.heard == [(b"w" * SIZE, True)]
    assert sys.getrefcount(received) == references
