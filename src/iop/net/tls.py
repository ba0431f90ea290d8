"""TLS on sockets: a listener that hands over connections once they are encrypted, and a client's look at a chain.

The event loop's own TLS server tells nobody of a handshake that failed, counts none that is under way, and keeps the
context that it was started with. So here a listener accepts by itself. Each connection has a task until its handshake
is done: it is bounded in time, all of them are in number, and the context is asked for anew each time, which is all
that a new certificate takes (CONF-2).

A peer that speaks something else is told so in its own words (``plain_answer``) instead of seeing a bare end: the loop
sends no alert for a handshake that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from iop.net.lobby import Lobby
from iop.net.loop import LISTEN_BACKLOG, Runtime
from iop.tls.contexts import Served

__all__ = ["REASONS", "SHUTDOWN_S", "HandshakeFailures", "TlsListener", "certificate_of", "chain_shown", "listen"]

log = logging.getLogger("iop.net.tls")

ACCEPTS_AT_ONCE = 64
FULL_S = 1.0  # no descriptor is left: look again then
SHUTDOWN_S = 5.0  # for the peer to take what is left and to say goodbye
PLAIN_BYTES = 65536  # of a plaintext peer, read so that the answer is not lost to a reset
LOG_EVERY_S = 10.0
HANDSHAKE_RECORD = 0x16

#: Why a handshake failed, as metrics and logs have it.
REASONS = ("plaintext", "timeout", "closed", "certificate", "protocol", "no_room")


class HandshakeFailures:
    """Count them by reason, and log one line per reason and ten seconds: anybody can cause them."""

    def __init__(self, runtime: Runtime, listener: str) -> None:
        self.counts: dict[str, int] = dict.fromkeys(REASONS, 0)
        self._runtime = runtime
        self._listener = listener
        self._quiet_until: dict[str, float] = {}
        self._unsaid: dict[str, int] = dict.fromkeys(REASONS, 0)

    def note(self, reason: str, detail: str, peer: str) -> None:
        self.counts[reason] += 1
        now = self._runtime.loop.time()
        if now < self._quiet_until.get(reason, 0.0):
            self._unsaid[reason] += 1
            return
        self._quiet_until[reason] = now + LOG_EVERY_S
        fields: dict[str, object] = {
            "listener": self._listener, "peer": peer, "reason": reason, "detail": detail,
        }  # fmt: skip
        if self._unsaid[reason]:
            fields["unsaid"] = self._unsaid[reason]
            self._unsaid[reason] = 0
        log.warning("tls_handshake_failed", extra={"fields": fields})


class _Arrival:
    """A connection in its handshake."""

    __slots__ = ("handed_over", "key", "spoke", "task")

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key  # the peer's address and port
        self.spoke = self.handed_over = False
        self.task: asyncio.Task[None] | None = None

    def heard(self) -> bool:
        return self.spoke

    def dismiss(self) -> None:
        if self.task is not None:
            self.task.cancel()


class TlsListener:
    """Listen on all addresses of a host and make protocols of ``factory`` behind TLS.

    ``context`` is asked for each connection, ``room`` whether one more may begin beside those that are in their
    handshake (their number is its argument), ``handshake_s`` bounds each from its acceptance on, ``shutdown_s`` how
    long the peer has for the rest once a connection is being closed. With a ``lobby`` each is a guest there from its
    acceptance on; the protocol that it is handed to sees to it that it leaves.
    """

    def __init__(
        self,
        runtime: Runtime,
        factory: Callable[[], asyncio.Protocol],
        *,
        context: Callable[[], ssl.SSLContext],
        room: Callable[[int], bool],
        handshake_s: Callable[[], float],
        plain_answer: Callable[[], bytes],
        failures: HandshakeFailures,
        shutdown_s: Callable[[], float],
        lobby: Lobby | None = None,
    ) -> None:
        self._lobby = lobby
        self._runtime = runtime
        self._factory = factory
        self._context = context
        self._room = room
        self._handshake_s = handshake_s
        self._plain_answer = plain_answer
        self._failures = failures
        self._shutdown_s = shutdown_s
        self._sockets: list[socket.socket] = []
        self._arriving: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self, host: str, port: int) -> int:
        """Bind and listen; returns the port, of several that of the first. Raises OSError."""
        loop = self._runtime.loop
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            lacking: OSError | None = None
            for family, kind, protocol, _, address in dict.fromkeys(found):
                try:
                    sock = socket.socket(family, kind, protocol)
                except OSError as exc:  # a kernel without IPv6, say: the loop's own listeners leave it out, too
                    lacking = exc
                    continue
                self._sockets.append(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.setblocking(False)
                try:
                    sock.bind(address)
                    sock.listen(LISTEN_BACKLOG)
                except OSError as exc:  # which does not say where, as the loop's own listeners do
                    raise OSError(exc.errno, f"cannot bind to {address[:2]}: {exc.strerror}") from None
            if lacking is not None and not self._sockets:
                raise lacking
        except OSError:
            self._close_sockets()
            raise
        self._watch()
        return int(self._sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept no more; what is in its handshake ends. Connections that were handed over go on."""
        self._closed = True
        for sock in self._sockets:
            self._runtime.loop.remove_reader(sock)
        self._close_sockets()
        for task in self._arriving:
            task.cancel()

    async def wait_closed(self) -> None:
        if self._arriving:
            await asyncio.wait(self._arriving)

    def _close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    def _watch(self) -> None:
        for sock in self._sockets:
            self._runtime.loop.add_reader(sock, self._accept, sock)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if self._closed:
                    return
                # No descriptor, no memory: the connection stays in the backlog, so the loop would spin over it.
                log.error("accept_failed", extra={"fields": {"reason": exc.strerror or type(exc).__name__}})
                for one in self._sockets:
                    self._runtime.loop.remove_reader(one)
                self._runtime.loop.call_later(FULL_S, self._watch)
                return
            if not self._room(len(self._arriving)):
                self._failures.note("no_room", "as many connections as there may be", str(address[0]))
                sock.close()
                continue
            sock.setblocking(False)
            arrival = _Arrival(address[:2])
            if self._lobby is not None and not self._lobby.enter(
                arrival.key, str(address[0]), self._runtime.loop.time(), arrival.heard, arrival.dismiss
            ):
                sock.close()
                continue
            arrival.task = task = self._runtime.loop.create_task(self._arrive(sock, arrival))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    async def _arrive(self, sock: socket.socket, arrival: _Arrival) -> None:
        """One connection until it is handed over or dropped."""
        limit_s = self._handshake_s()
        peer = str(arrival.key[0])
        kept = False
        try:
            async with asyncio.timeout(limit_s):
                first = await self._first_byte(sock)
                arrival.spoke = first is not None
                if first == HANDSHAKE_RECORD:
                    kept = True  # the transport's from here on, which closes it in any case
                    await self._runtime.loop.connect_accepted_socket(
                        self._factory,
                        sock,
                        ssl=self._context(),
                        ssl_handshake_timeout=limit_s + 1,
                        ssl_shutdown_timeout=self._shutdown_s(),
                    )
                    arrival.handed_over = True
                elif first is not None:
                    self._failures.note("plaintext", "the peer does not speak TLS", peer)
                    _say(sock, self._plain_answer())
        except TimeoutError:
            self._failures.note("timeout", f"no handshake within {limit_s:g} s", peer)
        except ssl.SSLCertVerificationError as exc:
            self._failures.note("certificate", f"the peer's certificate: {exc.verify_message}", peer)
        except ssl.SSLError as exc:
            self._failures.note("protocol", (exc.reason or "unknown").replace("_", " ").lower(), peer)
        except OSError:
            self._failures.note("closed", "the peer ended it", peer)
        finally:
            if not kept:
                sock.close()
            if self._lobby is not None and not arrival.handed_over:
                self._lobby.leave(arrival.key)

    async def _first_byte(self, sock: socket.socket) -> int | None:
        """What the peer says first, which stays in the socket; None if it says nothing and leaves."""
        loop = self._runtime.loop
        while True:
            try:
                data = sock.recv(1, socket.MSG_PEEK)
            except (BlockingIOError, InterruptedError):
                readable: asyncio.Future[None] = loop.create_future()
                loop.add_reader(sock, _wake, readable)
                try:
                    await readable
                finally:
                    loop.remove_reader(sock)
                continue
            return data[0] if data else None


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _say(sock: socket.socket, answer: bytes) -> None:
    """Read what is there, answer and say that no more will come, as far as that goes without waiting."""
    with contextlib.suppress(OSError):
        sock.recv(PLAIN_BYTES)
        sock.send(answer)
        sock.shutdown(socket.SHUT_WR)


