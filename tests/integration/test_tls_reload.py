"""CONF-2 for certificates: renewed files are shown to new connections, old ones go on, and bad ones change nothing."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from iop.tls.certificate import Certificate
from tests.support.aio import async_test
from tests.support.certificates import Certificates, leaf_of
from tests.support.http import Address, Answer, Client, chat, post
from tests.support.programs import Program, edge_config, edge_program, node_config, node_program
from tests.support.provider import DONE, ScriptedProvider, chat_delta, chat_event, listening_socket

CHAT = "/v1/chat/completions"
ENV = {"IOP_TOKEN": "t0", "IOP_NODE_TOKEN": "t0"}


class Live:
    def __init__(
        self, folder: Path, made: Certificates, edge: Program, node: Program, provider: ScriptedProvider
    ) -> None:
        self.folder = folder
        self.made = made
        self.edge = edge
        self.node = node
        self.provider = provider
        self.context = ssl.create_default_context(cafile=made.ca)

    async def client(self) -> Client:
        return await Client.connect(self.edge.address("http"), tls=self.context)

    async def shown(self, listener: str, context: ssl.SSLContext | None = None) -> int:
        """The serial number of the certificate that a new connection is shown."""
        return (await _shown(self.edge.address(listener), context or self.context)).serial

    async def reload(self) -> Answer:
        client = await Client.connect(self.edge.address("admin"))
        try:
            client.send(b"POST /admin/reload HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return await client.answer()
        finally:
            await client.close()


async def _shown(address: Address, context: ssl.SSLContext) -> Certificate:
    client = await Client.connect(address, tls=context)
    try:
        der = client.tls.getpeercert(binary_form=True)
        assert der is not None
        return Certificate.parse(der)
    finally:
        await client.close()


@asynccontextmanager
async def live(folder: Path, *, demands: bool = False) -> AsyncIterator[Live]:
    made = Certificates(folder / "tls")
    web, port = made.edge(name="web"), made.edge(name="port")
    more = {"client_ca": made.ca} if demands else {}
    sock = listening_socket()
    provider_at = {"base_url": f"http://127.0.0.1:{sock.getsockname()[1]}/p/v1"}
    provider_entry = {"id": "p", "kind": "openai_compat", "capacity": 9, **provider_at}
    config = edge_config(
        http={"tls": web},
        transport={"tls": {**port, **more}},
        nodes=[{"id": "n1", "token_env": "IOP_TOKEN", "providers": [provider_entry]}],
        models=[{"id": "m", "candidates": [{"node": "n1", "provider": "p", "target": "real"}]}],
    )
    with sock, edge_program(folder, config, env=ENV) as edge:
        file = node_config(edge.address("nodes"), node={"tls": {"ca": made.ca, **made.node("n1")}})
        with node_program(folder, file, env=ENV) as node:
            edge.wait_event("node_connected")
            async with ScriptedProvider(sock) as provider:
                yield Live(folder, made, edge, node, provider)


@pytest.mark.req("CONF-2", "SEC-1")
@pytest.mark.parametrize("how", ["admin", "sighup"])
@async_test()
async def test_a_renewed_certificate_is_shown_to_new_connections_and_a_stream_goes_on(how: str, tmp_path: Path) -> None:
    """edge.yaml is not touched: only the files behind it are."""
    async with live(tmp_path) as it:
        client = await it.client()
        client.send(post(CHAT, chat("m", stream=True)))
        call = await it.provider.call()
        call.start_stream()
        call.event(chat_delta("before"))
        await client.head()
        await client.read_through(b"before")
        old = {name: leaf_of(it.folder / f"tls/{name}.pem").serial for name in ("web", "port")}
        assert (await it.shown("http"), await it.shown("nodes")) == (old["web"], old["port"])

        it.made.edge(name="web")
        it.made.edge(name="port")
        new = {name: leaf_of(it.folder / f"tls/{name}.pem").serial for name in ("web", "port")}
        assert await it.shown("http") == old["web"]  # not before it is asked for
        if how == "admin":
            answer = (await it.reload()).json
            assert (answer["result"], answer["changed"]) == ("applied", ["http.tls", "transport.tls"])
            assert answer["needs_restart"] == []
        else:
            it.edge.signal(signal.SIGHUP)
            it.edge.wait_event("config_reloaded")
        assert (await it.shown("http"), await it.shown("nodes")) == (new["web"], new["port"])

        call.event(chat_delta("after"))
        call.event(chat_event({}, "stop") + DONE)
        call.end_stream()
        assert (await client.body()).endswith(DONE)
        client.send(post(CHAT, chat("m")))  # on the connection of before
        (await it.provider.call()).respond(b'{"ok": true}')
        assert (await client.answer()).json == {"ok": True}
        await client.close()
        assert [line for line in it.edge.lines if line.get("event") == "node_disconnected"] == []
        assert (await it.reload()).json["result"] == "unchanged"


@pytest.mark.req("CONF-2", "CONF-1", "SEC-4")
@async_test()
async def test_files_that_do_not_fit_change_nothing_and_are_told(tmp_path: Path) -> None:
    async with live(tmp_path) as it:
        web = it.folder / "tls/web.pem"
        key = it.folder / "tls/web-key.pem"
        serial = leaf_of(web).serial
        good, good_key = web.read_bytes(), key.read_bytes()
        other = Certificates(tmp_path / "other").edge()

        def expired() -> None:
            it.made.edge(name="web", expired=True)

        faults = {
            "is not the key of the certificate": lambda: shutil.copy(other["key"], key),
            "has expired on": expired,
            "No such file": web.unlink,
            "holds no PEM private key": lambda: key.write_bytes(b"secret-that-is-no-key"),
            "no PEM certificate": lambda: os.truncate(web, 200),
        }
        for said, spoil in faults.items():
            spoil()
            answer = await it.reload()
            assert answer.status == 400
            (fault,) = answer.json["error"]["faults"]
            assert said in fault
            assert "http.tls" in fault
            assert await it.shown("http") == serial
            status = await Client.connect(it.edge.address("admin"))
            status.send(b"GET /admin/status HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert (await status.answer()).json["edge"]["config"]["faults"] == [fault]
            await status.close()
            web.write_bytes(good)
            key.write_bytes(good_key)
        assert (await it.reload()).json["result"] == "unchanged"
        text = str(it.edge.lines)
        assert "secret-that-is-no-key" not in text
        assert good_key.decode().splitlines()[1] not in text


@pytest.mark.req("CONF-2", "SEC-1")
@async_test()
async def test_a_new_client_ca_counts_for_new_connections(tmp_path: Path) -> None:
    """The whole context is another one: whom it verifies as well as what it shows. A connected node goes on."""
    async with live(tmp_path, demands=True) as it:
        other = Certificates(tmp_path / "other")

        def context(of: Certificates) -> ssl.SSLContext:
            shown = of.node("n1")
            found = ssl.create_default_context(cafile=it.made.ca)
            found.load_cert_chain(shown["cert"], shown["key"])
            return found

        async def taken(by: ssl.SSLContext) -> bool:
            """Whether the edge takes that certificate: the node port waits for a frame then, and else closes."""
            client = await Client.connect(it.edge.address("nodes"), tls=by)
            try:
                async with asyncio.timeout(0.5):
                    await client.end()
            except TimeoutError:
                return True
            finally:
                await client.close()
            return False

        ours, theirs = context(it.made), context(other)
        assert (await taken(ours), await taken(theirs)) == (True, False)
        text = (it.folder / "edge.yaml").read_text()
        (it.folder / "edge.yaml").write_text(text.replace(f'"client_ca": "{it.made.ca}"', f'"client_ca": "{other.ca}"'))
        assert (await it.reload()).json["changed"] == ["transport.tls"]
        assert (await taken(ours), await taken(theirs)) == (False, True)
        client = await it.client()
        client.send(post(CHAT, chat("m")))
        (await it.provider.call()).respond(b"{}")
        assert (await client.answer()).status == 200
        await client.close()


@pytest.mark.req("CONF-2", "SEC-1")
@async_test()
async def test_whether_there_is_tls_at_all_waits_for_a_restart(tmp_path: Path) -> None:
    async with live(tmp_path) as it:
        config = edge_config(
            nodes=[{"id": "n1", "token_env": "IOP_TOKEN"}],
            transport={"allow_plaintext": True},
        )
        (it.folder / "edge.yaml").write_text(json.dumps(config))
        answer = (await it.reload()).json
        assert {"http.tls", "transport.tls", "transport.allow_plaintext"} <= set(answer["needs_restart"])
        assert await it.shown("http")
        assert await it.shown("nodes")


@pytest.mark.req("CONF-2")
@async_test()
async def test_a_resumed_session_is_not_the_old_certificates(tmp_path: Path) -> None:
    """Python's client would bring its ticket of before: the new context does not know it."""
    async with live(tmp_path) as it:
        host, port = it.edge.address("http")

        def ask(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool]:
            with (
                socket.create_connection((host, port)) as sock,
                it.context.wrap_socket(sock, server_hostname=host, session=session) as wrapped,
            ):
                wrapped.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert wrapped.recv(12) == b"HTTP/1.1 200"
                return wrapped.session, bool(wrapped.session_reused)

        session, _ = await asyncio.to_thread(ask, None)
        assert (await asyncio.to_thread(ask, session))[1]
        it.made.edge(name="web")
        await it.reload()
        assert not (await asyncio.to_thread(ask, session))[1]
