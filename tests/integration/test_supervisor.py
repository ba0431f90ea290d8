"""How a node program keeps its connection: what it says, when it tries again, when and how it gives up (SUP, REG-2)."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from iop._fast import frame
from iop.net.loop import Runtime
from iop.node.providers.allowance import Allowance
from iop.node.providers.registry import Backends
from iop.node.uplink import supervisor
from iop.node.uplink.reconnect import ReconnectPolicy, SupervisorPolicy
from iop.observability.metrics import NodeMetrics
from iop.wire import codec, limits
from iop.wire import messages as m
from tests.support.aio import async_test, until
from tests.support.nodeport import TOKEN, NodePort
from tests.support.programs import Line, Program, edge_config, edge_program, node_config, node_program

ENV = {"IOP_NODE_TOKEN": TOKEN, "IOP_TOKEN": TOKEN}
QUICK = {"max_attempts": 0, "interval_sec": 0.1}


@contextmanager
def one_edge(folder: Path, **provider: Any) -> Iterator[Program]:
    """An edge with one node and one provider."""
    folder.mkdir(exist_ok=True)
    entry = {"id": "p", "kind": "echo", "capacity": 1, **provider}
    nodes = [{"id": "n1", "token_env": "IOP_TOKEN", "providers": [entry]}]
    models = [{"id": "m", "candidates": [{"node": "n1", "provider": "p", "target": "t"}]}]
    with edge_program(folder, edge_config(nodes=nodes, models=models), env=ENV) as edge:
        yield edge


@contextmanager
def one_node(
    folder: Path, address: tuple[str, int], env: dict[str, str] | None = None, **sections: Any
) -> Iterator[Program]:
    folder.mkdir(exist_ok=True)
    config = (
        node_config(address, reconnect=QUICK, **sections)
        if "reconnect" not in sections
        else node_config(address, **sections)
    )
    with node_program(folder, config, env={**ENV, **(env or {})}) as node:
        yield node


@pytest.fixture
def nobody() -> Iterator[tuple[str, int]]:
    """An address where connections are refused, for as long as the test runs."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()


def events(lines: list[Line], *names: str) -> list[Line]:
    return [line for line in lines if line.get("event") in names]


