"""Providers behind https (TUN-7): by the system's CAs, or by those that SSL_CERT_FILE names."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from iop.tls.contexts import served
from tests.support.aio import async_test, until_seen
from tests.support.certificates import Certificates
from tests.support.http import chat, post
from tests.support.provider import DONE, ScriptedProvider, chat_answer, chat_delta, chat_event, listening_socket
from tests.support.stack import Scene, Stack, model, running_stack

CHAT = "/v1/chat/completions"


class Behind:
    """A stack whose provider ``s`` speaks TLS with a certificate of a private CA, which the node knows or does not."""

    def __init__(self, folder: Path, opened: ExitStack, *, known: bool) -> None:
        made = Certificates(folder / "tls")
        files = made.edge()  # any certificate for servers
        self.context: ssl.SSLContext = served(Path(files["cert"]), Path(files["key"])).context
        self.sock = opened.enter_context(listening_socket())
        port = self.sock.getsockname()[1]
        providers: dict[str, dict[str, Any]] = {
            "s": {"base_url": f"https://127.0.0.1:{port}/s/v1", "idle_sec": 30},
            "named": {"base_url": f"https://localhost:{port}/named/v1"},
        }
        self.stack: Stack = opened.enter_context(
            running_stack(
                folder,
                providers,
                [model("s"), model("named")],
                env={"SSL_CERT_FILE": made.ca} if known else {},
            )
        )


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    with ExitStack() as opened:
        yield Behind(tmp_path_factory.mktemp("known"), opened, known=True)


@pytest.mark.req("TUN-7", "TUN-5")
@async_test()
async def test_requests_and_streams_go_to_a_provider_behind_tls(behind: Behind) -> None:
    async with behind.stack.scene() as scene, ScriptedProvider(behind.sock, tls=behind.context) as provider:
        for number in range(3):
            client = await scene.send(post(CHAT, chat("s")))
            call = await provider.call()
            assert call.path == b"/s/v1/chat/completions"
            assert call.header(b"host") == f"127.0.0.1:{behind.sock.getsockname()[1]}".encode()
            call.respond(chat_answer("hello"))
            assert (await client.answer()).json["choices"][0]["message"]["content"] == "hello"
            assert call.number == number + 1  # on one kept connection
        client = await scene.send(post(CHAT, chat("named", stream=True)))
        call = await provider.call()
        call.start_stream()
        call.event(chat_delta("a"))
        await client.head()
        assert b'"a"' in await client.piece()
        call.event(chat_event({}, "stop") + DONE)
        call.end_stream()
        assert (await client.body()).endswith(DONE)


@pytest.mark.req("TUN-4", "API-8b")
@async_test()
async def test_a_provider_that_breaks_off_behind_tls(behind: Behind) -> None:
    async with behind.stack.scene() as scene, ScriptedProvider(behind.sock, tls=behind.context) as provider:
        client = await scene.send(post(CHAT, chat("s", stream=True)))
        call = await provider.call()
        call.start_stream()
        call.event(chat_delta("a"))
        await client.head()
        await client.read_through(b'"a"')
        call.reset()
        text = await client.read_through(b'"error"')
        assert b"provider_connection_lost" in text
        client = await scene.send(post(CHAT, chat("s")))  # and a new connection for the next one
        (await provider.call()).respond(chat_answer("again"))
        assert (await client.answer()).status == 200


@pytest.mark.req("EXEC-7")
@async_test()
async def test_a_client_that_leaves_closes_the_call_behind_tls(behind: Behind) -> None:
    async with behind.stack.scene() as scene, ScriptedProvider(behind.sock, tls=behind.context) as provider:
        client = await scene.send(post(CHAT, chat("s", stream=True)))
        call = await provider.call()
        call.start_stream()
        call.event(chat_delta("a"))
        await client.head()
        client.leave()
        await call.gone.wait()


@pytest.mark.req("TUN-7", "API-5")
@async_test()
async def test_a_provider_of_an_unknown_ca_is_not_spoken_to(tmp_path: Path) -> None:
    with ExitStack() as opened:
        behind = Behind(tmp_path, opened, known=False)
        async with behind.stack.scene() as scene, ScriptedProvider(behind.sock, tls=behind.context) as provider:
            # The node's look finds it out; tests/integration/test_provider_tls.py has what a request would be told.
            await until_seen(lambda: lowered(scene), {"s": "refused", "named": "refused"})
            answer = await (await scene.send(post(CHAT, chat("s")))).answer()
            assert (answer.status, answer.json["error"]["code"]) == (503, "unavailable")
            assert provider.calls == []


async def lowered(scene: Scene) -> dict[str, str]:
    """Why providers are out of the choice."""
    rows = [p for node in (await scene.status())["nodes"] for p in node["providers"]]
    return {p["id"]: p["lowered"]["reason"] for p in rows if p["lowered"]}
