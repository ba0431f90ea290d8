"""Registration, readiness and generations on a real node port (REG-1 … REG-6, WIRE-8)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from iop import __version__
from iop._fast import frame
from iop.net.lobby import Lobby
from iop.observability.repeats import PERIOD_S, SAID
from iop.pool import Granted, Ticket
from iop.wire import codec, limits
from iop.wire import messages as m
from iop.wire.session import State
from tests.support.aio import async_test, until
from tests.support.nodeport import GROUP, TOKEN, NodePort
from tests.support.rawlink import RawLink

BEAT = frame.encode_heartbeat(1)
READY = codec.encode(m.NodeReadyRequest("n1", 1))


def fields(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The fields of the log lines of this event."""
    return [record.fields for record in caplog.records if record.getMessage() == event]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="iop")


# ---- registering ----------------------------------------------------------------------------------------------------


@pytest.mark.req("REG-1", "WIRE-8")
@async_test()
async def test_a_registration_is_answered_with_the_node_s_configuration() -> None:
    async with NodePort() as port:
        link = await RawLink.connect(port.address)
        answer = await link.register(TOKEN)
        assert answer == m.RegisterResponse(
            True, config=port.payloads["n1"], edge_version=__version__, protocol_version=limits.PROTOCOL_VERSION
        )
        await link.close()


@pytest.mark.req("REG-2")
@pytest.mark.parametrize("token", ["wrong", "token-n1 ", "token", "\u0000", "x" * 4096])
def test_an_unknown_token(token: str, caplog: pytest.LogCaptureFixture) -> None:
    @async_test()
    async def body() -> None:
        async with NodePort() as port:
            link = await RawLink.connect(port.address)
            answer = await link.register(token)
            assert (answer.accepted, answer.reason) == (False, m.RejectReason.UNKNOWN_TOKEN)
            assert answer.config is None
            assert await link.closed() == b""
            assert port.rejections() == {"unknown_token": 1}
            (line,) = fields(caplog, "node_rejected")
            assert line["reason"] == "unknown_token"
            assert token not in str(line) or token == "token"
            assert not any(port.connected().values())
            await link.close()

    body()


@pytest.mark.req("WIRE-8", "REG-2")
@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_another_protocol_version_is_refused_with_both_named(version: int) -> None:
    @async_test()
    async def body() -> None:
        async with NodePort() as port:
            link = await RawLink.connect(port.address)
            answer = await link.register(TOKEN, version=version)
            assert (answer.accepted, answer.reason) == (False, m.RejectReason.PROTOCOL_MISMATCH)
            assert f"protocol {limits.PROTOCOL_VERSION}, the node {version}" in answer.message
            assert answer.protocol_version == limits.PROTOCOL_VERSION
            await link.closed()
            assert port.rejections() == {"protocol_mismatch": 1}
            await link.close()

    body()


@pytest.mark.req("REG-2")
@async_test()
async def test_a_configuration_that_cannot_be_sent() -> None:
    """The claim is released with it: the next try gets the same answer, not `duplicate_connection`."""
    async with NodePort(providers=1200) as port:
        for _ in range(2):
            link = await RawLink.connect(port.address)
            answer = await link.register(TOKEN)
            assert (answer.accepted, answer.reason) == (False, m.RejectReason.CONFIG_BUILD_FAILED)
            await link.closed()
            await link.close()
        assert port.rejections() == {"config_build_failed": 2}


@pytest.mark.req("REG-1")
@async_test()
async def test_who_does_not_register_in_time_is_closed() -> None:
    async with NodePort(timing=limits.Timing(register_s=0.2)) as port:
        silent, dripping = await RawLink.connect(port.address), await RawLink.connect(port.address)
        await dripping.drip(b"\0\0\x10\0" + bytes(500))
        await silent.closed()
        await dripping.closed()
        assert port.rejections() == {"register_timeout": 2}
        assert port.errors() == {}, "they broke no rule"
        await silent.close()
        await dripping.close()


# ---- readiness ------------------------------------------------------------------------------------------------------