# ---- giving up ------------------------------------------------------------------------------------------------------


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize(("host", "told"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_node_that_dials_another_machine_without_tls_says_so(
    tmp_path: Path, nobody: tuple[str, int], host: str, told: bool
) -> None:
    with one_node(tmp_path, (host, nobody[1])) as node:
        node.wait_event("edge_unreachable")
        assert any(line.get("event") == "link_in_the_clear" for line in node.lines) is told


@pytest.mark.req("REG-2", "SUP-3")
def test_a_wrong_token_is_one_line_and_exit_3(tmp_path: Path) -> None:
    with one_edge(tmp_path / "edge") as edge:
        with one_node(tmp_path / "node", edge.address("nodes"), {"IOP_NODE_TOKEN": "s3cret"}) as node:
            assert node.wait() == 3
            (line,) = node.lines
            assert line["event"] == "giving_up"
            assert line["reason"] == "unknown_token"
            assert line["detail"] == "no node of this edge has this token"
        rejected = edge.wait_event("node_rejected", reason="unknown_token")
        assert "s3cret" not in str(edge.lines) + str(node.lines)
        assert rejected["peer"].startswith("127.0.0.1:")


@pytest.mark.req("SUP-1", "SUP-2", "SUP-3")
def test_an_absent_edge_is_one_line_per_attempt_with_the_next_delay(tmp_path: Path, nobody: tuple[str, int]) -> None:
    with one_node(tmp_path, nobody, reconnect={"max_attempts": 4, "interval_sec": 0.2}) as node:
        assert node.wait() == 4
        *tries, last = node.lines
        assert [line["event"] for line in tries] == ["edge_unreachable"] * 3
        assert [line["attempt"] for line in tries] == ["1 of 4", "2 of 4", "3 of 4"]
        for line in tries:
            assert line["reason"] == "connect_failed"
            assert "connection refused" in line["detail"]
            assert line["edge"] == f"127.0.0.1:{nobody[1]}"
            assert 0.1 <= line["next_in_s"] <= 0.3
        assert last["event"] == "giving_up"
        assert last["reason"] == "attempts_exhausted"


@pytest.mark.req("SUP-2")
def test_unlimited_attempts_until_the_local_shutdown(tmp_path: Path, nobody: tuple[str, int]) -> None:
    with one_node(tmp_path, nobody, reconnect={"max_attempts": 0, "interval_sec": 0.1}) as node:
        node.wait_event("edge_unreachable", attempt="12 of unlimited")
        node.signal(signal.SIGTERM)
        assert node.wait() == 0
    assert not events(node.lines, "giving_up")


@pytest.mark.req("SUP-3")
def test_a_shutdown_ends_a_long_wait_at_once(tmp_path: Path, nobody: tuple[str, int]) -> None:
    with one_node(tmp_path, nobody, reconnect={"max_attempts": 0, "interval_sec": 3600}) as node:
        node.wait_event("edge_unreachable")
        node.signal(signal.SIGINT)
        assert node.wait(timeout_s=5) == 0


@pytest.mark.req("WIRE-8", "SUP-3")
def test_another_protocol_version_is_exit_3_with_both_named(tmp_path: Path) -> None:
    @async_test()
    async def body() -> None:
        ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def edge_of_tomorrow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readexactly(4)
            request = codec.decode(await reader.readexactly(int.from_bytes(head, "big")))
            assert isinstance(request, m.RegisterRequest)
            text = f"the edge speaks protocol 2, the node {request.protocol_version}"
            writer.write(codec.encode(m.RegisterResponse(False, m.RejectReason.PROTOCOL_MISMATCH, text)))
            ended.set_result(await reader.read())
            writer.close()

        server = await asyncio.start_server(edge_of_tomorrow, "127.0.0.1", 0)
        with one_node(tmp_path, server.sockets[0].getsockname()) as node:
            assert await ended == b""
            assert await asyncio.to_thread(node.wait) == 3
            (line,) = node.lines
            assert line["reason"] == "protocol_mismatch"
            assert line["detail"] == f"the edge speaks protocol 2, the node {limits.PROTOCOL_VERSION}"
        server.close()
        await server.wait_closed()

    body()


REJECTED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "an upstream that the owner did not allow": (
        {"kind": "openai_compat", "base_url": "http://192.0.2.1:8000/v1"},
        {},
        "upstream_not_allowed",
        "its base_url is not on loopback; allow it in node.yaml's allow_upstreams",
    ),
    "an upstream beside those allowed": (
        {"kind": "openai_compat", "base_url": "http://127.0.0.1:8000/v1"},
        {"allow_upstreams": ["127.0.0.1:9999"]},
        "upstream_not_allowed",
        "its base_url is not in node.yaml's allow_upstreams",
    ),
    "a credential that is not listed": (
        {"kind": "openai_compat", "base_url": "http://127.0.0.1:8000/v1", "api_key_env": "MY_KEY"},
        {},
        "credential_not_listed",
        "its api_key_env MY_KEY is not listed in node.yaml's credentials",
    ),
    "a credential that is not there": (
        {"kind": "openai_compat", "base_url": "http://127.0.0.1:8000/v1", "api_key_env": "MY_KEY"},
        {"credentials": ["MY_KEY"]},
        "credential_not_set",
        "the environment variable MY_KEY is empty or not printable ASCII",
    ),
}


@pytest.mark.req("CONF-2", "TUN-6", "TUN-7", "SUP-3")
@pytest.mark.parametrize("case", REJECTED)
def test_a_provider_that_the_owner_does_not_allow_is_rejected_and_the_node_goes_on(tmp_path: Path, case: str) -> None:
    provider, allowed, code, detail = REJECTED[case]
    with one_edge(tmp_path / "edge", **provider) as edge:
        with one_node(tmp_path / "node", edge.address("nodes"), node=allowed) as node:
            line = node.wait_event("provider_rejected")
            assert (line["provider"], line["reason"], line["detail"]) == ("p", code, detail)
            line = edge.wait_event("provider_rejected", node="n1")
            assert (line["provider"], line["reason"], line["detail"]) == ("p", code, detail)
            edge.wait_event("node_connected", node="n1")
            node.wait_event("edge_connected")
        assert not events(node.lines, "giving_up")


# ---- trying again ---------------------------------------------------------------------------------------------------


@pytest.mark.req("SUP-1", "SUP-2")
def test_a_lost_session_is_tried_again_and_a_ready_one_resets_the_count(tmp_path: Path) -> None:
    @async_test()
    async def body() -> None:
        async with NodePort() as port:
            with one_node(tmp_path, port.address, reconnect={"max_attempts": 2, "interval_sec": 0.1}) as node:
                for generation in range(1, 5):
                    await until(lambda: port.server.connected() == 1)
                    assert port.pool.registry.nodes["n1"].generation == generation
                    await asyncio.to_thread(node.wait_event, "edge_connected")
                    lines = len(node.lines)
                    port.server.owners["n1"].link.abort("test")
                    line = await asyncio.to_thread(node.wait_event, "edge_lost", after=lines)
                    assert line["reason"] == "connection_lost"
                    assert line["attempt"] == "0 of 2"
                await until(lambda: port.server.connected() == 1)
            assert not events(node.lines, "giving_up", "edge_unreachable")

    body()


@pytest.mark.req("SUP-1", "SUP-5")
def test_an_edge_that_restarts_is_found_again(tmp_path: Path) -> None:
    @async_test()
    async def body() -> None:
        async with NodePort() as port:
            node_of = one_node(tmp_path, port.address)
            node = node_of.__enter__()
            await until(lambda: port.server.connected() == 1)
            await asyncio.to_thread(node.wait_event, "edge_connected")
        line = await asyncio.to_thread(node.wait_event, "edge_lost")
        assert line["reason"] in ("goodbye", "connection_lost")
        await asyncio.to_thread(node.wait_event, "edge_unreachable")
        async with NodePort(port=port.address[1]) as again:
            await until(lambda: again.server.connected() == 1)
            node.signal(signal.SIGTERM)
            assert await asyncio.to_thread(node.wait) == 0
            node_of.__exit__(None, None, None)

    body()


@pytest.mark.req("SUP-3")
def test_a_broken_edge_is_a_reason_to_try_again(tmp_path: Path) -> None:
    """What answers on the port is an HTTP server, or breaks the contract otherwise: typed, counted as an attempt."""

    answers = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        (1 << 20 | 1).to_bytes(4, "big"),
        frame.encode_tunnel_body(1, b"x"),
        codec.encode(m.NodeReadyResponse(True)),
        codec.encode(m.RegisterRequest("t", "1", 1)),
        b"",
    ]

    @async_test()
    async def body() -> None:
        served = 0

        async def broken_edge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal served
            await reader.readexactly(4)
            writer.write(answers[served])
            served += 1
            if served == len(answers):
                writer.close()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(broken_edge, "127.0.0.1", 0)
        limit = {"max_attempts": len(answers), "interval_sec": 0.1}
        with one_node(tmp_path, server.sockets[0].getsockname(), reconnect=limit) as node:
            assert await asyncio.to_thread(node.wait) == 4
            tries = events(node.lines, "edge_unreachable")
            assert [line["reason"] for line in tries] == ["protocol_error"] * (len(answers) - 1)
            reasons = [line["detail"].partition(":")[0] for line in tries]
            assert reasons == ["frame_length"] * 4 + ["wrong_state"] * 3
        server.close()
        await server.wait_closed()

    body()


