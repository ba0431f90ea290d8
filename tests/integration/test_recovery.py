"""ExactReplay: what fails before anything was shown goes to another provider, once more and not for ever (API-8)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from iop.edge.requests.retry import Limits
from iop.errors import IopError, RequestCancelled, ShuttingDown
from iop.wire import messages as m
from tests.integration.test_provider_health import Scene as TwoNodes
from tests.integration.test_provider_health import scene as two_nodes
from tests.support.aio import async_test, until
from tests.support.http import Broken, Client, chat, post
from tests.support.programs import node_config, node_program
from tests.support.provider import DONE, SSE_HEADERS, Call, chat_delta, chat_event, event
from tests.support.stack import TOKEN_ENV, Scene, Stack, running_stack

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GOOD = [chat_delta("whole"), chat_event({}, "stop"), DONE]
ROLE = chat_event({"role": "assistant", "content": ""})
BUSY = b'{"error": {"message": "busy", "type": "server_error", "code": "overloaded"}}'
RETRY = [(b"Content-Type", b"application/json"), (b"Retry-After", b"0")]  # no pause: the next test asks it again


GONE = ("dead", "dead2", "dead3", "dead4")  # each for one test: who was found dead is not asked again
_listening: dict[str, socket.socket] = {}  # silent servers, until their test comes


def die(*providers: str) -> None:
    """From here on nobody listens there."""
    for provider in providers:
        _listening.pop(provider).close()


def group(name: str, *providers: str) -> dict[str, Any]:
    """One model, its providers in the order in which they are tried."""
    candidates = [
        {"node": "n1", "provider": provider, "target": f"on-{provider}", "priority": place}
        for place, provider in enumerate(providers)
    ]
    return {"id": name, "candidates": candidates}


@pytest.fixture(scope="module")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """``m`` is a, then b, then c; ``one`` is a alone; ``gone`` is a provider nobody listens at, then b."""
    _listening.update((name, socket.create_server(("127.0.0.1", 0))) for name in GONE)
    dead = {name: {"base_url": f"http://127.0.0.1:{_listening[name].getsockname()[1]}/v1"} for name in GONE}
    models = [
        group("m", "a", "b", "c"),
        group("one", "a"),
        group("gone", "dead", "b"),
        group("then-gone", "a", "dead2"),
        group("all-gone", "dead3", "dead4"),
        group("stores", "s", "b"),
    ]
    providers = {"a": {}, "b": {}, "c": {}, "s": {"stores_responses": True}, **dead}
    with running_stack(
        tmp_path_factory.mktemp("spare"), providers, models, recovery={"max_attempts": 2, "max_body_bytes": 100_000},
        http={"more_paths": ["/v1/batches"]},
    ) as stack:  # fmt: skip
        yield stack
    die(*list(_listening))


def lose(call: Call) -> None:
    call.reset()


def preamble_then_lose(call: Call) -> None:
    call.start_stream()
    call.event(ROLE)
    call.reset()


def preamble_then_end(call: Call) -> None:
    call.stream(ROLE)


def preamble_then_error(call: Call) -> None:
    call.stream(ROLE, event({"error": {"message": "cuda", "type": "server_error", "code": 500}}))


def cut_inside_the_head(call: Call) -> None:
    call.send(b"HTTP/1.1 200 OK\r\nContent-")
    call.close()


FAILURES: dict[str, Callable[[Call], None]] = {
    "503": lambda call: call.respond(BUSY, 503, RETRY),
    "502": lambda call: call.respond(b"bad gateway", 502, [(b"Content-Type", b"text/html")]),
    "429": lambda call: call.respond(BUSY, 429, RETRY),
    "lost": lose,
    "cut inside the head": cut_inside_the_head,
    "lost behind the preamble": preamble_then_lose,
    "truncated": preamble_then_end,
    "an error event": preamble_then_error,
}


@pytest.mark.req("API-8", "API-9", "POOL-11")
@pytest.mark.parametrize("failure", FAILURES)
@async_test()
async def test_another_provider_answers_and_the_client_sees_nothing_else(spare: Stack, failure: str) -> None:
    async with spare.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        (await scene.passed_on(FAILURES[failure])).stream(*GOOD)
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b"".join(GOOD))
        assert (answer.get("x-iop-provider"), answer.get("x-iop-attempts")) == ("b", "2")
        line = await scene.outcome(answer.get("x-request-id"))
        assert (line["outcome"], line["attempts"], line["provider"]) == ("ok", 2, "b")


@pytest.mark.req("API-8", "HEALTH-6")
@async_test()
async def test_a_provider_that_refuses_connections_is_passed_over(spare: Stack) -> None:
    async with spare.scene() as scene:
        die("dead")
        client = await scene.send(post(CHAT, chat("gone")))
        call = await scene.provider.call()
        assert call.provider == "b"
        call.respond(b"{}")
        assert (await client.answer()).status == 200


@pytest.mark.req("API-8", "OBS-1b")
@async_test()
async def test_what_was_shown_is_not_sent_again(spare: Stack) -> None:
    async with spare.scene() as scene:
        before = await _counts(scene)
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("shown"))
        await client.head()
        await client.read_through(b"shown")
        call.reset()
        with pytest.raises(Broken):
            await client.body()
        assert len(scene.provider.calls) == 1
        committed = 'eligibility_total{api="chat",decision="committed",path="tunnel"}'
        assert (await _counts(scene))[committed] == before.get(committed, 0) + 1


@pytest.mark.req("API-7", "API-8")
@async_test()
async def test_an_error_event_that_blames_the_request_is_delivered(spare: Stack) -> None:
    async with spare.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        blame = event({"error": {"message": "too long", "type": "invalid_request_error", "code": 400}})
        (await scene.provider.call()).stream(ROLE, blame)
        body = b""
        try:
            await client.head()
            body = await client.body()
        except Broken as exc:
            body = exc.body
        assert blame in body
        assert len(scene.provider.calls) == 1


@pytest.mark.req("API-8")
@pytest.mark.parametrize("status", [400, 401, 404, 422, 500, 504])
@async_test()
async def test_a_providers_last_word_is_relayed(spare: Stack, status: int) -> None:
    async with spare.scene() as scene:
        client = await scene.send(post(CHAT, chat("m")))
        (await scene.provider.call()).respond(BUSY, status, RETRY)
        answer = await client.answer()
        assert (answer.status, answer.body, answer.get("retry-after")) == (status, BUSY, "0")
        assert len(scene.provider.calls) == 1


@pytest.mark.req("API-8")
@pytest.mark.parametrize("status", [429, 502, 503])
@pytest.mark.parametrize("stream", [False, True])
@async_test()
async def test_without_another_candidate_the_providers_answer_is_the_answer(
    spare: Stack, status: int, stream: bool
) -> None:
    async with spare.scene() as scene:
        client = await scene.send(post(CHAT, chat("one", stream=stream)))
        (await scene.provider.call()).respond(BUSY, status, RETRY)
        answer = await client.answer()
        assert (answer.status, answer.body, answer.get("retry-after")) == (status, BUSY, "0")
        assert (answer.get("content-type"), answer.get("x-iop-attempts")) == ("application/json", "1")
        assert (await scene.outcome(answer.get("x-request-id")))["outcome"] == "provider_error"


@pytest.mark.req("API-8")
@async_test()
async def test_when_all_fail_the_last_answer_counts_else_the_first_failure(spare: Stack) -> None:
    async with spare.scene() as scene:
        client = await scene.send(post(CHAT, chat("m")))
        # Nobody is asked twice while there is one that has not been asked.
        for provider, body in (("a", b'"1"'), ("b", b'"2"'), ("c", b'"3"')):
            call = await scene.provider.call()
            assert call.provider == provider
            call.respond(body, 503)
        answer = await client.answer()
        assert (answer.status, answer.body, answer.get("x-iop-attempts")) == (503, b'"3"', "3")

        die("dead2", "dead3", "dead4")
        client = await scene.send(post(CHAT, chat("then-gone")))
        # The second cannot be reached, and the first refused: it is not asked again.
        (await scene.provider.call()).respond(BUSY, 503, RETRY)
        answer = await client.answer()
        assert (answer.status, answer.body) == (503, BUSY)

        answer = await (await scene.send(post(CHAT, chat("all-gone")))).answer()
        assert (answer.status, answer.json["error"]["code"]) == (502, "provider_unreachable")
        assert "dead3:" in answer.json["error"]["message"]  # the first, not the second


@pytest.mark.req("API-8")
@async_test()
async def test_the_budget_is_shared_over_all_causes(spare: Stack) -> None:
    async with spare.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=True)))
        for failure in (FAILURES["503"], lose, preamble_then_end):
            failure(await scene.provider.call())
        answer = await client.answer()
        assert (answer.status, answer.body) == (503, BUSY)
        assert len(scene.provider.calls) == 3


SIDE_EFFECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "store": (RESPONSES, {"store": True}),
    "background": (RESPONSES, {"background": True}),
    "previous response": (RESPONSES, {"previous_response_id": "resp_1"}),
    "hosted tool": (RESPONSES, {"tools": [{"type": "web_search_preview"}]}),
    "mcp": (RESPONSES, {"tools": [{"type": "function"}, {"type": "mcp"}]}),
    "stored by default": (RESPONSES, {}),
    "too large": (CHAT, {"padding": "x" * 100_001}),
    "not an endpoint that computes": ("/v1/batches", {}),
}


@pytest.mark.req("API-8")
@pytest.mark.parametrize("why", SIDE_EFFECTS)
@async_test()
async def test_what_may_have_done_something_is_not_sent_again(spare: Stack, why: str) -> None:
    path, more = SIDE_EFFECTS[why]
    name = "stores" if why == "stored by default" else "m"
    async with spare.scene() as scene:
        client = await scene.send(post(path, chat(name, **more)))
        (await scene.provider.call()).respond(BUSY, 503, RETRY)
        answer = await client.answer()
        assert (answer.status, answer.body) == (503, BUSY)
        assert len(scene.provider.calls) == 1


@pytest.mark.req("API-8", "API-8c")
@pytest.mark.parametrize("why", ["too large", "not an endpoint that computes"])
@async_test()
async def test_a_body_that_will_not_be_sent_again_is_let_go_of_with_the_head(spare: Stack, why: str) -> None:
    path, more = SIDE_EFFECTS[why]
    async with spare.scene() as scene:
        client = await scene.send(post(path, chat("m", stream=True, **more)))
        call = await scene.provider.call()
        assert (await scene.samples("iop_edge_buffered_body_bytes"))[""] > 0
        call.start(headers=SSE_HEADERS)
        while (await scene.samples("iop_edge_buffered_body_bytes"))[""]:
            pass
        await client.close()
        await call.gone.wait()


@pytest.mark.req("API-8", "API-7c")
@async_test()
async def test_a_client_that_leaves_between_two_attempts_ends_both(spare: Stack) -> None:
    async with spare.scene() as scene:
        before = await _counts(scene)
        client = await scene.send(post(CHAT, chat("m")))
        (await scene.provider.call()).respond(BUSY, 503)
        second = await scene.provider.call()
        await client.close()
        await second.gone.wait()
        await scene.in_use(0)
        cancelled = 'results_total{api="chat",result="cancelled"}'
        assert (await _counts(scene))[cancelled] == before.get(cancelled, 0) + 1


@pytest.mark.req("OBS-1b", "OBS-2")
@async_test()
async def test_decisions_and_results_are_counted(spare: Stack) -> None:
    async with spare.scene() as scene:
        before, lines = await _counts(scene), len(spare.edge.lines)
        client = await scene.send(post(MESSAGES, chat("m")))
        (await scene.provider.call()).respond(BUSY, 503)
        (await scene.provider.call()).respond(b"{}")
        answers = [await client.answer()]
        client = await scene.send(post(MESSAGES, chat("one")))
        (await scene.provider.call()).respond(BUSY, 503)
        answers.append(await client.answer())
        assert [answer.status for answer in answers] == [200, 503]
        for answer in answers:
            await scene.outcome(answer.get("x-request-id"))
        after = await _counts(scene)
        grown = {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
        assert grown == {
            'eligibility_total{api="messages",decision="eligible",path="tunnel"}': 1,
            'eligibility_total{api="messages",decision="no_candidate",path="tunnel"}': 1,
            'results_total{api="messages",result="recovered"}': 1,
        }
        event = "edge_liveness_recovery_observation"
        said = [line for line in spare.edge.lines[lines:] if line["event"] == event and line["api"] == "messages"]
        closed = [{key: line[key] for key in line if key in ("api", "path", "decision", "result")} for line in said]
        where = {"api": "messages", "path": "tunnel"}
        assert closed == [
            {**where, "decision": "eligible"}, {**where, "result": "recovered"}, {**where, "decision": "no_candidate"},
        ]  # fmt: skip


async def _counts(scene: Scene) -> dict[str, float]:
    prefix = "iop_edge_liveness_recovery_"
    lines = [line.split(" ") for line in (await scene.metrics()).splitlines() if line.startswith(prefix)]
    return {name.removeprefix(prefix): float(value) for name, value in lines if "_created" not in name}


@pytest.mark.req("API-8", "REG-5")
@async_test()
async def test_a_request_whose_node_is_lost_goes_to_another_node(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("two")
    models = [{"id": "m", "candidates": [
        {"node": "n1", "provider": "a", "target": "t", "priority": 0},
        {"node": "n2", "provider": "z", "target": "t", "priority": 1},
    ]}]  # fmt: skip
    with running_stack(folder, {"a": {}}, models, other_providers={"z": {}}) as stack:
        file = node_config(stack.nodes)
        (folder / "second").mkdir()
        with node_program(folder / "second", file, env={**TOKEN_ENV, "IOP_NODE_TOKEN": "t1"}) as second:
            await asyncio.to_thread(second.wait_event, "edge_connected")
            async with stack.scene() as scene:
                client = await scene.send(post(CHAT, chat("m", stream=True)))
                first = await scene.provider.call()
                assert first.provider == "a"
                first.start(headers=SSE_HEADERS)
                await asyncio.to_thread(stack.node.kill)
                call = await scene.provider.call()
                assert call.provider == "z"
                call.stream(*GOOD)
                answer = await client.answer()
                assert (answer.status, answer.body) == (200, b"".join(GOOD))


async def _second_attempt(at: TwoNodes) -> tuple[Client, m.ProviderTunnelRequest]:
    """A client whose request has failed at n1 and is with n2 now, for the last time."""
    at.edge.dispatcher.recovery = Limits(max_attempts=1)
    client = await at.ask("both")
    at.end(at.one, await at.request(at.one), code=m.ErrorCode.PROVIDER_UNREACHABLE)
    return client, await at.request(at.two)


def _results(at: TwoNodes) -> dict[str, int]:
    return {result: int(count) for (_, result), count in at.edge.metrics.recovery_results.read()}


@pytest.mark.req("API-8", "REG-5", "OBS-1b")
@async_test()
async def test_a_node_that_is_lost_in_the_last_attempt_does_not_hide_how_the_first_one_failed() -> None:
    async with two_nodes() as at:
        client, _ = await _second_attempt(at)
        await at.two.close()
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (502, "provider_unreachable")
        assert _results(at) == {"failed": 1}


@pytest.mark.req("OBS-1b")
@pytest.mark.parametrize(("why", "result"), [(ShuttingDown, "failed"), (RequestCancelled, "cancelled")])
@async_test()
async def test_what_is_sent_again_and_given_up_by_the_edge_is_counted_too(why: type[IopError], result: str) -> None:
    async with two_nodes() as at:
        client, sent = await _second_attempt(at)
        (request,) = at.edge.dispatcher.live
        request.stop(why())
        assert (await client.answer()).status == why.status
        at.end(at.two, sent)
        await until(lambda: not at.edge.dispatcher.live)
        assert _results(at) == {result: 1}
