"""Each kind of provider behind a node; nothing that a client says changes how it is reached (EXEC-4, POOL-10)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.aio import async_test
from tests.support.http import chat, post
from tests.support.provider import chat_answer
from tests.support.stack import Stack, model, running_stack

KINDS = ("openai_compat", "vllm", "sglang", "llama_cpp")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    providers = {kind: {"kind": kind} for kind in KINDS}
    with running_stack(tmp_path_factory.mktemp("adapters"), providers, [model(kind) for kind in KINDS]) as running:
        yield running


@pytest.mark.req("EXEC-4")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_tunnelled_to(stack: Stack, kind: str) -> None:
    @async_test()
    async def body() -> None:
        async with stack.scene() as scene:
            client = await scene.send(post("/v1/chat/completions", chat(kind)))
            call = await scene.provider.call()
            assert (call.provider, call.json["model"]) == (kind, f"real-{kind}")
            call.respond(chat_answer("yes"))
            assert (await client.answer()).body == chat_answer("yes")

    body()


@pytest.mark.req("POOL-10")
@pytest.mark.parametrize("field", ["adapter", "wire", "mode", "normalized", "tunnel", "node", "provider"])
def test_no_field_of_the_client_chooses_the_way(stack: Stack, field: str) -> None:
    @async_test()
    async def body() -> None:
        async with stack.scene() as scene:
            more = {field: "run", "metadata": {field: "run"}}
            request = post("/v1/chat/completions", chat("vllm", **more), {f"x-iop-{field}": "run", f"x-{field}": "run"})
            client = await scene.send(request)
            call = await scene.provider.call()
            assert call.json[field] == "run"  # passed on, and meaningless here
            assert call.header(b"x-iop-" + field.encode()) is None
            call.respond(chat_answer("yes"))
            assert (await client.answer()).status == 200

    body()
