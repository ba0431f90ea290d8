"""How a node takes over a configuration: whole or not at all, and nothing that runs is disturbed (CONF-2, EXEC-3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from iop.net.loop import Runtime
from iop.node import backends as backends_module
from iop.node.adapters.echo import EchoServer
from iop.node.backends import Backends
from iop.node.provider import Allowance, ConfigRejected
from iop.wire import messages as m
from tests.support.aio import async_test, until

P = m.ProviderConfig("p", "openai_compat", "http://127.0.0.1:9/v1", 2, connect_timeout_ms=1000, enabled=True)
Q = replace(P, id="q", max_concurrency=1)
AWAY = replace(P, id="away", base_url="http://192.0.2.1:80/v1")
ECHO = m.ProviderConfig("e", "echo", "", 1, enabled=True)


def payload(*providers: m.ProviderConfig, revision: int = 1) -> m.NodeConfigPayload:
    return m.NodeConfigPayload("n", revision, list(providers))


@asynccontextmanager
async def backends() -> AsyncIterator[Backends]:
    runtime = Runtime(asyncio.get_running_loop())
    runtime.start()
    made = Backends(runtime, Allowance())
    try:
        yield made
    finally:
        made.close()
        runtime.close()


async def _reachable(base_url: str) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", int(base_url.split(":")[2].partition("/")[0]))
    except ConnectionRefusedError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


@pytest.mark.req("CONF-2", "TUN-7")
@async_test()
async def test_a_refused_configuration_changes_nothing() -> None:
    async with backends() as b:
        await b.apply(payload(P))
        before = dict(b.providers)
        slot = b.gate.try_acquire("p")
        with pytest.raises(ConfigRejected) as caught:
            await b.apply(payload(replace(P, max_concurrency=9), Q, ECHO, AWAY, revision=2))
        assert caught.value.ref == "away"
        assert (b.providers, b.revision) == (before, 1)
        assert b.providers["p"].config is P
        assert not b._echo, "what was begun for it is taken down"
        assert slot is not None
        assert b.gate.try_acquire("p") is not None
        assert b.gate.try_acquire("p") is None, "the old limit"


@pytest.mark.req("CONF-2", "EXEC-3")
@async_test()
async def test_another_capacity_keeps_the_provider_its_connections_and_the_slots_in_use() -> None:
    async with backends() as b:
        await b.apply(payload(P))
        provider = b.providers["p"]
        slots = [b.gate.try_acquire("p") for _ in range(2)]
        await b.apply(payload(replace(P, max_concurrency=1), revision=2))
        assert b.providers["p"] is provider
        assert provider.config.max_concurrency == 1
        assert (b.gate.held("p"), b.gate.try_acquire("p")) == (2, None)
        for slot in slots:
            assert slot is not None
            slot.release()
        assert b.gate.try_acquire("p") is not None
        assert b.gate.try_acquire("p") is None
        await b.apply(payload(replace(P, max_concurrency=3), revision=3))
        assert b.gate.held("p") == 1, "a slot in use is not forgotten"
        assert [b.gate.try_acquire("p") is not None for _ in range(3)] == [True, True, False]


@pytest.mark.req("CONF-2", "EXEC-3")
@async_test()
async def test_a_provider_that_goes_and_comes_back_still_has_its_slots_in_use() -> None:
    async with backends() as b:
        await b.apply(payload(P))
        slot = b.gate.try_acquire("p")
        await b.apply(payload(Q, revision=2))
        assert list(b.providers) == ["q"]
        await b.apply(payload(replace(P, max_concurrency=1), revision=3))
        assert b.gate.try_acquire("p") is None
        assert slot is not None
        slot.release()
        assert b.gate.try_acquire("p") is not None


@pytest.mark.req("CONF-2")
@async_test()
async def test_a_call_that_is_still_connecting_outlives_its_provider() -> None:
    """Its provider makes room for another one while the connect is under way: the call gets its connection."""
    connected: list[object] = []

    class Caller:
        def connected(self, connection: object) -> None:
            connected.append(connection)

        def connect_failed(self, error: object) -> None:
            pytest.fail(str(error))

    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, backends() as b:
        config = replace(P, base_url=f"http://127.0.0.1:{port}/v1")
        await b.apply(payload(config))
        b.providers["p"].pool.connect(Caller())  # type: ignore[arg-type]
        await b.apply(payload(replace(config, idle_ms=5), revision=2))
        await until(lambda: bool(connected))
        connected[0].abort()  # type: ignore[attr-defined]


@pytest.mark.req("CONF-2", "EXEC-4")
def test_a_built_in_server_ends_with_the_last_call_of_a_removed_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends_module, "SWEEP_S", 0.05)

    @async_test()
    async def body() -> None:
        async with backends() as b:
            await b.apply(payload(ECHO))
            url = b._echo["e"].base_url
            slot = b.gate.try_acquire("e")
            await b.apply(payload(P, revision=2))
            assert await _reachable(url), "a call may be about to connect"
            await b.apply(payload(P, ECHO, revision=3))
            assert b._echo["e"].base_url == url, "it came back and was still there"
            await b.apply(payload(P, revision=4))
            assert slot is not None
            slot.release()
            await until(lambda: not b._echo)
            assert not await _reachable(url)

    body()


@pytest.mark.req("CONF-2", "REG-3")
def test_a_built_in_server_that_cannot_listen_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(self: EchoServer) -> None:
        raise OSError(98, "in use")

    monkeypatch.setattr(EchoServer, "start", start)

    @async_test()
    async def body() -> None:
        async with backends() as b:
            with pytest.raises(ConfigRejected) as caught:
                await b.apply(payload(P, ECHO))
            assert (caught.value.ref, b.providers) == ("e", {})

    body()
