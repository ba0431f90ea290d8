"""Runs and what goes wrong with them: odd questions, nodes with bad manners, providers that answer nonsense, nodes that
are no longer configured (EXEC-1, POOL-14)."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from iop.edge.admin.runs import RunFeed
from iop.edge.app import Edge
from iop.edge.requests.normalized_run import EdgeRun
from iop.net.loop import Runtime
from iop.wire import codec
from iop.wire import messages as m
from tests.integration.test_contained_fault import TOKEN, Quiet, configured
from tests.integration.test_normalized_runs import DIRECT, events, read
from tests.support.aio import async_test, until
from tests.support.http import Client
from tests.support.programs import command
from tests.support.provider import DONE, chat_answer, chat_delta, chat_event, chat_stream
from tests.support.rawlink import RawLink
from tests.support.stack import Stack, model, running_stack

K = m.RunEventKind
SECRET = "a secret word"
Said = Callable[[int, int, m.RunEventKind], bytes]


@asynccontextmanager
async def edge_and_link() -> AsyncIterator[tuple[Edge, RawLink]]:
    """An edge with an admin listener, and a node that is nothing but a socket."""
    config = configured()
    config = config.model_copy(update={"admin": config.admin.model_copy(update={"listen": config.http.listen})})
    runtime = Runtime(asyncio.get_running_loop())
    runtime.start()
    edge = Edge(config, runtime, Quiet())
    await edge.start()
    link = await RawLink.connect(("127.0.0.1", edge.node_port))
    try:
        await link.ready(TOKEN)
        yield edge, link
        await until(lambda: edge.pool.leases_in_use == 0 and not edge.dispatcher.live)
        assert edge.dispatcher.direct_runs == 0
    finally:
        await link.close()
        await until(lambda: not edge.nodes.links)
        edge.close()
        runtime.close()


async def start(edge: Edge, link: RawLink, *, receive_bytes: int | None = None, **asked: Any) -> tuple[Client, int]:
    """Asks for a run; returns who asked and the run's stream."""
    client = await Client.connect(("127.0.0.1", edge.admin_port), receive_bytes=receive_bytes)
    body = json.dumps({"prompt": "a", **asked}).encode()
    client.send(b"POST /admin/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    request = await link.message()
    assert isinstance(request, m.RunRequest)
    return client, request.stream_id


def event(stream_id: int, seq: int, kind: m.RunEventKind, **fields: Any) -> bytes:
    return codec.run_event(stream_id, seq, m.RunEvent(kind, **fields))


QUEUED, PAST = {"model": "m"}, {"adapter": "p", "target": "t"}


@pytest.mark.req("EXEC-1", "SUP-4")
@pytest.mark.parametrize("asked", [QUEUED, PAST], ids=["queued", "direct"])
@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([(K.START, {}), (K.CANCELLED, {})], "node_draining"),
        ([(K.START, {}), (K.CANCELLED, {"failure": m.ExecutionFailure(m.ErrorCode.CANCELLED)})], "node_draining"),
        ([(K.COMPLETE, {})], "provider_protocol_error"),
        ([(K.START, {}), (K.ERROR, {})], "internal"),
    ],
    ids=["cancelled unasked", "cancelled unasked, with a reason", "complete before the start", "no reason"],
)
@async_test()
async def test_a_node_cannot_make_a_run_look_complete_or_given_up_by_who_asked(
    asked: dict[str, Any], said: list[tuple[m.RunEventKind, dict[str, Any]]], code: str
) -> None:
    async with edge_and_link() as (edge, link):
        client, stream_id = await start(edge, link, **asked)
        for seq, (kind, fields) in enumerate(said):
            link.send(event(stream_id, seq, kind, **fields))
        last = read((await client.answer()).body)[-1]
        assert (last["event"], last["error"]["code"]) == ("error", code)
        assert "HTTP" not in last["error"]["message"]
        await client.close()


@pytest.mark.req("WIRE-5")
@async_test(timeout_s=30)
async def test_usage_costs_no_credit_and_does_not_pile_up_for_a_listener_that_does_not_read() -> None:
    async with edge_and_link() as (edge, link):
        client, stream_id = await start(edge, link, receive_bytes=4096, **PAST, session_id="s" * 256)
        link.send(event(stream_id, 0, K.START))
        many = 40_000  # of 300 bytes each
        for seq in range(1, many):
            link.send(event(stream_id, seq, K.USAGE, usage=(seq, seq, None, None)))
        link.send(event(stream_id, many, K.COMPLETE))
        await until(lambda: edge.dispatcher.direct_runs == 0, timeout_s=20)
        assert edge.admin is not None
        (connection,) = edge.admin.connections
        assert connection.writer.handed - connection._taken() + connection.writer.pending_bytes < 1 << 20
        said = read((await client.answer()).body)
        assert said[-1]["usage"] == {"input_tokens": many - 1, "output_tokens": many - 1}, "the last word counts"
        await client.close()


