"""Clients that leave, and clients that read slowly: D14, D19, API-7c, EXEC-7, WIRE-5.

Whatever state its request is in, the provider's call ends within a second, the lease comes back, and nothing is left.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from iop.net.loop import raise_file_limit
from tests.support.aio import async_test, until
from tests.support.http import Client, chat, post
from tests.support.provider import DONE, Call, chat_delta, chat_event
from tests.support.stack import Scene, Stack, fds, model, rss_bytes, running_stack

CHAT = "/v1/chat/completions"
STATES = ("streaming", "silent prefill", "non-stream", "queued")
WAVES, OF_EACH = 10, 25  # 1000 departures
ABORT_S = 1.0

linux = pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors and memory in /proc")


def requests(state: str, count: int) -> Iterator[bytes]:
    """``count`` requests whose client will leave in ``state``; the text says so to the provider."""
    for _ in range(count):
        if state == "queued":
            yield post(CHAT, chat("one", text=state))
        else:
            yield post(CHAT, chat("m", stream=state != "non-stream", text=state))


def open_files(stack: Stack) -> int:
    """Descriptors of both programs; closing the last connections takes them a moment."""
    return len(fds(stack.edge)) + len(fds(stack.node))


def state_of(call: Call) -> str:
    return str(call.json["messages"][0]["content"])


async def wave(scene: Scene, *, reset: bool) -> None:
    """25 clients in each state come, and all leave at once."""
    provider = scene.provider
    clients: list[Client] = []
    streaming: list[Client] = []
    for state in STATES:
        for request in requests(state, OF_EACH):
            client = await scene.send(request)
            clients.append(client)
            if state == "streaming":
                streaming.append(client)
    calls = [await provider.call() for _ in range(3 * OF_EACH)]
    for call in calls:
        if state_of(call) == "streaming":
            call.start_stream()
            call.event(chat_delta("a"))
        elif state_of(call) == "silent prefill":
            call.start_stream()  # the head is there, and held
    for client in streaming:
        await client.head()
        assert await client.piece() == chat_delta("a")
    await scene.in_use(3 * OF_EACH + 1, OF_EACH)
    loop = asyncio.get_running_loop()
    left_at = loop.time()
    for client in clients:
        client.leave(reset=reset)
    for call in calls:
        async with asyncio.timeout(10):
            await call.gone.wait()
    late = [state_of(call) for call in calls if call.gone_at - left_at > ABORT_S]
    assert not late, f"aborted later than {ABORT_S} s: {late}"
    await scene.in_use(1)
    for client in clients:
        await client.close()
        scene.clients.remove(client)


@linux
@pytest.mark.req("API-7c", "EXEC-7", "POOL-6", "POOL-7", "POOL-12")
@async_test(timeout_s=90)
async def test_D19_1000_clients_leave_and_nothing_is_left(stack: Stack) -> None:
    raise_file_limit()
    async with stack.scene() as scene:
        holder = await scene.send(post(CHAT, chat("one", text="holder")))
        held = await scene.provider.call()
        await scene.in_use(1)
        await wave(scene, reset=False)  # whatever is made once is made now
        before = open_files(stack)
        for i in range(1, WAVES):
            await wave(scene, reset=i % 2 == 1)
        await until(lambda: open_files(stack) <= before, what=f"as few descriptors as before: {before}")
        assert len(scene.provider.calls) == WAVES * 3 * OF_EACH + 1
        held.respond(b"{}")
        assert (await holder.answer()).status == 200
        metrics = await scene.metrics()
        assert "iop_edge_lease_returns_ignored_total 0.0" in metrics
        assert "iop_edge_buffered_body_bytes 0.0" in metrics


@pytest.mark.req("API-7c", "EXEC-7")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", ["fin", "rst", "half-close"])
@async_test()
async def test_D19_one_client_leaves(stack: Stack, state: str, how: str) -> None:
    """The outcome line says 499; a FIN during a request means gone, even if the client still reads."""
    async with stack.scene() as scene:
        if state == "queued":
            await scene.send(post(CHAT, chat("one", text="holder")))
            await scene.provider.call()
        own_id = f"{state}, {how}"
        body = chat("one" if state == "queued" else "m", stream=state != "non-stream")
        client = await scene.send(post(CHAT, body, {"X-Request-Id": own_id}))
        if state == "queued":
            await scene.in_use(1, 1)
            call = None
        else:
            call = await scene.provider.call()
        if state == "streaming" and call is not None:
            call.start_stream()
            call.event(chat_delta("a"))
            await client.head()
        if how == "half-close":
            client.finish_sending()
        else:
            client.leave(reset=how == "rst")
        if call is not None:
            async with asyncio.timeout(ABORT_S):
                await call.gone.wait()
        await scene.in_use(1 if state == "queued" else 0)
        line = await scene.outcome(own_id)
        assert line["outcome"] == "client_gone"
        assert line["status"] == (200 if state == "streaming" else 499)


@pytest.mark.req("API-7c", "OBS-2")
@async_test()
async def test_a_client_that_leaves_behind_the_last_event_has_been_served(stack: Stack) -> None:
    """SDKs close at [DONE], without waiting for the last chunk: no failure of anybody's, and still a cancel."""
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("a") + chat_event({}, "stop") + DONE)
        head = await client.head()
        await client.read_through(DONE)
        client.leave()
        await call.gone.wait()
        line = await scene.outcome(head.get("x-request-id"))
        assert (line["outcome"], line["status"]) == ("ok", 200)


