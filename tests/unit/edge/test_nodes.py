"""The edge's end of a node connection, without sockets."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest

from iop._fast.out import Hub
from iop.edge.nodes.connection import NodeLink
from iop.edge.nodes.server import NodeServer
from iop.net.wheel import TICK_S, Wheel
from iop.observability.metrics import EdgeMetrics
from iop.wire import codec, limits
from iop.wire import messages as m
from tests.unit.pool.pool_world import PoolWorld, group, provider

P = provider("p")


class DeafPeer:
    """A transport whose other end takes no byte: closing it, which waits for what is queued, never comes to an end."""

    def __init__(self) -> None:
        self.closing = self.aborted = False

    def write(self, data: bytes) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 100_000

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.req("REG-5", "WIRE-7")
def test_a_node_that_says_goodbye_and_reads_nothing_does_not_keep_its_socket() -> None:
    wheel = Wheel(1000.0)
    runtime: Any = SimpleNamespace(
        wheel=wheel,
        hub=Hub(lambda callback: None, lambda exc: None),
        loop=SimpleNamespace(time=lambda: wheel.now),
    )
    world = PoolWorld([P], [group("g", P)], ready=False)
    server = NodeServer(
        runtime,
        world.pool,
        EdgeMetrics(),
        lambda actions: None,
        tokens={hashlib.sha256(b"token").digest(): "n1"},
        payloads={"n1": m.NodeConfigPayload("n1", 1)},
    )
    node, peer = NodeLink(server, wheel.now), DeafPeer()
    node.link.connection_made(peer)  # type: ignore[arg-type]
    for message in (m.RegisterRequest("token", "1", limits.PROTOCOL_VERSION, m.Capabilities()), m.Goodbye()):
        node.session.mux.feed(codec.encode(message))
    assert peer.closing
    assert not server.owners, "its word counts at once"
    end_at = wheel.now + limits.TIMING.write_stall_s
    while wheel.now < end_at - 1:
        wheel.advance(wheel.now + TICK_S)
        assert not peer.aborted, "what is queued has a while to leave"
    while wheel.now < end_at + 2:
        wheel.advance(wheel.now + TICK_S)
    assert peer.aborted
