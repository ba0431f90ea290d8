"""How this node knows its edge (SEC-1): what it dials with, and what it looks at before it says anything.

Nothing of a token leaves before the edge has shown a certificate that holds. With a CA of which only the hash is known,
as a join token has it, the first connection is a look alone: the edge sends its CA in its chain, the hash tells whether
that is the one, and from then on nobody else is trusted. A fault here is one of identity: it is not tried again, but
for a certificate outside its time, which a renewal or a clock sets right.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from iop.net.tls import certificate_of, chain_shown
from iop.node.uplink.reconnect import Ended
from iop.tls import contexts
from iop.tls.certificate import BadCertificate, Certificate, edge_fault
from iop.tls.contexts import CredentialFault, Dialling

__all__ = ["Distrusted", "Trust"]

#: OpenSSL's verify codes for a certificate that is expired or not valid yet.
OUT_OF_TIME = frozenset({9, 10})
LOOK_END_S = 2.0


class Distrusted(Exception):
    """The edge is not who it has to be, or does not speak as it has to; the text says what to do."""

    def __init__(self, ended: Ended, text: str) -> None:
        super().__init__(text)
        self.ended = ended


class Trust:
    """``dialling`` None: without TLS. ``name``: what the edge's certificate has to name; ``by_identity``: an edge's own
    URI does as well. ``ca_sha256``: the CA to find; ``cert`` and ``key`` are this node's own, for when it is found."""

    def __init__(
        self,
        dialling: Dialling | None = None,
        *,
        name: str = "",
        by_identity: bool = False,
        ca_sha256: str | None = None,
        cert: Path | None = None,
        key: Path | None = None,
    ) -> None:
        self._dialling = dialling
        self._name = name
        self._by_identity = by_identity
        self._ca_sha256 = ca_sha256
        self._cert = cert
        self._key = key
        self._context = dialling.context if dialling is not None else None

    @property
    def speaks_tls(self) -> bool:
        return self._dialling is not None

    async def connect(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol, host: str, port: int) -> None:
        """Connects ``protocol``; the caller bounds the time. Raises OSError and :class:`Distrusted`."""
        if self._dialling is None:
            await loop.create_connection(lambda: protocol, host, port)
            return
        try:
            if self._context is None:
                self._context = await self._find(loop, host, port)
            await loop.create_connection(
                lambda: protocol, host, port, ssl=self._context, server_hostname=self._name or host
            )
        except ssl.SSLCertVerificationError as exc:
            raise _unverified(exc) from None
        except ssl.SSLError as exc:
            said = (exc.reason or "unknown").replace("_", " ").lower()
            text = f"no TLS with what answers there ({said}); does the edge speak TLS, with transport.tls?"
            raise Distrusted(Ended.CONNECT_FAILED, text) from None
        except (ConnectionResetError, ConnectionAbortedError):
            text = "it closed the connection in the TLS handshake; does the edge speak TLS, with transport.tls?"
            raise Distrusted(Ended.CONNECT_FAILED, text) from None

    def fault(self, transport: asyncio.BaseTransport | None) -> str:
        """What speaks against the edge at the other end, whose chain was verified; "" if nothing does. To be asked
        before anything is sent."""
        if self._dialling is None:
            return ""
        der = certificate_of(transport) if transport is not None else None
        if der is None:
            return "the edge shows no certificate"
        try:
            found = edge_fault(Certificate.parse(der), self._name, by_identity=self._by_identity)
        except BadCertificate as error:
            return f"the edge's certificate is odd: {error}"
        return found or ""

    def silence(self) -> str:
        """What it may mean that the edge ended a connection before it said anything."""
        if self._dialling is None:
            return ""
        return "; it said nothing: perhaps it does not take this node's certificate, and its log says so"

    async def _find(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> ssl.SSLContext:
        """Looks which chain is shown, sends nothing, and takes the one CA in it that has the hash."""
        look = _Look(loop)
        transport, _ = await loop.create_connection(
            lambda: look,
            host,
            port,
            ssl=contexts.unverified(),
            server_hostname=self._name or host,
            ssl_shutdown_timeout=LOOK_END_S,
        )
        chain = chain_shown(transport)
        transport.close()  # in order: a handshake that breaks off is a line in the edge's log
        await look.gone
        for der in chain:
            try:
                one = Certificate.parse(der)
            except BadCertificate:
                continue
            if one.is_ca and one.sha256 == self._ca_sha256:
                try:
                    return contexts.trusting(one, self._cert, self._key)
                except (CredentialFault, ssl.SSLError) as error:
                    raise Distrusted(Ended.BAD_CONFIG, str(error)) from None
        raise Distrusted(
            Ended.EDGE_UNTRUSTED,
            f"what answers at {host}:{port} is not the edge that the token is for: none of the "
            f"{len(chain)} certificates that it shows is the CA which the token names. The token was not sent",
        )


def _unverified(exc: ssl.SSLCertVerificationError) -> Distrusted:
    said = exc.verify_message or "no reason given"
    if exc.verify_code in OUT_OF_TIME:
        text = f"the edge's certificate: {said}; renew it, or set this machine's clock"
        return Distrusted(Ended.EDGE_CERTIFICATE_OUT_OF_TIME, text)
    text = f"the edge's certificate does not hold: {said}; is this the right edge, and node.tls.ca its CA?"
    return Distrusted(Ended.EDGE_UNTRUSTED, text)


class _Look(asyncio.Protocol):
    """Says nothing; ``gone`` is resolved when the connection has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.gone: asyncio.Future[None] = loop.create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