@pytest.mark.req("POOL-14", "WIRE-9")
@pytest.mark.parametrize("length", [513, 1_000_000, 2_000_000])
@async_test()
async def test_a_name_that_is_too_long_for_the_wire_costs_its_own_run_only(stack: Stack, length: int) -> None:
    async with stack.scene() as scene:
        beside = await scene.run(**DIRECT)
        call = await scene.provider.call()
        answer = await (await scene.run(**{**DIRECT, "target": "x" * length})).answer()
        assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_argument")
        assert "target" in answer.json["error"]["message"]
        call.stream(chat_stream("x"))
        assert (await events(beside))[-1]["event"] == "complete"


@pytest.mark.req("EXEC-1", "SEC-4")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (chat_event({"tool_calls": [{"index": -1, "function": {"name": SECRET}}]}), "not a chat completion"),
        (b"data: " + SECRET.encode() + b"\n\n", "not a chat completion"),
        (chat_delta("x" * 1_100_000), "longer than"),
    ],
    ids=["impossible index", "no JSON", "a long event"],
)
@async_test()
async def test_nonsense_of_a_provider_is_named_and_its_connection_is_not_kept(
    stack: Stack, answer: bytes, words: str
) -> None:
    async with stack.scene() as scene:
        client = await scene.run(**DIRECT)
        call = await scene.provider.call()
        call.stream(answer, DONE)
        error = (await events(client))[-1]["error"]
        assert error["code"] == "provider_protocol_error"
        assert words in error["message"]
        assert SECRET not in json.dumps(error)
        await asyncio.wait_for(call.gone.wait(), 5)
        assert [line for line in stack.node.lines if line.get("level") == "error"] == []


@pytest.mark.req("EXEC-2")
@async_test()
async def test_a_stream_may_end_without_its_last_blank_line(stack: Stack) -> None:
    async with stack.scene() as scene:
        client = await scene.run(**DIRECT)
        (await scene.provider.call()).stream(chat_delta("a") + chat_event({"content": "b"}, "stop").rstrip(b"\n"))
        said = await events(client)
        assert [e.get("text") for e in said if e["event"] == "delta"] == ["a", "b"]
        assert said[-1]["event"] == "complete"


@pytest.mark.req("CONF-2", "POOL-14")
@async_test(timeout_s=30)
async def test_a_node_that_is_no_longer_configured_takes_no_direct_run(tmp_path: Path) -> None:
    """It is still connected, for what it runs."""
    with running_stack(tmp_path, {"m": {}}, [model("m")], other_providers={"n2-p": {}}) as stack:
        async with stack.scene() as scene:
            running = await scene.run(**DIRECT)
            call = await scene.provider.call()
            file = tmp_path / "edge.yaml"
            config = json.loads(file.read_text())
            config["nodes"] = [node for node in config["nodes"] if node["id"] != "n1"]
            config["models"] = [model("m", "n2-p", node="n2")]
            file.write_text(json.dumps(config))
            admin = await Client.connect(stack.admin)
            scene.clients.append(admin)
            admin.send(b"POST /admin/reload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n")
            assert (await admin.answer()).status == 200
            for asked in (DIRECT, {**DIRECT, "node": "n1"}):
                answer = await (await scene.run(**asked)).answer()
                assert (answer.status, answer.json["error"]["code"]) == (502, "node_disconnected")
            call.stream(chat_stream("x"))
            assert (await events(running))[-1]["event"] == "complete"


@pytest.mark.req("OBS-4")
@async_test()
async def test_the_admin_listener_speaks_of_its_own_limits(stack: Stack) -> None:
    async with stack.scene() as scene:
        for field in (b"Content-Length: 99999999", b"Origin: http://elsewhere\r\nContent-Length: 0"):
            client = await Client.connect(stack.admin)
            scene.clients.append(client)
            client.send(b"POST /admin/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n%b\r\n\r\n" % field)
            answer = await client.answer()
            assert answer.status in (413, 403)
            assert "http." not in answer.json["error"]["message"]
        unknown = {"model": "m", "prompt": "a", "k" * 100_000: 1}
        assert len((await (await scene.run(**unknown)).answer()).body) < 1000


@pytest.mark.req("POOL-14")
@async_test(timeout_s=30)
async def test_the_command_says_what_is_wrong_with_how_it_was_called(stack: Stack) -> None:
    async with stack.scene() as scene:
        start = command("iop-edge", "run", "--admin", "{}:{}".format(*stack.admin))

        async def run(*arguments: str | bytes) -> subprocess.CompletedProcess[str]:
            line = [*start, *arguments]
            return await asyncio.to_thread(
                subprocess.run, line, capture_output=True, text=True, timeout=20, check=False
            )

        for wrong in (["x"], ["--model", "m", "--node", "n1", "x"], ["--adapter", "m", "x"],
                      ["--model", "m", "--options", "[]", "x"]):  # fmt: skip
            done = await run(*wrong)
            assert done.returncode == 2, wrong
            assert "--" in done.stderr
            assert done.stderr.count("\n") == 1
        running = asyncio.ensure_future(run("--model", "m", b"a\xffb"))
        call = await scene.provider.call()
        assert call.json["messages"][0]["content"] == "a\ufffdb"
        call.stream(chat_stream("x"))
        assert (await running).returncode == 0