@pytest.mark.req("REG-3", "REG-6")
@async_test()
async def test_a_pending_claim_takes_no_part_until_it_is_ready() -> None:
    async with NodePort() as port:
        assert port.provider("n1")["status"] == "unavailable"
        assert port.provider("n1")["health"] == "offline"
        assert port.provider("n1")["capacity"] == 0
        link = await RawLink.connect(port.address)
        await link.register(TOKEN)
        assert port.connected() == {"n1": False, "n2": False}
        assert port.server.connected() == 0
        assert port.provider("n1")["health"] == "offline"
        generation = port.pool.registry.nodes["n1"].generation
        assert generation > 0
        assert port.server.session("n1", generation) is None
        link.send(READY)
        assert await link.message() == m.NodeReadyResponse(True)
        assert port.connected() == {"n1": True, "n2": False}
        assert port.server.connected() == 1
        assert port.server.session("n1", generation) is not None
        assert port.provider("n1")["capacity"] == 2
        assert port.provider("n1")["status"] != "unavailable"
        await link.close()
        await until(lambda: not port.connected()["n1"])
        assert port.provider("n1")["capacity"] == 0
        assert port.server.session("n1", generation) is None


@pytest.mark.req("REG-3")
@async_test()
async def test_ready_serves_those_who_wait() -> None:
    async with NodePort() as port:
        link = await RawLink.connect(port.address)
        await link.register(TOKEN)
        other = await RawLink.connect(port.address)
        await other.ready("token-n2")
        tickets = [Ticket(f"r{n}", "alice", GROUP, 1, object()) for n in range(4)]
        leases = [port.pool.submit(ticket, port.now) for ticket in tickets]
        assert [lease is not None for lease in leases] == [True, True, False, False]
        link.send(READY)
        await link.message()
        granted = [action for action in port.actions if isinstance(action, Granted)]
        assert [action.ticket for action in granted] == tickets[2:]
        assert {action.lease.node_id for action in granted} == {"n1"}
        await link.close()
        await other.close()


@pytest.mark.req("REG-4")
def test_a_repeated_ready_is_acknowledged_and_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    @async_test()
    async def body() -> None:
        async with NodePort() as port:
            link = await RawLink.connect(port.address)
            await link.ready(TOKEN)
            generation = port.pool.registry.nodes["n1"].generation
            for _ in range(3):
                link.send(READY)
                assert await link.message() == m.NodeReadyResponse(True)
            assert port.pool.registry.nodes["n1"].generation == generation
            assert len(fields(caplog, "node_connected")) == 1
            await link.close()

    body()


@pytest.mark.req("REG-4")
@async_test()
async def test_ready_in_another_s_name_is_refused_and_closed() -> None:
    async with NodePort() as port:
        link = await RawLink.connect(port.address)
        await link.register(TOKEN)
        link.send(codec.encode(m.NodeReadyRequest("n2", 1)))
        assert await link.message() == m.NodeReadyResponse(False, m.RejectReason.IDENTITY_MISMATCH)
        await link.closed()
        await link.close()
        assert port.connected() == {"n1": False, "n2": False}


@pytest.mark.req("REG-4")
@async_test()
async def test_a_stale_ready_is_refused_and_closed() -> None:
    async with NodePort() as port:
        link = await RawLink.connect(port.address)
        await link.register(TOKEN)
        owner = port.server.owners["n1"]
        port.pool.lost("n1", owner.generation, port.now)  # as if another had taken over
        link.send(READY)
        assert await link.message() == m.NodeReadyResponse(False, m.RejectReason.STALE_CONNECTION)
        await link.closed()
        await link.close()
        assert port.connected()["n1"] is False


@pytest.mark.req("REG-3")
@pytest.mark.parametrize("applied", [True, False])
def test_an_older_revision_is_refreshed_before_activation(applied: bool) -> None:
    @async_test()
    async def body() -> None:
        async with NodePort(revision=5) as port:
            link = await RawLink.connect(port.address)
            await link.register(TOKEN)
            link.send(codec.encode(m.NodeReadyRequest("n1", 4)))
            assert await link.message() == m.ConfigRefreshRequest(port.payloads["n1"])
            assert port.connected()["n1"] is False
            link.send(codec.encode(m.ConfigRefreshResponse(5, applied, "" if applied else "config_rejected")))
            answer = await link.message()
            assert answer == m.NodeReadyResponse(
                applied, m.RejectReason.UNSPECIFIED if applied else m.RejectReason.CONFIG_BUILD_FAILED
            )
            assert port.connected()["n1"] is applied
            await link.close()

    body()


