"""A queued run whose attempt fails before its listener heard more than the start is another provider's (API-8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from iop.edge.requests.normalized_run import EdgeRun, RunResult, RunSpec, submit_run
from iop.edge.requests.retry import Limits
from iop.errors import RequestCancelled, ShuttingDown
from iop.wire import codec
from iop.wire import messages as m
from tests.integration.test_normalized_runs import events, read
from tests.integration.test_provider_health import Scene as TwoNodes
from tests.integration.test_provider_health import scene as two_nodes
from tests.integration.test_recovery import (
    BUSY,
    GOOD,
    RETRY,
    ROLE,
    cut_inside_the_head,
    group,
    lose,
    preamble_then_end,
    preamble_then_error,
    preamble_then_lose,
)
from tests.integration.test_trace import steps, trace
from tests.support.aio import async_test, until
from tests.support.programs import node_config, node_program
from tests.support.provider import Call, chat_delta
from tests.support.rawlink import RawLink
from tests.support.stack import TOKEN_ENV, Scene, Stack, running_stack

K = m.RunEventKind
RUN = {"model": "m", "prompt": "hi"}
WHOLE = ["accepted", "start", "delta", "complete"]


@pytest.fixture(scope="module")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """``m`` is a, then b, then c; ``one`` is a alone."""
    models = [group("m", "a", "b", "c"), group("one", "a")]
    recovery = {"max_attempts": 2, "max_body_bytes": 100_000}
    with running_stack(tmp_path_factory.mktemp("runs"), {key: {} for key in "abc"}, models, recovery=recovery) as stack:
        yield stack


def kinds(said: list[Any]) -> list[str]:
    return [event["event"] for event in said]


async def _counts(scene: Scene) -> dict[str, float]:
    """The recovery metrics of runs that are not 0."""
    found = {}
    for name in ("eligibility", "results"):
        found |= await scene.samples(f"iop_edge_liveness_recovery_{name}_total")
    return {labels: count for labels, count in found.items() if 'api="runs"' in labels and count}


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}


def counted(decision: str) -> str:
    return f'{{api="runs",decision="{decision}",path="run"}}'


def resulted(result: str) -> str:
    return f'{{api="runs",result="{result}"}}'


FAILURES: dict[str, Callable[[Call], None]] = {
    "503": lambda call: call.respond(BUSY, 503, RETRY),
    "502": lambda call: call.respond(b"bad gateway", 502),
    "429": lambda call: call.respond(BUSY, 429, RETRY),
    "no completion": lambda call: call.respond(b"{}"),
    "lost": lose,
    "cut inside the head": cut_inside_the_head,
    "lost behind the start": preamble_then_lose,
    "ended behind the start": preamble_then_end,
    "an error event": preamble_then_error,
}


@pytest.mark.req("API-8", "POOL-11", "EXEC-1", "OBS-1b")
@pytest.mark.parametrize("failure", FAILURES)
@async_test()
async def test_another_provider_answers_and_the_listener_hears_nothing_else(spare: Stack, failure: str) -> None:
    async with spare.scene() as scene:
        before = await _counts(scene)
        client = await scene.run(**RUN)
        (await scene.passed_on(FAILURES[failure])).stream(*GOOD)
        said = await events(client)
        assert kinds(said) == WHOLE
        assert said[2]["text"] == "whole"
        line = await scene.outcome(said[0]["run_id"])
        assert (line["outcome"], line["attempts"], line["provider"]) == ("ok", 2, "b")
        assert grown(before, await _counts(scene)) == {counted("eligible"): 1, resulted("recovered"): 1}


@pytest.mark.req("API-8", "EXEC-1")
@pytest.mark.parametrize("start_first", [True, False], ids=["the first start", "only the second start"])
@async_test()
async def test_there_is_one_start_whoever_starts(spare: Stack, start_first: bool) -> None:
    async with spare.scene() as scene:
        client = await scene.run(**RUN)
        first = await scene.provider.call()
        if start_first:
            first.start_stream()
            await client.head()
            assert kinds(read(await client.read_through(b'"event":"start"}\n\n'))) == ["accepted", "start"]
        first.reset()
        (await scene.provider.call()).stream(*GOOD)
        said = read(await client.body()) if start_first else await events(client)
        assert kinds(said)[-2:] == WHOLE[2:]
        assert kinds(said).count("start") == (0 if start_first else 1)


@pytest.mark.req("API-8", "OBS-7")
@async_test()
async def test_the_trace_tells_both_attempts(spare: Stack) -> None:
    async with spare.scene() as scene:
        client = await scene.run(**RUN)
        (await scene.provider.call()).respond(BUSY, 503)
        (await scene.provider.call()).stream(*GOOD)
        page = await trace(scene, (await events(client))[0]["run_id"])
        assert steps(page) == ["granted", "failed", "recovery", "sent", "committed", "ended"]
        _, failed, recovery, sent, committed, ended = page["events"]
        assert (failed["provider"], failed["attempt"], failed["code"]) == ("a", 1, "provider_protocol_error")
        assert (recovery["decision"], recovery["avoid"]) == ("eligible", "a")
        assert (sent["provider"], sent["attempt"]) == ("b", 2)
        assert committed["body_bytes"] == len("whole")
        assert (ended["outcome"], page["attempts"]) == ("ok", 2)
        assert page["first_ms"] <= page["total_ms"]


@pytest.mark.req("API-8", "EXEC-1")
@async_test()
async def test_what_was_shown_is_not_run_again(spare: Stack) -> None:
    async with spare.scene() as scene:
        before = await _counts(scene)
        client = await scene.run(**RUN)
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("shown"))
        await client.head()
        await client.read_through(b'"text":"shown"}\n\n')
        call.reset()
        said = read(await client.body())
        assert kinds(said) == ["error"]
        assert said[-1]["error"]["code"] == "provider_connection_lost"
        assert len(scene.provider.calls) == 1
        assert grown(before, await _counts(scene)) == {'{api="runs",decision="committed",path="run"}': 1}


@pytest.mark.req("API-8")
@async_test()
async def test_when_all_fail_the_first_failure_is_told_and_nobody_is_asked_twice(spare: Stack) -> None:
    async with spare.scene() as scene:
        before = await _counts(scene)
        client = await scene.run(**RUN)
        for provider, fail in (("a", lose), ("b", FAILURES["an error event"]), ("c", preamble_then_end)):
            call = await scene.provider.call()
            assert call.provider == provider
            fail(call)
        said = await events(client)
        assert kinds(said) == ["accepted", "start", "error"]
        assert said[-1]["error"]["code"] == "provider_connection_lost"
        assert "provider a:" in said[-1]["error"]["message"]
        line = await scene.outcome(said[0]["run_id"])
        assert (line["outcome"], line["attempts"]) == ("provider_connection_lost", 3)
        counts = {counted("eligible"): 2, counted("budget"): 1, resulted("failed"): 1}
        assert grown(before, await _counts(scene)) == counts


@pytest.mark.req("API-8")
@async_test()
async def test_without_another_candidate_the_failure_is_told_and_not_that_nobody_is_left(spare: Stack) -> None:
    async with spare.scene() as scene:
        client = await scene.run(model="one", prompt="hi")
        (await scene.provider.call()).respond(BUSY, 503)
        said = (await events(client))[-1]
        assert (said["error"]["code"], said["status"]) == ("provider_protocol_error", 503)
        assert "503" in said["error"]["message"]


AGAINST: dict[str, tuple[dict[str, Any], str]] = {
    "a hosted tool": ({"input": {"messages": [{}], "tools": [{"type": "web_search"}]}}, "side_effects"),
    "to be stored": ({"prompt": "hi", "options": {"store": True}}, "side_effects"),
    "too large": ({"prompt": "x" * 100_001}, "no_snapshot"),
}


@pytest.mark.req("API-8", "OBS-1b")
@pytest.mark.parametrize("why", AGAINST)
@async_test()
async def test_what_may_have_done_something_is_not_run_again(spare: Stack, why: str) -> None:
    asked, decision = AGAINST[why]
    async with spare.scene() as scene:
        before = await _counts(scene)
        client = await scene.run(model="m", **asked)
        (await scene.provider.call()).respond(BUSY, 503)
        assert kinds(await events(client)) == ["accepted", "error"]
        assert len(scene.provider.calls) == 1
        assert grown(before, await _counts(scene)) == {counted(decision): 1}


@pytest.mark.req("API-8", "EXEC-1")
@async_test()
async def test_a_refusal_that_blames_the_run_is_the_last_word(spare: Stack) -> None:
    async with spare.scene() as scene:
        client = await scene.run(**RUN)
        (await scene.provider.call()).respond(BUSY, 400)
        assert (await events(client))[-1]["error"]["code"] == "invalid_argument"
        assert len(scene.provider.calls) == 1


@pytest.mark.req("API-8", "POOL-14")
@async_test()
async def test_a_direct_run_is_about_its_provider_and_no_other(spare: Stack) -> None:
    async with spare.scene() as scene:
        before = await _counts(scene)
        client = await scene.run(adapter="a", target="t", prompt="hi")
        (await scene.provider.call()).reset()
        said = await events(client)
        assert said[-1]["error"]["code"] == "provider_connection_lost"
        assert len(scene.provider.calls) == 1
        line = await scene.outcome(said[0]["run_id"])
        assert line["attempts"] == 1
        assert grown(before, await _counts(scene)) == {}


@pytest.mark.req("API-8", "EXEC-7")
@async_test()
async def test_who_leaves_between_two_attempts_ends_both(spare: Stack) -> None:
    async with spare.scene() as scene:
        before = await _counts(scene)
        client = await scene.run(**RUN)
        (await scene.provider.call()).respond(BUSY, 503)
        second = await scene.provider.call()
        await client.close()
        await asyncio.wait_for(second.gone.wait(), 5)
        await scene.in_use(0)
        assert grown(before, await _counts(scene)) == {counted("eligible"): 1, resulted("cancelled"): 1}


@pytest.mark.req("API-8", "REG-5")
@pytest.mark.parametrize("shown", [False, True], ids=["nothing shown", "a part shown"])
@async_test(timeout_s=30)
async def test_a_run_whose_node_is_killed(tmp_path_factory: pytest.TempPathFactory, shown: bool) -> None:
    folder = tmp_path_factory.mktemp("killed")
    models = [{"id": "m", "candidates": [
        {"node": "n1", "provider": "a", "target": "t", "priority": 0},
        {"node": "n2", "provider": "z", "target": "t", "priority": 1},
    ]}]  # fmt: skip
    with running_stack(folder, {"a": {}}, models, other_providers={"z": {}}) as stack:
        (folder / "second").mkdir()
        env = {**TOKEN_ENV, "IOP_NODE_TOKEN": "t1"}
        with node_program(folder / "second", node_config(stack.nodes), env=env) as second:
            await asyncio.to_thread(second.wait_event, "edge_connected")
            async with stack.scene() as scene:
                client = await scene.run(**RUN)
                first = await scene.provider.call()
                assert first.provider == "a"
                first.start_stream()
                first.event(chat_delta("shown") if shown else ROLE)
                await client.head()
                heard = read(await client.read_through(b'"text":"shown"}\n\n' if shown else b'"event":"start"}\n\n'))
                await asyncio.to_thread(stack.node.kill)
                if not shown:
                    call = await scene.provider.call()
                    assert call.provider == "z"
                    call.stream(*GOOD)
                said = heard + read(await client.body())
                assert kinds(said) == (["accepted", "start", "delta", "error"] if shown else WHOLE)
                line = await scene.outcome(said[0]["run_id"])
                assert (line["outcome"], line["attempts"]) == (("node_disconnected", 1) if shown else ("ok", 2))


# ---- nodes that are bare sockets: what is said exactly, and when -----------------------------------------------------


class Hears:
    """The listener of a run, and what it heard, by kinds."""

    writer = None

    def __init__(self) -> None:
        self.heard: list[str] = []

    def run_event(self, event: m.RunEvent) -> None:
        self.heard.append(event.kind.name.lower())

    def run_ended(self, result: RunResult) -> None:
        self.heard.append(result.error.code if result.error is not None else "complete")


async def submitted(at: TwoNodes) -> tuple[Hears, EdgeRun, m.RunRequest]:
    """A run that n1 has; n2 could have it, too."""
    hears = Hears()
    run = submit_run(at.edge.dispatcher, RunSpec(b'{"prompt":1}', model="both", replayable=True), hears, "operator")
    return hears, run, await taken(at.one)


async def taken(link: RawLink) -> m.RunRequest:
    request = await link.message()
    assert isinstance(request, m.RunRequest)
    assert request.input == b'{"prompt":1}'
    return request


def say(link: RawLink, request: m.RunRequest, *said: m.RunEventKind | m.RunEvent) -> None:
    for seq, event in enumerate(said):
        whole = event if isinstance(event, m.RunEvent) else m.RunEvent(event)
        link.send(codec.run_event(request.stream_id, seq, whole))


def failed(code: m.ErrorCode, **more: Any) -> m.RunEvent:
    return m.RunEvent(K.ERROR, failure=m.ExecutionFailure(code, **{"close_confirmed": True, **more}))


STALL = m.ErrorCode.RESPONSE_STALLED
LOST = failed(m.ErrorCode.PROVIDER_CONNECTION_LOST)


@pytest.mark.req("API-8", "API-7")
@pytest.mark.parametrize(
    ("said", "again"),
    [
        ([failed(STALL, retryable=True)], True),
        ([K.START, failed(STALL, retryable=True)], True),
        ([failed(STALL, retryable=False, close_confirmed=False)], False),
        ([K.START, K.USAGE, failed(STALL, retryable=True)], False),
        ([K.START, m.RunEvent(K.DELTA, b"x"), failed(STALL, retryable=True)], False),
    ],
    ids=["stalled", "behind the start", "not closed", "behind usage", "behind a delta"],
)
@async_test()
async def test_a_stall_is_made_up_for_if_it_was_closed_and_nothing_shown(
    said: list[m.RunEventKind | m.RunEvent], again: bool
) -> None:
    async with two_nodes() as at:
        hears, run, request = await submitted(at)
        say(at.one, request, *said)
        if again:
            say(at.two, await taken(at.two), K.START, K.COMPLETE)
            await until(lambda: hears.heard[-1:] == ["complete"])
            assert hears.heard == ["start", "complete"]
        else:
            await until(lambda: hears.heard[-1:] == ["response_stalled"])
            assert hears.heard.count("start") == (said[0] is K.START)
        assert run.attempts == (2 if again else 1)


@pytest.mark.req("API-8", "OBS-1b")
@async_test()
async def test_an_answer_without_a_word_is_an_answer() -> None:
    async with two_nodes() as at:
        hears, _, request = await submitted(at)
        say(at.one, request, LOST)
        say(at.two, await taken(at.two), K.START, K.COMPLETE)
        await until(lambda: hears.heard == ["start", "complete"])
        assert results(at) == {"recovered": 1}


def results(at: TwoNodes) -> dict[str, int]:
    return {result: int(count) for (_, result), count in at.edge.metrics.recovery_results.read()}


@pytest.mark.req("API-8", "REG-5")
@async_test()
async def test_a_node_that_is_lost_in_the_last_attempt_does_not_hide_how_the_first_one_failed() -> None:
    async with two_nodes() as at:
        at.edge.dispatcher.recovery = Limits(max_attempts=1)
        hears, _, request = await submitted(at)
        say(at.one, request, K.START, LOST)
        await taken(at.two)
        await at.two.close()
        await until(lambda: hears.heard == ["start", "provider_connection_lost"])
        assert results(at) == {"failed": 1}


@pytest.mark.req("API-8", "EXEC-1")
@async_test()
async def test_what_the_second_one_has_shown_ends_in_its_own_failure() -> None:
    async with two_nodes() as at:
        hears, _, request = await submitted(at)
        say(at.one, request, K.START, LOST)
        say(at.two, await taken(at.two), K.START, m.RunEvent(K.DELTA, b"x"), failed(STALL))
        await until(lambda: hears.heard == ["start", "delta", "response_stalled"])
        assert results(at) == {"recovered": 1}, "it was, as far as its listener saw"


@pytest.mark.req("API-8", "EXEC-1")
@async_test()
async def test_the_second_one_has_to_start_as_the_first_one_had() -> None:
    async with two_nodes() as at:
        hears, _, request = await submitted(at)
        say(at.one, request, K.START, LOST)
        second = await taken(at.two)
        say(at.two, second, m.RunEvent(K.DELTA, b"x"))
        assert isinstance(await at.two.message(), m.CancelRequest)
        at.two.send(codec.run_event(second.stream_id, 1, m.RunEvent(K.CANCELLED)))
        await until(lambda: not at.edge.dispatcher.live)
        assert hears.heard == ["start", "provider_protocol_error"]


@pytest.mark.req("OBS-1b", "API-8")
@pytest.mark.parametrize(("why", "result"), [(ShuttingDown, "failed"), (RequestCancelled, "cancelled")])
@async_test()
async def test_a_run_that_is_given_up_between_its_attempts_is_counted(
    why: type[ShuttingDown | RequestCancelled], result: str
) -> None:
    async with two_nodes() as at:
        hears, run, request = await submitted(at)
        say(at.one, request, LOST)
        second = await taken(at.two)
        run.stop(why())
        assert isinstance(await at.two.message(), m.CancelRequest)
        say(at.two, second, K.CANCELLED)
        await until(lambda: not at.edge.dispatcher.live)
        assert hears.heard == [why.code]
        assert results(at) == {result: 1}
