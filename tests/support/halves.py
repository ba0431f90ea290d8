"""The two halves of a tunnel, each alone, over a link that takes everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iop._fast import frame
from iop._fast.body import BodyDecoder
from iop._fast.mux import Mux
from iop._fast.out import Hub, Writer
from iop._fast.relay import RAW, ClientStream, ProviderStream
from iop._fast.scan import FieldScanner
from iop._fast.sse import EventSplitter
from iop.errors import ProtocolError

HEAD, BODY, USAGE, END, ERROR_FRAME = 1, 2, 3, 4, 5
WINDOW = 1 << 18
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


class World:
    """A multiplexer with a transport that takes everything, and a poll round."""

    def __init__(self, *, edge: bool) -> None:
        self.ready: list[Callable[[], None]] = []
        self.faults: list[ProtocolError] = []
        self.out = b""
        self.hub = Hub(self.ready.append, self._raise)
        self.mux = Mux(self.hub, edge, self._message, self.faults.append, 4 << 20)
        self.mux.heartbeat_open = self.mux.data_open = True
        self.mux.attach(self)
        self.heard: list[Any] = []

    def _raise(self, exc: Exception) -> None:
        raise exc

    def _message(self, envelope: bytes) -> None:
        raise AssertionError(envelope)

    def round(self) -> None:
        batch, self.ready[:] = self.ready[:], []
        for callback in batch:
            callback()

    def write(self, data: bytes) -> None:
        self.out += data

    def writelines(self, parts: list[bytes]) -> None:
        self.out += b"".join(parts)

    def get_write_buffer_size(self) -> int:
        return 0


class Edge(World):
    """One client stream; ``client`` is what reached its socket."""

    def __init__(self, mode: int = RAW, length: int = 0, *, gated: bool = False, respond: bool = True) -> None:
        super().__init__(edge=True)
        self.client = b""
        self.mode, self.length, self.gated, self.respond = mode, length, gated, respond
        self.writer = Writer(self.hub)
        self.writer.attach(_Socket(self))
        self.stream = ClientStream(self.writer, self)
        self.mux.open(self.stream, WINDOW, WINDOW)
        self.seq = 0
        self.held_end = False  # what the owner says to an answer that is held whole

    def on_head(self, status: int, header_block: bytes) -> None:
        self.heard.append((status, header_block))
        if self.respond:
            self.stream.respond(b"HEAD|", self.mode, self.length, self.gated)

    def on_held_end(self) -> bool:
        return self.held_end

    def on_commit(self) -> None:
        self.heard.append("commit")

    def on_broken(self, exc: Exception, ended: bool) -> None:
        raise exc

    def on_terminal(self, kind: int, usage: Any, failure: Any) -> None:
        self.heard.append((kind, usage, failure))

    def frame(self, kind: int, body: bytes = b"", flags: int = 0, *, seq: int | None = None) -> None:
        """One frame from the node, in its turn."""
        at = self.seq if seq is None else seq
        self.seq += 1
        self.mux.feed(frame.encode_tunnel_frame(1, at, kind, body, flags, 200 if kind == HEAD else 0))
        self.round()


class _Socket:
    def __init__(self, edge: Edge) -> None:
        self.edge = edge

    def write(self, data: bytes) -> None:
        self.edge.client += data

    def writelines(self, parts: list[bytes]) -> None:
        self.edge.client += b"".join(parts)


class Node(World):
    """One provider stream; ``frames()`` is what the edge would see."""

    def __init__(self, framing: int, length: int = 0, *, credit: int = WINDOW, dialect: int = 0) -> None:
        super().__init__(edge=False)
        self.stream = ProviderStream(self)
        self.mux.adopt(self.stream, 1, WINDOW, credit)
        self.stream.head(200, b"a: b\r\n")
        splitter = EventSplitter(dialect) if dialect else None
        self.fields = None if dialect else FieldScanner(b"usage")
        self.stream.begin(BodyDecoder(framing, length), splitter, self.fields)

    def on_request_body(self, data: bytes, last: bool) -> None:
        self.heard.append((data, last))

    def on_body_end(self, extra_bytes: int) -> None:
        self.heard.append(("end", extra_bytes))

    def on_body_error(self, error: object) -> None:
        self.heard.append(("error", getattr(error, "code", error)))

    def pause_source(self) -> None:
        self.heard.append("pause")

    def on_broken(self, exc: Exception) -> None:
        raise exc

    def resume_source(self) -> None:
        self.heard.append("resume")

    def frames(self) -> list[dict[str, Any]]:
        self.round()
        found, data = [], self.out
        self.out = b""
        while data:
            n = int.from_bytes(data[:4], "big")
            decoded = frame.decode(data[4 : 4 + n])
            assert decoded is not None
            found.append(decoded)
            data = data[4 + n :]
        return found

    def body(self) -> bytes:
        return b"".join(f["body"] for f in self.frames() if f.get("kind") == BODY)
