"""What a key may do, and what it is told when it may not (API-4, API-5, API-11), through a real edge and node."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.aio import async_test
from tests.support.http import Answer, Client, chat, post
from tests.support.provider import DONE, chat_answer, chat_delta, chat_event
from tests.support.stack import Scene, Stack, model, running_stack

CHAT, RESPONSES, EMBEDDINGS, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/messages"
RAW = "/v1/moderations"
MODELS = ("/v1/models", "/v1/models/m")
POSTS = (CHAT, RESPONSES, EMBEDDINGS, MESSAGES, RAW)
ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}

#: Each test that uses up a limit has a key of its own.
LIMITS: dict[str, dict[str, Any]] = {
    "free": {},
    "some": {"models": ["m", "oth*"]},
    "alias": {"models": ["aliased"]},
    "gone": {"expires_at": "2020-01-31T00:00:00Z"},
    "later": {"expires_at": "2100-01-31"},
    "off": {"enabled": False},
    "rate": {"requests_per_minute": 2},
    "rate-each": {"requests_per_minute": 1},
    "cap": {"max_concurrent_requests": 2},
    "exits": {"max_concurrent_requests": 1},
    "tokens": {"tokens_per_minute": 60},
    "small": {"tokens_per_minute": 40},
    "both": {"requests_per_minute": 100, "tokens_per_minute": 1000},
}


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer sk-{name}"}


def sha256(name: str) -> str:
    return hashlib.sha256(f"sk-{name}".encode()).hexdigest()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("keys")
    keys = [{"principal": f"p-{name}", "key_sha256": sha256(name), **limits} for name, limits in LIMITS.items()]
    revoked = {"principal": "x", "key_sha256": sha256("revoked"), "revoked_at": "2024-01-31T00:00:00Z"}
    rows = [revoked, {"principal": "f", "key_sha256": sha256("suspended"), "enabled": False}]
    (folder / "keys.json").write_text(json.dumps({"keys": [*rows, {"principal": "f", "key_sha256": sha256("filed")}]}))
    models = [model("m"), model("other", "m"), model("third", "m", aliases=["aliased"])]
    http = {"api_keys": keys, "keys_file": "keys.json"}
    with running_stack(folder, {"m": {}}, models, http=http) as running:
        yield running


async def ask(scene: Scene, path: str, headers: dict[str, str], name: str = "m", **more: Any) -> Answer:
    client = await scene.client()
    if path.startswith("/v1/models"):
        lines = [f"GET {path} HTTP/1.1", "Host: a", *(f"{key}: {value}" for key, value in headers.items()), "", ""]
        client.send("\r\n".join(lines).encode("latin-1"))
    else:
        client.send(post(path, chat(name, **more), headers))
    return await client.answer()


def always(body: bytes = b"{}") -> Any:
    return lambda call: call.respond(body)


def without_id(body: bytes) -> bytes:
    return re.sub(rb"req_[0-9A-Za-z]+", b"req", body)


async def refused(answer: Answer, path: str, status: int, code: str, *, retry: bool) -> None:
    """The error is whole, and in its API's shape."""
    assert answer.status == status, answer.body
    assert (answer.get("retry-after") is not None) is retry
    if retry:
        assert 1 <= int(answer.get("retry-after") or 0) <= 61
    assert (answer.get("x-request-id") or "").startswith("req_")
    error = answer.json["error"]
    if path == MESSAGES:
        assert (answer.json["type"], error["type"]) == ("error", ANTHROPIC_TYPES[status])
    else:
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        assert (error["code"], error["type"]) == (code, kinds.get(status, "invalid_request_error"))


# ---- good and bad keys ----------------------------------------------------------------------------------------------


@pytest.mark.req("API-4", "API-5", "API-11")
@async_test()
async def test_d12_a_key_that_is_not_good_is_never_told_why(stack: Stack) -> None:
    bad: list[dict[str, str]] = [{}, {"Authorization": "Bearer"}, {"Authorization": "Basic sk-free"}]
    bad += [bearer(name) for name in ("nobody", "gone", "off", "revoked", "suspended", "free ,sk-free", "\xe9")]
    bad += [{**bearer("free"), "x-api-key": "sk-filed"}, {**bearer("free"), "authorization": "Bearer sk-free"}]
    bad += [{"x-api-key": "sk-free", "X-Api-Key": "sk-free"}]
    async with stack.scene() as scene:
        for path in (*POSTS, *MODELS):
            told = set()
            for headers in bad:
                answer = await ask(scene, path, headers)
                await refused(answer, path, 401, "unauthorized", retry=False)
                fields = [field for field in answer.headers if field[0] not in ("x-request-id", "date")]
                told.add((without_id(answer.body), str(fields)))
            assert len(told) == 1, path
        assert scene.provider.calls == []
        seen = re.search(r'iop_edge_key_refusals_total\{reason="unknown_key"\} (\d+)', await scene.metrics())
        assert seen is not None
        assert int(seen[1]) == len(bad) * (len(POSTS) + len(MODELS))


