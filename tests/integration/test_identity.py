"""Whom a node's certificate stands for, on a real node port that asks for one (SEC-1, ADVERSARIAL A1 to A8)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from iop.pool import Ticket
from iop.tls import contexts
from iop.wire import messages as m
from tests.support.aio import async_test, until
from tests.support.certificates import Certificates, leaf_of
from tests.support.nodeport import GROUP, TOKEN, NodePort
from tests.support.rawlink import RawLink
from tests.unit.tls.test_certificate import ODD_URIS

URI = "spiffe://iop.internal/iop/node/n1"


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def port_of(made: Certificates) -> NodePort:
    files = made.edge()
    return NodePort(tls=contexts.served(Path(files["cert"]), Path(files["key"]), Path(made.ca)))


def showing(made: Certificates, files: dict[str, str], version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=made.ca)
    if version is not None:
        context.maximum_version = version
    context.load_cert_chain(files["cert"], files["key"])
    return context


async def refused(port: NodePort, context: ssl.SSLContext) -> m.RegisterResponse | None:
    """The refusal that comes before anything was sent; None if the handshake itself did not succeed."""
    try:
        link = await RawLink.connect(port.address, tls=context)
    except (ssl.SSLError, OSError):
        return None
    try:
        answer = await link.message()
    except (ssl.SSLError, OSError, asyncio.IncompleteReadError):
        return None
    finally:
        await link.close()
    assert isinstance(answer, m.RegisterResponse)
    return answer


@pytest.mark.req("SEC-1", "REG-2")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"uri": URI, "more_uris": ("spiffe://iop.internal/iop/node/n2",)}, "identity_ambiguous"),  # A1
        ({"uri": URI, "more_uris": (URI,)}, "identity_ambiguous"),
        ({"uri": URI, "more_uris": ("https://example.org/",)}, "identity_ambiguous"),
        ({"uri": URI, "purposes": ()}, "identity_mismatch"),  # A3
        ({"uri": URI, "purposes": ("server",)}, "identity_mismatch"),
        ({"uri": URI, "is_ca": True}, "identity_mismatch"),
        ({"uri": URI, "signs": True}, "identity_mismatch"),
        ({"uri": "spiffe://iop.internal/iop/edge/n1"}, "identity_mismatch"),
        *(({"uri": uri}, "identity_ambiguous") for uri in ODD_URIS),  # A4
    ],
    ids=str,
)
@async_test()
async def test_a1_a3_a4_a_certificate_that_is_not_clearly_a_node_s_is_refused_before_anything_is_read(
    options: dict[str, Any], reason: str, made: Certificates
) -> None:
    files = made.odd(**{"purposes": ("client",), **options})
    async with port_of(made) as port:
        answer = await refused(port, showing(made, files))
        if answer is None:
            assert options.get("purposes") == ("server",), "OpenSSL itself looks at this"
            return
        assert (answer.accepted, answer.reason) == (False, m.RejectReason.IDENTITY_MISMATCH)
        assert port.rejections() == {reason: 1}


@pytest.mark.req("SEC-1", "REG-2")
@async_test()
async def test_a5_a_certificate_of_one_node_does_not_register_another(made: Certificates) -> None:
    async with port_of(made) as port:
        owner = await RawLink.connect(port.address, tls=showing(made, made.node("n2")))
        await owner.ready("token-n2")
        other = await RawLink.connect(port.address, tls=showing(made, made.node("n1")))
        answer = await other.register("token-n2")
        assert (answer.accepted, answer.reason) == (False, m.RejectReason.IDENTITY_MISMATCH)
        assert await other.closed() == b""
        assert port.connected()["n2"]
        for link in (owner, other):
            await link.close()


@pytest.mark.req("SEC-1", "REG-5")
@async_test()
async def test_a8_a_connection_ends_with_its_certificate_and_returns_its_leases_once(made: Certificates) -> None:
    files = made.node("n1")
    expires_at = leaf_of(files["cert"]).not_after_at
    async with port_of(made) as port:
        wall = expires_at - 1
        port.server.wall = lambda: wall
        link = await RawLink.connect(port.address, tls=showing(made, files))
        await link.ready(TOKEN)
        (owner,) = port.server.owners.values()
        lease = port.pool.submit(Ticket("r", "p", GROUP, 1, object()), port.now)
        assert lease is not None
        owner.tick(port.now)
        assert port.connected()["n1"], "not before its time"
        wall = expires_at
        goodbye = await link.message()
        assert (type(goodbye), goodbye.code) == (m.Goodbye, "identity_expired")  # type: ignore[union-attr]
        assert await link.closed() == b""
        await until(lambda: not port.server.owners)
        assert port.provider("n1")["in_use"] == 0
        assert {labels[0]: int(n) for labels, n in port.metrics.node_sessions.read()} == {"identity_expired": 1}
        await link.close()


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@async_test()
async def test_a_session_is_not_resumed_where_certificates_are_asked_for(
    version: ssl.TLSVersion, made: Certificates
) -> None:
    """A resumed session shows no certificate, so one that has expired would go on for as long as sessions last."""
    context = showing(made, made.node("n1"), version)

    def connect(address: tuple[str, int], session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool, bytes]:
        with (
            socket.create_connection(address, timeout=10) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1", session=session) as sock,
        ):
            found, reused = sock.session, bool(sock.session_reused)
            said = sock.recv(1000) if reused else b""
            if not reused:
                sock.unwrap()  # in order: a session that broke off is not resumed
            return found, reused, said

    async with port_of(made) as port:
        session, _, _ = await asyncio.to_thread(connect, port.address, None)
        assert port.rejections() == {}
        _, reused, said = await asyncio.to_thread(connect, port.address, session)
        assert reused is (version is ssl.TLSVersion.TLSv1_2), "1.2 resumes by the session's id"
        assert (b"resumed" in said) is reused
        assert port.rejections() == ({"identity_mismatch": 1} if reused else {})