@pytest.mark.req("REG-2", "REG-5", "SUP-3")
def test_a_second_node_waits_its_turn_and_takes_over_from_a_frozen_one(tmp_path: Path) -> None:
    with one_edge(tmp_path / "edge") as edge:
        address = edge.address("nodes")
        with one_node(tmp_path / "first", address) as first:
            edge.wait_event("node_connected", node="n1")
            with one_node(tmp_path / "second", address) as second:
                line = second.wait_event("duplicate_connection")
                assert line["reason"] == "duplicate_connection"
                assert line["detail"] == "node n1 is connected already, and it answers"
                assert not events(first.lines, "edge_lost"), "the live owner was disturbed"
                lines = len(edge.lines)
                first.signal(signal.SIGSTOP)
                try:
                    superseded = edge.wait_event("node_superseded", after=lines)
                    connected = edge.wait_event("node_connected", after=lines)
                    second.wait_event("edge_connected")
                    lost = edge.wait_event("node_disconnected", node="n1", after=lines)
                    assert lost["reason"] == "superseded"
                    assert connected["ts"] - superseded["ts"] < 1.0
                    order = [x["event"] for x in events(edge.lines[lines:], "node_superseded", "node_connected")]
                    assert order == ["node_superseded", "node_connected"]
                finally:
                    first.signal(signal.SIGCONT)
                assert first.wait_event("edge_lost")["reason"] == "connection_lost"
                assert first.wait_event("duplicate_connection")["reason"] == "duplicate_connection"
                assert not events(second.lines, "edge_lost")


