"""One client sends prompts of 100 000 tokens, and the streams beside it go on as if it did not (API-8c)."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.support.aio import async_test
from tests.support.attacks import MIB, target
from tests.support.http import Client, post
from tests.support.programs import node_config, node_program

CHAT = "/v1/chat/completions"
TOKENS = 100_000
LONGEST_MS = 5.0
PROMPTS = 12


def prompt(*, messages: int) -> bytes:
    """About 100 000 tokens, in so many messages; half of it is not ASCII."""
    text = "déjà vu, " * (TOKENS * 4 // 11 // messages)
    turns = [{"role": "user", "content": text} for _ in range(messages)]
    return json.dumps({"messages": turns, "model": "m"}, ensure_ascii=False).encode()


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory in /proc")
@pytest.mark.req("API-8c")
@pytest.mark.parametrize("messages", [1, 4000])
def test_no_turn_of_the_loop_is_longer_than_5_ms(messages: int, tmp_path: Path) -> None:
    """CPU time, since a busy machine makes no turn longer. What one turn takes is what any stream beside it waits."""

    @async_test(timeout_s=60, leaks=False)
    async def body() -> None:
        async with target(tmp_path, 128 * MIB) as of:
            asked = post(CHAT, prompt(messages=messages))
            assert len(asked) > 3 * TOKENS
            with node_program(tmp_path, node_config(of.nodes), env={"IOP_NODE_TOKEN": "token-good"}) as node:
                await asyncio.to_thread(node.wait_event, "edge_connected")
                client = await Client.connect(of.http)
                try:
                    found = []
                    for _ in range(PROMPTS):
                        await of.longest_ms()  # from here on
                        client.send(asked)
                        assert (await client.answer()).status == 200
                        found.append(await of.longest_ms())
                finally:
                    await client.close()
                assert max(found) <= LONGEST_MS, found

    body()
