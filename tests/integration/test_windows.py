"""What the edge holds for clients that do not take it, and what the kernel may hide (WIRE-5, WIRE-6)."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest

from iop._fast import frame
from iop.edge.requests.normalized_run import RunSpec, submit_run
from iop.net.flow import _NOTSENT_LOWAT
from iop.wire import messages as m
from tests.integration.test_provider_health import _Hears, scene
from tests.support.aio import async_test, until
from tests.support.http import Client, chat, post

CHAT = "/v1/chat/completions"
KIB = 1024
HEAD, BODY = 1, 2
DIRECT = RunSpec(b"{}", node="n1", adapter="p", target="t-p")


@pytest.mark.req("WIRE-5")
@async_test()
async def test_new_streams_get_a_small_window_while_clients_leave_much_in_memory() -> None:
    """Tunnels, queued runs and direct ones alike; and the usual window again once the client has taken it."""
    async with scene(max_buffered_bytes=100_000) as at:
        hub = at.edge.dispatcher.runtime.hub
        slow = await Client.connect(("127.0.0.1", at.edge.http_port), receive_bytes=4 * KIB)
        at.clients.append(slow)
        slow.send(post(CHAT, chat("alone")))
        first = await at.request(at.one)
        assert first.window_bytes == 256 * KIB
        at.one.send(frame.encode_tunnel_frame(first.stream_id, 0, HEAD, status=200, header_block=b"a: b\r\n"))
        for seq in range(1, 5):
            at.one.send(frame.encode_tunnel_frame(first.stream_id, seq, BODY, b"x" * 63 * KIB))
        await until(lambda: hub.buffered_bytes > 100_000)

        submit_run(at.edge.dispatcher, DIRECT, direct := _Hears(), "operator")
        submit_run(at.edge.dispatcher, RunSpec(b"{}", model="both"), queued := _Hears(), "operator")
        runs = [await link.message() for link in (at.one, at.two)]
        assert [run.window_bytes for run in runs if isinstance(run, m.RunRequest)] == [32 * KIB] * 2
        for link, run in zip((at.one, at.two), runs, strict=True):
            assert isinstance(run, m.RunRequest)
            link.send(frame.encode_run_event(run.stream_id, 0, m.RunEventKind.START))
            link.send(frame.encode_run_event(run.stream_id, 1, m.RunEventKind.COMPLETE))
        await until(lambda: (direct.code, queued.code) == ("ok", "ok"))
        await at.ask("both")
        small = await at.request(at.two)
        assert small.window_bytes == 32 * KIB
        at.end(at.two, small)

        at.one.send(frame.encode_tunnel_end(first.stream_id, 5))
        assert len((await slow.answer()).body) == 4 * 63 * KIB
        await until(lambda: hub.buffered_bytes == 0)
        await at.ask("alone")
        again = await at.request(at.one)
        assert again.window_bytes == 256 * KIB
        at.end(at.one, again)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what was set")
@pytest.mark.req("WIRE-5", "WIRE-6")
@async_test()
async def test_the_kernel_keeps_at_most_64_kib_unsent_of_clients_and_links() -> None:
    async with scene() as at:
        await at.ask("alone")
        request = await at.request(at.one)
        (connection,) = at.edge.http.connections
        transports: list[Any] = [connection._transport, *(link.link.transport for link in at.edge.nodes.links)]
        assert len(transports) == 3
        for transport in transports:
            sock = transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT) == 64 * KIB
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        at.end(at.one, request)
