"""The listener behind TLS: what becomes of connections that are not yet encrypted."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from iop.net import tls
from iop.net.loop import Runtime
from iop.net.tls import HandshakeFailures, TlsListener, chain_shown
from iop.tls.contexts import served
from tests.support.aio import async_test, until
from tests.support.certificates import Certificates, leaf_of


class Echo(asyncio.Protocol):
    def __init__(self, made: list[Echo], lost: list[Echo]) -> None:
        self._made, self._lost = made, lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._made.append(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.append(self)


class Door:
    def __init__(self, listener: TlsListener, address: tuple[str, int], made: Certificates) -> None:
        self.listener = listener
        self.address = address
        self.context = ssl.create_default_context(cafile=made.ca)
        self.arrived: list[Echo] = []
        self.lost: list[Echo] = []

    async def client(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address, ssl=self.context)


@asynccontextmanager
async def door(
    folder: Path, *, room: Callable[[int], bool] = lambda arriving: True, handshake_s: float = 5.0, port: int = 0
) -> AsyncIterator[Door]:
    made = Certificates(folder)
    files = made.edge()
    shown = served(Path(files["cert"]), Path(files["key"]))
    runtime = Runtime(asyncio.get_running_loop())
    it: Door
    listener = TlsListener(
        runtime,
        lambda: Echo(it.arrived, it.lost),
        context=lambda: shown.context,
        room=room,
        handshake_s=lambda: handshake_s,
        plain_answer=lambda: b"no",
        failures=HandshakeFailures(runtime, "http"),
        shutdown_s=lambda: 5.0,
    )
    port = await listener.start("127.0.0.1", port)
    it = Door(listener, ("127.0.0.1", port), made)
    try:
        yield it
    finally:
        listener.close()
        await listener.wait_closed()
        for one in it.arrived:
            one.transport.abort()
        await until(lambda: len(it.lost) == len(it.arrived))


@async_test()
async def test_closing_ends_handshakes_and_lets_connections_go_on(tmp_path: Path) -> None:
    async with door(tmp_path) as it:
        reader, writer = await it.client()
        await until(lambda: len(it.arrived) == 1)
        silent = socket.create_connection(it.address)
        half = socket.create_connection(it.address)
        half.sendall(b"\x16\x03\x01\x02\x00")
        await until(lambda: len(it.listener._arriving) == 2)
        it.listener.close()
        await it.listener.wait_closed()
        for sock in (silent, half):
            sock.setblocking(False)
            # What it said may be unread when it is closed: then its end is a reset.
            with sock, suppress(ConnectionResetError):
                assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
        writer.write(b"still there")
        assert await reader.readexactly(11) == b"still there"
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(it.address)


@pytest.mark.req("CONF-1")
@pytest.mark.parametrize("unusable", [1, 2])
@async_test()
async def test_a_family_that_the_kernel_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch, unusable: int) -> None:
    families = (socket.AF_INET6, socket.AF_INET)
    whole = socket.socket

    def make(family: int, *more: int) -> socket.socket:
        if family in families[:unusable]:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return whole(family, *more)

    async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        found = zip(families, ("::1", "127.0.0.1"), strict=True)
        return [(family, socket.SOCK_STREAM, 0, "", (host, 0)) for family, host in found]

    def nothing(*_: Any) -> None: ...

    loop = SimpleNamespace(getaddrinfo=getaddrinfo, add_reader=nothing, remove_reader=nothing)
    more: Any = dict.fromkeys(("context", "room", "handshake_s", "plain_answer", "failures", "shutdown_s"), nothing)
    listener = TlsListener(cast("Runtime", SimpleNamespace(loop=loop)), asyncio.Protocol, **more)
    with monkeypatch.context() as patched:
        patched.setattr(tls, "socket", SimpleNamespace(**{**vars(socket), "socket": make}))
        if unusable == 2:
            with pytest.raises(OSError, match="Address family not supported"):
                await listener.start("edge.example", 0)
            return
        assert await listener.start("edge.example", 0)
    listener.close()


@pytest.mark.req("WIRE-9", "API-10")
@async_test()
async def test_above_the_bound_connections_are_closed_unheard(tmp_path: Path) -> None:
    async with door(tmp_path, room=lambda arriving: arriving < 2) as it:
        loop = asyncio.get_running_loop()
        silent = [socket.create_connection(it.address) for _ in range(2)]
        await until(lambda: len(it.listener._arriving) == 2)
        with socket.create_connection(it.address) as late:
            late.setblocking(False)
            assert await loop.sock_recv(late, 1) == b""
        assert it.listener._failures.counts["no_room"] == 1
        for sock in silent:
            sock.close()
        await until(lambda: not it.listener._arriving)
        _, writer = await it.client()
        await until(lambda: len(it.arrived) == 1)
        writer.close()


@async_test()
async def test_without_a_descriptor_it_waits_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection stays in the backlog: a loop that asked for it again at once would do nothing else."""
    monkeypatch.setattr(tls, "FULL_S", 0.05)
    async with door(tmp_path) as it:
        asked = 0

        def accept() -> Any:
            nonlocal asked
            asked += 1
            raise OSError(errno.EMFILE, "Too many open files")

        it.listener._accept(cast("Any", SimpleNamespace(accept=accept)))
        assert asked == 1
        _, writer = await it.client()  # once it listens again
        writer.close()


@pytest.mark.req("SEC-1")
@async_test()
async def test_the_chain_that_a_server_shows(tmp_path: Path) -> None:
    async with door(tmp_path) as it:
        _, writer = await it.client()
        chain = chain_shown(writer.transport)
        assert chain == [leaf_of(tmp_path / "edge.pem").der, leaf_of(tmp_path / "ca.pem").der]
        writer.close()


def test_failures_are_counted_all_and_told_rarely(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    loop = SimpleNamespace(time=lambda: now)
    failures = HandshakeFailures(cast("Runtime", SimpleNamespace(loop=loop)), "nodes")
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            failures.note("timeout", "slow", "10.0.0.1")
        failures.note("plaintext", "plain", "10.0.0.1")
        now += 10.5
        failures.note("timeout", "slow", "10.0.0.2")
    assert failures.counts == {**dict.fromkeys(tls.REASONS, 0), "plaintext": 1, "timeout": 6}
    said = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert [(one["reason"], one["peer"], one.get("unsaid")) for one in said] == [
        ("timeout", "10.0.0.1", None),
        ("plaintext", "10.0.0.1", None),
        ("timeout", "10.0.0.2", 4),
    ]


@async_test()
async def test_a_taken_address_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"'127\.0\.0\.1', {port}\): Address already in use") as caught:
            async with door(tmp_path, port=port):
                pass
    assert caught.value.errno == errno.EADDRINUSE
