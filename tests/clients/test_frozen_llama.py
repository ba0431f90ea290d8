"""A real llama.cpp server that freezes in the middle of a prefill: its request moves, and it comes back by itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import HERE, START_S
from tests.support.aio import async_test
from tests.support.http import Client, chat, post
from tests.support.programs import Program
from tests.support.provider import DONE
from tests.support.stack import Scene, running_stack

CHAT = "/v1/chat/completions"
LONG = "The quick brown fox jumps over the lazy dog. " * 85  # a second or more of prefill, and it fits
BACK_S = 45.0  # the longest pause between two questions is 30 s


@contextmanager
def _ready(server: Program) -> Iterator[str]:
    """Its base URL, once it serves."""
    yield "http://{}:{}".format(*server.address("http", timeout_s=START_S))


def working(base: str) -> bool:
    with urllib.request.urlopen(f"{base}/slots", timeout=5) as response:
        return any(slot["is_processing"] for slot in json.load(response))


async def health(scene: Scene) -> dict[str, Any]:
    return {p["id"]: p["health"] for node in (await scene.status())["nodes"] for p in node["providers"]}


@pytest.mark.skipif(
    not os.environ.get("IOP_TEST_FROZEN"),
    reason="two real model servers want cores of their own: set IOP_TEST_FROZEN=1 where there are four",
)
@pytest.mark.req("API-8", "HEALTH-2", "HEALTH-5", "LIVE-5")
def test_a_frozen_servers_request_is_answered_by_another(llama_python: Path, tmp_path: Path) -> None:
    line = [str(llama_python), str(HERE / "llama_server.py")]
    # One after the other: while they warm up each wants every core.
    with Program(line) as first, _ready(first) as base, Program(line) as second, _ready(second) as other:
        bases = [base, other]
        # The server sends its head before the prefill, so that the clock between two signs of progress is what runs.
        providers = {
            "first": {"kind": "llama_cpp", "base_url": f"{bases[0]}/v1", "response_stall_timeout_ms": 2000},
            "second": {"kind": "llama_cpp", "base_url": f"{bases[1]}/v1", "response_stall_timeout_ms": 120_000},
        }
        candidates = [
            {"node": "n1", "provider": name, "target": "smollm2", "priority": place}
            for place, name in enumerate(providers)
        ]
        # A keepalive would send a head before it is known who answers.
        quiet = {"stream_keepalive_sec": 0}
        models = [{"id": "small", "candidates": candidates}]
        with running_stack(tmp_path, providers, models, http=quiet) as stack:

            @async_test(timeout_s=180)
            async def body() -> None:
                async with stack.scene() as scene:
                    client = await scene.send(post(CHAT, chat("small", stream=True, text=LONG, max_tokens=8)))
                    while not await asyncio.to_thread(working, bases[0]):
                        pass
                    first.signal(signal.SIGSTOP)
                    try:
                        head = await asyncio.wait_for(_head(client), 90)
                        assert (head.status, head.get("x-iop-provider")) == (200, "second")
                        assert head.get("x-iop-attempts") == "2"
                        answer = await client.body()
                        assert answer.endswith(DONE)
                        assert b'"finish_reason":"' in answer
                        assert (await health(scene))["first"] == "unavailable"
                    finally:
                        first.signal(signal.SIGCONT)
                    back_at = time.monotonic() + BACK_S
                    while (await health(scene))["first"] != "available":
                        assert time.monotonic() < back_at, "it never came back"
                    answer_by = ("", "")
                    while answer_by != ("first", "1"):
                        assert time.monotonic() < back_at, f"{answer_by[0]} answers, attempts {answer_by[1]}"
                        again = await scene.send(post(CHAT, chat("small", max_tokens=4)))
                        said = await again.answer()
                        answer_by = (said.get("x-iop-provider") or "", said.get("x-iop-attempts") or "")

            body()


async def _head(client: Client) -> Any:
    """The head, however long the prefill takes."""
    while True:
        try:
            return await client.head()
        except TimeoutError:
            continue
