"""The node's HTTP/1.1 client: pooled connections to one provider each, driven by callbacks (TUN-5, TUN-8, API-6).

A ``ProviderPool`` hands out a kept connection at once or makes one; nothing limits how many there are, since the gate
in front of it does (EXEC-3). A connection that ended a streamed response rests before it is used again,
and a kept one is asked for EOF when it is taken: some servers close right after a stream.

    take() ─▶ connection ─begin(call, request)─▶ call.response_head ─▶ its stream ─ finished() ─▶ kept | closed
                                                        └───────────── call.connection_lost (at any point before that)
"""

from __future__ import annotations

import asyncio
import re
import ssl as ssl_module
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import urlsplit

from iop._fast.body import HeadFinder
from iop._fast.fd import readable
from iop._fast.out import Writer
from iop._fast.relay import ProviderSocket
from iop.errors import (
    HeadError,
    InvalidArgument,
    IopError,
    NodeExhausted,
    ProviderProtocolError,
    ProviderUnreachable,
)
from iop.net import flow
from iop.net.http.head import ResponseHead, parse_response
from iop.net.loop import Runtime
from iop.tls.contexts import public_servers

if TYPE_CHECKING:
    from iop._fast.relay import Body

__all__ = ["Call", "Connection", "Origin", "PoolStats", "ProviderPool"]

