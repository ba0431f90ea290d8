"""``iop-edge status`` against a live edge: what it says is what the pool has."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

import pytest

from tests.support.aio import async_test
from tests.support.http import chat, post
from tests.support.programs import command
from tests.support.stack import Stack

CHAT = "/v1/chat/completions"
EDGE = {"id", "version", "uptime_s", "revision"}
PROVIDER = {"id", "kind", "status", "health", "capacity", "in_use", "long_in_use", "engine_running"}
MODEL = {"id", "waiting", "oldest_wait_ms", "candidates"}


async def status(stack: Stack, *arguments: str) -> str:
    """What the command prints; it has to exit 0."""
    line = command("iop-edge", "status", "--admin", "{}:{}".format(*stack.admin), *arguments)
    ran = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, timeout=20, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def by_id(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in rows}


@pytest.mark.req("OBS-4", "REG-6", "POOL-7")
@async_test()
async def test_status_shows_what_the_pool_has(stack: Stack) -> None:
    async with stack.scene() as scene:
        for _ in range(2):
            await scene.send(post(CHAT, chat("m", stream=True)))
        await scene.send(post(CHAT, chat("one")))
        calls = [await scene.provider.call() for _ in range(3)]
        assert sorted(call.provider for call in calls) == ["m", "m", "one"]
        await scene.send(post(CHAT, chat("one")))
        await scene.in_use(3, waiting=1)

        shown = json.loads(await status(stack, "--json"))
        assert shown["edge"].keys() >= EDGE
        assert (shown["leases_in_use"], shown["waiting"]) == (3, 1)
        assert sum((await scene.samples("iop_edge_leases_in_use")).values()) == 3
        assert sum((await scene.samples("iop_edge_queue_depth")).values()) == 1

        nodes = by_id(shown["nodes"])
        assert [(name, node["connected"]) for name, node in nodes.items()] == [("n1", True), ("n2", False)]
        providers = by_id([row for node in shown["nodes"] for row in node["providers"]])
        assert all(row.keys() >= PROVIDER and row["engine_running"] is None for row in providers.values())
        assert {name: row["in_use"] for name, row in providers.items() if row["in_use"]} == {"m": 2, "one": 1}
        assert sum(row["capacity"] for row in providers.values()) == sum(
            (await scene.samples("iop_edge_capacity")).values()
        )
        assert (providers["one"]["status"], providers["one"]["health"]) == ("available", "available")
        absent = providers["absent"]
        assert [absent[key] for key in ("status", "health", "capacity", "in_use")] == ["unavailable", "offline", 0, 0]

        models = by_id(shown["models"])
        assert all(row.keys() >= MODEL for row in models.values())
        assert {name: row["waiting"] for name, row in models.items() if row["waiting"]} == {"one": 1}
        assert models["one"]["oldest_wait_ms"] >= 0
        assert models["m"]["aliases"] == ["gpt-4o-mini"]
        (candidate,) = models["one"]["candidates"]
        assert [candidate[key] for key in ("node", "provider", "target")] == ["n1", "one", "real-one"]


@async_test()
async def test_the_table_says_the_same(stack: Stack) -> None:
    async with stack.scene() as scene:
        await scene.send(post(CHAT, chat("one")))
        await scene.provider.call()
        await scene.send(post(CHAT, chat("one")))
        await scene.in_use(1, waiting=1)
        head, *lines = (await status(stack)).splitlines()
        assert head.startswith("edge edge-1  version ")
        assert head.endswith("  leases 1  waiting 1")
        rows = [line.split() for line in lines]
        assert ["n1", "yes", "one", "openai_compat", "available", "available", "1/1", "0", "-", "1"] in rows
        assert ["n2", "no", "absent", "openai_compat", "unavailable", "offline", "0/0", "0", "-", "-"] in rows
        (waiting,) = [row for row in rows if row[:2] == ["one", "1"]]
        assert waiting[3] == "1"