@pytest.mark.req("TUN-5", "EXEC-7")
@async_test()
async def test_a_provider_about_to_end_is_let_finish_and_its_connection_is_kept(stack: Stack) -> None:
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("a") + chat_event({}, "stop") + DONE)
        await client.head()
        await client.read_through(DONE)
        client.leave()
        while "iop_edge_client_connections 0.0" not in await scene.metrics():
            pass  # the edge has not noticed yet
        call.end_stream()
        await scene.in_use(0)
        assert not call.gone.is_set()
        assert call.connection in scene.provider.open_connections


@pytest.mark.req("API-7c", "EXEC-7")
@async_test()
async def test_a_client_that_sends_more_than_is_read_and_leaves_is_noticed(stack: Stack) -> None:
    """Reading is paused behind 64 KiB of pipelined bytes, where neither FIN nor RST is reported: it is polled for."""
    async with stack.scene() as scene:
        client = await scene.send(post(CHAT, chat("m")))
        call = await scene.provider.call()
        client.send_more(post(CHAT, chat("m", text="y" * 200_000)))
        await client.drain()
        client.leave()
        async with asyncio.timeout(ABORT_S):
            await call.gone.wait()
        await scene.in_use(0)
        assert len(scene.provider.calls) == 1


@pytest.mark.req("API-7c")
@pytest.mark.parametrize("part", [b"POST /v1/chat", post(CHAT, chat("m"))[:-3]])
@async_test()
async def test_D10_a_client_that_leaves_before_its_request_is_whole_starts_nothing(stack: Stack, part: bytes) -> None:
    async with stack.scene() as scene:
        client = await scene.send(part)
        client.leave()
        await scene.in_use(0)
        other = await scene.send(post(CHAT, chat("m")))
        (await scene.provider.call()).respond(b"{}")
        assert (await other.answer()).status == 200
        assert len(scene.provider.calls) == 1
        assert "iop_edge_buffered_body_bytes 0.0" in await scene.metrics()


@pytest.mark.req("API-7c", "EXEC-7")
@async_test()
async def test_a_client_that_leaves_while_its_body_is_still_on_its_way_to_the_provider(stack: Stack) -> None:
    async with stack.scene() as scene:
        scene.provider.hold_bodies = True
        client = await scene.send(post(CHAT, chat("m", text="z" * 20_000_000)))
        call = await scene.provider.call_begun()
        client.leave()
        call.read_body()  # with reading paused our side would not notice
        async with asyncio.timeout(ABORT_S):
            await call.gone.wait()
        await scene.in_use(0)
        assert "iop_edge_buffered_body_bytes 0.0" in await scene.metrics()


SLOW = 200
WINDOW = 262_144


@linux
@pytest.mark.req("WIRE-5", "WIRE-6", "TUN-2")
@async_test(timeout_s=90)
async def test_D14_200_slow_readers_cost_a_window_each_and_disturb_nobody(
    slow_stack: Stack,
) -> None:
    """Providers that send as fast as they can, to clients that take one piece and stop: each provider is stopped at the
    window bound, memory stays flat, and a normal stream goes on as if it were alone."""
    raise_file_limit()
    stack = slow_stack
    async with stack.scene() as scene:
        provider = scene.provider
        big = chat_delta("x" * 16_000)
        slow: list[tuple[Client, Call]] = []
        for _ in range(SLOW):
            client = await scene.client(receive_bytes=4096)
            client.send(post(CHAT, chat("m", stream=True)))
            slow.append((client, await provider.call()))
        sent = [0] * SLOW
        for _, call in slow:
            call.start_stream()
        before = rss_bytes(stack.edge) + rss_bytes(stack.node)
        # Each sender goes on until its own transport is full; so the bound is the product's and the kernel's.
        idle_rounds = 0
        while idle_rounds < 50:
            idle_rounds += 1
            for i, (_, call) in enumerate(slow):
                if not call.connection.paused.is_set():
                    call.event(big)
                    sent[i] += len(big)
                    idle_rounds = 0
            await asyncio.sleep(0)
        grown = rss_bytes(stack.edge) + rss_bytes(stack.node) - before
        assert grown < SLOW * 3 * WINDOW, f"{grown / SLOW:.0f} bytes a slow reader"
        # The others: every event of a normal stream comes at once.
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        call = await provider.call()
        call.start_stream()
        call.event(chat_delta("0"))
        await client.head()
        assert await client.piece() == chat_delta("0")
        loop = asyncio.get_running_loop()
        worst_s = 0.0
        for i in range(200):
            began = loop.time()
            call.event(chat_delta(str(i)))
            assert await client.piece() == chat_delta(str(i))
            worst_s = max(worst_s, loop.time() - began)
        assert worst_s < 0.5
        call.event(chat_event({}, "stop"))
        call.end_stream()
        await client.body()
        # A slow reader that wakes up gets everything, from the first byte to the last.
        client, call = slow[0]
        call.event(chat_event({}, "stop"))
        call.end_stream()
        await client.head()
        assert len(await client.body()) == sent[0] + len(chat_event({}, "stop"))
        # The rest leave while the edge cannot write to them.
        left_at = loop.time()
        for client, _ in slow[1:]:
            client.leave()
        for _, call in slow[1:]:
            async with asyncio.timeout(10):
                await call.gone.wait()
        assert max(call.gone_at for _, call in slow[1:]) - left_at <= ABORT_S
        await scene.in_use(0)
        again = rss_bytes(stack.edge) + rss_bytes(stack.node)
        assert again - before < SLOW * 3 * WINDOW
    assert not [line for line in stack.edge.lines if "disconnected" in str(line.get("event"))]


@pytest.fixture
def slow_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A pair of its own, because its memory is measured; heartbeats every second show whether they get through."""
    env = {"IOP_TEST_TIMING": "1,3"}
    folder = tmp_path_factory.mktemp("slow")
    with running_stack(folder, {"m": {"capacity": 2 * SLOW}}, [model("m")], env=env) as running:
        yield running