MAX_HEAD_BYTES = 65536
MAX_INTERIM = 16  # 1xx responses before the real one
SWEEP_S = 0.5
WRITE_HIGH_BYTES = 262144


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a base URL points: ``http``, ``https``, or ``unix`` (``unix:/path/of.sock:/base``)."""

    scheme: str
    host: str
    port: int
    base_path: bytes
    unix_path: str = ""

    @classmethod
    def parse(cls, base_url: str) -> Origin:
        """Raises InvalidArgument for a URL that names no server; the message does not repeat it."""
        if base_url.startswith("unix:/"):
            socket_path, _, base = base_url[5:].partition(":")
            if not socket_path.isprintable():
                raise InvalidArgument("a provider's base_url names no socket")
            return cls("unix", "localhost", 0, _base_path(base), socket_path)
        try:
            parts = urlsplit(base_url)
            port = parts.port
        except ValueError:
            raise InvalidArgument("a provider's base_url is not a URL") from None
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.username
            or parts.query
            or parts.fragment
        ):
            raise InvalidArgument("a provider's base_url must be http://, https:// or unix:/, host and path only")
        if _HOST.fullmatch(parts.hostname) is None:
            raise InvalidArgument("a provider's base_url names no host")
        port = port or (443 if parts.scheme == "https" else 80)
        return cls(parts.scheme, parts.hostname, port, _base_path(parts.path))

    @property
    def host_line(self) -> bytes:
        """The Host field of requests to it."""
        if self.scheme == "unix":
            return b"host: localhost\r\n"
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        return f"host: {host}\r\n".encode() if self.port == default else f"host: {host}:{self.port}\r\n".encode()


_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
_PATH = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]*)*")


def _base_path(path: str) -> bytes:
    """The path that all requests stand under; it is put into request lines as it is."""
    if _PATH.fullmatch(path) is None:
        raise InvalidArgument("the path of a provider's base_url has characters that no path has")
    return path.rstrip("/").encode("ascii")


class Call(Protocol):
    """One request to a provider. Nothing may raise."""

    def response_head(self, head: ResponseHead) -> Body:
        """Status and fields of the final response. Answers with who takes what comes behind the head; it is not used
        when the call has finished meanwhile, as one without a body has."""

    def body_eof(self) -> None:
        """The provider will send no more."""

    def connection_lost(self, error: IopError | None, *, written: bool, heard: bool) -> None:
        """The connection is gone before ``finished``; ``written`` tells whether a byte of the request had left,
        ``heard`` whether a byte of an answer had come. ``error``: what was wrong with it, or None for a plain close."""

    def connected(self, connection: Connection) -> None:
        """A connection is there for this call: ``begin`` it."""

    def connect_failed(self, error: IopError) -> None:
        """There will be none."""


@dataclass(slots=True)
class PoolStats:
    """Plain counters, read at scrape time; bytes are those of connections that have ended."""

    opened: int = 0
    reused: int = 0
    failed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Connection(ProviderSocket, asyncio.Protocol):
    """One connection to a provider, serving one call at a time. Body bytes go to ``body`` below the level of Python."""

    def __init__(self, pool: ProviderPool) -> None:
        self._pool = pool
        self.writer = Writer(pool.runtime.hub)
        self.reused = False
        self.idle_since_at = 0.0
        self.available_at = 0.0
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._finder = HeadFinder(MAX_HEAD_BYTES)
        self._call: Call | None = None
        self._heard = False
        self._interim = 0
        self._head_request = False
        self._handed_before = 0
        self._error: IopError | None = None

    # ---- for the call ------------------------------------------------------------------------------------------------

    def begin(self, call: Call, request: bytes, *, head_request: bool = False) -> None:
        """Starts a call with its request head (and body, or the start of it). More may follow through ``writer``."""
        self._call = call
        self._heard = False
        self._interim = 0
        self._head_request = head_request
        self._handed_before = self.writer.handed
        self.writer.write(request)

    def finished(self, *, keep: bool, rest_s: float) -> None:
        """The call is complete. Keeps the connection for the next one after ``rest_s``, or closes it."""
        self._call = self.body = None
        if keep and self._transport is not None and not self._transport.is_closing():
            # A body whose end was read before it was paused leaves it paused, and the next answer would not be read.
            self._transport.resume_reading()
            self._pool.put(self, rest_s)
        else:
            self.close()

    def abort(self) -> None:
        """Closes at once; ``connection_lost`` is the confirmation (EXEC-7)."""
        if self._transport is not None:
            flow.abort(self._transport, reset=False)

    def close(self) -> None:
        if self._transport is not None:
            self.writer.flush_now()
            self._transport.close()

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    @property
    def written(self) -> bool:
        """Whether a byte of the present call's request has left."""
        return self.writer.handed > self._handed_before

    @property
    def stale(self) -> bool:
        """A kept connection on which something arrived: EOF, or bytes that nobody asked for."""
        if self._transport is None or self._transport.is_closing():
            return True
        return self._fd >= 0 and readable(self._fd)

    # ---- transport ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        self._fd = sock.fileno() if sock is not None else -1
        self._pool.connections.add(self)
        flow.tune(transport, notsent_lowat_bytes=None)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_HIGH_BYTES // 4)
        self.writer.attach(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        call, self._call = self._call, None
        self.body = None
        written = self.written
        stats = self._pool.stats
        stats.bytes_in += self.bytes_in
        stats.bytes_out += self.writer.handed
        self._transport = None
        self._fd = -1
        self.writer.detach()
        self._pool.drop(self)
        if call is not None:
            call.connection_lost(self._error, written=written, heard=self._heard)

    def pause_writing(self) -> None:
        self.writer.pause()

    def resume_writing(self) -> None:
        self.writer.resume()

    def eof_received(self) -> None:
        call = self._call
        if call is None:
            self._pool.drop(self)
        elif self.body is not None:
            call.body_eof()

    def outside_body(self, data: bytes) -> None:
        """What comes while no body is being received: a head, or something that nobody asked for."""
        call = self._call
        if call is None:
            self.abort()  # a provider that speaks unasked cannot be told apart from an answer to the next request
        else:
            self._find_head(call, data)

    def _find_head(self, call: Call, data: bytes) -> None:
        offset = 0
        self._heard = True
        try:
            while self.body is None and self._call is call:
                block, used = self._finder.feed(data, offset)
                offset += used
                if block is None:
                    return
                head = parse_response(block, self._head_request)
                if head.status < 200:
                    self._interim += 1
                    if self._interim > MAX_INTERIM:
                        raise HeadError("too many interim responses")
                    continue
                stream = call.response_head(head)
                if self._call is call:
                    self.body = stream
        except HeadError:
            self._error = ProviderProtocolError()
            self.abort()
            return
        if offset == len(data):
            return
        if self.body is not None:
            self.body.feed(data[offset:])
        else:
            self.abort()  # bytes behind an answer that has no body


class ProviderPool:
    """All connections to one provider. ``connect_timeout_s`` bounds making one, ``idle_s`` how long one is kept."""

    def __init__(
        self,
        runtime: Runtime,
        origin: Origin,
        *,
        connect_timeout_s: float,
        idle_s: float,
        ssl: ssl_module.SSLContext | None = None,
    ) -> None:
        self.runtime = runtime
        self.origin = origin
        self.stats = PoolStats()
        self.connections: set[Connection] = set()
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._ssl = public_servers() if ssl is None and origin.scheme == "https" else ssl
        self._idle: deque[Connection] = deque()  # most recently used at the right
        self._tasks: dict[Call, asyncio.Task[None]] = {}
        self._closed = False
        self._sweep()

    @property
    def ssl(self) -> ssl_module.SSLContext | None:
        """For connections to the same server beside the pool."""
        return self._ssl

    def take(self) -> Connection | None:
        """A kept connection that is fit for use now, or None: then ``connect``."""
        now = self.runtime.loop.time()
        idle = self._idle
        resting: list[Connection] = []
        found = None
        while idle:
            connection = idle.pop()
            if connection.available_at > now:
                resting.append(connection)
            elif connection.stale:
                connection.abort()
            else:
                connection.reused = True
                self.stats.reused += 1
                found = connection
                break
        if resting:
            idle.extend(reversed(resting))
        return found

    def connect(self, call: Call) -> None:
        """Makes a connection; the call hears ``connected`` or ``connect_failed``, later and once."""
        self._tasks[call] = self.runtime.loop.create_task(self._connect(call))

    def forsake(self, call: Call) -> bool:
        """Gives up a connect that is under way: the call hears nothing any more. False if there is none."""
        task = self._tasks.pop(call, None)
        if task is None:
            return False
        task.cancel()
        return True

    async def _connect(self, call: Call) -> None:
        connection = Connection(self)
        origin, loop = self.origin, self.runtime.loop
        error: IopError | None = None

        def factory() -> Connection:
            return connection

        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if origin.scheme == "unix":
                    await loop.create_unix_connection(factory, origin.unix_path)
                else:
                    await loop.create_connection(factory, origin.host, origin.port, ssl=self._ssl)
        except TimeoutError:
            what = "a TLS connection" if self._ssl is not None else "a connection"
            error = ProviderUnreachable(f"the provider did not accept {what} within connect_timeout_ms")
        except ssl_module.SSLCertVerificationError as exc:
            error = ProviderUnreachable(
                f"the provider's certificate does not hold: {exc.verify_message}; for a CA of your own start the node "
                "with SSL_CERT_FILE"
            )
        except ssl_module.SSLError:
            error = ProviderUnreachable("the provider does not answer in TLS; is its base_url to begin with http://?")
        except OSError as exc:
            error = NodeExhausted() if flow.is_exhausted(exc) else ProviderUnreachable()
        if self._tasks.get(call) is not asyncio.current_task():
            connection.abort()
            return
        del self._tasks[call]
        if error is not None:
            self.stats.failed += 1
            call.connect_failed(error)
        else:
            self.stats.opened += 1
            call.connected(connection)

    def put(self, connection: Connection, rest_s: float) -> None:
        """Keeps a connection that a call has finished with."""
        if self._closed or self._idle_s <= 0:
            connection.close()
            return
        now = self.runtime.loop.time()
        connection.idle_since_at = now
        connection.available_at = now + rest_s
        self._idle.append(connection)

    def drop(self, connection: Connection) -> None:
        """The connection is closed or closing: it is not handed out again."""
        self.connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _sweep(self) -> None:
        if self._closed:
            return
        oldest_at = self.runtime.loop.time() - self._idle_s
        for connection in [c for c in self._idle if c.idle_since_at <= oldest_at]:
            self._idle.remove(connection)
            connection.close()
        self.runtime.wheel.arm(SWEEP_S, self._sweep)

    def close(self) -> None:
        """Closes what is idle and gives up connects: their calls hear nothing any more."""
        for call in list(self._tasks):
            self.forsake(call)
        self.retire()

    def retire(self) -> None:
        """Closes what is idle. Calls go on, connects included; their connections are not kept."""
        self._closed = True
        for connection in list(self._idle):
            connection.close()
        self._idle.clear()