@pytest.mark.req("REG-3")
@async_test()
async def test_a_claim_that_is_not_ready_in_time_is_released() -> None:
    async with NodePort(timing=limits.Timing(ready_s=0.2)) as port:
        link = await RawLink.connect(port.address)
        await link.register(TOKEN)
        await link.closed()
        await link.close()
        assert port.rejections() == {"ready_timeout": 1}
        assert port.errors() == {}
        assert not [labels for labels, n in port.metrics.node_sessions.read() if n], "no session of a ready node ended"
        again = await RawLink.connect(port.address)
        await again.ready(TOKEN)
        await again.close()


@pytest.mark.req("REG-3", "REG-5")
def test_losing_a_pending_claim_only_releases_it(caplog: pytest.LogCaptureFixture) -> None:
    @async_test()
    async def body() -> None:
        async with NodePort() as port:
            link = await RawLink.connect(port.address)
            await link.register(TOKEN)
            await link.close()
            await until(lambda: not port.server.owners)
            assert port.actions == []
            assert fields(caplog, "node_disconnected") == []

    body()


@pytest.mark.req("REG-1", "OBS-2")
@async_test()
async def test_guessed_tokens_are_counted_each_and_logged_few_times(caplog: pytest.LogCaptureFixture) -> None:
    async with NodePort() as port:
        for number in range(SAID + 20):
            link = await RawLink.connect(port.address)
            assert not (await link.register(f"guess-{number}")).accepted
            await link.close()
        assert port.rejections() == {"unknown_token": SAID + 20}
        lines = fields(caplog, "node_rejected")
        assert len(lines) == SAID
        server = port.server
        await until(lambda: len(server.links) == 0)
        assert server.repeats.due(server.now + PERIOD_S) == [("node_rejected unknown_token", 20)]


@pytest.mark.req("WIRE-9", "WIRE-10", "OBS-2")
@async_test()
async def test_unregistered_connections_are_bounded_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async with NodePort() as port:
        port.server.lobby = Lobby(room=20, told=port.server._no_room)
        links = [await RawLink.connect(port.address) for _ in range(30)]
        for link in links[20:]:
            assert await link.closed() == b""
        assert len(port.server.links) == 20
        assert port.server.lobby.refused["full"] == 10
        said = [record for record in caplog.records if record.msg == "node_connection_refused"]
        assert [record.fields for record in said] == [{"peer": "127.0.0.1", "reason": "full"}] * 10  # type: ignore[attr-defined]
        await links[0].ready(TOKEN)  # makes room for one
        fresh = await RawLink.connect(port.address)
        assert (await fresh.register("token-n2")).accepted
        for link in (*links, fresh):
            await link.close()


@pytest.mark.req("WIRE-10", "REG-1")
@async_test()
async def test_a_silent_connection_gives_way_to_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async with NodePort() as port:
        port.server.lobby = Lobby(room=10, per_address=10)
        silent = [await RawLink.connect(port.address) for _ in range(10)]
        await until(lambda: len(port.server.lobby) == 10)
        monkeypatch.setattr("iop.net.lobby.SILENT_S", 0.0)
        node = await RawLink.connect(port.address)
        await node.ready(TOKEN)
        assert await silent[0].closed() == b"", "the one that came first"
        assert len(port.server.lobby) == 9
        for link in (*silent, node):
            await link.close()


@pytest.mark.req("WIRE-10")
@async_test()
async def test_events_without_pause_are_taken_in_turns_and_close_the_link_in_the_end() -> None:
    async with NodePort() as port:
        link = await RawLink.connect(port.address)
        await link.ready(TOKEN)
        (owner,) = port.server.owners.values()
        mux = owner.session.mux
        event = codec.encode(m.EdgeNodeEvent(call_closed=m.CallClosed("p", 1)))
        link.send(event * 5000)
        rounds = 0

        def count() -> None:
            nonlocal rounds
            rounds += 1
            if mux.cold_frames < 5000:
                asyncio.get_running_loop().call_soon(count)

        seen = mux.cold_frames
        count()
        await until(lambda: mux.cold_frames >= 5000)
        assert rounds >= (5000 - seen) // 64
        assert owner.session.state is State.READY, "a burst is no flood"
        now = port.server.now
        for second in range(1, 13):
            link.send(event * 3000)
            await until(lambda: mux.closed or mux.cold_frames >= 5000 + 3000 * second)  # noqa: B023
            owner.session.tick(now + second)
            if owner.session.state is State.CLOSED:
                break
        assert second in (10, 11)
        await until(lambda: not port.server.owners)
        assert port.server.metrics.protocol_errors["flooding"].value == 1
        await link.close()
