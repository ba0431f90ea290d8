"""One end of a link for tests of the native kernels: a multiplexer, its poll round, and a transport that takes nothing
until told; owners of streams that write down what they hear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iop._fast import frame
from iop._fast.body import FRAMING_LENGTH, BodyDecoder
from iop._fast.mux import Mux
from iop._fast.out import Hub, Writer
from iop._fast.relay import ClientStream, ProviderStream
from iop.errors import ProtocolError

KIB = 1024
HIGH = 128 * KIB


class End:
    """A multiplexer, its poll round, and a transport that takes nothing until told."""

    def __init__(self, *, edge: bool = False, max_frame_bytes: int = 4 << 20, is_open: bool = True) -> None:
        self.ready: list[Callable[[], None]] = []
        self.messages: list[bytes] = []
        self.faults: list[ProtocolError] = []
        self.writes: list[bytes] = []
        self.buffered = 0
        self.hub = Hub(self.ready.append, self._raise)
        self.mux = Mux(self.hub, edge, self.messages.append, self.faults.append, max_frame_bytes)
        self.mux.heartbeat_open = self.mux.data_open = is_open
        self.mux.attach(self)
        self.round()

    def _raise(self, exc: Exception) -> None:
        raise exc

    def round(self) -> None:
        batch, self.ready[:] = self.ready[:], []
        for callback in batch:
            callback()

    # the transport
    def write(self, data: bytes) -> None:
        assert not self.mux.paused, "written although the transport said pause"
        assert self.buffered < HIGH, "fed although 128 KiB are unsent"
        self.writes.append(data)
        self.buffered += len(data)
        if self.buffered > HIGH - 1 and not self.mux.paused:
            self.mux.pause()

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def drain(self, left: int = 0) -> None:
        """The kernel takes everything, or all but ``left`` bytes."""
        self.buffered = left
        if self.mux.paused and self.buffered <= HIGH // 4:
            self.mux.resume()
        self.round()

    def sent(self) -> list[dict[str, Any] | bytes]:
        """What was written, frame by frame, and forgotten: hot ones decoded."""
        data = b"".join(self.writes)
        self.writes.clear()
        return [frame.decode(envelope) or envelope for envelope in frames(data)]

    @property
    def reason(self) -> str:
        assert len(self.faults) == 1, self.faults
        return self.faults[0].reason


def frames(data: bytes) -> list[bytes]:
    out = []
    while data:
        n = int.from_bytes(data[:4], "big")
        out.append(data[4 : 4 + n])
        assert len(out[-1]) == n
        data = data[4 + n :]
    return out


def framed(envelope: bytes) -> bytes:
    return len(envelope).to_bytes(4, "big") + envelope


class Provider:
    """Owner of a ProviderStream; everything it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.body = b""

    def on_request_body(self, data: bytes, last: bool) -> None:
        self.body += data
        self.heard.append(("body", data, last))

    def on_body_end(self, extra_bytes: int) -> None:
        self.heard.append(("end", extra_bytes))

    def on_body_error(self, error: object) -> None:
        self.heard.append(("error", error))

    def pause_source(self) -> None:
        self.heard.append("pause")

    def on_broken(self, exc: Exception) -> None:
        raise exc

    def resume_source(self) -> None:
        self.heard.append("resume")


class Client:
    """Owner of a ClientStream."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_head(self, status: int, header_block: bytes) -> None:
        self.heard.append(("head", status, header_block))

    def on_held_end(self) -> bool:
        return False

    def on_commit(self) -> None:
        self.heard.append("commit")

    def on_broken(self, exc: Exception, ended: bool) -> None:
        raise exc

    def on_terminal(self, kind: int, usage: Any, failure: Any) -> None:
        self.heard.append(("terminal", kind))


def source(end: End, stream_id: int, owner: Provider | None = None, *, credit: int = 1 << 20) -> ProviderStream:
    """A node's stream with an endless body begun."""
    stream = ProviderStream(owner or Provider())
    end.mux.adopt(stream, stream_id, 256 * KIB, credit)
    stream.begin(BodyDecoder(FRAMING_LENGTH, 1 << 40))
    return stream


class Recorder(Client):
    """Keeps the answer's bytes too."""

    def __init__(self, end: End) -> None:
        super().__init__()
        self.writer = Writer(end.hub)
        self.stream = ClientStream(self.writer, self)
        self.out: list[bytes] = []
        self.writer.attach(self)
        end.mux.open(self.stream, 256 * KIB, 0)

    def on_head(self, status: int, header_block: bytes) -> None:
        super().on_head(status, header_block)
        self.stream.respond(b"HEAD", 2, 0, False)

    def write(self, data: bytes) -> None:
        self.out.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.out.extend(parts)


def congest(end: End) -> None:
    """Fills the transport to its mark."""
    filler = source(end, 1)
    while not end.mux.paused:
        filler.feed(bytes(16 * KIB))
        end.round()
    end.writes.clear()
