"""A provider that dies, or hangs, at each phase of a call: what the client sees, and that its only slot is free again.

D18, TUN-4, TUN-5, API-8b, POOL-7. Each provider here has one slot, so the next request tells whether it came back.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.aio import async_test
from tests.support.http import Broken, Client, chat, post
from tests.support.modelserver import ModelServer
from tests.support.provider import DONE, SSE_HEADERS, Call, chat_answer, chat_delta, chat_event
from tests.support.stack import Scene, Stack, model, running_stack

CHAT = "/v1/chat/completions"
LENGTH_20 = b"Content-Length: 20\r\n"
PATIENCE_MS = 400  # before the first byte and between two
LOST, STALLED = "provider_connection_lost", "response_stalled"
UNREACHABLE, UNAVAILABLE = (502, "provider_unreachable"), (503, "unavailable")
BACK_S = 12.0  # the edge asks after a dead provider with growing intervals


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> Iterator[Stack]:
    """``m`` is scripted, ``slams`` and ``slams-hard`` accept and close, ``real`` is a process of its own; each has one
    slot."""
    names = ("slams", "slams-hard")
    with ExitStack() as opened:
        slams = {n: opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64)) for n in names}
        patience = {"capacity": 1, "response_stall_timeout_ms": PATIENCE_MS, "first_response_timeout_ms": PATIENCE_MS}
        real = {"base_url": f"http://127.0.0.1:{server.port}/v1", **patience}
        slam = {n: {"base_url": f"http://127.0.0.1:{s.getsockname()[1]}/v1", **patience} for n, s in slams.items()}
        with running_stack(
            tmp_path_factory.mktemp("mortal"),
            {"m": patience, **slam, "real": real},
            [model("m"), *map(model, names), model("real")],
            recovery={"max_attempts": 0},
        ) as running:
            for sock in slams.values():
                sock.settimeout(10)
                with sock.accept()[0] as first:  # the node's look at it: it is well, and has no list (HEALTH-10)
                    first.recv(4096)
                    first.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                sock.settimeout(None)
            running.slams = slams  # type: ignore[attr-defined]
            yield running


@dataclass(frozen=True)
class Phase:
    """How far the provider gets. ``read``: what the client has of it, b"" before the commit. ``stream``: what it asked
    for. ``boundary``: an error event may follow."""

    act: Callable[[Call], None]
    read: bytes = b""
    stream: bool = False
    boundary: bool = False


def _part(framing: bytes, *parts: bytes) -> Callable[[Call], None]:
    def act(call: Call) -> None:
        call.start(framing=framing)
        for part in parts:
            call.send(part)

    return act


def _events(*events: bytes) -> Callable[[Call], None]:
    def act(call: Call) -> None:
        call.start_stream(SSE_HEADERS)
        for event in events:
            call.event(event)

    return act


CHUNKED = b"Transfer-Encoding: chunked\r\n"
WHOLE = chat_delta("a") + chat_event({}, "stop") + DONE

PHASES: dict[str, Phase] = {
    "before the head": Phase(lambda call: None),
    "in the head": Phase(lambda call: call.send(b"HTTP/1.1 200 OK\r\nContent-")),
    "behind the head, length": Phase(_part(LENGTH_20)),
    "behind the head, chunked": Phase(_part(CHUNKED)),
    "in the body, length": Phase(_part(LENGTH_20, b'{"part'), b'{"part'),
    "in the body, chunked": Phase(_part(CHUNKED, b"6\r\n", b'{"part', b"\r\n"), b'{"part'),
    "in a chunk": Phase(_part(CHUNKED, b"9\r\n", b'{"part'), b'{"part'),
    "in a chunk's size": Phase(_part(CHUNKED, b"6\r\n", b'{"part', b"\r\n", b"2"), b'{"part'),
    "behind a stream's head": Phase(_events(), stream=True),
    "between two events": Phase(_events(chat_delta("a")), chat_delta("a"), stream=True, boundary=True),
    "in an event": Phase(_events(chat_delta("a") + b"data: {"), chat_delta("a") + b"data: {", stream=True),
    "behind the last event": Phase(_events(WHOLE), WHOLE, stream=True, boundary=True),
}


async def asked(scene: Scene, phase: Phase) -> tuple[Client, Call]:
    """The call has got to that phase, and the client has read what there is."""
    client = await scene.send(post(CHAT, chat("m", stream=phase.stream)))
    call = await scene.provider.call()
    phase.act(call)
    if phase.read:
        assert (await client.head()).status == 200
        assert await client.read_through(phase.read) == phase.read
    return client, call


async def told(client: Client, phase: Phase, code: str, status: int) -> None:
    """The client gets the error as long as nothing was sent; afterwards its answer visibly breaks off."""
    if not phase.read:
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (status, code)
        return
    with pytest.raises(Broken) as broken:
        await client.body()
    if phase.boundary:
        assert json.loads(broken.value.body.removeprefix(b"data: "))["error"]["code"] == code
    else:
        assert b"error" not in broken.value.body


async def slot_is_free(scene: Scene) -> None:
    client = await scene.send(post(CHAT, chat("m")))
    (await scene.provider.call()).respond(chat_answer("next"))
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, chat_answer("next"))
    await scene.in_use(0)


@pytest.mark.req("TUN-4", "TUN-5", "API-8b", "POOL-7", "EXEC-3")
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("name", PHASES)
@async_test()
async def test_a_provider_that_dies_frees_its_slot(mortal: Stack, name: str, how: str) -> None:
    phase = PHASES[name]
    async with mortal.scene() as scene:
        client, call = await asked(scene, phase)
        getattr(call, how)()
        await told(client, phase, LOST, 502)
        await slot_is_free(scene)


@pytest.mark.req("TUN-4", "TUN-5", "API-8b", "POOL-7", "EXEC-3")
@pytest.mark.parametrize("name", PHASES)
@async_test()
async def test_a_provider_that_hangs_is_given_up_and_frees_its_slot(mortal: Stack, name: str) -> None:
    phase = PHASES[name]
    async with mortal.scene() as scene:
        client, call = await asked(scene, phase)
        waiter = await scene.send(post(CHAT, chat("m")))
        await told(client, phase, STALLED, 504)
        await call.gone.wait()
        (await scene.provider.call()).respond(chat_answer("in turn"))
        assert (await waiter.answer()).body == chat_answer("in turn")
        await slot_is_free(scene)


async def lowered(scene: Scene, provider_id: str) -> None:
    """Waits until the status shows a provider as unavailable."""
    end_at = asyncio.get_running_loop().time() + BACK_S
    while True:
        status = await scene.status()
        (found,) = [p["health"] for node in status["nodes"] for p in node["providers"] if p["id"] == provider_id]
        if found == "unavailable":
            return
        assert asyncio.get_running_loop().time() < end_at, f"{provider_id} is {found}"


@contextmanager
def slamming(server: socket.socket, *, hard: bool) -> Iterator[None]:
    """Accept and close whatever comes: requests, and the looks and probes of the node."""
    over = threading.Event()

    def slam() -> None:
        while not over.is_set():
            with suppress(TimeoutError):
                taken, _ = server.accept()
                if hard:
                    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                taken.close()

    server.settimeout(0.1)
    thread = threading.Thread(target=slam)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.req("TUN-5", "API-8b", "POOL-7", "HEALTH-6")
@pytest.mark.parametrize("name", ["slams", "slams-hard"])
def test_a_provider_that_accepts_and_closes_frees_its_slot(mortal: Stack, name: str) -> None:
    slams: socket.socket = mortal.slams[name]  # type: ignore[attr-defined]

    @async_test()
    async def body() -> None:
        async with mortal.scene() as scene:
            answer = await (await scene.send(post(CHAT, chat(name)))).answer()
            # A reset may overtake the end of the connect.
            told = {(502, LOST)} if name == "slams" else {(502, LOST), UNREACHABLE}
            assert (answer.status, answer.json["error"]["code"]) in told
            await scene.in_use(0)
            await lowered(scene, name)  # the node's probe hears the same, and nobody else is sent there
            answer = await (await scene.send(post(CHAT, chat(name)))).answer()
            assert (answer.status, answer.json["error"]["code"]) == UNAVAILABLE

    with slamming(slams, hard=name == "slams-hard"):
        body()


# ---- a process of its own -------------------------------------------------------------------------------------------


async def ask(scene: Scene, text: str = "hi", **more: Any) -> Client:
    return await scene.send(post(CHAT, chat("real", text=text, **more)))


async def streaming(scene: Scene) -> Client:
    """A long stream that has begun."""
    client = await ask(scene, "1000", stream=True)
    assert (await client.head()).status == 200
    await client.read_through(b'"2 "')
    return client


async def served_again(scene: Scene) -> None:
    """As soon as the edge has asked after it (HEALTH-4)."""
    loop = asyncio.get_running_loop()
    end_at = loop.time() + BACK_S
    while (answer := await (await ask(scene)).answer()).status != 200:
        assert (answer.status, answer.json["error"]["code"]) == UNAVAILABLE
        assert loop.time() < end_at, "it is back, and not used"
    assert answer.body == chat_answer("hi")


async def code_of_the_end(client: Client) -> str:
    with pytest.raises(Broken) as broken:
        await client.body()
    return str(json.loads(b'{"error"' + broken.value.body.partition(b'data: {"error"')[2])["error"]["code"])


@pytest.mark.req("TUN-5", "API-8b", "POOL-4", "POOL-7", "LIVE-5", "HEALTH-2", "HEALTH-4")
def test_a_frozen_provider_is_given_up_and_served_from_again_when_it_wakes(mortal: Stack, server: ModelServer) -> None:
    @async_test()
    async def body() -> None:
        async with mortal.scene() as scene:
            client = await streaming(scene)
            server.program.signal(signal.SIGSTOP)
            try:
                assert await code_of_the_end(client) == STALLED
                # Its kernel still accepts, but the probe got no word out of it, and the stall's terminal said so.
                for _ in range(2):
                    answer = await (await ask(scene)).answer()
                    assert (answer.status, answer.json["error"]["code"]) == UNAVAILABLE
                await scene.in_use(0)
            finally:
                server.program.signal(signal.SIGCONT)
            await served_again(scene)

    body()


@pytest.mark.req("TUN-5", "API-8b", "POOL-7", "HEALTH-6", "HEALTH-4")
def test_a_killed_provider_is_lost_then_unreachable_then_back(mortal: Stack, server: ModelServer) -> None:
    @async_test(leaks=False)  # the new process outlives it
    async def body() -> None:
        async with mortal.scene() as scene:
            client = await streaming(scene)
            await asyncio.to_thread(server.kill)
            try:
                assert await code_of_the_end(client) == LOST
                code = UNREACHABLE
                while code == UNREACHABLE:  # until the edge has heard of it
                    answer = await (await ask(scene)).answer()
                    code = answer.status, answer.json["error"]["code"]
                assert code == UNAVAILABLE
                await scene.in_use(0)
            finally:
                await asyncio.to_thread(server.start)
            await served_again(scene)

    body()