async def listen(
    runtime: Runtime,
    factory: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    *,
    served: Callable[[], Served | None],
    room: Callable[[int], bool],
    handshake_s: Callable[[], float],
    plain_answer: Callable[[], bytes],
    failures: HandshakeFailures,
    shutdown_s: Callable[[], float] = lambda: SHUTDOWN_S,
    lobby: Lobby | None = None,
) -> tuple[asyncio.Server | TlsListener, int]:
    """A listener on ``host`` and ``port``, with TLS if ``served`` says so now, and the port that it has. Whether there
    is TLS stays as it is; which certificate is shown is asked anew. Raises OSError."""
    if served() is None:
        server = await runtime.loop.create_server(factory, host, port, backlog=LISTEN_BACKLOG)
        return server, int(server.sockets[0].getsockname()[1])

    def context() -> ssl.SSLContext:
        now = served()
        assert now is not None
        return now.context

    listener = TlsListener(
        runtime,
        factory,
        context=context,
        room=room,
        handshake_s=handshake_s,
        plain_answer=plain_answer,
        failures=failures,
        shutdown_s=shutdown_s,
        lobby=lobby,
    )
    return listener, await listener.start(host, port)


def certificate_of(transport: asyncio.BaseTransport) -> bytes | None:
    """The peer's certificate in DER, verified against the CAs of the context; None without one, or without TLS."""
    shown = transport.get_extra_info("ssl_object")
    der = shown.getpeercert(binary_form=True) if shown is not None else None
    return bytes(der) if der else None


def chain_shown(transport: asyncio.BaseTransport) -> list[bytes]:
    """The certificates that the other end has sent, in DER, as they came: nobody has verified them."""
    shown = transport.get_extra_info("ssl_object")
    if hasattr(shown, "get_unverified_chain"):  # from Python 3.13 on
        return list(shown.get_unverified_chain() or ())
    return [one.public_bytes(ssl._ssl.ENCODING_DER) for one in shown._sslobj.get_unverified_chain() or ()]  # type: ignore[attr-defined]
