"""SEC-1 and SUP-3 with real programs: who is let in on the node port, whom a node trusts, and what either says."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from iop.net.lobby import PER_ADDRESS
from tests.support.aio import async_test
from tests.support.certificates import Certificates
from tests.support.http import Client, chat, post
from tests.support.programs import Line, Program, command, edge_config, edge_program, node_config, node_program
from tests.support.rawlink import RawLink

ENV = {"IOP_TOKEN": "t0", "IOP_OTHER_TOKEN": "t1", "IOP_NODE_TOKEN": "t0"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@contextmanager
def edge(
    folder: Path, tls: dict[str, str] | None, *, listen: str = "127.0.0.1:0", **sections: Any
) -> Iterator[Program]:
    """An edge with echo at node n1, and a node n2."""
    nodes = [
        {"id": "n1", "token_env": "IOP_TOKEN", "providers": [{"id": "e", "kind": "echo", "capacity": 4}]},
        {"id": "n2", "token_env": "IOP_OTHER_TOKEN"},
    ]
    models = [{"id": "echo", "candidates": [{"node": "n1", "provider": "e", "target": "echo"}]}]
    config = edge_config(transport={"tls": tls, "listen": listen}, nodes=nodes, models=models, **sections)
    with edge_program(folder, config, env=ENV) as running:
        yield running


@contextmanager
def node(folder: Path, of: Program, tls: dict[str, Any] | None) -> Iterator[Program]:
    """A node that tries twice."""
    file = node_config(of.address("nodes"), node={"tls": tls}, reconnect={"max_attempts": 2, "interval_sec": 0.1})
    with node_program(folder, file, env=ENV) as running:
        yield running


def last_words(running: Program) -> tuple[int, Line]:
    code = running.wait()
    return code, running.wait_event("giving_up")


@pytest.mark.req("SEC-1", "WIRE-1")
@pytest.mark.parametrize("how", ["ca", "hash", "ca-and-name", "certificate", "hash-and-certificate"])
@async_test()
async def test_a_request_through_a_node_over_tls(how: str, tmp_path: Path, made: Certificates) -> None:
    """The edge's certificate has none of the names by which it is dialled: it is one of that CA, for an edge."""
    server = made.edge(hosts=("edge.example.org",) if how != "ca-and-name" else ("localhost", "127.0.0.1"))
    tls = {
        "ca": {"ca": made.ca},
        "hash": {"ca_sha256": made.sha256},
        "ca-and-name": {"ca": made.ca, "server_name": "localhost"},
        "certificate": {"ca": made.ca, **made.node("n1")},
        "hash-and-certificate": {"ca_sha256": made.sha256, **made.node("n1")},
    }[how]
    demands = {"client_ca": made.ca} if "certificate" in how else {}
    with edge(tmp_path, {**server, **demands}) as running, node(tmp_path, running, tls) as client_of:
        client_of.wait_event("edge_connected")
        client = await Client.connect(running.address("http"))
        client.send(post("/v1/chat/completions", chat("echo", text="x" * 100_000)))
        answer = await client.answer()
        assert answer.json["choices"][0]["message"]["content"] == "echo: " + "x" * 100_000
        await client.close()
        assert [line for line in running.lines if line.get("event") == "tls_handshake_failed"] == []


def _tampered(digest: str) -> str:
    return ("0" if digest[0] != "0" else "1") + digest[1:]


