"""``iop-edge status --watch`` beside a busy edge: what it shows at every look is what the pool has at that moment."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from iop.config.edge import EdgeConfig
from iop.config.load import parse_edge
from iop.edge.app import Edge
from iop.net.loop import Runtime
from iop.wire import messages as m
from tests.integration.test_contained_fault import CHAT, TOKEN, Quiet
from tests.support.aio import async_test, until
from tests.support.http import Client, chat, post
from tests.support.node import ScriptedNode
from tests.support.programs import Program, command
from tests.support.provider import chat_answer

LOOKS = 40
CLIENTS = 14
MODELS = {"a": ["p"], "b": ["p", "q"], "c": ["q"]}


class Watched(Edge):
    """Writes down what the pool has, from its parts, at each look at the status."""

    def __init__(self, *arguments: Any) -> None:
        self.looks: list[dict[str, Any]] = []
        self._looked = asyncio.Event()
        self._over = False
        super().__init__(*arguments)

    async def seen(self, times: int) -> None:
        """The status was looked at so many times from now on: what else happens here goes by that clock."""
        wanted = len(self.looks) + times
        while len(self.looks) < wanted and not self._over:
            self._looked.clear()
            await self._looked.wait()

    def looked_enough(self) -> None:
        """Nobody waits for looks any more."""
        self._over = True
        self._looked.set()

    def status(self) -> dict[str, Any]:
        pool = self.pool
        resources = [r for node in pool._nodes.values() for r in node.values()]
        self.looks.append(
            {
                "leases": sum(len(r.leases) for r in resources),
                "waiting": pool.queue.waiting,
                "providers": {
                    r.provider_id: (len(r.leases), max(0, r.capacity - r.lingering), r.lingering) for r in resources
                },
                "models": {name: group.waiting for name, group in pool._groups.items()},
            }
        )
        self._looked.set()
        return super().status()


def config(capacities: dict[str, int]) -> EdgeConfig:
    local = {"listen": "127.0.0.1:0"}
    base = {"kind": "openai_compat", "base_url": "http://127.0.0.1:1/v1"}
    token = hashlib.sha256(TOKEN.encode()).hexdigest()
    rows = [{"id": name, "capacity": n, **base} for name, n in capacities.items()]
    models = [
        {"id": name, "candidates": [{"node": "n", "provider": p, "target": "t"} for p in providers]}
        for name, providers in MODELS.items()
    ]
    nodes = [{"id": "n", "token_sha256": token, "providers": rows}]
    text = json.dumps({"http": local, "transport": local, "admin": local, "nodes": nodes, "models": models})
    return parse_edge(text, source="test")


@asynccontextmanager
async def busy_edge(rng: random.Random) -> AsyncIterator[Watched]:
    """Clients of all models, a node that answers, fails and leaves calls lingering, and capacities that change."""
    runtime = Runtime(asyncio.get_running_loop())
    runtime.start()
    edge = Watched(config({"p": 3, "q": 2}), runtime, Quiet())
    await edge.start()
    stopping = False

    async def ask(model: str) -> None:
        client = await Client.connect(("127.0.0.1", edge.http_port))
        while not stopping:
            client.send(post(CHAT, chat(model)))
            await client.answer()
        await client.close()

    async def answer(node: ScriptedNode, request: m.ProviderTunnelRequest) -> None:
        await edge.seen(rng.randint(1, 3))
        if rng.random() < 0.6:
            node.answer(request, chat_answer("x"))
            return
        node.refuse(request, m.ErrorCode.PROVIDER_PROTOCOL_ERROR, close_confirmed=False)
        await edge.seen(rng.randint(1, 5))
        node.call_closed(request.provider_id, request)

    async def serve(node: ScriptedNode, group: asyncio.TaskGroup) -> None:
        while True:
            group.create_task(answer(node, await node.request()))

    async def change() -> None:
        while not stopping:
            edge.reload(config({"p": rng.randint(1, 5), "q": rng.randint(1, 4)}))
            await edge.seen(1)

    try:
        async with ScriptedNode(("127.0.0.1", edge.node_port), token=TOKEN) as node, asyncio.TaskGroup() as group:
            clients = [group.create_task(ask(list(MODELS)[i % 3])) for i in range(CLIENTS)]
            changing = group.create_task(change())
            serving = group.create_task(serve(node, group))
            yield edge
            stopping = True
            edge.looked_enough()
            await asyncio.wait([*clients, changing])
            serving.cancel()
        await until(lambda: not edge.nodes.links)
    finally:
        edge.close()
        edge.http.close()
        await until(lambda: not edge.http.connections)
        runtime.close()


def read(block: str) -> dict[str, Any]:
    """A block of the watch as the numbers in it."""
    head, _, rest = block.partition("\n")
    providers, models, *_ = rest.strip().split("\n\n")
    rows = [line.split() for line in providers.splitlines()[1:]]
    found = re.search(r"  leases (\d+)  waiting (\d+)$", head)
    assert found is not None, head
    return {
        "leases": int(found[1]),
        "waiting": int(found[2]),
        "providers": {row[2]: (*map(int, row[6].split("/")), int(row[7])) for row in rows},
        "models": {name: int(waiting) for name, waiting, *_ in map(str.split, models.splitlines()[1:])},
    }


@pytest.mark.req("OBS-4", "POOL-7", "CONF-2")
@async_test()
async def test_every_look_of_a_watch_shows_the_pools_own_numbers() -> None:
    async with busy_edge(random.Random(7)) as edge:
        line = command("iop-edge", "status", "--watch", "--interval", "0.02", "--admin", f"127.0.0.1:{edge.admin_port}")
        with Program(line) as watch:
            await until(lambda: watch.output.count("edge edge-1") > LOOKS, what="enough looks")
            watch.signal(signal.SIGINT)
            assert await asyncio.to_thread(watch.wait) == 0
            blocks = [block for block in re.split(r"^(?=edge )", watch.output, flags=re.MULTILINE) if block]
    shown = [read(block) for block in blocks[:LOOKS]]
    assert shown == edge.looks[:LOOKS]
    # And it was worth looking: all of these moved.
    assert len({look["leases"] for look in shown}) > 2
    assert len({look["waiting"] for look in shown}) > 2
    assert len({look["providers"]["p"][1] for look in shown}) > 2
    assert any(look["providers"][name][2] for look in shown for name in ("p", "q")), "nothing lingered"
