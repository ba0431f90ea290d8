"""Who waits while a node is lost and comes back is sent once, is answered once, and leaves nothing behind.

Both nodes are full when one of them is lost. The other one keeps the waiters in the queue: without any candidate they
would be refused at once (POOL-4).
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.aio import async_test
from tests.support.faultproxy import FaultProxy
from tests.support.http import Broken, Client, chat, post
from tests.support.programs import Program, node_config, node_program
from tests.support.provider import Call, chat_answer, chat_delta, chat_stream
from tests.support.stack import TOKEN_ENV, Scene, Stack, model, run_of, running_stack

CHAT = "/v1/chat/completions"
LOST = {"node": "n2", "provider": "z", "target": "t", "priority": 0}  # two slots, and preferred
KEPT = {"node": "n1", "provider": "a", "target": "t", "priority": 1}  # one slot


class Second:
    """The node n2, behind a proxy: it is killed and started again, or its link is cut and mended."""

    def __init__(self, stack: Stack, proxy: FaultProxy, folder: Path, opened: ExitStack, how: str) -> None:
        self._stack = stack
        self._proxy = proxy
        self._folder = folder
        self._opened = opened
        self._killed = how == "killed"
        self._node: Program | None = None

    async def come(self) -> None:
        lines = len(self._stack.edge.lines)
        self._proxy.refusing = False
        if self._node is None:
            env = {**TOKEN_ENV, "IOP_NODE_TOKEN": "t1"}
            self._node = self._opened.enter_context(
                node_program(self._folder, node_config(self._proxy.address), env=env)
            )
        await asyncio.to_thread(self._stack.edge.wait_event, "node_connected", node="n2", after=lines)

    async def go(self) -> None:
        assert self._node is not None
        lines = len(self._stack.edge.lines)
        if self._killed:
            await asyncio.to_thread(self._node.kill)
            self._node = None
        else:
            self._proxy.refusing = True
            self._proxy.reset()
        await asyncio.to_thread(self._stack.edge.wait_event, "node_disconnected", node="n2", after=lines)


async def asked(scene: Scene, text: str, *, stream: bool = False) -> Client:
    return await scene.send(post(CHAT, chat("m", text=text, stream=stream)))


def text_of(call: Call) -> str:
    return str(call.json["messages"][0]["content"])


async def called(scene: Scene, text: str, provider: str) -> Call:
    """The next call, which has to be this one."""
    call = await scene.provider.call()
    assert (text_of(call), call.provider) == (text, provider)
    return call


@pytest.mark.req("REG-4", "REG-5", "POOL-5", "POOL-7", "POOL-14", "API-8", "API-8b")
@pytest.mark.parametrize("how", ["killed", "link cut"])
@async_test()
async def test_waiters_outlive_the_loss_of_a_node(tmp_path: Path, how: str) -> None:
    models = [{"id": "m", "candidates": [LOST, KEPT]}]
    (tmp_path / "second").mkdir()
    with (
        running_stack(tmp_path, {"a": {"capacity": 1}}, models, other_providers={"z": {"capacity": 2}}) as stack,
        ExitStack() as opened,
    ):
        async with FaultProxy(stack.nodes) as proxy, stack.scene() as scene:
            second = Second(stack, proxy, tmp_path / "second", opened, how)
            await second.come()
            shown = await asked(scene, "shown", stream=True)
            call = await called(scene, "shown", "z")
            call.start_stream()
            call.event(chat_delta("a part"))
            shown_id = (await shown.head()).get("x-request-id")
            await shown.read_through(chat_delta("a part"))
            unseen = await asked(scene, "unseen")
            await called(scene, "unseen", "z")
            elsewhere = await asked(scene, "elsewhere")
            held = await called(scene, "elsewhere", "a")
            first = await asked(scene, "first")
            await scene.in_use(3, waiting=1)
            run = await scene.run(model="m", prompt="run")
            await scene.in_use(3, waiting=2)
            last = await asked(scene, "last", stream=True)
            await scene.in_use(3, waiting=3)

            await second.go()
            with pytest.raises(Broken) as broken:
                await shown.body()
            assert json.loads(broken.value.body.removeprefix(b"data: "))["error"]["code"] == "node_disconnected"
            await scene.in_use(1, waiting=4)  # what nobody has seen anything of is in the queue again, at its old place
            assert len(scene.provider.calls) == 3

            await second.come()
            calls = {text_of(call): call for call in [await scene.provider.call() for _ in range(2)]}
            assert set(calls) == {"unseen", "run"}, "the oldest of the clients, and the operator's run in turn"
            await scene.in_use(3, waiting=2)
            calls["unseen"].respond(chat_answer("1"))
            (await called(scene, "first", "z")).respond(chat_answer("2"))
            (await called(scene, "last", "z")).stream(chat_stream("4"))
            calls["run"].stream(chat_stream("3"))
            held.respond(chat_answer("0"))

            ids = []
            for client, whole in ((unseen, chat_answer("1")), (first, chat_answer("2")), (last, chat_stream("4")),
                                  (elsewhere, chat_answer("0"))):  # fmt: skip
                answer = await client.answer()
                assert (answer.status, answer.body) == (200, whole)
                ids.append(answer.get("x-request-id"))
            run_id, text = run_of(await run.answer())
            assert text == "3"
            times = Counter(text_of(call) for call in scene.provider.calls)
            assert times == {"shown": 1, "unseen": 2, "elsewhere": 1, "first": 1, "run": 1, "last": 1}
            line = await scene.outcome(shown_id)
            assert (line["outcome"], line["attempts"]) == ("node_disconnected", 1)
            for request_id, attempts in zip([*ids, run_id], (2, 1, 1, 1, 1), strict=True):
                line = await scene.outcome(request_id)
                assert (line["outcome"], line["attempts"]) == ("ok", attempts)
            await scene.settled()


@pytest.mark.req("OBS-2")
@async_test()
async def test_the_time_of_a_wait_is_part_of_the_whole_and_none_is_left_out(tmp_path: Path) -> None:
    with running_stack(tmp_path, {"a": {"capacity": 1}}, [model("m", "a")]) as stack:
        async with stack.scene() as scene:
            served = await asked(scene, "served")
            call = await called(scene, "served", "a")
            waiting = await asked(scene, "waiting")
            await scene.in_use(1, waiting=1)
            call.respond(chat_answer("1"))
            answer = await served.answer()
            line = await scene.outcome(answer.get("x-request-id"))
            assert "queue_ms" not in line, "it did not wait"
            (await called(scene, "waiting", "a")).respond(chat_answer("2"))
            answer = await waiting.answer()
            line = await scene.outcome(answer.get("x-request-id"))
            assert 0 < line["queue_ms"] <= line["first_token_ms"] <= line["duration_ms"]
            assert int(answer.get("x-iop-queue-ms") or "") == int(line["queue_ms"])
