"""SEC-1, API-6 and API-8b over TLS with real programs: what clients see of it, whole answers and broken ones."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.aio import async_test
from tests.support.certificates import Certificates, leaf_of
from tests.support.http import Broken, Client, chat, post
from tests.support.provider import DONE, chat_answer, chat_delta, chat_event
from tests.support.stack import Scene, Stack, model, running_stack

CHAT = "/v1/chat/completions"
BODY_BYTES = 262_144


class Secure:
    """An edge and a node that speak TLS on all ways, and a context that trusts their CA."""

    def __init__(self, stack: Stack, made: Certificates, web: str) -> None:
        self.stack = stack
        self.context = ssl.create_default_context(cafile=made.ca)
        self.web = web

    @asynccontextmanager
    async def scene(self) -> AsyncIterator[Scene]:
        async with self.stack.scene() as scene:
            yield scene

    async def send(self, scene: Scene, request: bytes, *, receive_bytes: int | None = None) -> Client:
        client = await Client.connect(self.stack.http, receive_bytes=receive_bytes, tls=self.context)
        scene.clients.append(client)
        client.send(request)
        return client


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    folder = tmp_path_factory.mktemp("secure")
    made = Certificates(folder / "tls")
    web = made.edge(name="web")
    with running_stack(
        folder,
        {"m": {}},
        [model("m")],
        http={
            "tls": web,
            "max_body_bytes": BODY_BYTES,
            "header_timeout_sec": 0.6,
            "client_idle_timeout_sec": 0.6,
        },
        transport={"tls": {**made.edge(), "client_ca": made.ca}},
        node={"tls": {"ca": made.ca, **made.node("n1")}},
    ) as stack:
        yield Secure(stack, made, web["cert"])


# ---- whole answers --------------------------------------------------------------------------------------------------


@pytest.mark.req("SEC-1")
@async_test()
async def test_a_request_and_a_stream_go_all_the_way_encrypted(secure: Secure) -> None:
    async with secure.scene() as scene:
        client = await secure.send(scene, post(CHAT, chat("m")))
        assert client.tls.version() == "TLSv1.3"
        assert client.tls.selected_alpn_protocol() is None  # it asked for nothing
        assert client.tls.getpeercert(binary_form=True) == leaf_of(secure.web).der
        (await scene.provider.call()).respond(chat_answer("hello"))
        answer = await client.answer()
        assert (answer.status, answer.json["choices"][0]["message"]["content"]) == (200, "hello")

        client.send(post(CHAT, chat("m", stream=True)))  # on the same connection
        call = await scene.provider.call()
        call.start_stream()
        for text in ("one", "two", "three"):
            call.event(chat_delta(text))
            if text == "one":
                await client.head()
            assert text.encode() in await client.piece()  # each when it came
        call.event(chat_event({}, "stop") + DONE)
        call.end_stream()
        assert (await client.body()).endswith(DONE)


@pytest.mark.req("SEC-1")
@async_test()
async def test_what_is_negotiated(secure: Secure) -> None:
    """TLS 1.2 with forward secrecy and AEAD is the least; HTTP/1.1 is what there is, whatever else is offered."""
    async with secure.scene() as scene:
        old = ssl.create_default_context()
        old.load_verify_locations(cadata=secure.context.get_ca_certs(binary_form=True)[0])
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        old.set_alpn_protocols(["h2", "http/1.1"])
        client = await Client.connect(scene.stack.http, tls=old)
        scene.clients.append(client)
        name, version, _ = client.tls.cipher() or ("", "", 0)
        assert version == "TLSv1.2"
        assert re.fullmatch(r"ECDHE-ECDSA-(AES\d+-GCM|CHACHA20).*", name)
        assert client.tls.compression() is None
        assert client.tls.selected_alpn_protocol() == "http/1.1"
        old.set_ciphers("AES128-SHA:ECDHE-ECDSA-AES128-SHA")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await Client.connect(scene.stack.http, tls=old)


# ---- broken ones ----------------------------------------------------------------------------------------------------


def _ask(address: tuple[str, int], context: ssl.SSLContext) -> tuple[bytes, str]:
    """What Python's own client gets of a stream, and the name of the error that ended it ("": it looks whole)."""
    connection = http.client.HTTPSConnection(*address, context=context, timeout=10)
    got = b""
    try:
        connection.request("POST", CHAT, chat("m", stream=True), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        while data := answer.read1(65536):
            got += data
    except (http.client.HTTPException, OSError) as error:
        return got, type(error).__name__
    finally:
        connection.close()
    return got, ""


@pytest.mark.req("API-8b")
@async_test()
async def test_pythons_own_client_sees_a_cut_stream_as_an_error(secure: Secure) -> None:
    async with secure.scene() as scene:
        asked = asyncio.create_task(asyncio.to_thread(_ask, scene.stack.http, secure.context))
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("a"))
        call.event(b'data: {"choices": [{"del')  # in the middle of an event
        call.close()
        got, error = await asked
        assert b'"a"' in got
        assert error == "IncompleteRead"
        asked = asyncio.create_task(asyncio.to_thread(_ask, scene.stack.http, secure.context))
        (await scene.provider.call()).stream(chat_delta("a"), chat_event({}, "stop"), DONE)
        got, error = await asked
        assert (got.endswith(DONE), error) == (True, "")