@pytest.mark.req("SEC-1", "SUP-3")
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("another-ca", "does not hold: self-signed certificate in certificate chain"),
        ("the-systems-cas", "does not hold: self-signed certificate in certificate chain"),
        ("another-name", "is not for 'other.example.org', but for: localhost, 127.0.0.1, ::1"),
        ("another-hash", "The token was not sent"),
        ("a-borrowed-ca", "does not hold: self-signed certificate in certificate chain"),
        ("a-nodes-certificate", "does not hold: unsuitable certificate purpose"),
        ("no-purpose", "is not one for servers"),
        ("nobodys", "is not for '127.0.0.1', but for: edge.example.org"),
    ],
)
def test_an_edge_that_is_not_the_one_to_trust_is_told_nothing(
    how: str, said: str, tmp_path: Path, made: Certificates
) -> None:
    """Exit 3 at once, and no registration reached the edge: a node that it does not let in would be a line there."""
    server = made.edge()
    tls: dict[str, Any] = {"ca": made.ca}
    if how == "another-ca":
        tls = {"ca": Certificates(tmp_path / "other").ca}
    elif how == "the-systems-cas":
        tls = {}
    elif how == "another-name":
        tls["server_name"] = "other.example.org"
    elif how == "another-hash":
        tls = {"ca_sha256": _tampered(made.sha256)}
    elif how == "a-borrowed-ca":  # anybody can show the CA's own certificate, which is no secret
        server = Certificates(tmp_path / "other").edge()
        with open(server["cert"], "ab") as chain:
            chain.write(made.authority.certificate_pem)
        tls = {"ca_sha256": made.sha256}
    elif how == "a-nodes-certificate":
        server = made.node("n1", name="as-edge")
    elif how == "no-purpose":
        server = made.odd(purposes=())
    elif how == "nobodys":
        server = made.odd(uri=None, hosts=("edge.example.org",))
    with edge(tmp_path, server) as running, node(tmp_path, running, tls) as client_of:
        code, line = last_words(client_of)
        assert (code, line["reason"]) == (3, "edge_untrusted")
        assert said in line["detail"]
        assert "node_rejected" not in [line.get("event") for line in running.lines]
        assert "node_connected" not in [line.get("event") for line in running.lines]


@pytest.mark.req("SEC-1", "SUP-3")
def test_a_wrong_certificate_at_the_address_of_an_edge_that_was_trusted_is_tried_again(
    tmp_path: Path, made: Certificates
) -> None:
    """The right one may be back at any time; until then nothing is sent and each attempt says why."""
    other = Certificates(tmp_path / "other").edge()
    with edge(tmp_path, made.edge()) as running:
        host, port = running.address("nodes")
        retries = {"max_attempts": 0, "interval_sec": 0.1}
        file = node_config((host, port), node={"tls": {"ca": made.ca}}, reconnect=retries)
        with node_program(tmp_path, file, env=ENV) as dialling:
            dialling.wait_event("edge_connected")
            running.kill()
            with edge(tmp_path, other, listen=f"{host}:{port}") as wrong:
                for _ in range(2):
                    said = dialling.wait_event("edge_untrusted", reason="edge_untrusted", after=len(dialling.lines))
                    assert "self-signed certificate in certificate chain" in said["detail"]
                assert "node_connected" not in [line.get("event") for line in wrong.lines]
            after = len(dialling.lines)
            with edge(tmp_path, made.edge(), listen=f"{host}:{port}"):
                dialling.wait_event("edge_connected", after=after)


@pytest.mark.req("SEC-1", "SUP-3")
def test_an_expired_certificate_is_tried_again(tmp_path: Path, made: Certificates) -> None:
    """An edge does not start with one, so a bare server shows it."""
    files = made.edge(name="expired", expired=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["cert"], files["key"])

    async def body() -> None:
        async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(closes, "127.0.0.1", 0, ssl=context)
        host, port = server.sockets[0].getsockname()
        file = node_config(
            (host, port), node={"tls": {"ca": made.ca}}, reconnect={"max_attempts": 2, "interval_sec": 0.1}
        )
        with node_program(tmp_path, file, env=ENV) as running:
            code, line = await asyncio.to_thread(last_words, running)
        server.close()
        assert (code, line["reason"]) == (4, "attempts_exhausted")
        assert "certificate has expired; renew it" in line["detail"]

    async_test()(body)()


# ---- client certificates --------------------------------------------------------------------------------------------


