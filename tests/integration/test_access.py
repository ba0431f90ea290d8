"""Who may ask, and what is answered without asking anybody (API-1, API-4, API-5)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.support.aio import async_test
from tests.support.edge import ask, edge, get
from tests.support.http import Answer, Client, chat, post

KEY = "sk-test-é-1"


def keys() -> dict[str, Any]:
    return {"api_keys": [{"principal": "alice", "key_sha256": hashlib.sha256(KEY.encode("latin-1")).hexdigest()}]}


@pytest.mark.req("API-4", "API-5")
@async_test()
async def test_d12_every_bad_key_gets_the_same_401() -> None:
    async with edge(**keys()) as (one, address):
        bodies = set()
        for lines in (
            [],
            ["Authorization: Bearer wrong"],
            ["Authorization: Basic abc"],
            ["Authorization: Bearer"],
            [f"Authorization: {KEY}"],
            ["x-api-key: \xff\xfe"],
            [f"Authorization: Bearer {KEY}", "x-api-key: other"],
        ):
            answer = await ask(address, *lines)
            assert answer.status == 401, lines
            bodies.add(answer.body)
            assert KEY.encode() not in answer.body
        client = await Client.connect(address)
        twice = f"Authorization: Bearer {KEY}\r\n" * 2
        client.send(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n{twice}Content-Length: 0\r\n\r\n".encode("latin-1")
        )
        answer = await client.answer()
        assert answer.status == 401
        bodies.add(answer.body)
        await client.close()
        answer = await ask(address, path=f"/v1/chat/completions?api_key={KEY[:7]}")
        bodies.add(answer.body)
        assert len(bodies) == 1
        assert json.loads(bodies.pop())["error"]["code"] == "unauthorized"
        assert one.pool.leases_in_use == 0


@pytest.mark.req("API-4")
@async_test()
async def test_either_header_carries_the_key_on_every_api() -> None:
    async with edge(**keys()) as (_, address):
        for path in ("/v1/chat/completions", "/v1/messages"):
            for lines in ([f"Authorization: Bearer {KEY}"], [f"Authorization: bearer  {KEY}"], [f"x-api-key: {KEY}"]):
                # past the door, and then there is no node
                assert (await ask(address, *lines, path=path)).status == 503


@pytest.mark.req("API-4")
@async_test()
async def test_without_keys_only_loopback_names_and_origins_are_served() -> None:
    async with edge() as (one, address):
        for host in ("localhost", "localhost:99", "127.0.0.1:1", "[::1]:8080"):
            assert (await ask_host(address, host)).status == 503, host
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80"):
            assert (await ask_host(address, host)).status == 403, host
        assert (await ask(address, "Origin: http://evil.example")).status == 403
        for foreign in (
            "null",
            "",
            "localhost",
            "http://localhost, http://evil.example",
            "http://localhost:1 http://x",
        ):
            assert (await ask(address, f"Origin: {foreign}")).status == 403, foreign
        for origin in ("http://localhost:3000", "https://127.0.0.1", "http://[::1]:80"):
            assert (await ask(address, f"Origin: {origin}")).status == 503, origin
        for several in (("localhost", "evil.example"), ("evil.example", "localhost"), ("localhost", "localhost")):
            lines = [f"Origin: http://{host}" for host in several]
            assert (await get(address, "/v1/models", *lines)).status == 403, several
            admin = ("127.0.0.1", one.admin_port)
            assert (await get(admin, "/admin/status", *lines)).status == 403, several


async def ask_host(address: tuple[str, int], host: str) -> Answer:
    client = await Client.connect(address)
    client.send(post("/v1/chat/completions", chat("small"), host=host))
    answer = await client.answer()
    await client.close()
    return answer


@pytest.mark.req("API-1")
@async_test()
async def test_health_models_and_the_root() -> None:
    async with edge() as (_, address):
        for path in ("/healthz", "/readyz", "/health", "/"):
            assert (await get(address, path)).status == 200
        assert (await get(address, "/", method="HEAD")).body == b""
        listed = (await get(address, "/v1/models")).json
        assert [row["id"] for row in listed["data"]] == ["org/big model", "small"]
        assert listed["object"] == "list"
        anthropic = (await get(address, "/v1/models", "anthropic-version: 2023-06-01")).json
        assert [row["type"] for row in anthropic["data"]] == ["model", "model"]
        assert (anthropic["first_id"], anthropic["last_id"]) == ("org/big model", "small")
        assert (await get(address, "/v1/models/org/big%20model")).json["id"] == "org/big model"
        missing = await get(address, "/v1/models/none")
        assert (missing.status, missing.json["error"]["code"]) == (404, "model_not_found")


@pytest.mark.req("API-5")
@async_test()
async def test_unknown_paths_and_methods_in_both_error_shapes() -> None:
    async with edge() as (_, address):
        answer = await get(address, "/v1/none")
        assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")
        answer = await get(address, "/v1/none", "anthropic-version: 2023-06-01")
        assert (answer.status, answer.json["type"], answer.json["error"]["type"]) == (404, "error", "not_found_error")
        answer = await get(address, "/v1/messages")
        assert (answer.status, answer.get("allow")) == (405, "POST, OPTIONS")
        assert (answer.json["type"], answer.json["error"]["type"]) == ("error", "invalid_request_error")
        for path in ("/v1/models", "/v1/models/small"):
            answer = await get(address, path, method="DELETE")
            assert (answer.status, answer.get("allow")) == (405, "GET, HEAD, OPTIONS")
            told = answer.json["error"]
            assert (told["code"], told["type"]) == ("method_not_allowed", "invalid_request_error")
        answer = await ask(address, path="/v1/messages")
        assert (answer.status, answer.json["error"]["type"]) == (503, "overloaded_error")
        assert answer.get("retry-after") == "5"
        assert (answer.get("x-request-id") or "").startswith("req_")


@pytest.mark.req("OBS-4")
@async_test()
async def test_the_admin_listener_answers_status_and_metrics_and_nothing_else() -> None:
    async with edge() as (one, _):
        address = ("127.0.0.1", one.admin_port)
        status = (await get(address, "/admin/status")).json
        assert status["edge"]["id"] == "edge-1"
        assert status["nodes"][0]["connected"] is False
        metrics = await get(address, "/metrics")
        assert b"iop_edge_nodes_configured 1.0" in metrics.body
        assert (await get(address, "/v1/models")).status == 404
        assert (await get(address, "/none", method="DELETE")).status == 404
        for path in ("/admin/status", "/metrics"):
            refused = await get(address, path, method="DELETE")
            assert (refused.status, refused.get("allow")) == (405, "GET, HEAD")
            assert refused.json["error"]["code"] == "method_not_allowed"
        client = await Client.connect(address)
        client.send(b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert (await client.answer()).status == 403
        await client.close()
