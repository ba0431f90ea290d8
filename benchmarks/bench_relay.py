"""One event on its way through both halves of a tunnel, without sockets: what the node pays, and what the edge pays.

Each round is one poll round: S streams have one event each, everything is flushed once. ``ns_per_event`` is the figure
to watch; a plain-Python relay of the edge's half stands beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from iop._fast import frame
from iop._fast.body import FRAMING_CHUNKED, BodyDecoder
from iop._fast.mux import Mux
from iop._fast.out import Hub, Writer
from iop._fast.relay import CHUNKED, ClientStream, ProviderStream
from iop._fast.sse import CHAT, EventSplitter

DELTA = {"index": 0, "delta": {"content": " hello there"}, "logprobs": None, "finish_reason": None}
HEAD = {
    "id": "chatcmpl-0123456789abcdef",
    "object": "chat.completion.chunk",
    "created": 1700000000,
    "model": "qwen3-32b",
}
EVENT = f"data: {json.dumps({**HEAD, 'choices': [DELTA]}, separators=(',', ':'))}\n\n".encode()
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
ROUNDS = 100


class Null:
    """A transport, an owner and a handler that do nothing; ``out`` keeps what was written if asked to."""

    def __init__(self, *, keep: bool = False) -> None:
        self.keep = keep
        self.out: list[bytes] = []
        self.stream: ClientStream | None = None

    def write(self, data: bytes) -> None:
        if self.keep:
            self.out.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def on_head(self, status: int, header_block: bytes) -> None:
        assert self.stream is not None
        self.stream.respond(b"HTTP/1.1 200 OK\r\n\r\n", CHUNKED, 0, True)

    def on_held_end(self) -> bool:
        return False

    def on_commit(self) -> None: ...
    def on_terminal(self, kind: int, usage: Any, failure: Any) -> None: ...
    def on_request_body(self, data: bytes, last: bool) -> None: ...
    def on_body_end(self, extra_bytes: int) -> None: ...
    def on_body_error(self, error: Any) -> None: ...
    def pause_source(self) -> None: ...
    def resume_source(self) -> None: ...


def _raise(error: Any) -> None:
    raise error


class Side:
    def __init__(self, *, edge: bool, keep: bool = False) -> None:
        self.ready: list[Callable[[], None]] = []
        self.hub = Hub(self.ready.append, _raise)
        self.transport = Null(keep=keep)
        self.mux = Mux(self.hub, edge, _raise, _raise, 4 << 20)
        self.mux.heartbeat_open = self.mux.data_open = True
        self.mux.attach(self.transport)

    def round(self) -> None:
        while self.ready:
            self.ready.pop()()


def nodes_half(streams: int, *, keep: bool = False) -> tuple[Side, list[ProviderStream]]:
    side = Side(edge=False, keep=keep)
    out = []
    for n in range(streams):
        stream = ProviderStream(Null())
        side.mux.adopt(stream, n + 1, 1 << 18, 1 << 60)
        stream.head(200, b"content-type: text/event-stream\r\n")
        stream.begin(BodyDecoder(FRAMING_CHUNKED), EventSplitter(CHAT))
        out.append(stream)
    side.round()
    return side, out


def node_rounds(side: Side, streams: list[ProviderStream]) -> None:
    for _ in range(ROUNDS):
        for stream in streams:
            stream.feed(CHUNK)
        side.round()


@pytest.mark.benchmark(group="node: provider bytes to one write on the link")
@pytest.mark.parametrize("streams", [1, 50, 1000])
def test_node(benchmark: Any, streams: int) -> None:
    side, sources = nodes_half(streams)
    benchmark.pedantic(node_rounds, args=(side, sources), rounds=8, iterations=1, warmup_rounds=1)
    benchmark.extra_info["ns_per_event"] = round(benchmark.stats.stats.min / ROUNDS / streams * 1e9)
    benchmark.extra_info["event_bytes"] = len(EVENT)


def link_bytes(streams: int, repeats: int) -> list[bytes]:
    """What a node writes: the heads, then one piece per poll round."""
    side, sources = nodes_half(streams, keep=True)
    for _ in range(repeats):
        node_rounds(side, sources)
    return side.transport.out


class Edges(Side):
    """The edge's half with a client each."""

    def __init__(self, streams: int) -> None:
        super().__init__(edge=True)
        for _ in range(streams):
            owner = Null()
            writer = Writer(self.hub)
            writer.attach(owner)
            owner.stream = ClientStream(writer, owner)
            self.mux.open(owner.stream, 1 << 18, 0)

    def rounds(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.mux.feed(piece)
            self.round()


@pytest.mark.benchmark(group="edge: link bytes to one write per client")
@pytest.mark.parametrize("streams", [1, 50, 1000])
def test_edge(benchmark: Any, streams: int) -> None:
    repeats = 9
    heads, *pieces = link_bytes(streams, repeats)
    per = len(pieces) // repeats
    side = Edges(streams)
    side.rounds([heads])
    parts = iter([pieces[n * per : (n + 1) * per] for n in range(repeats)])  # sequence numbers go on, so each once
    benchmark.pedantic(side.rounds, setup=lambda: ((next(parts),), {}), rounds=8, iterations=1, warmup_rounds=1)
    benchmark.extra_info["ns_per_event"] = round(benchmark.stats.stats.min / ROUNDS / streams * 1e9)


def python_edge(pieces: list[bytes]) -> int:
    """The twin, with decoding by the native codec's Python face: no gate, no credit, no sequence check."""
    out = {}
    for piece in pieces:
        at = 0
        while at < len(piece):
            n = int.from_bytes(piece[at : at + 4], "big")
            fields = frame.decode(piece[at + 4 : at + 4 + n])
            assert fields is not None
            out[fields["stream_id"]] = b"%x\r\n%b\r\n" % (len(fields["body"]), fields["body"])
            at += 4 + n
    return len(out)


@pytest.mark.benchmark(group="edge: link bytes to one write per client")
def test_edge_in_python(benchmark: Any) -> None:
    _, *pieces = link_bytes(50, 1)
    assert benchmark(python_edge, pieces) == 50
    benchmark.extra_info["ns_per_event"] = round(benchmark.stats.stats.min / ROUNDS / 50 * 1e9)
