"""Files with certificates and keys to TLS contexts, with every fault of a file said in words (SEC-1, CONF-1).

TLS 1.2 with forward secrecy and AEAD, or 1.3; no compression, no renegotiation. A context is made whole and never
changed afterwards: what is new needs a new one, for the handshakes that begin from then on.
"""

from __future__ import annotations

import functools
import hashlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from iop.tls.certificate import BadCertificate, Certificate, read_pem

__all__ = [
    "CredentialFault",
    "Dialling",
    "Served",
    "authority_of",
    "check_certificate",
    "check_key",
    "dialling",
    "leaf_of",
    "public_servers",
    "served",
    "trusting",
    "unverified",
]

FILE_BYTES = 1 << 20
READINGS = 4
#: For TLS 1.2; those of 1.3 are all of this kind.
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


T = TypeVar("T")


class CredentialFault(ValueError):
    """A file that cannot be used; the text names it and says what to do, and quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a listener shows, and whom it asks for a certificate. Equal if the files' contents are equal.

    ``expires_at``: when the certificate does, seconds since 1970. ``demands_certificates``: a peer without one is to be
    refused. The context itself only verifies those that come: a refusal inside the handshake would reach the peer as a
    bare end of its connection, with nothing that tells why.
    """

    fingerprint: bytes
    expires_at: float
    demands_certificates: bool
    context: ssl.SSLContext = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Dialling:
    """How to dial a server. ``context``: None until the CA is found of which only the hash is known."""

    fingerprint: bytes
    context: ssl.SSLContext | None = field(compare=False, repr=False)


# ---- for a server ---------------------------------------------------------------------------------------------------


def served(cert: Path, key: Path, client_ca: Path | None = None, *, alpn: tuple[str, ...] = ()) -> Served:
    """Raises :class:`CredentialFault`. Blocks on files."""

    def build() -> Served:
        texts = [_read(path) for path in (cert, key, *([client_ca] if client_ca else []))]
        leaf = _current(cert, texts[0])[0]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _strict(context)
        _load_pair(context, cert, key)
        if alpn:
            context.set_alpn_protocols(list(alpn))
        if client_ca is not None:
            _load_authorities(context, client_ca, texts[2])
            context.verify_mode = ssl.CERT_OPTIONAL
            # No resumption: each connection shows its certificate, and one that has expired ends there.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return Served(_digest(texts), leaf.not_after_at, client_ca is not None, context)

    return _settled(build)


def check_certificate(path: Path) -> None:
    """Raises :class:`CredentialFault` unless the file holds certificates of which the first one is valid now."""
    _current(path, _read(path))


def check_key(path: Path) -> None:
    """Raises :class:`CredentialFault` unless the file holds a private key that needs no password."""
    text = _read(path)
    if b"ENCRYPTED" in text:
        raise CredentialFault(
            f"{path} is encrypted, and nobody is there to type its password; decrypt it with openssl pkey"
        )
    if b"PRIVATE KEY-----" not in text:
        raise CredentialFault(f"{path} holds no PEM private key ('-----BEGIN PRIVATE KEY-----')")


def authority_of(cert: Path) -> Certificate | None:
    """The CA at the end of a chain, or None if the file does not have it: those between it and the first certificate
    cannot be trusted by themselves, since a chain is verified to its end. Raises :class:`CredentialFault`."""
    return next((one for one in _chain(cert, _read(cert)) if one.is_ca and one.self_issued), None)


def leaf_of(cert: Path) -> Certificate:
    """The certificate of a chain that says who shows it. Raises :class:`CredentialFault`."""
    return _chain(cert, _read(cert))[0]


# ---- for a client ---------------------------------------------------------------------------------------------------


def dialling(
    ca: Path | None, cert: Path | None = None, key: Path | None = None, *, check_name: bool, known_later: bool = False
) -> Dialling:
    """``ca`` None: the system's CAs. ``check_name``: OpenSSL compares the name; else the caller does (``edge_fault``).
    ``known_later``: only the hash of the CA is known yet, and the context is :func:`trusting`'s to make. Raises
    :class:`CredentialFault`. Blocks on files."""

    def build() -> Dialling:
        texts = [_read(path) for path in (ca, cert, key) if path is not None]
        context = _client(check_name)
        if ca is not None:
            _load_authorities(context, ca, texts[0])
        elif not known_later:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if cert is not None and key is not None:
            _current(cert, _read(cert))
            _load_pair(context, cert, key)
        return Dialling(_digest(texts), None if known_later else context)

    return _settled(build)


