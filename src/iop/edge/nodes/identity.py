"""Whom a node's certificate stands for, and what the edge says to a node that speaks no TLS (SEC-1, REG-2)."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from iop import __version__
from iop.net.tls import certificate_of
from iop.tls.certificate import CLIENT_AUTH, BadCertificate, Certificate
from iop.tls.contexts import Served
from iop.wire import codec, limits
from iop.wire import messages as m

__all__ = ["Certified", "certified_node", "speaks_tls"]


class Certified(NamedTuple):
    """What a peer's certificate says: the node that it names ("": none), when it ends (seconds since 1970; None: there
    is no certificate to look at), and what is wrong with it ("": nothing)."""

    node: str = ""
    expires_at: float | None = None
    fault: str = ""
    ambiguous: bool = False  # it does not say clearly whom it stands for


def certified_node(transport: asyncio.BaseTransport | None, served: Served | None) -> Certified:
    """Whom the peer's certificate names. OpenSSL has verified a certificate that is there; that there has to be one,
    and what the chain says nothing about, is seen to here."""
    if transport is None or served is None or not served.demands_certificates:
        return Certified()
    shown = transport.get_extra_info("ssl_object")
    if shown is not None and shown.session_reused:
        # TLS 1.2 resumes by its session's id, which no option turns off: nothing has looked at the certificate again.
        return Certified(fault="the TLS session was resumed: connect anew, and show the certificate")
    der = certificate_of(transport)
    if der is None:
        return Certified(fault="this edge demands a certificate of its nodes: set node.tls.cert and node.tls.key")
    try:
        certificate = Certificate.parse(der)
        identity = certificate.identity()
    except BadCertificate as error:
        return Certified(fault=f"the node's certificate is not clear: {error}", ambiguous=True)
    if certificate.is_ca or certificate.signs:
        return Certified(fault="the node shows the certificate of a CA, or one that may sign others")
    if not certificate.serves(CLIENT_AUTH):
        return Certified(fault="the node's certificate is not one for clients (extended key usage clientAuth)")
    if identity is None:
        return Certified(expires_at=certificate.not_after_at)
    if identity.kind != "node":
        return Certified(fault=f"the node shows the certificate of {identity.kind} {identity.id}")
    return Certified(identity.id, certificate.not_after_at)


def speaks_tls() -> bytes:
    """The answer to a node that dials without TLS: a refusal in the protocol's own words. Nothing of it was read."""
    return codec.encode(
        m.RegisterResponse(
            False,
            m.RejectReason.PROTOCOL_MISMATCH,
            "this edge speaks TLS: set node.tls, or join with a join token (iop-edge token)",
            edge_version=__version__,
            protocol_version=limits.PROTOCOL_VERSION,
        )
    )
