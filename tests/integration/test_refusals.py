"""A refusal reaches a client that is still sending its body, whatever client it is (API-6b)."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.aio import async_test, until
from tests.support.certificates import Certificates
from tests.support.edge import edge, get
from tests.support.http import Address, Client, post

KEY = "sk-" + "k" * 40
LARGE = 34_000_000  # more than max_body_bytes
TIMES = 20
KEYED: dict[str, Any] = {
    "api_keys": [{"principal": "a", "key_sha256": hashlib.sha256(KEY.encode()).hexdigest(), "requests_per_minute": 1}]
}


def body(size: int) -> bytes:
    return b'{"model":"small","messages":[{"role":"user","content":"' + b"x" * size + b'"}]}'


def ask(
    address: Address, path: str, data: Any, key: str, trust: ssl.SSLContext | None = None
) -> tuple[int, str | None]:
    """Status and code of a refusal, as Python's own client reads it: it sends all of the body first."""
    if trust is None:
        connection = http.client.HTTPConnection(*address, timeout=20)
    else:
        connection = http.client.HTTPSConnection(*address, timeout=20, context=trust)
    try:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        connection.request("POST", path, data, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())["error"]["code"]
    finally:
        connection.close()


@pytest.mark.req("API-6b")
@async_test(timeout_s=60)
async def test_pythons_client_reads_a_413_behind_its_body_every_time() -> None:
    async with edge() as (_, address):
        data = body(LARGE)
        for _ in range(TIMES):
            assert await asyncio.to_thread(ask, address, "/v1/chat/completions", data, "") == (413, "payload_too_large")


@pytest.mark.req("API-6b")
@async_test(timeout_s=60)
async def test_so_it_does_over_tls(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    trust = ssl.create_default_context(cafile=made.ca)
    async with edge(tls=made.edge()) as (_, address):
        data = body(LARGE)
        for _ in range(TIMES // 4):
            told = await asyncio.to_thread(ask, address, "/v1/chat/completions", data, "", trust)
            assert told == (413, "payload_too_large")
        # Refused at its head: what comes behind that is read for a while as well.
        path = "/v1/" + "x" * 9000
        assert (await asyncio.to_thread(ask, address, path, body(30_000), "", trust))[0] == 414


@pytest.mark.req("API-6b")
@pytest.mark.parametrize(
    ("path", "key", "status", "code"),
    [
        ("/v1/chat/completions", "wrong", 401, "unauthorized"),
        ("/nope", KEY, 404, "not_found"),
        ("/v1/chat/completions", KEY, 429, "rate_limit_exceeded"),
    ],
)
@async_test(timeout_s=60)
async def test_pythons_client_reads_what_was_refused_at_the_head(path: str, key: str, status: int, code: str) -> None:
    async with edge(**KEYED) as (_, address):
        if status == 429:
            await asyncio.to_thread(ask, address, path, body(10), key)  # all that it may ask in a minute
        data = body(12_000_000)
        for _ in range(TIMES):
            assert await asyncio.to_thread(ask, address, path, data, key) == (status, code)


@pytest.mark.req("API-6b")
@async_test(timeout_s=60)
async def test_a_chunked_body_that_turns_out_too_large_is_read_to_its_end() -> None:
    def pieces() -> Any:
        for _ in range(34):
            yield b"x" * 1_000_000

    async with edge() as (_, address):
        for _ in range(3):
            told = await asyncio.to_thread(ask, address, "/v1/chat/completions", pieces(), "")
            assert told[0] in (400, 413)  # it is no JSON, which may be noticed first


SCRIPT = """
const [url, size, times] = process.argv.slice(1);
(async () => {
  for (let i = 0; i < times; i++) {
    const body = '{"model":"small","x":"' + 'x'.repeat(size) + '"}';
    const answer = await fetch(url, {method: 'POST', body, headers: {'content-type': 'application/json'}});
    console.log(answer.status, JSON.parse(await answer.text()).error.code);
  }
})().catch(error => { console.log('failed', error.cause ?? error); process.exit(1); });
"""


@pytest.mark.req("API-6b")
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@async_test(timeout_s=90)
async def test_the_fetch_of_node_reads_a_413_every_time() -> None:
    async with edge() as (_, address):
        url = f"http://{address[0]}:{address[1]}/v1/chat/completions"
        command = ["node", "-e", SCRIPT, url, str(LARGE), str(TIMES)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=80, check=False)
        assert done.stdout.split("\n") == ["413 payload_too_large"] * TIMES + [""], done.stderr


@pytest.mark.req("API-6b")
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("expect", ["", "100-continue"])
@async_test(timeout_s=90)
async def test_curl_reads_a_413_every_time(tmp_path: Path, expect: str) -> None:
    (tmp_path / "body").write_bytes(body(LARGE))
    async with edge() as (_, address):
        url = f"http://{address[0]}:{address[1]}/v1/chat/completions"
        command = ["curl", "-s", "-S", "-H", f"Expect: {expect}", "--data-binary", f"@{tmp_path / 'body'}", url]
        for _ in range(TIMES):
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=20, check=False
            )
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["error"]["code"] == "payload_too_large"


@pytest.mark.req("API-6b")
@async_test()
async def test_a_websocket_is_answered_with_426() -> None:
    """Codex asks for one first, and uses HTTP at once behind this answer only."""
    asked = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    async with edge() as (_, address):
        answer = await get(address, "/v1/responses", *asked)
        assert answer.status == 426
        assert answer.get("upgrade") == "HTTP/1.1"
        assert answer.get("connection") == "upgrade"
        assert answer.json["error"]["code"] == "upgrade_required"
        assert (await get(address, "/v1/responses")).status == 405
        client = await Client.connect(address)
        client.send(post("/v1/responses", b"{}", {"Upgrade": "websocket", "Connection": "upgrade"}))
        assert (await client.answer()).status == 400, "a POST is read as one"
        await client.close()


@pytest.mark.req("API-10", "API-5")
@async_test()
async def test_a_key_whose_bodies_fill_its_share_is_told_so_and_others_are_served() -> None:
    keys = [
        {"principal": name, "key_sha256": hashlib.sha256(f"sk-{name * 40}".encode()).hexdigest()} for name in ("a", "b")
    ]

    def begun(name: str) -> bytes:
        """80 KB of a body that is not complete."""
        head = {"Authorization": f"Bearer sk-{name * 40}"}
        return post("/v1/chat/completions", body(80_000), head)[:-2]

    async with edge(api_keys=keys, max_body_bytes=100_000, max_buffered_body_bytes=300_000) as (one, address):
        stats = one.http.stats
        clients = [await Client.connect(address) for _ in range(3)]
        clients[0].send(begun("a"))
        await until(lambda: stats.held_by.get("a", 0) > 80_000)
        clients[1].send(begun("a"))
        answer = await clients[1].answer()
        assert (answer.status, answer.json["error"]["code"]) == (429, "too_many_body_bytes")
        assert answer.json["error"]["type"] == "rate_limit_error"
        assert answer.get("retry-after") == "1"
        clients[2].send(begun("b"))
        await until(lambda: stats.held_by.get("b", 0) > 80_000)
        for client in clients:
            await client.close()
        await until(lambda: not stats.held_by and not stats.buffered_body_bytes)
