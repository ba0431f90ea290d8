"""One connection of a node: what it says about slots that outlive the connection before it (POOL-12)."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from iop.execution.gate import Slot
from iop.net.loop import Runtime
from iop.node.providers.allowance import Allowance
from iop.node.providers.registry import Backends
from iop.node.uplink.agent import Agent
from iop.observability.metrics import NodeMetrics
from iop.wire import codec
from iop.wire import messages as m
from tests.support.aio import async_test

PROVIDER = m.ProviderConfig("p", "openai_compat", "http://127.0.0.1:9/v1", 2, enabled=True, connect_timeout_ms=100)
CONFIG = m.NodeConfigPayload("n1", 1, [PROVIDER])


class Edge:
    """The other end of an agent's link: a transport that keeps what is written."""

    def __init__(self, runtime: Runtime, backends: Backends) -> None:
        self.agent = Agent(runtime, backends, NodeMetrics(), "token", lambda: None)
        self._data = b""
        self.agent.link.connection_made(self)  # type: ignore[arg-type]

    def tell(self, message: Any) -> None:
        self.agent.session.mux.feed(codec.encode(message))

    def heard(self) -> list[Any]:
        """The messages that came since the last call."""
        self.agent.session.mux.flush_now()
        found = []
        while self._data:
            end = 4 + int.from_bytes(self._data[:4], "big")
            found.append(codec.decode(self._data[4:end]))
            self._data = self._data[end:]
        return found

    async def registered(self, config: m.NodeConfigPayload = CONFIG) -> m.NodeReadyRequest:
        self.tell(m.RegisterResponse(True, config=config, edge_version="1", protocol_version=1))
        for _ in range(10):
            await asyncio.sleep(0)
        (ready,) = [message for message in self.heard() if isinstance(message, m.NodeReadyRequest)]
        return ready

    async def ready(self, config: m.NodeConfigPayload = CONFIG) -> None:
        await self.registered(config)
        self.tell(m.NodeReadyResponse(True))

    def closed(self) -> list[str]:
        events = [message for message in self.heard() if isinstance(message, m.EdgeNodeEvent)]
        return [event.call_closed.provider_id for event in events if event.call_closed is not None]

    # a transport

    def write(self, data: bytes) -> None:
        self._data += data

    def writelines(self, parts: list[bytes]) -> None:
        self._data += b"".join(parts)

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...


def end_call(backends: Backends, slot: Slot) -> None:
    if slot.release():
        backends.call_closed(slot.provider_id, 5)


@pytest.mark.req("POOL-12", "EXEC-7")
@pytest.mark.parametrize("when", ["before the edge is ready", "after it"])
@async_test()
async def test_the_end_of_a_slot_is_told_to_the_edge_that_was_told_of_it(when: str) -> None:
    runtime = Runtime(asyncio.get_running_loop())
    backends = Backends(runtime, Allowance())
    first = Edge(runtime, backends)
    await first.ready()
    slot = backends.gate.try_acquire("p")
    assert slot is not None
    first.agent.link.connection_lost(None)
    second = Edge(runtime, backends)
    ready = await second.registered()
    assert [(h.provider_id, h.slots) for h in ready.held] == [("p", 1)]
    if when == "after it":
        second.tell(m.NodeReadyResponse(True))
        end_call(backends, slot)
    else:
        end_call(backends, slot)
        assert second.closed() == [], "the edge does not count it before it is ready"
        second.tell(m.NodeReadyResponse(True))
    assert second.closed() == ["p"]
    assert first.heard() == []
    second.agent.link.connection_lost(None)
    backends.close()


@pytest.mark.req("POOL-12")
@async_test()
async def test_a_slot_that_ends_between_two_connections_is_told_to_nobody() -> None:
    runtime = Runtime(asyncio.get_running_loop())
    backends = Backends(runtime, Allowance())
    first = Edge(runtime, backends)
    await first.ready()
    slot = backends.gate.try_acquire("p")
    assert slot is not None
    slot.linger()
    first.agent.link.connection_lost(None)
    end_call(backends, slot)
    second = Edge(runtime, backends)
    assert (await second.registered()).held == []
    second.tell(m.NodeReadyResponse(True))
    assert second.closed() == []
    second.agent.link.connection_lost(None)
    backends.close()


@pytest.mark.req("POOL-12", "POOL-14")
@pytest.mark.parametrize("leased", [True, False])
@async_test()
async def test_what_a_direct_run_is_told_of_slots_owes_the_edge_nothing(leased: bool) -> None:
    """The edge counts as lingering what a leased request is told of, and nothing that a direct run is told of."""
    runtime = Runtime(asyncio.get_running_loop())
    backends = Backends(runtime, Allowance())
    edge = Edge(runtime, backends)
    await edge.ready()
    slots = [backends.gate.try_acquire("p", leased=False) for _ in range(2)]
    binding = m.LeaseBinding(7 if leased else 0, False, 1)
    edge.tell(m.RunRequest(1, "r", "openai_compat", "p", "t", 1 << 16, 60_000, 0, binding, b"hi", 2))
    (refusal,) = edge.heard()
    assert refusal.fields["extra"].failure.slots_held == 2
    for slot in slots:
        assert slot is not None
        end_call(backends, slot)
    assert edge.closed() == (["p", "p"] if leased else [])
    edge.agent.link.connection_lost(None)
    backends.close()


@pytest.mark.req("POOL-12")
@async_test()
async def test_the_end_of_a_call_that_outlived_its_connection_is_told_on_the_next_one() -> None:
    runtime = Runtime(asyncio.get_running_loop())
    backends = Backends(runtime, Allowance())
    first = Edge(runtime, backends)
    await first.ready()
    first.agent.link.connection_lost(None)
    second = Edge(runtime, backends)
    await second.ready()
    call: Any = SimpleNamespace(
        stream=SimpleNamespace(stream_id=5), slot=SimpleNamespace(provider_id="p"), kind="tunnel", dropped_bytes=0
    )
    first.agent.finished(call, None, owed=True)
    assert second.closed() == ["p"]
    second.agent.link.connection_lost(None)
    backends.close()


@pytest.mark.req("EXEC-7")
@async_test()
async def test_a_call_that_is_cancelled_while_it_connects_ends_once_and_leaves_no_connection() -> None:
    runtime = Runtime(asyncio.get_running_loop())
    backends = Backends(runtime, Allowance())
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        edge = Edge(runtime, backends)
        await edge.ready(m.NodeConfigPayload("n1", 1, [dataclasses.replace(PROVIDER, base_url=url)]))
        edge.tell(
            m.ProviderTunnelRequest(
                1, "r", "openai_compat", "p", "t", 1 << 16, 60_000, 0, m.LeaseBinding(7, False, 1), b"POST",
                b"/chat/completions", b"", b"", b"{}", 2,
            )
        )  # fmt: skip
        edge.tell(m.CancelRequest(1, "r", m.CancelReason.CLIENT_GONE))
        (terminal,) = edge.heard()
        assert terminal.fields["extra"].code is m.ErrorCode.CANCELLED
        for _ in range(20):
            await asyncio.sleep(0)
        assert edge.heard() == []
        assert backends.providers["p"].pool.connections == set()
        assert backends.gate.held("p") == 0
        edge.agent.link.connection_lost(None)
        backends.close()
