"""In which order a node ends: work, adapters, session, store (SUP-4)."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iop.config.load import parse_node
from iop.edge.app import Edge
from iop.net import loop as net_loop
from iop.net.loop import Runtime
from iop.node import app
from iop.node.commands.runner import Commands
from iop.node.providers.registry import Backends
from iop.node.uplink.agent import Agent
from iop.store.runs import RunStore
from iop.wire import messages as m
from tests.integration.test_contained_fault import CHAT, TOKEN, Quiet, configured
from tests.support.aio import async_test, until
from tests.support.http import Client, chat, post
from tests.support.provider import ScriptedProvider, listening_socket

SO_FAR = ["take no more work", "cancel"]
WORK = {"calls ended", "commands ended"}
THEN = ["adapters", "session", "store"]


def noting(monkeypatch: pytest.MonkeyPatch, story: list[str]) -> None:
    """Notes when each step is taken; only the first time counts."""

    def note(owner: Any, name: str, step: str, *, when: Callable[[Any], bool] = lambda _: True) -> None:
        original = getattr(owner, name)

        def noted(self: Any, *arguments: Any, **more: Any) -> Any:
            result = original(self, *arguments, **more)
            if step not in story and when(self):
                story.append(step)
            return result

        monkeypatch.setattr(owner, name, noted)

    note(Agent, "drain", "take no more work")
    note(Commands, "stop", "cancel")
    note(Agent, "finished", "calls ended", when=lambda agent: not agent.calls)
    note(Commands, "_ended", "commands ended", when=lambda commands: commands._stopping and not commands.running)
    note(Backends, "close", "adapters")
    note(Agent, "leave", "session")
    note(RunStore, "close", "store")


def node_of(edge: Edge, folder: Path) -> Any:
    config = {
        "node": {"edge": f"127.0.0.1:{edge.node_port}", "token_env": "TOKEN", "drain_timeout_sec": 0},
        "store": {"url": f"file:{folder / 'iop.db'}?cache=shared&mode=rwc"},
    }
    return parse_node(json.dumps(config), source="test", env={"TOKEN": TOKEN})


async def stopped(
    edge: Edge,
    sock: socket.socket,
    folder: Path,
    runtime: Runtime,
    stops: list[Callable[[int], None]],
    *,
    streaming: bool,
) -> None:
    """A node with a call and a command at work is stopped."""
    async with ScriptedProvider(sock) as provider:
        node = asyncio.ensure_future(app._serve(node_of(edge, folder), runtime, Quiet()))
        await until(lambda: edge.nodes.connected() == 1)
        client = await Client.connect(("127.0.0.1", edge.http_port))
        client.send(post(CHAT, chat("m", stream=streaming)))
        call = await provider.call()
        asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        commands = edge.nodes.owners["n"].commands
        provider.asked = lambda probe: None  # it never answers
        commands.start(
            m.NodeCommand.CAPABILITIES, asked.set_result, edge.dispatcher.now, timeout_s=20.0, provider_id="p",
            target="t",
        )  # fmt: skip
        await until(lambda: len(provider.open_connections) == 2)

        (stop,) = stops
        stop(15)
        assert await node == 0
        assert (await asked).code == "cancelled"
        assert (await client.answer()).status in (502, 503)
        assert call.gone.is_set()
        await client.close()


@pytest.mark.req("SUP-4", "EXEC-8")
@pytest.mark.parametrize("streaming", [True, False], ids=["a stream", "a whole answer"])
def test_work_ends_before_adapters_adapters_before_the_session_and_the_store_comes_last(
    streaming: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []
    stops: list[Callable[[int], None]] = []
    noting(monkeypatch, story)
    monkeypatch.setattr(net_loop, "on_signals", lambda loop, stop, hangup: stops.append(stop))

    @async_test()
    async def body() -> None:
        runtime, its_runtime = (Runtime(asyncio.get_running_loop()) for _ in range(2))
        runtime.start()
        its_runtime.start()
        with listening_socket() as sock:
            edge = Edge(configured(sock.getsockname()[1]), runtime, Quiet())
            await edge.start()
            try:
                await stopped(edge, sock, tmp_path, its_runtime, stops, streaming=streaming)
            finally:
                edge.close()
                edge.http.close()
                await until(lambda: not edge.nodes.links and not edge.http.connections)
        runtime.close()
        its_runtime.close()

    body()
    assert (story[:2], set(story[2:4]), story[4:]) == (SO_FAR, WORK, THEN)
    with sqlite3.connect(tmp_path / "iop.db") as db:
        assert [row[0] for row in db.execute("SELECT status FROM runs")] == ["cancelled"]
