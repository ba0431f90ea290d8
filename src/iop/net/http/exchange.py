"""One request and the way to answer it, and who does: what the server and its App share (API-6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from iop._fast.out import Writer
from iop.errors import Overloaded, TooManyBodyBytes
from iop.net.http.head import RequestHead, status_line

__all__ = ["App", "Connection", "Exchange", "Server", "ServerLimits", "ServerStats"]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds and clocks of one listener; the names are those of the ``http`` section."""

    max_body_bytes: int = 33_554_432
    max_buffered_body_bytes: int = 536_870_912
    max_header_bytes: int = 32_768
    client_idle_timeout_s: float = 60.0
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 75.0
    max_connections: int = 20_000
    #: Of ``max_buffered_body_bytes`` what one principal may have: a quarter, and room for one body in any case. Kept,
    #: since each piece of a body asks for it.
    principal_body_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "principal_body_bytes", max(self.max_buffered_body_bytes // 4, self.max_body_bytes))


@dataclass(slots=True)
class ServerStats:
    """Plain counters, read at scrape time. ``held_by`` has the body bytes of each principal that holds any."""

    accepted: int = 0
    buffered_body_bytes: int = 0
    held_by: dict[str, int] = field(default_factory=dict)
    bytes_in: int = 0
    bytes_out: int = 0


class App(Protocol):
    """What answers exchanges. Every method is called synchronously and must not raise."""

    def head_received(self, ex: Exchange) -> None:
        """A whole head. May answer at once; the body is then discarded. Otherwise the body follows."""

    def body_piece(self, ex: Exchange, piece: bytes) -> None:
        """A piece of the body as it arrives, decoded. Keeping it is the app's business, which says so with
        :meth:`Exchange.release_body` when it no longer does. May answer at once, too, or :meth:`Exchange.defer`."""

    def request_complete(self, ex: Exchange) -> None:
        """The whole request is here."""

    def client_gone(self, ex: Exchange, reason: str) -> None:
        """The client closed or was given up (``client_gone``, ``client_idle``, ``body_timeout``) before the response
        was done. The exchange is dead: nothing that is written to it arrives."""

    def rejected(self, code: str) -> None:
        """A request that never became an exchange was answered with this error."""


class Server(Protocol):
    """What all exchanges of a listener share."""

    limits: ServerLimits
    stats: ServerStats

    def date_line(self) -> bytes: ...


class Connection(Protocol):
    """The client's connection, as far as its exchange uses it."""

    @property
    def server(self) -> Server: ...

    @property
    def writer(self) -> Writer: ...

    def response_done(self, keep_alive: bool) -> None: ...

    def work(self, step: Callable[[], bool]) -> None: ...

    def cut(self) -> None: ...

    def close(self, *, reset: bool) -> None: ...


class Exchange:
    """One request and its response.

    Answer with :meth:`respond` or :meth:`begin_stream`, or write a head and body to ``writer`` and call :meth:`finish`
    or :meth:`cut`.
    ``context`` is the app's, ``more_fields`` the field lines that it wants on every answer, ``buffered_bytes`` what it
    was handed of the body and holds. ``principal`` is whose share of the memory for bodies that counts in; the app sets
    it, and for an empty one there is no share. Exactly one of finish, cut and client_gone ends an exchange.
    """

    __slots__ = (
        "_connection",
        "accepted_at",
        "buffered_bytes",
        "context",
        "done",
        "head",
        "keep_alive",
        "more_fields",
        "principal",
        "writer",
    )

    def __init__(self, connection: Connection, head: RequestHead, accepted_at: float) -> None:
        self._connection = connection
        self.buffered_bytes = 0
        self.head = head
        self.accepted_at = accepted_at
        self.keep_alive = head.keep_alive
        self.writer: Writer = connection.writer
        self.context: Any = None
        self.more_fields = b""
        self.principal = ""
        self.done = False

    def head_bytes(self, status: int, header_block: bytes, framing: bytes) -> bytes:
        """A response head: status line, date, the given field lines, the framing line, and the connection line."""
        if self.keep_alive:
            connection = b"connection: keep-alive\r\n\r\n" if self.head.http10 else b"\r\n"
        else:
            connection = b"connection: close\r\n\r\n"
        date = self._connection.server.date_line()
        return b"".join((status_line(status), date, self.more_fields, header_block, framing, connection))

    def respond(self, status: int, header_block: bytes, body: bytes) -> None:
        """The whole response at once. A HEAD request gets the head alone."""
        framing = b"" if status in (204, 304) else b"content-length: %d\r\n" % len(body)
        head = self.head_bytes(status, header_block, framing)
        self.writer.write(head if self.head.method == b"HEAD" else head + body)
        self.finish()

    def begin_stream(self, header_block: bytes) -> None:
        """The head of a 200 of unknown length; :meth:`send` what comes, then :meth:`end_stream` or :meth:`cut`."""
        if self.head.http10:
            self.keep_alive = False
        framing = b"" if self.head.http10 else b"transfer-encoding: chunked\r\n"
        self.writer.write(self.head_bytes(200, header_block, framing))

    def send(self, data: bytes) -> None:
        """A part of the stream's body; not an empty one, which would look like its end."""
        self.writer.write(data if self.head.http10 else b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        """The stream is complete."""
        if not self.head.http10:
            self.writer.write(b"0\r\n\r\n")
        self.finish()

    def finish(self) -> None:
        """The response is complete; the connection goes on with the next request or closes."""
        if self.done:
            return
        self.done = True
        if self.buffered_bytes:
            self.release_body()
        self._connection.response_done(self.keep_alive)

    def cut(self, *, reset: bool) -> None:
        """End the connection in the middle of the response, so that no client takes it for complete (API-8b): what
        was written is flushed, then FIN without the last chunk, or RST where only the close delimits the body."""
        if self.done:
            return
        self.done = True
        self.release_body()
        if reset:
            self._connection.cut()
        else:
            self._connection.close(reset=False)

    def defer(self, step: Callable[[], bool]) -> None:
        """From within ``body_piece``: what the piece takes is too long for one turn of the loop. ``step`` is called,
        with turns between, until it returns False or has answered; what follows of the body waits for that."""
        self._connection.work(step)

    def hold(self, size: int) -> None:
        """Count ``size`` more bytes of the body in memory (fewer, if negative).

        Raises:
            Overloaded: All bodies together would have more than ``max_buffered_body_bytes`` (API-8c).
            TooManyBodyBytes: Those of this principal would have more than its share (API-10).
        """
        server = self._connection.server
        stats, limits = server.stats, server.limits
        if size > 0 and stats.buffered_body_bytes + size > limits.max_buffered_body_bytes:
            raise Overloaded
        principal = self.principal
        if principal:
            held_by = stats.held_by
            held = held_by.get(principal, 0) + size
            if size > 0 and held > limits.principal_body_bytes:
                raise TooManyBodyBytes
            held_by[principal] = held
        stats.buffered_body_bytes += size
        self.buffered_bytes += size

    def release_body(self) -> None:
        """The body is no longer in memory: it does not count against ``max_buffered_body_bytes`` any more."""
        size, self.buffered_bytes = self.buffered_bytes, 0
        stats = self._connection.server.stats
        stats.buffered_body_bytes -= size
        if self.principal:
            left = stats.held_by.pop(self.principal, 0) - size
            if left > 0:
                stats.held_by[self.principal] = left
