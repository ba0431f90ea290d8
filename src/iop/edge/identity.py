"""Whom a node's certificate stands for, and what the edge says to a node that speaks no TLS (SEC-1, REG-2)."""

from __future__ import annotations

import asyncio

from iop import __version__
from iop.credentials.certificate import BadCertificate, Certificate
from iop.credentials.contexts import Served
from iop.net.tls import certificate_of
from iop.wire import codec, limits
from iop.wire import messages as m

__all__ = ["certified_node", "speaks_tls"]


def certified_node(transport: asyncio.BaseTransport | None, served: Served | None) -> tuple[str, str]:
    """The node that the peer's certificate names ("": it names none), and what is wrong with it ("": nothing).

    OpenSSL has verified a certificate that is there; that there has to be one is seen to here.
    """
    if transport is None or served is None or not served.demands_certificates:
        return "", ""
    der = certificate_of(transport)
    if der is None:
        return "", "this edge demands a certificate of its nodes: set node.tls.cert and node.tls.key"
    try:
        certificate = Certificate.parse(der)
        identity = certificate.identity()
    except BadCertificate as error:
        return "", f"the node's certificate is not clear: {error}"
    if certificate.is_ca:
        return "", "the node shows the certificate of a CA, not one of its own"
    if identity is None:
        return "", ""
    if identity.kind != "node":
        return "", f"the node shows the certificate of {identity.kind} {identity.id}"
    return identity.id, ""


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