@pytest.mark.req("API-4", "API-11")
@async_test()
async def test_good_keys_of_both_files_are_let_in(stack: Stack) -> None:
    async with stack.scene() as scene:
        scene.provider.answer = always()
        for name in ("free", "later", "filed", "some"):
            answer = await ask(scene, CHAT, bearer(name))
            assert answer.status == 200
            assert not [field for field, _ in answer.headers if field.startswith("x-ratelimit")]
            line = await scene.outcome(answer.get("x-request-id"))
            assert line["principal"] == ("f" if name == "filed" else f"p-{name}")


@pytest.mark.req("API-11", "API-5")
@async_test()
async def test_a_model_that_a_key_may_not_use_is_not_there_for_it(stack: Stack) -> None:
    async with stack.scene() as scene:
        scene.provider.answer = always()
        for path in POSTS:
            for name in ("m", "other"):
                assert (await ask(scene, path, bearer("some"), name)).status == 200
            forbidden = await ask(scene, path, bearer("some"), "third")
            missing = await ask(scene, path, bearer("some"), "thirs")
            await refused(forbidden, path, 404, "model_not_found", retry=False)
            assert without_id(forbidden.body) == without_id(missing.body).replace(b"thirs", b"third")
        listed = (await ask(scene, "/v1/models", bearer("some"))).json["data"]
        assert [row["id"] for row in listed] == ["m", "other"]
        assert (await ask(scene, "/v1/models/other", bearer("some"))).status == 200
        for name in ("third", "aliased", "nothing"):
            answer = await ask(scene, f"/v1/models/{name}", bearer("some"))
            await refused(answer, "/v1/models", 404, "model_not_found", retry=False)
        # By an alias alone: the name behind it is another one.
        assert (await ask(scene, CHAT, bearer("alias"), "aliased")).status == 200
        assert (await ask(scene, CHAT, bearer("alias"), "third")).status == 404
        everything = (await ask(scene, "/v1/models", bearer("free"))).json["data"]
        assert [row["id"] for row in everything] == ["m", "other", "third", "aliased"]


# ---- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("API-11", "API-5")
@async_test()
async def test_over_the_rate_every_api_says_so_before_the_body_is_read(stack: Stack) -> None:
    async with stack.scene() as scene:
        scene.provider.answer = always()
        first = await ask(scene, CHAT, bearer("rate"))
        assert first.get("x-ratelimit-limit-requests") == "2"
        assert first.get("x-ratelimit-remaining-requests") == "1"
        assert re.fullmatch(r"(59\.\d+|60\.000)s", first.get("x-ratelimit-reset-requests") or "")
        assert first.get("x-ratelimit-limit-tokens") is None
        # What is asked for in vain counts as well, once it is let in.
        missing = await ask(scene, CHAT, bearer("rate"), "nothing")
        assert (missing.status, missing.get("x-ratelimit-remaining-requests")) == (404, None)
        for path in POSTS:
            client = await scene.client()
            head = f"POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer sk-rate\r\nContent-Length: 1000\r\n\r\n"
            client.send(head.encode())
            answer = await client.answer()
            await refused(answer, path, 429, "rate_limit_exceeded", retry=True)
            assert int(answer.get("retry-after") or 0) >= 55
            assert answer.get("x-ratelimit-remaining-requests") == "0"
        assert "2 requests a minute" in answer.json["error"]["message"]
        assert (await ask(scene, "/v1/models", bearer("rate"))).status == 200
        assert len(scene.provider.calls) == 1


@pytest.mark.req("API-11", "API-5")
@async_test()
async def test_over_the_cap_every_api_says_so(stack: Stack) -> None:
    async with stack.scene() as scene:
        clients = [await scene.send(post(CHAT, chat("m", stream=True), bearer("cap"))) for _ in range(2)]
        calls = [await scene.provider.call() for _ in clients]
        for path in POSTS:
            answer = await ask(scene, path, bearer("cap"))
            await refused(answer, path, 429, "concurrency_limit_exceeded", retry=True)
            assert answer.get("retry-after") == "1"
        rows = [row for row in (await scene.status())["principals"] if row["principal"] == "p-cap"]
        assert rows == [
            {"principal": "p-cap", "in_flight": 2, "requests_last_minute": None, "tokens_last_minute": None}
        ]
        calls[0].stream(chat_delta("a"), chat_event({}, "stop"), DONE)
        await clients[0].answer()
        third = await scene.send(post(CHAT, chat("m"), bearer("cap")))
        (await scene.provider.call()).respond(chat_answer("b"))
        assert (await third.answer()).status == 200
        calls[1].stream(chat_delta("a"), chat_event({}, "stop"), DONE)
        assert b"[DONE]" in (await clients[1].answer()).body


