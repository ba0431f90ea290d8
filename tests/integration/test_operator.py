"""``iop-edge drain``, ``undrain``, ``requests`` and ``cancel`` against a live edge."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.aio import async_test
from tests.support.http import Broken, Client, chat, post
from tests.support.programs import command, node_config, node_program
from tests.support.provider import DONE, chat_delta
from tests.support.stack import TOKEN_ENV, Scene, Stack, model, running_stack

CHAT = "/v1/chat/completions"
STREAM = post(CHAT, chat("m", stream=True))
PLAIN = post(CHAT, chat("m"))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    both = [{"node": "n1", "provider": p, "target": "t"} for p in ("a", "b")]
    providers = {"a": {"capacity": 1}, "b": {"capacity": 1}, "n1": {}}
    models = [{"id": "m", "candidates": both}, model("n1")]
    with running_stack(tmp_path_factory.mktemp("operator"), providers, models) as stack:
        yield stack


async def run(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = command("iop-edge", *arguments, "--admin", "{}:{}".format(*stack.admin))
    return await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, timeout=20, check=False)


async def said(stack: Stack, *arguments: str) -> str:
    ran = await run(stack, *arguments)
    assert (ran.returncode, ran.stderr) == (0, ""), ran
    return ran.stdout


async def statuses(scene: Scene) -> dict[str, str]:
    return {p["id"]: p["status"] for node in (await scene.status())["nodes"] for p in node["providers"]}


@pytest.mark.req("SUP-5", "POOL-3", "POOL-4")
@async_test()
async def test_a_drained_provider_finishes_and_gets_nothing_new(own: Stack) -> None:
    async with own.scene() as scene:
        first = await scene.send(STREAM)
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("one"))
        await first.head()
        busy, idle = call.provider, {"a": "b", "b": "a"}[call.provider]
        assert await said(own, "drain", busy) == (f"draining provider {busy}: 1 in use\n  {busy}: draining, 1 in use\n")
        for _ in range(3):  # one at a time, so each could have had either
            client = await scene.send(PLAIN)
            other = await scene.provider.call()
            assert other.provider == idle
            other.respond(b"{}")
            assert (await client.answer()).status == 200
        waiting = asyncio.ensure_future(said(own, "drain", "--wait", busy))
        call.event(chat_delta("two") + DONE)
        call.end_stream()
        assert b"two" in await first.body()
        assert (await waiting).startswith(f"drained provider {busy}: 0 in use")
        assert (await statuses(scene))[busy] == "drained"
        assert (await said(own, "undrain", f"provider:{busy}")).startswith(f"undrained provider {busy}")
        assert (await statuses(scene))[busy] == "available"


@pytest.mark.req("SUP-5", "POOL-4")
@async_test()
async def test_a_drained_node_has_no_candidates_and_its_waiters_are_refused(own: Stack) -> None:
    async with own.scene() as scene:
        running = [await scene.send(PLAIN) for _ in range(2)]
        calls = [await scene.provider.call() for _ in range(2)]
        waiter = await scene.send(PLAIN)
        await scene.in_use(2, waiting=1)
        assert (await said(own, "drain", "node:n1")).startswith("draining node n1: 2 in use")
        refused = await waiter.answer()
        assert (refused.status, refused.json["error"]["code"]) == (503, "unavailable")
        late = await (await scene.send(PLAIN)).answer()
        assert (late.status, late.json["error"]["code"]) == (503, "unavailable")
        for call in calls:
            call.respond(b"{}")
        assert [(await client.answer()).status for client in running] == [200, 200]
        assert (await said(own, "drain", "--wait", "node:n1")).startswith("drained node n1: 0 in use")
        assert set((await statuses(scene)).values()) == {"drained"}
        await said(own, "undrain", "node:n1")
        client = await scene.send(PLAIN)
        (await scene.provider.call()).respond(b"{}")
        assert (await client.answer()).status == 200


@pytest.mark.req("SUP-5", "REG-6")
@async_test()
async def test_a_node_stays_drained_when_it_comes_again(tmp_path: Path) -> None:
    with running_stack(tmp_path, {"p": {}}, [model("p")]) as stack:
        async with stack.scene() as scene:
            assert (await said(stack, "drain", "n1")).startswith("drained node n1")
            await asyncio.to_thread(stack.node.close)
            await asyncio.to_thread(stack.edge.wait_event, "node_disconnected")
            assert await statuses(scene) == {"p": "unavailable"}
            with node_program(tmp_path, node_config(stack.nodes), env=TOKEN_ENV) as again:
                await asyncio.to_thread(again.wait_event, "edge_connected")
                while await statuses(scene) == {"p": "unavailable"}:
                    pass
                assert await statuses(scene) == {"p": "drained"}
                client = await scene.send(post(CHAT, chat("p")))
                assert (await client.answer()).status == 503
                await said(stack, "undrain", "n1")
                client = await scene.send(post(CHAT, chat("p")))
                (await scene.provider.call()).respond(b"{}")
                assert (await client.answer()).status == 200


@pytest.mark.req("EXEC-7", "POOL-7")
@pytest.mark.parametrize("began", [False, True], ids=["silent", "streaming"])
@async_test()
async def test_cancel_ends_one_request_and_no_other(own: Stack, began: bool) -> None:
    async with own.scene() as scene:
        clients = [await scene.send(STREAM) for _ in range(2)]
        calls = [await scene.provider.call() for _ in range(2)]
        for call in calls:
            call.start_stream()
            if began:
                call.event(chat_delta("one"))
        if began:
            heads = [await client.head() for client in clients]
            mine = heads[0].get("x-request-id")
        else:
            mine = json.loads(await said(own, "requests", "--json"))["requests"][0]["id"]
        assert mine is not None
        state = "open" if began else "sent"
        assert await said(own, "cancel", mine) == f"cancelled {mine}, which was {state}\n"
        ended, other = await _first_to_end(clients, began)
        if began:
            assert b'"code": "cancelled"' in ended
        else:
            assert b"an operator cancelled this request" in ended
        await scene.in_use(1)
        gone = [call for call in calls if call.gone.is_set()]
        assert len(gone) == 1
        survivor = next(call for call in calls if call is not gone[0])
        survivor.event(chat_delta("end") + DONE)
        survivor.end_stream()
        if not began:
            await other.head()
        assert b"end" in await other.body()
        assert (await scene.outcome(mine))["outcome"] == "cancelled"


async def _first_to_end(clients: list[Client], began: bool) -> tuple[bytes, Client]:
    """The body of the cancelled one, and the client that goes on."""

    async def end(client: Client) -> bytes:
        try:
            return (await client.body()) if began else (await client.answer()).body
        except Broken as exc:
            return exc.body

    if began:
        return await end(clients[0]), clients[1]
    ends = {asyncio.ensure_future(end(client)): client for client in clients}
    done, pending = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)
    return done.pop().result(), ends[pending.pop()]


@pytest.mark.req("EXEC-7")
@async_test()
async def test_a_waiter_can_be_cancelled_and_is_listed_without_content(own: Stack) -> None:
    async with own.scene() as scene:
        for _ in range(2):
            await scene.send(PLAIN)
            await scene.provider.call()
        waiter = await scene.send(post(CHAT, chat("m", text="SENTINEL-PROMPT")))
        await scene.in_use(2, waiting=1)
        shown = await said(own, "requests")
        assert "SENTINEL" not in shown
        lines = shown.splitlines()
        assert lines[0].split()[:3] == ["REQUEST", "API", "STATE"]
        assert sorted(line.split()[2] for line in lines[1:]) == ["sent", "sent", "waiting"]
        waiting = next(line.split()[0] for line in lines[1:] if " waiting " in line)
        await said(own, "cancel", waiting)
        answer = await waiter.answer()
        assert (answer.status, answer.json["error"]["code"]) == (499, "cancelled")
        await scene.in_use(2, waiting=0)


@pytest.mark.req("CONF-1", "OBS-4")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("drain", "nobody"), "there is no node or provider 'nobody'; `iop-edge status` lists them"),
        (("undrain", "provider:nobody"), "there is no provider 'nobody'; `iop-edge status` lists them"),
        (("drain", "n1"), "'n1' is a node and a provider: write node:n1 or provider:n1"),
        (("cancel", "req_0"), "no request 'req_0' is going on; `iop-edge requests` lists those that are"),
    ],
)
@async_test()
async def test_names_that_are_not_there(own: Stack, arguments: tuple[str, ...], message: str) -> None:
    ran = await run(own, *arguments)
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"iop-edge: {message}\n")


@pytest.mark.req("OBS-4", "SEC-1")
@pytest.mark.parametrize(
    ("fields", "body", "status"),
    [
        (b"Origin: http://evil.example\r\n", b'{"name":"a"}', 403),
        (b"", b'{"name":7}', 400),
        (b"", b'{"name":"a","x":1}', 400),
        (b"", b"\xff", 400),
        (b"", b"", 400),
    ],
)
@async_test()
async def test_what_is_not_an_operators_changes_nothing(own: Stack, fields: bytes, body: bytes, status: int) -> None:
    async with own.scene() as scene:
        before: Any = await statuses(scene)
        client = await Client.connect(own.admin)
        head = b"POST /admin/drain HTTP/1.1\r\nHost: 127.0.0.1\r\n%bContent-Length: %d\r\n\r\n"
        client.send(head % (fields, len(body)) + body)
        assert (await client.answer()).status == status
        await client.close()
        assert await statuses(scene) == before
