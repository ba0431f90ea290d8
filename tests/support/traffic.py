"""What travels between the two sessions of tests/support/pair.py: transports, clients, providers, scripted bodies.

Every body is a slice of one random blob, so that each byte is checked against its place as soon as it is delivered.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iop._fast.body import FRAMING_CHUNKED, FRAMING_EOF, FRAMING_LENGTH, BodyDecoder
from iop._fast.out import Writer
from iop._fast.relay import CHUNKED, LENGTH, RAW, ClientStream, ProviderStream
from iop._fast.sse import CHAT, EventSplitter
from iop.errors import IopError
from iop.wire import codec, limits
from iop.wire import messages as m
from iop.wire.session import Session

if TYPE_CHECKING:
    from tests.support.pair import World

BLOB = random.Random(0).randbytes(1 << 20)
READ_MAX = 65536  # what one read of a socket brings
CLIENT_HIGH = 65536
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


@dataclass(frozen=True)
class Plan:
    """What a schedule is made of."""

    streams: int = 8  # at a time
    windows: tuple[int, ...] = (32768, 65536, 262144)
    answer_bytes: int = 300_000  # at most
    request_bytes: int = 200_000
    link_bytes: int = 65536  # that one action moves at most
    leaves: float = 1.0  # weight of clients that leave
    breaks: float = 0.0  # chance per step that the link is reset
    stalls: bool = False  # clients and providers stop reading for long


class Pipe:
    """One direction of the link: the sender's transport, and the bytes that have left it and not arrived."""

    HIGH = limits.LINK_SEND_HIGH_BYTES - 1
    LOW = HIGH // 4

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.session: Session
        self.buffer = bytearray()
        self.wire = bytearray()
        self.paused = False
        self.closed = False

    def write(self, data: bytes) -> None:
        assert type(data) is bytes
        assert data, "an empty write is a system call for nothing"
        assert not self.paused, "written although the transport said pause"
        assert len(self.buffer) <= self.HIGH, "fed although 128 KiB are unsent"
        assert not self.closed, "written after the close"
        self.world.seen["writes"] += 1
        self.buffer += data
        if len(self.buffer) > self.HIGH and not self.paused:
            self.paused = True
            self.world.seen["link paused"] += 1
            self.session.mux.pause()

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return len(self.buffer)

    def leave(self, n: int) -> None:
        """The kernel takes n bytes."""
        self.wire += self.buffer[:n]
        del self.buffer[:n]
        if self.paused and len(self.buffer) <= self.LOW:
            self.paused = False
            self.session.mux.resume()

    def arrive(self, n: int, to: Session) -> None:
        data = bytes(self.wire[:n])
        del self.wire[:n]
        if data:
            to.mux.feed(data)


class Socket:
    """The transport of a client or a provider: takes everything, says pause above the mark, until somebody reads."""

    def __init__(self, writer: Writer, taken: Callable[[bytes], None]) -> None:
        self.writer = writer
        self.taken = taken
        self.buffered = 0
        writer.attach(self)

    def write(self, data: bytes) -> None:
        self.taken(data)
        self.buffered += len(data)
        if self.buffered > CLIENT_HIGH and not self.writer.paused:
            self.writer.pause()

    def writelines(self, parts: list[bytes]) -> None:
        for part in parts:
            self.write(part)

    def read(self, n: int) -> None:
        """The other end takes n bytes."""
        self.buffered = max(0, self.buffered - n)
        if self.writer.paused and self.buffered <= CLIENT_HIGH // 4:
            self.writer.resume()