@pytest.mark.req("SEC-1", "REG-2")
@pytest.mark.parametrize(
    ("who", "said"),
    [
        ("nobody", "demands a certificate of its nodes"),
        ("n2", "the certificate is that of node n2, and the token is not"),
        ("two", "not clear: it has several URIs"),
    ],
)
def test_a_node_that_is_not_who_its_certificate_says_is_refused(
    who: str, said: str, tmp_path: Path, made: Certificates
) -> None:
    shown: dict[str, dict[str, str]] = {
        "nobody": {},
        "n2": made.node("n2"),
        "two": made.odd(
            uri="spiffe://iop.internal/iop/node/n1",
            more_uris=("spiffe://iop.internal/iop/node/n2",),
            purposes=("client",),
        ),
    }
    with (
        edge(tmp_path, {**made.edge(), "client_ca": made.ca}) as running,
        node(tmp_path, running, {"ca": made.ca, **shown[who]}) as client_of,
    ):
        code, line = last_words(client_of)
        assert (code, line["reason"]) == (3, "identity_mismatch")
        assert said in line["detail"]
        reason = "identity_ambiguous" if who == "two" else "identity_mismatch"
        assert said in running.wait_event("node_rejected", reason=reason)["detail"]


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("who", ["of-another-ca", "an-edges"])
def test_a_certificate_that_does_not_hold_is_a_line_at_both_ends(who: str, tmp_path: Path, made: Certificates) -> None:
    shown = Certificates(tmp_path / "x").node("n1") if who == "of-another-ca" else made.edge(name="as-node")
    with (
        edge(tmp_path, {**made.edge(), "client_ca": made.ca}) as running,
        node(tmp_path, running, {"ca": made.ca, **shown}) as client_of,
    ):
        code, line = last_words(client_of)
        assert code == 4  # the edge may be about to get the right client_ca
        assert "perhaps it does not take this node's certificate" in line["detail"]
        assert running.wait_event("tls_handshake_failed", reason="certificate", listener="nodes")
        assert "node_rejected" not in [line.get("event") for line in running.lines]


@pytest.mark.req("SEC-1", "WIRE-9")
@async_test()
async def test_nothing_is_read_of_a_node_without_the_certificate_that_is_demanded(
    tmp_path: Path, made: Certificates
) -> None:
    """Its frames could be anything: it gets its one answer, and no protocol error is counted."""
    with edge(tmp_path, {**made.edge(), "client_ca": made.ca}) as running:
        link = await RawLink.connect(running.address("nodes"), tls=ssl.create_default_context(cafile=made.ca))
        link.send(b"\xff" * 20_000)
        answer = await link.message()
        assert not answer.accepted  # type: ignore[union-attr]
        assert await link.closed() == b""
        await link.close()
        assert "node_connection_closed" not in [line.get("event") for line in running.lines]


# ---- ends that do not go together -----------------------------------------------------------------------------------


@pytest.mark.req("SEC-1", "SUP-3")
def test_a_plaintext_node_at_a_tls_edge_is_told_so(tmp_path: Path, made: Certificates) -> None:
    with edge(tmp_path, made.edge()) as running, node(tmp_path, running, None) as client_of:
        code, line = last_words(client_of)
        assert (code, line["reason"]) == (3, "protocol_mismatch")
        assert "this edge speaks TLS: set node.tls" in line["detail"]
        assert running.wait_event("tls_handshake_failed", reason="plaintext", listener="nodes")


@pytest.mark.req("SEC-1", "SUP-3", "WIRE-2")
@pytest.mark.parametrize("tls", ["ca", "ca_sha256"])
def test_a_tls_node_at_a_plaintext_edge_says_so_and_tries_again(tls: str, tmp_path: Path, made: Certificates) -> None:
    settings = {"ca": made.ca} if tls == "ca" else {"ca_sha256": made.sha256}
    with edge(tmp_path, None) as running, node(tmp_path, running, settings) as client_of:
        code, line = last_words(client_of)
        assert (code, line["reason"]) == (4, "attempts_exhausted")
        assert "does the edge speak TLS, with transport.tls?" in line["detail"]
        closed = running.wait_event("node_connection_closed", reason="frame_length")
        assert "the peer speaks TLS, and this end does not" in closed["detail"]


