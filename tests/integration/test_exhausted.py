"""A node that has no file descriptor left says so, and blames no provider (HEALTH-6, API-5)."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from pathlib import Path

import pytest

from tests.support.aio import async_test
from tests.support.http import chat, post
from tests.support.provider import chat_answer
from tests.support.stack import Scene, Stack, model, running_stack

CHAT = "/v1/chat/completions"
SPARE = 4  # descriptors for connections to the provider
CLIENTS = 12


def descriptors(stack: Stack) -> int:
    return len(os.listdir(f"/proc/{stack.node.pid}/fd"))


@pytest.mark.req("HEALTH-6", "API-5", "OBS-2")
@pytest.mark.skipif(sys.platform != "linux", reason="prlimit and /proc are Linux's")
@async_test()
async def test_a_node_without_descriptors_says_so_and_its_provider_stays_available(tmp_path: Path) -> None:
    with running_stack(tmp_path, {"m": {}}, [model("m")]) as stack:
        async with stack.scene() as scene:
            before = resource.prlimit(stack.node.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(stack.node.pid, resource.RLIMIT_NOFILE, (descriptors(stack) + SPARE, before[1]))
            clients = [await scene.send(post(CHAT, chat("m"))) for _ in range(CLIENTS)]
            answering = asyncio.create_task(answer_all(scene))
            answers = [await client.answer() for client in clients]
            answering.cancel()
            refused = [answer for answer in answers if answer.status != 200]
            assert 0 < len(refused) < CLIENTS
            for answer in refused:
                assert (answer.status, answer.json["error"]["code"]) == (503, "node_exhausted")
                assert "file descriptor" in answer.json["error"]["message"]
                assert "is its server running" not in answer.json["error"]["message"]
            line = stack.node.wait_event("node_exhausted")
            assert line["level"] == "error"
            (provider,) = (await scene.status())["nodes"][0]["providers"]
            assert provider["status"] == "available", "nothing is wrong with it"
            resource.prlimit(stack.node.pid, resource.RLIMIT_NOFILE, before)
            served = await scene.send(post(CHAT, chat("m")))
            (await scene.provider.call()).respond(chat_answer("again"))
            assert (await served.answer()).status == 200


async def answer_all(scene: Scene) -> None:
    while True:
        (await scene.provider.call()).respond(chat_answer("x"))
