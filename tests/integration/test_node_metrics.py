"""The node's metrics listener, which is off unless its file names an address."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

import pytest

from tests.support.aio import async_test
from tests.support.http import Address, Answer, Client
from tests.support.programs import edge_config, edge_program, node_config, node_program
from tests.support.stack import TOKEN_ENV

METRICS = {"listen": "127.0.0.1:0"}


async def ask(address: Address, path: str, *, method: str = "GET", host: str = "127.0.0.1", more: str = "") -> Answer:
    client = await Client.connect(address)
    client.send(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode())
    try:
        return await client.answer()
    finally:
        await client.close()


def link_bytes(metrics: Answer) -> tuple[float, ...]:
    """In and out."""
    found = re.findall(rb'^iop_node_link_bytes_total\{direction="(?:in|out)"\} (\S+)$', metrics.body, re.MULTILINE)
    assert len(found) == 2
    return tuple(map(float, found))


@pytest.mark.req("OBS-4", "OBS-1")
@async_test(timeout_s=60)
async def test_metrics_and_readiness_of_a_node(tmp_path: Path) -> None:
    nodes = [{"id": "n1", "token_env": "IOP_TOKEN", "providers": [{"id": "e", "kind": "echo", "capacity": 3}]}]
    with edge_program(tmp_path, edge_config(nodes=nodes), env=TOKEN_ENV) as edge:
        file = node_config(edge.address("nodes"), metrics=METRICS)
        with node_program(tmp_path, file, env=TOKEN_ENV) as node:
            address = node.address("metrics")
            await asyncio.to_thread(node.wait_event, "edge_connected")
            metrics = await ask(address, "/metrics")
            assert (metrics.get("content-type") or "").startswith("text/plain")
            assert re.search(rb"^iop_node_edge_connected 1\.0$", metrics.body, re.MULTILINE)
            assert re.search(rb'^iop_node_capacity{provider="e"} 3\.0$', metrics.body, re.MULTILINE)
            assert link_bytes(metrics) > (0, 0)
            assert (await ask(address, "/readyz")).status == 200

            await asyncio.to_thread(edge.close)
            await asyncio.to_thread(node.wait_event, "edge_lost")
            assert (await ask(address, "/readyz")).status == 503
            assert (await ask(address, "/healthz")).status == 200
            later = await ask(address, "/metrics")
            assert b"iop_node_edge_connected 0.0" in later.body
            assert link_bytes(later) >= link_bytes(metrics)  # of a link that has ended, too


@pytest.mark.req("OBS-4", "SEC-1")
@async_test(timeout_s=60)
async def test_a_node_answers_nothing_else_and_no_page_of_another_origin(tmp_path: Path) -> None:
    with node_program(tmp_path, node_config(("127.0.0.1", 1), metrics=METRICS), env=TOKEN_ENV) as node:
        address = node.address("metrics")
        assert (await ask(address, "/metrics", host="evil.example")).status == 403
        assert (await ask(address, "/metrics", more="Origin: http://evil.example\r\n")).status == 403
        assert (await ask(address, "/admin/status")).status == 404
        posted = await ask(address, "/metrics", method="POST", more="Content-Length: 0\r\n")
        assert (posted.status, posted.get("allow")) == (405, "GET, HEAD")
        assert (await ask(address, "/metrics", method="HEAD")).body == b""


@pytest.mark.req("OBS-4")
def test_a_port_that_is_taken_ends_the_node_with_a_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with node_program(tmp_path, node_config(("127.0.0.1", 1), metrics={"listen": listen}), env=TOKEN_ENV) as node:
            assert node.wait() == 1
            (line,) = [line for line in node.lines if line["event"] == "cannot_listen"]
            assert (line["setting"], line["address"], line["reason"]) == (
                "metrics.listen", listen, "Address already in use",
            )  # fmt: skip