# ---- leaving --------------------------------------------------------------------------------------------------------


@pytest.mark.req("SUP-3", "SUP-5")
def test_sigterm_says_goodbye_and_exits_0(tmp_path: Path) -> None:
    with one_edge(tmp_path / "edge") as edge, one_node(tmp_path / "node", edge.address("nodes")) as node:
        node.wait_event("edge_connected")
        node.signal(signal.SIGTERM)
        assert node.wait() == 0
        edge.wait_event("node_draining")
        assert edge.wait_event("node_goodbye")["reason"] == "shutdown"
        assert edge.wait_event("node_disconnected")["reason"] == "goodbye"


@pytest.mark.req("SUP-3", "SUP-5")
def test_sigterm_with_a_frozen_edge(tmp_path: Path) -> None:
    with one_edge(tmp_path / "edge") as edge, one_node(tmp_path / "node", edge.address("nodes")) as node:
        node.wait_event("edge_connected")
        edge.signal(signal.SIGSTOP)
        try:
            node.signal(signal.SIGTERM)
            assert node.wait(timeout_s=10) == 0
        finally:
            edge.signal(signal.SIGCONT)
        assert edge.wait_event("node_goodbye")["reason"] == "shutdown"


@pytest.mark.req("SUP-3", "SUP-5")
@pytest.mark.parametrize("signals", [1, 2])
def test_an_edge_that_reads_nothing_cannot_keep_a_node_from_leaving(
    signals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LEAVE_S", 0.3 if signals == 1 else 3600)

    @async_test()
    async def body() -> None:
        lost = asyncio.Event()

        async def deaf_edge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for answer in (m.RegisterResponse(True, config=m.NodeConfigPayload("n1", 1)), m.NodeReadyResponse(True)):
                head = await reader.readexactly(4)
                await reader.readexactly(int.from_bytes(head, "big"))
                writer.write(codec.encode(answer))
            await lost.wait()
            writer.close()

        server = await asyncio.start_server(deaf_edge, "127.0.0.1", 0, limit=4096)
        runtime = Runtime(asyncio.get_running_loop())
        runtime.start()
        backends = Backends(runtime, Allowance())
        host, port = server.sockets[0].getsockname()
        node = supervisor.Supervisor(
            runtime, backends, NodeMetrics(), SupervisorPolicy(ReconnectPolicy()),
            host=host, port=port, token=lambda: TOKEN, drain_s=0,
        )  # fmt: skip
        running = asyncio.ensure_future(node.run())
        await until(lambda: node.connected)
        agent = node.agent
        assert agent is not None
        while agent.session.mux.queued_bytes < 1 << 20:  # more than any socket buffer holds
            agent.session.send(m.NodeCommandResponse(1, result=bytes(60_000)))
            await asyncio.sleep(0)
        node.stop()
        if signals == 2:
            await asyncio.sleep(0)
            node.stop()
        async with asyncio.timeout(5):
            assert await running == 0
        lost.set()
        backends.close()
        runtime.close()
        server.close()
        await server.wait_closed()

    body()
