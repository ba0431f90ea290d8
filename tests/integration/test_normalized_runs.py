"""Normalized runs through real programs: direct and queued, their events, their ends (EXEC-1, EXEC-2, POOL-14)."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

import pytest

from iop.edge.admin.listener import Admin
from iop.net.http.exchange import ServerLimits
from iop.net.http.server import HttpServer
from iop.net.loop import Runtime
from iop.observability.events import EventBus
from iop.observability.metrics import EdgeMetrics
from tests.support.aio import async_test, until
from tests.support.http import Client, Head
from tests.support.programs import command
from tests.support.provider import DONE, chat_answer, chat_delta, chat_event, chat_stream
from tests.support.stack import Stack

DIRECT = {"adapter": "m", "target": "t-1", "prompt": "hi"}


def read(body: bytes) -> list[Any]:
    """The events of an answer, each as its data."""
    return [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: ")]


async def events(client: Client) -> list[Any]:
    return read((await client.answer()).body)


@pytest.mark.req("POOL-14", "EXEC-1", "EXEC-5", "EXEC-6")
@async_test()
async def test_a_direct_run_is_told_event_by_event(stack: Stack) -> None:
    async with stack.scene() as scene:
        before = await scene.samples("iop_edge_tokens_total")
        client = await scene.run(**DIRECT, options={"max_tokens": 9}, session_id="s-7")
        call = await scene.provider.call()
        assert (call.provider, call.path) == ("m", b"/m/v1/chat/completions")
        assert call.json["model"] == "t-1"
        assert call.json["messages"] == [{"role": "user", "content": "hi"}]
        assert (call.json["max_tokens"], call.json["stream"]) == (9, True)
        call.start_stream()
        head = await client.head()
        assert head.get("content-type") == "text/event-stream"
        call.event(chat_delta("Hä"))
        seen = await client.read_through(b'"text":"H\xc3\xa4","session_id":"s-7"}\n\n')  # before the provider says more
        assert [event["event"] for event in read(seen)][:2] == ["accepted", "start"]
        call.event(
            chat_delta("llo") + chat_event({}, "stop", usage={"prompt_tokens": 3, "completion_tokens": 2}) + DONE
        )
        call.end_stream()
        rest = read(await client.body())
        assert [event["event"] for event in rest if "event" in event] == ["delta", "usage", "complete"]
        assert rest[-1]["finish_reason"] == "stop"
        assert rest[-1]["usage"] == {"input_tokens": 3, "output_tokens": 2}
        assert {event["session_id"] for event in rest} == {"s-7"}
        line = await scene.outcome(read(seen)[0]["run_id"])
        assert (line["api"], line["outcome"], line["node"], line["provider"]) == ("runs", "ok", "n1", "m")
        assert line.get("queue_ms", 0) == 0
        after = await scene.samples("iop_edge_tokens_total")
        for kind, count in (("input", 3), ("output", 2)):
            labels = f'{{kind="{kind}",model="",node="n1",principal="",provider="m"}}'
            assert after[labels] == before.get(labels, 0) + count


@pytest.mark.req("POOL-10", "POOL-14")
@async_test()
async def test_a_queued_run_waits_for_its_slot_like_any_request(stack: Stack) -> None:
    async with stack.scene() as scene:
        first = await scene.run(model="one", prompt="a")
        call = await scene.provider.call()
        second = await scene.run(model="one", prompt="b")
        await scene.in_use(1, waiting=1)
        call.stream(chat_stream("1"))
        assert (await events(first))[-1]["event"] == "complete"
        call = await scene.provider.call()
        assert call.json["model"] == "real-one"
        call.stream(chat_stream("2"))
        assert [e["event"] for e in await events(second)] == ["accepted", "start", "delta", "complete"]


@pytest.mark.req("EXEC-3", "POOL-14")
@async_test()
async def test_a_direct_run_passes_the_queue_but_not_the_gate(stack: Stack) -> None:
    async with stack.scene() as scene:
        holder = await scene.run(model="one", prompt="a")
        call = await scene.provider.call()
        said = await events(await scene.run(adapter="one", target="t", prompt="b"))
        assert [e["event"] for e in said] == ["accepted", "error"]
        assert said[-1]["error"]["code"] == "capacity_exceeded"
        call.stream(chat_stream("x"))
        assert (await events(holder))[-1]["event"] == "complete"


@pytest.mark.req("EXEC-7")
@async_test()
async def test_who_leaves_cancels_the_run_at_the_provider(stack: Stack) -> None:
    async with stack.scene() as scene:
        client = await scene.run(model="one", prompt="a")
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("x"))
        await client.read_through(b"delta")
        client.leave()
        await asyncio.wait_for(call.gone.wait(), 5)
        await scene.in_use(0)


@pytest.mark.req("EXEC-2")
@pytest.mark.parametrize(
    ("said", "code"),
    [
        (chat_delta("half"), "adapter_no_terminal"),
        (b"data: no json\n\n", "provider_protocol_error"),
        (b'data: {"error":{"message":"secret"}}\n\n', "provider_protocol_error"),
    ],
    ids=["no terminal", "not a chunk", "an error event"],
)
@async_test()
async def test_an_answer_that_does_not_end_well_is_an_error(stack: Stack, said: bytes, code: str) -> None:
    async with stack.scene() as scene:
        client = await scene.run(**DIRECT)
        (await scene.provider.call()).stream(said)
        last = (await events(client))[-1]
        assert (last["event"], last["error"]["code"]) == ("error", code)
        assert "secret" not in json.dumps(last)


@pytest.mark.req("EXEC-1")
@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "invalid_argument"), (401, "credential_rejected"), (429, "provider_protocol_error"),
     (500, "provider_protocol_error")],
)  # fmt: skip
@async_test()
async def test_a_refusal_of_the_provider_is_told_without_its_words(stack: Stack, status: int, code: str) -> None:
    async with stack.scene() as scene:
        client = await scene.run(**DIRECT)
        (await scene.provider.call()).respond(b'{"error":{"message":"secret words"}}', status=status)
        last = (await events(client))[-1]
        assert last["event"] == "error"
        assert last["error"]["code"] in (code, "internal_error" if status == 401 else code)
        assert str(status) in last["error"]["message"] or status == 401
        assert "secret" not in json.dumps(last)


@pytest.mark.req("EXEC-1")
@async_test()
async def test_a_provider_that_does_not_stream_and_one_that_dies(stack: Stack) -> None:
    async with stack.scene() as scene:
        client = await scene.run(**DIRECT)
        (await scene.provider.call()).respond(chat_answer("whole"))
        said = await events(client)
        assert [e["event"] for e in said][-1] == "complete"
        assert "whole" in [e.get("text") for e in said]
        client = await scene.run(**DIRECT)
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("x"))
        call.reset()
        assert (await events(client))[-1]["error"]["code"] == "provider_connection_lost"


@pytest.mark.req("WIRE-5", "WIRE-6")
@async_test(timeout_s=30)
async def test_a_long_input_and_a_long_answer_come_whole(stack: Stack) -> None:
    async with stack.scene() as scene:
        prompt = "äöü €" * 150_000
        client = await scene.run(adapter="m", target="t", prompt=prompt)
        call = await scene.provider.call()
        assert call.json["messages"][0]["content"] == prompt
        texts = [f"{n}:" + "é" * (n * 37 % 9000) for n in range(300)]
        call.stream(chat_stream(*texts))
        said = await events(client)
        assert "".join(e["text"] for e in said if e["event"] == "delta") == "".join(texts)
        assert said[-1]["event"] == "complete"


@pytest.mark.req("WIRE-5", "LIVE-4")
@async_test(timeout_s=60)
async def test_a_reader_that_stops_stops_the_provider(stack: Stack) -> None:
    """Credit goes all the way: what nobody takes is not read from the provider either, and nothing is lost by it."""
    async with stack.scene() as scene:
        client = await Client.connect(stack.admin, receive_bytes=4096)
        scene.clients.append(client)
        body = json.dumps(DIRECT).encode()
        client.send(b"POST /admin/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        call = await scene.provider.call()
        call.start_stream()
        sent = 0
        while not call.connection.paused.is_set():
            assert sent < 3000, "30 MB were taken for a client that reads nothing"
            call.event(chat_delta("x" * 10_000))
            sent += 1
            await asyncio.sleep(0)
        call.event(chat_event({}, "stop") + DONE)
        call.end_stream()
        said = await events(client)
        assert sum(len(e["text"]) for e in said if e["event"] == "delta") == sent * 10_000
        assert said[-1]["event"] == "complete"


@pytest.mark.req("POOL-14")
@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"prompt": "a"}, 400, "invalid_argument"),
        ({"model": "m"}, 400, "invalid_request_error"),
        ({"model": "m", "prompt": "a", "input": {}}, 400, "invalid_request_error"),
        ({"model": "m", "adapter": "m", "prompt": "a"}, 400, "invalid_argument"),
        ({"model": "nope", "prompt": "a"}, 404, "model_not_found"),
        ({"adapter": "nope", "target": "t", "prompt": "a"}, 502, "unknown_provider"),
        ({"adapter": "openai_compat", "target": "t", "prompt": "a"}, 400, "invalid_argument"),
        ({"node": "n2", "adapter": "absent", "target": "t", "prompt": "a"}, 502, "node_disconnected"),
        ({"modle": "m", "prompt": "a"}, 400, "invalid_request_error"),
        ({"model": "m", "prompt": 3}, 400, "invalid_request_error"),
        ({"model": "m", "prompt": "a", "timeout_ms": 0}, 400, "invalid_request_error"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else None,
)
@async_test()
async def test_what_cannot_be_run_is_refused_at_once(stack: Stack, asked: Any, status: int, code: str) -> None:
    async with stack.scene() as scene:
        answer = await (await scene.run(**asked)).answer()
        assert (answer.status, answer.json["error"]["code"]) == (status, code)


@pytest.mark.req("SEC-4")
@async_test()
async def test_a_page_of_another_origin_cannot_start_a_run(stack: Stack) -> None:
    async with stack.scene() as scene:
        client = await Client.connect(scene.stack.admin)
        scene.clients.append(client)
        body = json.dumps(DIRECT).encode()
        origin = b"Origin: http://localhost:1\r\n"
        client.send(
            b"POST /admin/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n%bContent-Length: %d\r\n\r\n%b"
            % (origin, len(body), body)
        )
        head: Head = await client.head()
        assert head.status == 403


def _never(*_: object) -> Any:
    raise AssertionError("this may not be asked for here")


@pytest.mark.req("SEC-4")
@async_test()
async def test_an_admin_listener_beyond_loopback_takes_no_runs() -> None:
    """It asks for no key, and others reach it."""
    runtime = Runtime(asyncio.get_running_loop())
    runtime.start()
    app = Admin(
        runtime,
        EdgeMetrics(),
        dict,
        EventBus(),
        reload=_never,
        runs=_never,
        operator=_never,
        ready=_never,
        local_only=False,
    )
    server = HttpServer(runtime, app, app.fail, ServerLimits())
    client = await Client.connect(("127.0.0.1", await server.start("127.0.0.1", 0)))
    body = json.dumps(DIRECT).encode()
    client.send(b"POST /admin/runs HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    assert (await client.answer()).status == 403
    await client.close()
    server.close()
    await until(lambda: not server.connections)
    await server.wait_closed()
    runtime.close()


@pytest.mark.req("POOL-14")
@async_test()
async def test_a_background_run_goes_on_without_its_listener(stack: Stack) -> None:
    async with stack.scene() as scene:
        client = await scene.run(**DIRECT, background=True)
        answer = await client.answer()
        assert answer.status == 202
        await client.close()
        call = await scene.provider.call()
        call.stream(chat_stream("x"))
        line = await scene.outcome(answer.json["run_id"])
        assert line["outcome"] == "ok"


@pytest.mark.req("POOL-14")
@async_test(timeout_s=30)
async def test_the_command_prints_the_text_and_tells_failures(stack: Stack) -> None:
    async with stack.scene() as scene:
        admin = "{}:{}".format(*stack.admin)

        async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            line = command("iop-edge", "run", "--admin", admin, *arguments)
            return await asyncio.to_thread(
                subprocess.run, line, capture_output=True, text=True, timeout=20, check=False, input="from stdin"
            )

        running = asyncio.ensure_future(run("--node", "n1", "--adapter", "m", "--target", "t", "hello", "there"))
        call = await scene.provider.call()
        assert call.json["messages"][0]["content"] == "hello there"
        call.stream(chat_stream("Hel", "lo"))
        done = await running
        assert (done.returncode, done.stdout, done.stderr) == (0, "Hello\n", "")
        running = asyncio.ensure_future(run("--model", "m", "--json", "-"))
        call = await scene.provider.call()
        assert call.json["messages"][0]["content"] == "from stdin"
        call.stream(chat_delta("x"))
        done = await running
        assert done.returncode == 1
        assert [json.loads(line)["event"] for line in done.stdout.splitlines()][-1] == "error"
        done = await run("--model", "nope", "x")
        assert done.returncode == 1
        assert "nope" in done.stderr or "exist" in done.stderr or "model" in done.stderr
        done = await run("--model", "m", "--options", "{", "x")
        assert done.returncode == 2