@pytest.mark.req("WIRE-9", "WIRE-10")
@async_test()
async def test_connections_that_say_nothing_are_bounded_in_number(tmp_path: Path, made: Certificates) -> None:
    """Handshakes count like connections that have not named a node yet."""
    with edge(tmp_path, made.edge()) as running:
        address = running.address("nodes")
        silent = [socket.create_connection(address) for _ in range(PER_ADDRESS)]
        try:
            late = [socket.create_connection(address) for _ in range(8)]
            silent += late
            loop = asyncio.get_running_loop()
            for sock in late:
                sock.setblocking(False)
                async with asyncio.timeout(5):  # well before the ten seconds that each of the others has
                    assert await loop.sock_recv(sock, 1) == b""
        finally:
            for sock in silent:
                sock.close()


# ---- joining --------------------------------------------------------------------------------------------------------


@contextmanager
def set_up(folder: Path) -> Iterator[tuple[Program, str]]:
    """The edge of `iop-edge init`, and the token that it printed."""
    with Program(command("iop-edge", "init", "x"), cwd=folder) as init:
        assert init.wait() == 0
        lines = [line.split() for line in init.output.splitlines() if line.startswith("  $ ")]
    token = lines[2][-1]
    file = folder / "x/edge.yaml"
    text = file.read_text().replace("127.0.0.1:8080", "127.0.0.1:0").replace("0.0.0.0:7443", "127.0.0.1:0")
    file.write_text(text + "admin: {listen: '127.0.0.1:0'}\n")
    with Program(command("iop-edge", "serve", "-c", str(file), "--log-format", "json")) as running:
        yield running, token


def joining(of: Program, token: str, *arguments: str) -> Program:
    host, port = of.address("nodes")
    line = command("iop-node", "join", f"{host}:{port}", "--log-format", "json", *arguments)
    return Program(line, env={"IOP_NODE_TOKEN": token})


@pytest.mark.req("SEC-4")
@pytest.mark.parametrize("form", ["--token {}", "--token={}", "--tok {}"])
def test_the_token_of_a_pasted_line_is_in_no_process_list(tmp_path: Path, form: str) -> None:
    with set_up(tmp_path) as (running, token):
        line = command("iop-node", "join", "{}:{}".format(*running.address("nodes")), "--log-format", "json")
        with Program([*line, *form.format(token).split()]) as joined:
            joined.wait_event("edge_connected")
            if sys.platform == "linux":
                shown = Path(f"/proc/{joined.pid}/cmdline").read_text()
            else:
                shown = subprocess.check_output(["ps", "-o", "args=", "-p", str(joined.pid)], text=True)
            assert "join" in shown
            assert token not in shown


@pytest.mark.req("SEC-1", "REG-1", "SUP-3")
@async_test()
async def test_join_trusts_the_edge_that_the_token_names_and_no_other(tmp_path: Path) -> None:
    with set_up(tmp_path) as (running, token):
        with joining(running, token) as joined:
            joined.wait_event("edge_connected")
            client = await Client.connect(running.address("http"))
            client.send(post("/v1/chat/completions", chat("echo", text="good day")))
            answer = await client.answer()
            assert answer.json["choices"][0]["message"]["content"] == "echo: good day"
            await client.close()
        with joining(running, token[:-1] + _tampered(token[-1])) as joined:
            code, line = last_words(joined)
            assert (code, line["reason"]) == (3, "edge_untrusted")
            assert "none of the 2 certificates that it shows is the CA which the token names" in line["detail"]
        with joining(running, "t", "--ca", str(tmp_path / "x/ca.pem")) as joined:
            assert last_words(joined) == (3, joined.wait_event("giving_up", reason="unknown_token"))
        with joining(running, "t") as joined:  # in the clear, on this machine
            assert last_words(joined) == (3, joined.wait_event("giving_up", reason="protocol_mismatch"))
        every = running.lines + joined.lines
        assert token.split(".")[1] not in json.dumps(every)


@pytest.mark.req("SEC-1", "SUP-1")
def test_join_waits_for_an_edge_that_is_not_there_yet(tmp_path: Path) -> None:
    with set_up(tmp_path) as (running, token), socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        line = command("iop-node", "join", f"127.0.0.1:{port}", "--log-format", "json")
        with Program(line, env={"IOP_NODE_TOKEN": token}) as joined:
            said = joined.wait_event("edge_unreachable", attempt="1 of unlimited")
            assert "connection refused" in said["detail"]
        assert running.process.poll() is None