@pytest.mark.req("API-8b")
@async_test()
async def test_where_the_close_ends_a_body_a_cut_is_a_reset_without_a_goodbye(secure: Secure) -> None:
    """HTTP/1.0: TLS's own goodbye would be the clean end of that body."""
    for cut in (True, False):
        async with secure.scene() as scene:
            client = await secure.send(scene, post(CHAT, chat("m", stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0"))
            call = await scene.provider.call()
            call.start_stream()
            call.event(chat_delta("a"))
            assert (await client.head()).get("transfer-encoding") is None
            await client.read_through(b'"a"')
            if cut:
                call.event(b'data: {"choices": [{"del')
                call.close()
                with pytest.raises(Broken) as broken:
                    await client.body()
                assert broken.value.how == "rst"
            else:
                call.event(chat_event({}, "stop") + DONE)
                call.end_stream()
                assert (await client.body()).endswith(DONE)


@pytest.mark.req("API-8b")
@async_test()
async def test_the_openai_client_sees_a_cut_stream_as_an_error(secure: Secure) -> None:
    import openai

    async with secure.scene() as scene:
        host, port = scene.stack.http

        def ask() -> tuple[str, str]:
            web = openai.DefaultHttpxClient(verify=secure.context, trust_env=False)
            url = f"https://{host}:{port}/v1"
            with openai.OpenAI(base_url=url, api_key="none", http_client=web, max_retries=0) as client:
                text = ""
                try:
                    for chunk in client.chat.completions.create(
                        model="m", messages=[{"role": "user", "content": "x"}], stream=True
                    ):
                        text += chunk.choices[0].delta.content or ""
                except Exception as error:
                    return text, type(error).__name__
                return text, ""

        asked = asyncio.create_task(asyncio.to_thread(ask))
        call = await scene.provider.call()
        call.start_stream()
        call.event(chat_delta("a"))
        call.event(b'data: {"choices": [{"del')
        call.close()
        assert await asked == ("a", "APIConnectionError")


# ---- clients that do as they like -----------------------------------------------------------------------------------


@pytest.mark.req("API-6")
@async_test()
async def test_an_answer_before_the_body_reaches_a_client_that_still_sends(secure: Secure) -> None:
    async with secure.scene() as scene:
        head = post(CHAT, b"", {"X": "y"}).replace(b"Content-Length: 0", b"Content-Length: 50000000")
        client = await secure.send(scene, head)
        sent = 0
        while sent < 4_000_000:
            client.send_more(b"x" * 65536)
            sent += 65536
            await asyncio.sleep(0)
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (413, "payload_too_large")


@pytest.mark.req("API-7c")
@async_test()
async def test_a_client_that_leaves_ends_its_call(secure: Secure) -> None:
    for reset in (False, True):
        async with secure.scene() as scene:
            client = await secure.send(scene, post(CHAT, chat("m", stream=True)))
            call = await scene.provider.call()
            call.start_stream()
            call.event(chat_delta("a"))
            await client.head()
            client.leave(reset=reset)
            async with asyncio.timeout(5):
                await call.gone.wait()


@pytest.mark.req("API-10", "WIRE-5")
@async_test()
async def test_a_client_that_reads_nothing_is_given_up_and_holds_little(secure: Secure) -> None:
    async with secure.scene() as scene:
        client = await secure.send(scene, post(CHAT, chat("m", stream=True)), receive_bytes=4096)
        call = await scene.provider.call()
        call.start_stream()
        for _ in range(400):
            call.event(chat_delta("x" * 20_000))
        async with asyncio.timeout(20):
            await call.gone.wait()
        client.leave()


@pytest.mark.req("API-6")
@async_test()
async def test_plain_http_on_the_tls_port_is_told_so(secure: Secure) -> None:
    async with secure.scene() as scene:
        client = await scene.send(post(CHAT, chat("m")))
        answer = await client.answer()
        assert answer.status == 400
        assert "https://" in answer.json["error"]["message"]
        assert answer.get("x-request-id")
        assert await client.end() == "fin"


def _count(text: str, reason: str, listener: str = "http") -> float:
    name = "iop_edge_tls_handshakes_failed_total"
    found = re.search(rf'^{name}\{{listener="{listener}",reason="{reason}"\}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.req("API-10", "OBS-1")
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        pytest.param(b"", "timeout", id="nothing"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", "timeout", id="half-a-hello"),
        pytest.param(b"\x16\x03\x01\x00\x05hello", "protocol", id="no-hello"),
    ],
)
@async_test()
async def test_a_handshake_has_its_time_and_its_count(said: bytes, reason: str, secure: Secure) -> None:
    async with secure.scene() as scene:
        before = _count(await scene.metrics(), reason)
        client = await scene.send(said)
        assert await client.end() in ("fin", "rst")
        assert _count(await scene.metrics(), reason) == before + 1
        line = scene.stack.edge.wait_event("tls_handshake_failed", reason=reason)
        assert line["listener"] == "http"


@pytest.mark.req("OBS-1")
@async_test()
async def test_metrics_tell_when_the_certificates_expire(secure: Secure) -> None:
    async with secure.scene() as scene:
        text = await scene.metrics()
        name = "iop_edge_tls_certificate_expiry_timestamp_seconds"
        found = dict(re.findall(rf'^{name}\{{listener="(\w+)"\}} (\S+)$', text, re.MULTILINE))
        assert set(found) == {"http", "nodes"}
        assert float(found["http"]) == leaf_of(secure.web).not_after_at


def test_a_key_is_asked_for_over_tls_too(tmp_path: Path) -> None:
    """The rule of API-4 is one of addresses: encryption makes nobody known."""
    from iop.config.load import parse_edge
    from iop.errors import ConfigError

    tls = Certificates(tmp_path).edge()
    with pytest.raises(ConfigError, match=r"http\.listen"):
        parse_edge(json.dumps({"http": {"listen": "0.0.0.0:8443", "tls": tls}}))