@pytest.mark.req("POOL-14")
@async_test(timeout_s=30)
async def test_a_reader_of_the_commands_output_may_leave(stack: Stack) -> None:
    async with stack.scene() as scene:
        line = command("iop-edge", "run", "--admin", "{}:{}".format(*stack.admin), "--model", "m", "x")
        process = await asyncio.to_thread(subprocess.Popen, line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("first"))
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.read, 5) == b"first"
        process.stdout.close()
        call.event(chat_delta("second"))
        await asyncio.wait_for(call.gone.wait(), 10)
        _, said = await asyncio.to_thread(process.communicate, timeout=10)
        assert (process.returncode, said) == (1, b"")


@pytest.mark.req("TUN-5", "TUN-5b", "API-8")
@pytest.mark.parametrize(
    ("more", "again"),
    [
        ({"prompt": "b"}, True),
        ({"input": {"messages": [{}], "tools": [{"type": "function"}]}}, True),
        ({"input": {"messages": [{}], "tools": [{"type": "web_search"}]}}, False),
        ({"input": {"messages": [{}]}, "options": {"store": True}}, False),
    ],
    ids=["plain", "a function", "a tool of the server", "to be stored"],
)
@async_test()
async def test_a_kept_connection_that_was_given_up_costs_a_run_nothing(
    stack: Stack, more: dict[str, Any], again: bool
) -> None:
    async with stack.scene() as scene:
        first = await scene.run(model="m", prompt="a")
        kept = await scene.provider.call()
        kept.respond(chat_answer("x"))
        await events(first)
        second = await scene.run(model="m", **more)
        call = await scene.provider.call()
        assert (call.connection is kept.connection) is again, "what cannot be sent again takes a fresh one (TUN-5b)"
        if again:
            call.close()
            call = await scene.provider.call()
        call.stream(chat_stream("y"))
        said = await events(second)
        assert said[-1]["event"] == "complete"
        line = await scene.outcome(said[0]["run_id"])
        assert (line["attempts"], line["outcome"]) == (2 if again else 1, "ok")


def kept_of(edge: Edge) -> list[object]:
    """Runs of this edge that are in memory, and their listeners; other tests' edges are none of its business."""
    found = [item for item in gc.get_objects() if isinstance(item, EdgeRun | RunFeed)]
    return [r for r in found if (r._run if isinstance(r, RunFeed) else r)._dispatcher is edge.dispatcher]


@pytest.mark.req("EXEC-1")
@pytest.mark.parametrize("how", ["complete", "left", "left while queued", "background", "node lost", "deadline"])
@async_test()
async def test_nothing_of_a_run_stays_in_memory_until_the_collector_looks(how: str) -> None:
    """Its input may have megabytes, and the collector seldom looks."""
    async with edge_and_link() as (edge, link):
        gc.collect()
        gc.disable()
        try:
            extra = {"background": True} if how == "background" else {"timeout_ms": 200} if how == "deadline" else {}
            client, stream_id = await start(edge, link, **(QUEUED if how == "left while queued" else PAST), **extra)
            if how == "left while queued":
                held = [(client, stream_id)] + [await start(edge, link, **QUEUED) for _ in range(8)]
                waiting = await Client.connect(("127.0.0.1", edge.admin_port))
                body = json.dumps({"prompt": "a", **QUEUED}).encode()
                waiting.send(
                    b"POST /admin/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
                )
                await until(lambda: edge.pool.waiting == 1)
                await waiting.close()
                await until(lambda: edge.pool.waiting == 0)
                assert len(kept_of(edge)) == 18, "a run and its listener each, of those that run"
                for other, at in held:
                    link.send(event(at, 0, K.START), event(at, 1, K.COMPLETE))
                    await other.answer()
                    await other.close()
            elif how == "left":
                link.send(event(stream_id, 0, K.START))
                await client.head()
                await client.close()
                assert isinstance(await link.message(), m.CancelRequest)
                link.send(event(stream_id, 1, K.CANCELLED))
            elif how == "node lost":
                await link.close()
                await client.answer()
            elif how == "deadline":
                assert isinstance(await link.message(), m.CancelRequest)
                link.send(event(stream_id, 0, K.CANCELLED))
                await client.answer()
            else:
                link.send(event(stream_id, 0, K.START), event(stream_id, 1, K.COMPLETE))
                await client.answer()
            await client.close()
            await until(lambda: not edge.dispatcher.live)
            assert edge.admin is not None
            assert edge.admin.stats.buffered_body_bytes == 0
            await until(lambda: kept_of(edge) == [])
        finally:
            gc.enable()
