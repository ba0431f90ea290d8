"""``/admin/trace`` and ``iop-edge trace``: what was decided about a request, step by step (OBS-7)."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.aio import async_test
from tests.support.http import Client, chat, post
from tests.support.programs import command
from tests.support.provider import DONE, chat_delta, chat_event
from tests.support.stack import Scene, Stack, running_stack

CHAT = "/v1/chat/completions"
BUSY = b'{"error": {"message": "busy"}}'


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """``m`` is a, then b, one slot each; ``one`` is a alone; ``away`` is at a node that is not there."""
    tried = [{"node": "n1", "provider": p, "target": f"on-{p}", "priority": i} for i, p in enumerate("ab")]
    models = [
        {"id": "m", "candidates": tried},
        {"id": "one", "candidates": tried[:1]},
        {"id": "away", "candidates": [{"node": "n2", "provider": "z", "target": "t"}]},
    ]
    with running_stack(
        tmp_path_factory.mktemp("trace"), {p: {"capacity": 1} for p in "ab"}, models, other_providers={"z": {}}
    ) as stack:
        yield stack


async def ask(stack: Stack, request_id: str) -> tuple[int, Any]:
    client = await Client.connect(stack.admin)
    try:
        client.send(f"GET /admin/trace/{request_id} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        answer = await client.answer()
    finally:
        await client.close()
    return answer.status, answer.json


async def trace(scene: Scene, request_id: str | None) -> Any:
    await scene.outcome(request_id)
    status, page = await ask(scene.stack, request_id or "")
    assert status == 200, page
    return page


def steps(page: Any) -> list[str]:
    return [event["what"] for event in page["events"]]


@pytest.mark.req("OBS-7")
@async_test()
async def test_the_straight_path_is_four_steps(own: Stack) -> None:
    async with own.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True), {"x-request-id": "mine-1"}))
        call = await scene.provider.call()
        role = chat_event({"role": "assistant"})
        call.stream(role, chat_delta("a"), chat_event({}, "stop"), DONE)
        request_id = (await client.answer()).get("x-request-id")
        page = await trace(scene, request_id)
        assert steps(page) == ["granted", "sent", "committed", "ended"]
        granted, sent, committed, ended = page["events"]
        stood = [(c["provider"], c["standing"], c["in_use"], c["capacity"]) for c in granted["candidates"]]
        assert stood == [("a", "open", 0, 1), ("b", "open", 0, 1)]
        assert page["clocks"] == {
            "request_timeout_ms": 3_600_000,
            "queue_timeout_ms": 60_000,
            "response_stall_timeout_ms": 300_000,
            "first_response_timeout_ms": None,
        }
        assert (sent["attempt"], sent["node"], sent["provider"], sent["target"]) == (1, "n1", "a", "on-a")
        assert (sent["long"], sent["generation"] > 0, sent["lease"] > 0) == (False, True, True)
        assert committed["body_bytes"] >= len(role + chat_delta("a"))
        assert (ended["outcome"], ended["status"], ended["released"]) == ("ok", 200, "terminal")
        assert (page["api"], page["model"], page["state"], page["attempts"]) == ("chat", "m", "done", 1)
        found = (await ask(own, "mine-1"))[1]
        assert (found["request_id"], found["found_by"]) == (request_id, "client_request_id")


@pytest.mark.req("OBS-7")
@async_test()
async def test_a_clients_id_hides_no_other_request(own: Stack) -> None:
    """Whoever sends another request's id as its own, going on or ended, is found by that one's id never."""
    async with own.scene() as scene:
        client = await scene.send(post(CHAT, chat("m")))
        (await scene.provider.call()).respond(b"{}")
        victim = (await client.answer()).get("x-request-id")
        await scene.outcome(victim)
        client = await scene.send(post(CHAT, chat("m"), {"x-request-id": victim or ""}))
        call = await scene.provider.call()
        page = (await ask(own, victim or ""))[1]
        assert (page["request_id"], page["state"], "found_by" in page) == (victim, "done", False)
        call.respond(b"{}")
        shadow = (await client.answer()).get("x-request-id")
        await scene.outcome(shadow)
        assert (await ask(own, victim or ""))[1]["request_id"] == victim


@pytest.mark.req("OBS-7", "API-8")
@async_test()
async def test_attempts_say_how_they_failed_and_what_came_of_it(own: Stack) -> None:
    async with own.scene() as scene:
        client = await scene.send(post(CHAT, chat("m")))
        (await scene.provider.call()).reset()
        (await scene.provider.call()).respond(BUSY, 503)
        (await scene.provider.call()).respond(b"{}")
        page = await trace(scene, (await client.answer()).get("x-request-id"))
        assert steps(page) == ["granted", "failed", "recovery", "failed", "recovery", "sent", "committed", "ended"]
        _, first, decided, second, *_ = page["events"]
        assert (first["attempt"], first["provider"], first["code"]) == (1, "a", "provider_connection_lost")
        assert (first["response_started"], first["close_confirmed"]) == (False, True)
        assert (decided["decision"], decided["avoid"]) == ("eligible", "a")
        assert (second["attempt"], second["provider"], second["status"]) == (2, "b", 503)


@pytest.mark.req("OBS-7", "POOL-4")
@async_test()
async def test_a_wait_and_a_refusal_say_what_spoke_against_each_candidate(own: Stack) -> None:
    async with own.scene() as scene:
        first, other = await scene.send(post(CHAT, chat("m"))), await scene.send(post(CHAT, chat("m")))
        calls = [await scene.provider.call() for _ in range(2)]
        waiting = await scene.send(post(CHAT, chat("m"), {"x-request-id": "waits"}))
        await scene.in_use(2, 1)
        (row,) = [row for row in (await _requests(own))["requests"] if row["state"] == "waiting"]
        live = (await ask(own, row["id"]))[1]
        assert (live["state"], steps(live)) == ("waiting", ["waiting"])
        assert (live["position"], live["waits_for"]) == (row["position"], row["waits_for"]) == (1, "full")
        full = [(c["provider"], c["standing"], c["in_use"]) for c in live["events"][0]["candidates"]]
        assert full == [("a", "full", 1), ("b", "full", 1)]
        for call in calls:
            call.respond(b"{}")
        (await scene.provider.call()).respond(b"{}")
        for client in (first, other, waiting):
            assert (await client.answer()).status == 200
        page = await trace(scene, row["id"])
        assert steps(page) == ["waiting", "sent", "committed", "ended"]
        assert page["queue_ms"] >= 0

        refused = await (await scene.send(post(CHAT, chat("away")))).answer()
        page = await trace(scene, refused.get("x-request-id"))
        assert steps(page) == ["refused", "ended"]
        assert page["events"][0]["code"] == "unavailable"
        assert [c["standing"] for c in page["events"][0]["candidates"]] == ["offline"]
        assert "released" not in page["events"][1]


@pytest.mark.req("OBS-7", "API-7c", "EXEC-7")
@async_test()
async def test_a_client_that_left_is_told_of(own: Stack) -> None:
    async with own.scene() as scene:
        client = await scene.send(post(CHAT, chat("one"), {"x-request-id": "leaves"}))
        call = await scene.provider.call()
        await client.close()
        await call.gone.wait()
        page = await trace(scene, "leaves")
        assert steps(page) == ["granted", "sent", "cancelling", "failed", "ended"]
        assert page["events"][2]["reason"] == "client_gone"
        assert page["events"][3]["close_confirmed"] is True
        assert (page["outcome"], page["events"][4]["released"]) == ("client_gone", "cancel_confirmed")


@pytest.mark.req("OBS-7")
@async_test()
async def test_the_command_prints_it(own: Stack) -> None:
    async with own.scene() as scene:
        client = await scene.send(post(CHAT, chat("one"), {"x-request-id": "a/b c"}))
        (await scene.provider.call()).reset()
        answer = await client.answer()
        request_id = answer.get("x-request-id") or ""
        await scene.outcome(request_id)
        ran = await run(own, "trace", request_id)
        head, outcome, limits, titles, *rows = ran.stdout.splitlines()
        assert head == f"{request_id}: chat one anonymous"
        assert outcome.startswith("provider_connection_lost (502), 1 attempt, ")
        assert limits == "time limits: request 3600000 ms, queue 60000 ms, response stall 300000 ms"
        assert titles.split() == ["AT", "MS", "WHAT", "MORE"]
        text = "\n".join(rows)
        assert "n1/a attempt=1 lease=" in text
        assert "code=provider_connection_lost" in text
        assert "decision=no_candidate avoid=a" in text
        assert "n1/a: avoided, " in text
        assert json.loads((await run(own, "trace", "--json", "a/b c")).stdout)["request_id"] == request_id
        unknown = await run(own, "trace", "req_nobody")
        assert unknown.returncode == 2
        assert "no request 'req_nobody'" in unknown.stderr


async def run(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = command("iop-edge", *arguments, "--admin", "{}:{}".format(*stack.admin))
    return await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, timeout=20, check=False)


async def _requests(stack: Stack) -> Any:
    client = await Client.connect(stack.admin)
    try:
        client.send(b"GET /admin/requests HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return (await client.answer()).json
    finally:
        await client.close()
