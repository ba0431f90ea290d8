"""Log lines, events and metrics name the provider that dies, and that comes back (OBS-1c)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.aio import async_test, until
from tests.support.http import Client, chat, post
from tests.support.provider import ScriptedProvider, chat_answer, listening_socket
from tests.support.stack import Scene, model, running_stack

CHAT = "/v1/chat/completions"
UP = '{node="n1",provider="far"}'


async def up(scene: Scene) -> float:
    return (await scene.samples("iop_edge_provider_up"))[UP]


@pytest.mark.req("OBS-1c", "OBS-3", "HEALTH-8")
@async_test(timeout_s=60)
async def test_a_provider_that_dies_and_comes_back_is_named_everywhere(tmp_path: Path) -> None:
    sock = listening_socket()
    port = sock.getsockname()[1]
    far = {"base_url": f"http://127.0.0.1:{port}/far/v1"}
    with running_stack(tmp_path, {"m": {}, "far": far}, [model("m"), model("far")]) as stack:
        async with stack.scene() as scene:
            listener = await Client.connect(stack.admin)
            listener.send(b"GET /admin/events?kind=provider HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await listener.head()
            async with ScriptedProvider(sock) as provider:
                client = await scene.send(post(CHAT, chat("far")))
                (await provider.call()).respond(chat_answer("x"))
                assert (await client.answer()).status == 200
                assert await up(scene) == 1
            sock.close()  # the server is gone
            client = await scene.send(post(CHAT, chat("far")))
            assert (await client.answer()).status in (502, 503)
            named = {"provider": "far", "reason": "refused"}
            line = await asyncio.to_thread(stack.edge.wait_event, "provider_lowered", node="n1", **named)
            assert line["level"] == "warning"
            await asyncio.to_thread(stack.node.wait_event, "provider_lowered", **named)
            assert await up(scene) == 0
            again = listening_socket(port)
            async with ScriptedProvider(again):
                await asyncio.to_thread(stack.edge.wait_event, "provider_restored", node="n1", provider="far")
                await asyncio.to_thread(stack.node.wait_event, "provider_restored", provider="far")
                assert await up(scene) == 1
            again.close()
            events = (await listener.read_through(b"provider_restored")).decode()
            told = [json.loads(text[6:]) for text in events.splitlines() if text.startswith("data: ")]
            assert told[0].items() >= {"event": "provider_lowered", "node": "n1", **named}.items()
            await listener.close()


@pytest.mark.req("OBS-1c")
@pytest.mark.parametrize("principals", [True, False])
@async_test()
async def test_counters_name_model_node_and_provider_and_the_principal_if_asked(
    tmp_path: Path, principals: bool
) -> None:
    keys = [{"principal": "alice", "key_env": "KEY_OF_ALICE"}]
    group = {**model("m"), "aliases": ["other-name"]}
    with running_stack(
        tmp_path, {"m": {}}, [group], http={"api_keys": keys}, env={"KEY_OF_ALICE": "k" * 20},
        metrics={"principals": principals},
    ) as stack:  # fmt: skip
        async with stack.scene() as scene:
            client = await scene.send(post(CHAT, chat("other-name"), {"Authorization": "Bearer " + "k" * 20}))
            (await scene.provider.call()).respond(chat_answer("x"))
            assert (await client.answer()).status == 200
            client = await scene.send(post(CHAT, chat("nobody-has-it"), {"Authorization": "Bearer " + "k" * 20}))
            assert (await client.answer()).status == 404
            whose = "alice" if principals else ""
            rows = await scene.samples("iop_edge_requests_total")
            served = f'{{api="chat",model="m",node="n1",outcome="ok",principal="{whose}",provider="m"}}'
            refused = '{api="chat",model="",node="",outcome="model_not_found",principal="",provider=""}'
            await until(lambda: served in rows)
            assert (rows[served], rows[refused]) == (1, 1)
            assert "nobody-has-it" not in await scene.metrics()
            assert 'iop_edge_request_duration_seconds_count{api="chat",model="m"}' in await scene.metrics()