def trusting(authority: Certificate, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """A client's context that trusts this CA and nobody else. Raises :class:`CredentialFault`."""
    context = _client(check_name=False)
    context.load_verify_locations(cadata=authority.der)
    if cert is not None and key is not None:
        _load_pair(context, cert, key)
    return context


def unverified() -> ssl.SSLContext:
    """For a look at what a server shows, and nothing else: no secret may go over it."""
    context = _client(check_name=False)
    context.verify_mode = ssl.CERT_NONE
    return context


@functools.cache
def public_servers() -> ssl.SSLContext:
    """For servers by their public name, with the system's CAs (or those that SSL_CERT_FILE names). One for all, since
    it takes 20 ms and a megabyte to make."""
    context = _client(check_name=True)
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


# ---- what they share ------------------------------------------------------------------------------------------------


def _client(check_name: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_name
    _strict(context)
    return context


def _strict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION


def _load_pair(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    check_key(key)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        reason = error.reason or "no reason given"
        if reason == "KEY_VALUES_MISMATCH":
            raise CredentialFault(f"{key} is not the key of the certificate in {cert}") from None
        raise CredentialFault(f"OpenSSL does not take {cert} with {key}: {_words(reason)}") from None
    except (OSError, ValueError) as error:
        raise CredentialFault(f"cannot use {cert} with {key}: {_said(error)}") from None


def _load_authorities(context: ssl.SSLContext, path: Path, text: bytes) -> None:
    authorities = [one for one in _current(path, text) if one.is_ca]
    if not authorities:
        raise CredentialFault(f"{path} holds no certificate of a CA")
    if not any(one.self_issued for one in authorities):
        raise CredentialFault(f"{path} holds only CAs that another one has signed; add that one, up to the last")
    try:
        context.load_verify_locations(cadata=text.decode("ascii", "ignore"))
    except ssl.SSLError as error:
        raise CredentialFault(f"OpenSSL does not take {path}: {_words(error.reason or 'no reason given')}") from None


def _no_password() -> bytes:
    # Reached only if a key is encrypted in a way that its text does not show.
    raise ValueError("it needs a password")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            text = stream.read(FILE_BYTES + 1)
    except OSError as error:
        raise CredentialFault(f"cannot read {path}: {_said(error)}") from None
    if len(text) > FILE_BYTES:
        raise CredentialFault(f"{path} is larger than {FILE_BYTES >> 20} MiB, which no certificate or key is")
    return text


def _chain(path: Path, text: bytes) -> list[Certificate]:
    try:
        return read_pem(text)
    except BadCertificate as error:
        hint = "; it is a key" if b"PRIVATE KEY-----" in text and b"CERTIFICATE-----" not in text else ""
        raise CredentialFault(f"{path}: {error}{hint}") from None


def _current(path: Path, text: bytes) -> list[Certificate]:
    chain, now = _chain(path, text), time.time()
    if chain[0].not_after_at < now:
        raise CredentialFault(f"{path} has expired on {_date(chain[0].not_after_at)}; put a new certificate there")
    if chain[0].not_before_at > now:
        raise CredentialFault(
            f"{path} is not valid before {_date(chain[0].not_before_at)}; is this machine's clock right?"
        )
    return chain


def _settled(build: Callable[[], T]) -> T:
    """Builds until the files are the same before and after: OpenSSL opens them by itself, perhaps while someone puts
    new ones in place one by one."""
    fault: CredentialFault | None = None
    last: T | None = None
    for _ in range(READINGS):
        try:
            found = build()
        except CredentialFault as error:
            if fault is not None and str(fault) == str(error):
                raise
            fault, last = error, None
            continue
        if found == last:
            return found
        fault, last = None, found
    raise fault or CredentialFault("the certificate's files change while they are read; try again")


def _digest(texts: list[bytes]) -> bytes:
    return hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts)).digest()


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()


def _said(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
