"""Queued runs have what requests have: estimate, whole time, and a provider's answer (POOL-2, API-8, API-10)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.test_normalized_runs import events
from tests.integration.test_recovery import BUSY, GOOD, group, lose, preamble_then_end
from tests.integration.test_run_recovery import FAILURES, RUN, WHOLE, kinds
from tests.support.aio import async_test
from tests.support.http import chat, post
from tests.support.stack import Scene, Stack, running_stack

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """``m`` is a, then b, then c; ``one`` is a alone; ``hasty`` has 500 ms; ``some-long`` has one slot for what is
    long."""
    models = [
        group("m", "a", "b", "c"),
        group("one", "a"),
        {**group("hasty", "c"), "request_timeout_ms": 500},
        group("some-long", "s"),
    ]
    providers: dict[str, dict[str, Any]] = {key: {} for key in "abc"}
    providers["s"] = {"capacity": 4, "long_capacity": 1, "long_threshold_tokens": 3000}
    with running_stack(tmp_path_factory.mktemp("queued"), providers, models) as stack:
        yield stack


@pytest.mark.req("API-8")
@async_test()
async def test_a_providers_own_answer_comes_before_how_others_failed(spare: Stack) -> None:
    """As for requests: the last one that answered, with its status."""
    async with spare.scene() as scene:
        client = await scene.run(**RUN)
        for fail in (lose, FAILURES["503"], preamble_then_end):
            fail(await scene.provider.call())
        said = await events(client)
        assert (said[-1]["status"], said[-1]["error"]["code"]) == (503, "provider_protocol_error")
        assert "provider b:" in said[-1]["error"]["message"]
        assert (await scene.outcome(said[0]["run_id"]))["status"] == 503


@pytest.mark.req("API-8")
@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 500, 501, 504])
def test_a_status_that_ends_a_request_ends_a_run(spare: Stack, status: int) -> None:
    @async_test()
    async def body() -> None:
        async with spare.scene() as scene:
            client = await scene.run(**RUN)
            (await scene.provider.call()).respond(BUSY, status)
            said = await events(client)
            assert (kinds(said), said[-1]["status"]) == (["accepted", "error"], status)
            assert len(scene.provider.calls) == 1
            assert (await scene.outcome(said[0]["run_id"]))["status"] == status

    body()


@pytest.mark.req("HEALTH-9", "API-8")
@pytest.mark.parametrize("status", [429, 503])
def test_a_pause_that_a_provider_asks_for_is_kept_and_told(spare: Stack, status: int) -> None:
    """A run's refusal rests that provider with that target for everybody, and whoever is refused hears how long."""

    @async_test()
    async def body() -> None:
        async with spare.scene() as scene:
            client = await scene.run(model="one", prompt="hi")
            (await scene.provider.call()).respond(BUSY, status, [(b"Retry-After", b"1")])
            said = (await events(client))[-1]
            assert (said["status"], said["retry_after_s"]) == (status, 1)
            refused = await (await scene.run(model="one", prompt="hi")).answer()
            assert (refused.status, refused.get("retry-after")) == (429, "1")
            request = await (await scene.send(post(CHAT, chat("one")))).answer()
            assert (request.status, request.json["error"]["code"]) == (429, "providers_resting")
            await until_it_rests_no_more(scene, "a")

    body()


async def until_it_rests_no_more(scene: Scene, provider_id: str) -> None:
    """Whoever comes next is to find the provider as it was."""
    async with asyncio.timeout(5):
        while any(
            p["id"] == provider_id and p["resting"]
            for node in (await scene.status())["nodes"]
            for p in node["providers"]
        ):
            pass


@pytest.mark.req("POOL-2", "POOL-5")
@pytest.mark.parametrize("long", [False, True], ids=["an image", "not ASCII"])
def test_a_runs_input_is_estimated_as_a_requests_body_is(spare: Stack, long: bool) -> None:
    """120 KB of an inline image are 1500 tokens; 6400 bytes that are not ASCII are 3200. ``s`` has room for one request
    of 3000 tokens and more."""
    content = "\xe9" * 3200 if long else [{"type": "image_url", "image_url": {"url": "data:," + "QUJD" * 30_000}}]

    @async_test()
    async def body() -> None:
        async with spare.scene() as scene:
            clients = [
                await scene.run(model="some-long", input={"messages": [{"role": "user", "content": content}]})
                for _ in range(2)
            ]
            await scene.in_use(*((1, 1) if long else (2, 0)))
            for client in clients:
                (await scene.provider.call()).stream(*GOOD)
                assert kinds(await events(client)) == WHOLE

    body()


@pytest.mark.req("API-10")
@pytest.mark.parametrize("asked", [{}, {"timeout_ms": 60_000}], ids=["no time", "a longer time"])
def test_a_models_whole_time_holds_for_runs(spare: Stack, asked: dict[str, int]) -> None:
    @async_test()
    async def body() -> None:
        async with spare.scene() as scene:
            client = await scene.run(model="hasty", prompt="hi", **asked)
            call = await scene.provider.call()
            said = await events(client)
            assert (said[-1]["error"]["code"], said[-1]["status"]) == ("deadline_exceeded", 504)
            async with asyncio.timeout(5):
                await call.gone.wait()

    body()