class Request:
    """One request at the edge, its client, and what the provider is going to answer."""

    def __init__(self, world: World, number: int) -> None:
        rng, plan = world.rng, world.plan
        self.world = world
        self.run_id = f"r{number}"
        size = rng.choice((0, 1, 700, 5000, 70_000, plan.answer_bytes))
        self.sse = rng.random() < 0.4
        self.framing = rng.choice((FRAMING_LENGTH, FRAMING_CHUNKED, FRAMING_EOF))
        self.answer = _events(rng, size) if self.sse else _slice(rng, size)
        self.encoded = self.answer if self.framing != FRAMING_CHUNKED else _chunked(rng, self.answer)
        self.dies_at = rng.randrange(len(self.encoded) + 1) if rng.random() < 0.15 else -1
        self.mode = LENGTH if self.framing == FRAMING_LENGTH else rng.choice((CHUNKED, RAW))
        body_size = rng.choice((0, 1, 3000, plan.request_bytes))
        self.body = _slice(rng, body_size)
        self.window = rng.choice(plan.windows)
        self.writer = Writer(world.edge_hub)
        self.client = Socket(self.writer, self._delivered)
        self.reads = not plan.stalls or rng.random() < 0.7
        self.stream = ClientStream(self.writer, self)
        framing = {LENGTH: FRAMING_LENGTH, CHUNKED: FRAMING_CHUNKED, RAW: FRAMING_EOF}[self.mode]
        self.decoder = BodyDecoder(framing, len(self.answer) if framing == FRAMING_LENGTH else 0)
        self.head_left = len(HEAD)
        self.delivered = 0
        self.committed = False
        self.left = False
        self.terminal = ""
        self.finished = False

    def send(self) -> None:
        """Opens the stream on the link, as edge/requests/client_request.py does."""
        edge, body = self.world.edge, self.body
        edge.mux.open(self.stream, self.window, edge.request_window_bytes)
        inline = len(body) <= limits.INLINE_BODY_BYTES and self.world.rng.random() < 0.7
        edge.send(
            m.ProviderTunnelRequest(
                self.stream.stream_id,
                self.run_id,
                "openai_compat",
                "p",
                "t",
                self.window,
                1000,
                1000,
                m.LeaseBinding(1),
                b"POST",
                b"/",
                body=body if inline else b"",
                body_bytes=len(body),
                body_follows=not inline,
            ),
            self.stream,
            opening=True,
        )
        if not inline:
            cut = self.world.rng.randrange(len(body) + 1)
            self.stream.send_body([piece for piece in (body[:cut], body[cut:]) if piece] or [b""])

    def cancel(self) -> None:
        """The client leaves."""
        self.left = True
        self.stream.discard()
        self.writer.detach()
        if self.world.edge.cancel(self.stream, self.run_id, m.CancelReason.CLIENT_GONE):
            self.world.seen["withdrawn"] += 1
            self.world.withdrawn.add(self.stream.stream_id)
            self.end("withdrawn")

    def end(self, terminal: str) -> None:
        assert not self.terminal, f"{self.run_id}: {terminal} after {self.terminal}"
        self.terminal = terminal
        self.world.seen[terminal] += 1
        self.world.live.remove(self)

    # ---- owner of the stream ----------------------------------------------------------------------------------------

    def on_head(self, status: int, header_block: bytes) -> None:
        assert (status, header_block) == (200, b"x-run: %b\r\n" % self.run_id.encode())
        self.stream.respond(HEAD, self.mode, len(self.answer), self.sse)

    def on_held_end(self) -> bool:
        return False

    def on_commit(self) -> None:
        assert not self.committed
        self.committed = True

    def on_broken(self, exc: Exception, ended: bool) -> None:
        raise exc

    def on_terminal(self, kind: int, usage: tuple[int | None, ...] | None, failure: Any) -> None:
        self.end(m.TunnelFrameKind(kind).name)
        if kind == m.TunnelFrameKind.END:
            assert usage in (None, (None, len(self.answer), None, 0))
            assert failure is None
            if not self.left:
                assert self.committed
                assert self.stream.finish(), "END before the promised length"
                self.finished = True
        else:
            assert failure.code in (m.ErrorCode.CANCELLED, m.ErrorCode.PROVIDER_CONNECTION_LOST)
            assert (failure.code is m.ErrorCode.CANCELLED) <= self.left, "cancelled though nobody left"

    def _delivered(self, data: bytes) -> None:
        """Bytes on the client's socket: after the head, exactly the answer's next ones."""
        assert not self.left
        skip = min(self.head_left, len(data))
        assert data[:skip] == HEAD[len(HEAD) - self.head_left :][:skip]
        self.head_left -= skip
        pieces, used = self.decoder.feed(data[skip:])
        assert used == len(data) - skip, "bytes behind the end"
        for piece in pieces:
            assert self.answer.startswith(piece, self.delivered), f"{self.run_id}: wrong bytes at {self.delivered}"
            self.delivered += len(piece)