@pytest.mark.req("API-11")
@async_test()
async def test_a_place_comes_back_however_a_request_ends(stack: Stack) -> None:
    """With a cap of one, twice around: what had not come back, or had come back twice, would show."""
    async with stack.scene() as scene:
        provider = scene.provider

        async def head(framing: str) -> Client:
            return await scene.send(f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nx-api-key: sk-exits\r\n{framing}\r\n".encode())

        async def is_full(full: bool) -> None:
            """Asks until it is so: the client's leave-taking is on its way."""
            async with asyncio.timeout(10):
                while True:
                    probe = await head("Content-Length: 5\r\n")
                    probe.send_more(b"nope!")  # 400 if it is let in, and then the place is free again
                    answer = await probe.answer()
                    assert answer.status in (400, 429)
                    if (answer.status == 429) is full:
                        return

        for _ in range(2):
            await is_full(False)
            # In the head and in the body.
            assert (await (await head("Content-Encoding: br\r\nContent-Length: 5\r\n")).answer()).status == 415
            await is_full(False)
            assert (await (await head("Content-Length: 99999999\r\n")).answer()).status == 413
            await is_full(False)
            client = await head("Transfer-Encoding: chunked\r\n")
            await is_full(True)
            client.send_more(b"zz\r\n")
            assert (await client.answer()).status == 400
            await is_full(False)
            for reset in (False, True):
                client = await head("Content-Length: 50\r\n")
                await is_full(True)
                client.leave(reset=reset)
                await is_full(False)
            assert (await ask(scene, CHAT, bearer("exits"), "nothing")).status == 404
            await is_full(False)
            # At the provider: an answer, an error, a lost connection, a client that leaves before and in the middle.
            client = await scene.send(post(CHAT, chat("m"), bearer("exits")))
            call = await provider.call()
            await is_full(True)
            call.respond(b'{"error":{}}', 500)
            assert (await client.answer()).status == 500
            await is_full(False)
            client = await scene.send(post(CHAT, chat("m"), bearer("exits")))
            (await provider.call()).send(b"no HTTP\r\n\r\n")
            assert (await client.answer()).status == 502
            await is_full(False)
            for started in (False, True):
                client = await scene.send(post(CHAT, chat("m", stream=True), bearer("exits")))
                call = await provider.call()
                if started:
                    call.start_stream()
                    call.event(chat_delta("a"))
                    await client.head()
                client.leave()
                await is_full(False)
            # The last event is there, and the client goes without waiting for the server's end, as SDKs do.
            client = await scene.send(post(CHAT, chat("m", stream=True), bearer("exits")))
            call = await provider.call()
            call.start_stream()
            call.event(chat_event({"content": "a"}, "stop"))
            call.event(DONE)
            await client.head()
            await client.read_through(b"[DONE]")
            client.leave()
            await is_full(False)
            call.end_stream()
            await scene.in_use(0)
            await is_full(False)


@pytest.mark.req("API-11", "API-5")
@async_test()
async def test_tokens_count_as_they_were_reported(stack: Stack) -> None:
    async with stack.scene() as scene:
        # In: an estimate of the request's own, which fits; out: what the provider says, which is too much.
        scene.provider.answer = always(chat_answer("x", usage={"prompt_tokens": 30, "completion_tokens": 40}))
        first = await ask(scene, CHAT, bearer("tokens"))
        assert first.status == 200
        assert first.get("x-ratelimit-limit-tokens") == "60"
        assert 0 < int(first.get("x-ratelimit-remaining-tokens") or 0) < 60  # its own are held
        await scene.outcome(first.get("x-request-id"))
        for path in POSTS:
            answer = await ask(scene, path, bearer("tokens"))
            await refused(answer, path, 429, "rate_limit_exceeded", retry=True)
            assert (answer.get("x-ratelimit-remaining-tokens"), answer.get("x-ratelimit-limit-tokens")) == ("0", "60")
        # 10 are over the limit: they count against the next minute, at the end of which all is there again.
        reset = re.fullmatch(r"(\d+\.\d+)s", answer.get("x-ratelimit-reset-tokens") or "")
        assert reset is not None
        assert 110 < float(reset[1]) <= 120
        rows = [row for row in (await scene.status())["principals"] if row["principal"] == "p-tokens"]
        assert [row["tokens_last_minute"] for row in rows] == [60]
        assert len(scene.provider.calls) == 1


@pytest.mark.req("API-11", "API-5")
@async_test()
async def test_a_request_of_more_tokens_than_a_minute_has_is_not_put_off(stack: Stack) -> None:
    async with stack.scene() as scene:
        scene.provider.answer = always(chat_answer("x", usage=None))
        for path in POSTS:
            answer = await ask(scene, path, bearer("small"), text="word " * 100)
            await refused(answer, path, 413, "request_over_token_limit", retry=False)
            assert "40 a minute" in answer.json["error"]["message"]
        # Nobody reported anything, so nothing was used.
        for _ in range(5):
            assert (await ask(scene, CHAT, bearer("small"))).status == 200


@pytest.mark.req("API-11")
@async_test()
async def test_what_a_provider_says_of_its_own_rates_does_not_mix_with_ours(stack: Stack) -> None:
    async with stack.scene() as scene:
        theirs = [(b"Content-Type", b"application/json"), (b"X-RateLimit-Remaining-Requests", b"7")]
        scene.provider.answer = lambda call: call.respond(b"{}", headers=theirs)
        assert (await ask(scene, CHAT, bearer("both"))).get("x-ratelimit-remaining-requests") == "99"
        assert (await ask(scene, CHAT, bearer("free"))).get("x-ratelimit-remaining-requests") == "7"
