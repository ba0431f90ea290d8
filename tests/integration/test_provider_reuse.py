"""Connections to providers: which are used again, and what never goes on one that may be dead (TUN-5, TUN-5b)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.aio import async_test
from tests.support.http import chat, post
from tests.support.provider import Call, chat_answer, chat_delta, chat_event
from tests.support.stack import Scene, Stack, model, running_stack

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
HELD_BYTES = 1000


class Unread(BaseHTTPRequestHandler):
    """Answers every POST with an error of its own and reads no body; the connection stays, as HTTP/1.1 has it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.dumps({"error": {"message": f"no {self.headers['x-case']}", "type": "t", "code": None}}).encode()
        self.send_response(422)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def reusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Unread)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    two = [{"node": "n1", "provider": p, "target": f"on-{p}", "priority": i} for i, p in enumerate("ab")]
    try:
        with running_stack(
            tmp_path_factory.mktemp("reusing"),
            {
                "m": {"idle_sec": 30, "reuse_delay_ms": 0},
                "a": {},
                "b": {},
                "unread": {"base_url": f"http://127.0.0.1:{server.server_port}/v1", "idle_sec": 30},
            },
            [model("m"), model("unread"), {"id": "two", "candidates": two}],
            recovery={"max_body_bytes": HELD_BYTES},
        ) as stack:
            yield stack
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def kept(scene: Scene) -> Call:
    """A connection that the node keeps: the call that it has carried."""
    client = await scene.send(post(CHAT, chat("m")))
    call = await scene.provider.call()
    call.respond(chat_answer("first"))
    assert (await client.answer()).status == 200
    return call


@pytest.mark.req("TUN-5b")
@async_test()
async def test_what_a_server_left_unread_becomes_no_part_of_the_next_clients_answer(reusing: Stack) -> None:
    """Python's http.server reads the rest as the start of the next request, and quotes it in the answer to that one."""
    async with reusing.scene() as scene:
        for number in range(10):
            client = await scene.send(post(CHAT, chat("unread", text=f"secret of {number}"), {"x-case": str(number)}))
            answer = await client.answer()
            assert (answer.status, answer.json["error"]["message"]) == (422, f"no {number}")


@pytest.mark.req("TUN-5b", "TUN-5")
@pytest.mark.parametrize(("status", "used_again"), [(200, True), (201, True), (400, False), (429, False), (500, False)])
@async_test()
async def test_a_connection_is_kept_behind_2xx_only(reusing: Stack, status: int, used_again: bool) -> None:
    async with reusing.scene() as scene:
        first = await kept(scene)
        client = await scene.send(post(CHAT, chat("m")))
        call = await scene.provider.call()
        assert call.connection is first.connection
        call.respond(chat_answer("x"), status)
        assert (await client.answer()).status == status
        client = await scene.send(post(CHAT, chat("m")))
        third = await scene.provider.call()
        assert (third.connection is first.connection) is used_again
        third.respond(chat_answer("y"))
        assert (await client.answer()).status == 200


@pytest.mark.req("TUN-5b")
@async_test()
async def test_a_connection_whose_answer_began_before_the_body_was_sent_is_not_kept(reusing: Stack) -> None:
    async with reusing.scene() as scene:
        scene.provider.hold_bodies = True
        client = await scene.client()
        client.send(post(CHAT, chat("m", text="x" * 8_000_000)))
        call = await scene.provider.call_begun()
        call.start_stream()
        call.event(chat_delta("early"))
        assert (await client.head()).status == 200
        scene.provider.hold_bodies = False
        call.read_body()
        await scene.provider.call()
        call.event(chat_event({}, "stop"))
        call.end_stream()
        await client.body()
        await call.connection.closed.wait()


@pytest.mark.req("TUN-5b", "TUN-5")
@pytest.mark.parametrize(
    ("path", "body", "fresh"),
    [
        (CHAT, chat("m", text="x" * 100), False),
        (CHAT, chat("m", text="x" * HELD_BYTES), True),
        (RESPONSES, b'{"model": "m", "input": "x", "store": false}', False),
        (RESPONSES, b'{"model": "m", "input": "x", "store": true}', True),
        (RESPONSES, b'{"model": "m", "input": "x", "previous_response_id": "r"}', True),
    ],
)
@async_test()
async def test_what_cannot_be_sent_again_does_not_go_on_a_connection_that_may_be_dead(
    reusing: Stack, path: str, body: bytes, fresh: bool
) -> None:
    """A kept connection that is lost under a request is made up for by sending it again; this one dies each time."""
    async with reusing.scene() as scene:
        first = await kept(scene)
        client = await scene.send(post(path, body))
        call = await scene.provider.call()
        assert (call.connection is not first.connection) is fresh
        if not fresh:
            call.reset()
            call = await scene.provider.call()
            assert call.connection is not first.connection
        call.respond(chat_answer("second"))
        answer = await client.answer()
        assert (answer.status, answer.get("x-iop-attempts")) == (200, "1" if fresh else "2")


def redirect(call: Call) -> None:
    call.start(307, [(b"Location", b"http://10.1.2.3/v1/chat/completions/")], framing=b"Content-Length: 0\r\n")


@pytest.mark.req("TUN-9", "API-5")
@pytest.mark.parametrize("stream", [False, True])
@async_test()
async def test_a_redirect_is_an_error_that_names_it_and_where_it_leads_stays_on_the_node(
    reusing: Stack, stream: bool
) -> None:
    async with reusing.scene() as scene:
        client = await scene.send(post(CHAT, chat("m", stream=stream)))
        redirect(await scene.provider.call())
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (502, "provider_redirected")
        assert b"10.1.2.3" not in answer.body
        assert answer.get("location") is None
        assert (await scene.outcome(answer.get("x-request-id")))["outcome"] == "provider_redirected"
        line = reusing.node.wait_event("provider_redirected", provider="m", status=307)
        assert line["location"] == "http://10.1.2.3/v1/chat/completions/"
        assert not [one for one in reusing.edge.lines if "10.1.2.3" in json.dumps(one)]


@pytest.mark.req("TUN-9", "API-8")
@async_test()
async def test_behind_a_redirect_another_provider_is_asked(reusing: Stack) -> None:
    async with reusing.scene() as scene:
        client = await scene.send(post(CHAT, chat("two")))
        second = await scene.passed_on(redirect)
        second.respond(chat_answer("there"))
        assert (await client.answer()).status == 200


@pytest.mark.req("TUN-9", "EXEC-1")
@async_test()
async def test_a_redirected_run_says_so(reusing: Stack) -> None:
    async with reusing.scene() as scene:
        client = await scene.run(model="m", prompt="hi")
        redirect(await scene.provider.call())
        told = (await client.answer()).body
        assert b"provider_redirected" in told
        assert b"10.1.2.3" not in told