class Call:
    """The same request on the node: a provider that reads the request and says what it was scripted to say."""

    def __init__(self, world: World, opening: m.ProviderTunnelRequest, request: Request) -> None:
        self.world = world
        self.request = request
        self.stream = ProviderStream(self)
        self.body_at = 0
        self.inline = not opening.body_follows
        self.answered = False
        self.paused = False
        self.slack = world.rng.random() < 0.3  # one read was under way when the pause came
        self.at = 0
        self.ended = False
        self.writer = Writer(world.node_hub)
        self.provider = Socket(self.writer, lambda data: None)
        if self.inline:
            assert opening.body == request.body
            self.body_at = len(opening.body)
            self.writer.write(opening.body)

    def begin(self) -> None:
        self.answered = True
        request = self.request
        self.stream.head(200, b"x-run: %b\r\n" % request.run_id.encode())
        length = len(request.answer) if request.framing == FRAMING_LENGTH else 0
        self.stream.begin(BodyDecoder(request.framing, length), EventSplitter(CHAT) if request.sse else None)
        if request.framing == FRAMING_LENGTH and not length:
            self.on_body_end(0)

    def produce(self, n: int) -> None:
        """The provider's socket is readable."""
        if not self.answered:
            self.begin()
        if self.paused:
            if not self.slack:
                return
            self.slack = False
        request = self.request
        if self.ended:
            return
        stop = request.dies_at if request.dies_at >= 0 else len(request.encoded)
        data = request.encoded[self.at : min(self.at + n, stop)]
        if data:
            self.at += len(data)
            self.stream.feed(data)
        if self.at == stop and not self.ended and (request.dies_at >= 0 or request.framing == FRAMING_EOF):
            if not (request.dies_at >= 0 and request.framing == FRAMING_EOF):
                self.stream.eof()
            else:
                self.on_body_error(None)  # a reset, since a close would look like the end

    def cancel(self) -> None:
        if not self.ended:
            self.stream.fence()
            self._fail(m.ErrorCode.CANCELLED)

    def _fail(self, code: m.ErrorCode) -> None:
        self._ended()
        failure = m.ExecutionFailure(code, close_confirmed=True)
        self.stream.send_terminal(codec.tunnel_error(self.stream.stream_id, self.stream.next_seq, failure))

    def _ended(self) -> None:
        assert not self.ended
        self.ended = True
        self.world.calls.remove(self)
        self.stream.feeds(None)

    # ---- owner of the stream ----------------------------------------------------------------------------------------

    def on_request_body(self, data: bytes, last: bool) -> None:
        assert not self.inline
        body = self.request.body
        assert body.startswith(data, self.body_at)
        self.body_at += len(data)
        assert last == (self.body_at == len(body))
        self.writer.write(data)

    def on_body_end(self, extra_bytes: int) -> None:
        assert extra_bytes == 0
        self._ended()
        self.stream.end((None, len(self.request.answer), None, 0) if self.world.rng.random() < 0.5 else None)

    def on_body_error(self, error: IopError | None) -> None:
        assert error is None, error
        self._fail(m.ErrorCode.PROVIDER_CONNECTION_LOST)

    def pause_source(self) -> None:
        assert not self.paused
        self.paused = True
        self.world.seen["source paused"] += 1

    def on_broken(self, exc: Exception) -> None:
        raise exc

    def resume_source(self) -> None:
        assert self.paused
        self.paused = False


def _slice(rng: random.Random, n: int) -> bytes:
    at = rng.randrange(len(BLOB) - n)
    return BLOB[at : at + n]


def _chunked(rng: random.Random, body: bytes) -> bytes:
    """As a provider would send it, in chunks of a drawn size."""
    out, at = [], 0
    size = rng.choice((200, 5000, 100_000))
    while at < len(body):
        piece = body[at : at + size]
        out.append(b"%x\r\n%b\r\n" % (len(piece), piece))
        at += size
    return b"".join(out) + b"0\r\n\r\n"


def _events(rng: random.Random, n: int) -> bytes:
    """A chat stream of about n bytes; some begin with events that commit nothing."""
    preamble = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n' * rng.choice(
        (0, 1, 400)
    )
    delta = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"x" * rng.choice((3, 300, 40_000)))
    return preamble + delta * (n // len(delta)) + b"data: [DONE]\n\n"
