"""How a node takes over a configuration: whole or not at all, and nothing that runs is disturbed (CONF-2, EXEC-3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from iop.net.loop import Runtime
from iop.node.providers import registry as backends_module
from iop.node.providers.allowance import Allowance
from iop.node.providers.kinds.echo import EchoServer
from iop.node.providers.registry import Backends
from iop.wire import codec, limits
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
async def test_what_the_owner_did_not_allow_is_rejected_and_all_else_is_served() -> None:
    async with backends() as b:
        await b.apply(payload(P))
        present = b.providers["p"]
        grown = replace(P, max_concurrency=3)
        unset = replace(Q, id="unset", api_key_env="NOBODY")
        rejected = await b.apply(payload(grown, AWAY, Q, unset, revision=2))
        assert [(one.provider_id, one.code) for one in rejected] == [
            ("away", "upstream_not_allowed"), ("unset", "credential_not_listed"),
        ]  # fmt: skip
        assert "allow_upstreams" in rejected[0].detail
        assert (sorted(b.providers), b.revision) == (["p", "q"], 2)
        assert b.providers["p"] is present
        assert all(b.gate.try_acquire("p") is not None for _ in range(3)), "the new limit"
        assert await b.apply(payload(grown, Q, revision=3)) == []


@pytest.mark.req("CONF-2", "TUN-7")
@async_test()
async def test_a_provider_that_moves_where_it_may_not_be_is_gone() -> None:
    async with backends() as b:
        await b.apply(payload(P, Q))
        (one,) = await b.apply(payload(replace(AWAY, id="p"), Q, revision=2))
        assert (one.provider_id, one.code) == ("p", "upstream_not_allowed")
        assert sorted(b.providers) == ["q"]


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
def test_a_built_in_server_that_cannot_listen_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(self: EchoServer) -> None:
        raise OSError(98, "in use")

    monkeypatch.setattr(EchoServer, "start", start)

    @async_test()
    async def body() -> None:
        async with backends() as b:
            (one,) = await b.apply(payload(P, ECHO))
            assert (one.provider_id, one.code, sorted(b.providers)) == ("e", "cannot_listen", ["p"])

    body()


@pytest.mark.req("CONF-2")
@async_test()
async def test_a_built_in_server_that_begins_to_listen_as_the_turn_is_cancelled_is_closed() -> None:
    """The task that applies a configuration may be cancelled between the bind and its next step."""
    began = asyncio.Event()
    made: list[EchoServer] = []

    class Slow(EchoServer):
        async def start(self) -> None:
            await super().start()
            made.append(self)
            began.set()
            await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends_module, "EchoServer", Slow)
        async with backends() as b:
            turn = asyncio.create_task(b.apply(payload(ECHO)))
            await began.wait()
            turn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await turn
            reachable = await _reachable(made[0].base_url)
            made[0].close()  # in any case: the loop would wait for a server that is left
            assert not reachable


@pytest.mark.req("CONF-2", "WIRE-2")
@async_test()
async def test_what_a_rejection_says_fits_the_wire_however_long_the_names_are() -> None:
    async with backends() as b:
        (one,) = await b.apply(payload(replace(P, api_key_env="K" * limits.MAX_NAME_CHARS)))
        assert one.code == "credential_not_listed"
        codec.encode(m.NodeReadyRequest("n", 1, [], [one]))
        assert len(one.detail) <= limits.MAX_NAME_CHARS
