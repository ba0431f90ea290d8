"""An edge with 1000 nodes of 5 providers each, whole but for the sockets (REG-6, REG-5, POOL-8).

The bars: the status within 50 ms, a busy node's disconnect within 10 ms of the loop's time, and a freed slot reaches
its waiter's wire within the same poll round.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from iop._fast import frame
from iop.config.load import parse_edge
from iop.edge.app import Edge
from iop.edge.nodes.server import NodeLink
from iop.net.http.server import HttpConnection
from iop.net.loop import Runtime
from iop.wire import codec, limits
from iop.wire import messages as m

NODES = 1000
PER_NODE = 5
CAPACITY = 8
BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
ANSWER = b'{"choices":[{"message":{"content":"hi"}}]}'
HEAD, FRAME_BODY, END = 1, 2, 4


class Wire:
    """A transport that takes everything at once; ``out`` counts the bytes."""

    def __init__(self) -> None:
        self.out = 0
        self.last = b""

    def write(self, data: bytes) -> None:
        self.out += len(data)
        self.last = data

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None: ...

    def abort(self) -> None: ...


class NoSink:
    """Takes the outcome lines."""

    dropped = 0

    def outcome(self, record: object) -> None: ...

    def message(self, record: object, size: int, *, urgent: bool) -> None: ...


def config(nodes: int, capacity: int) -> str:
    return json.dumps(
        {
            "http": {"listen": "127.0.0.1:0", "max_connections": 50_000},
            "transport": {"listen": "127.0.0.1:0"},
            "admin": {"listen": None},
            "queue": {"max_waiters": 100_000, "max_waiters_per_principal": 100_000},
            "nodes": [
                {
                    "id": f"n{i}",
                    "token_env": f"T{i}",
                    "providers": [
                        {"id": f"p{i}-{j}", "kind": "openai_compat", "base_url": "http://127.0.0.1:1/v1",
                         "capacity": capacity}
                        for j in range(PER_NODE)
                    ],
                }
                for i in range(nodes)
            ],
            "models": [
                {
                    "id": "m",
                    "candidates": [
                        {"node": f"n{i}", "provider": f"p{i}-{j}", "target": "t"}
                        for i in range(nodes)
                        for j in range(PER_NODE)
                    ],
                }
            ],
        }
    )  # fmt: skip


class World:
    """The edge, its nodes' links and its clients' connections; ``round`` is one turn of the loop."""

    def __init__(self, nodes: int, capacity: int) -> None:
        self.loop = asyncio.new_event_loop()
        env = {f"T{i}": f"token-{i:040d}" for i in range(nodes)}
        runtime = Runtime(self.loop)
        self.edge = Edge(parse_edge(config(nodes, capacity), env=env), runtime, cast("Any", NoSink()))
        self.links: list[NodeLink] = []
        self.wires: list[Wire] = []
        for i in range(nodes):
            link, wire = NodeLink(self.edge.nodes, runtime.wheel.now), Wire()
            link.link.connection_made(cast("Any", wire))
            capabilities = m.Capabilities(["openai_compat"])
            self.tell(link, m.RegisterRequest(env[f"T{i}"], "0", limits.PROTOCOL_VERSION, capabilities))
            self.tell(link, m.NodeReadyRequest(f"n{i}", 1))
            self.links.append(link)
            self.wires.append(wire)
        self.round()
        assert self.edge.nodes.connected() == nodes

    def tell(self, link: NodeLink, message: m.Message) -> None:
        link.session.mux.feed(codec.encode(message))

    def round(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def ask(self) -> Wire:
        """A client with one request, on a connection of its own."""
        connection, wire = HttpConnection(self.edge.http), Wire()
        connection.connection_made(cast("Any", wire))
        connection.data_received(REQUEST)
        return wire

    def close(self) -> None:
        self.edge.dispatcher.stop_all()
        self.loop.close()


@pytest.fixture(scope="module")
def crowd() -> Iterator[World]:
    """Every slot of 1000 nodes is taken."""
    world = World(NODES, CAPACITY)
    for _ in range(NODES * PER_NODE * CAPACITY):
        world.ask()
    world.round()
    assert world.edge.pool.leases_in_use == NODES * PER_NODE * CAPACITY
    yield world
    world.close()


@pytest.mark.benchmark(group="edge: 1000 nodes with 5 providers, all busy")
def test_status(benchmark: BenchmarkFixture, crowd: World) -> None:
    """What ``/admin/status`` costs, JSON included."""
    benchmark(lambda: msgspec.json.encode(crowd.edge.status()))


@pytest.mark.benchmark(group="edge: 1000 nodes with 5 providers, all busy")
def test_disconnect_of_a_busy_node(benchmark: BenchmarkFixture, crowd: World) -> None:
    """One node with 40 requests is lost: its leases, and an error for each client."""
    lost = itertools.count()
    before = crowd.edge.pool.leases_in_use

    def run() -> None:
        crowd.links[next(lost)].link.connection_lost(None)
        crowd.round()

    benchmark.pedantic(run, rounds=100)
    assert crowd.edge.pool.leases_in_use == before - 100 * PER_NODE * CAPACITY


@pytest.mark.benchmark(group="edge: a freed slot")
@pytest.mark.req("POOL-5")
def test_a_freed_slot_is_on_its_waiters_wire_when_the_read_that_freed_it_returns(benchmark: BenchmarkFixture) -> None:
    """One slot per provider and a steady queue: the end of one answer sends the next request, without a turn of the
    loop in between."""
    world = World(1, 1)
    (link,), (wire,) = world.links, world.wires
    for _ in range(PER_NODE):
        world.ask()
    world.round()
    streams = itertools.count(1)

    def run() -> None:
        waiter = world.ask()
        world.round()
        before, stream = wire.out, next(streams)
        link.session.mux.feed(
            frame.encode_tunnel_frame(stream, 0, HEAD, b"", 0, 200)
            + frame.encode_tunnel_frame(stream, 1, FRAME_BODY, ANSWER)
            + frame.encode_tunnel_frame(stream, 2, END)
        )
        assert wire.out > before, "the waiter's request did not leave with the read that freed its slot"
        assert b"hello" in wire.last
        assert waiter.out == 0

    benchmark.pedantic(run, rounds=300)
    world.close()
