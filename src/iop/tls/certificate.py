"""What a certificate says: its time, its names, its purposes and who it stands for (SEC-1).

A small reader of DER (X.690) for the fields of RFC 5280 that the ssl module does not tell: purposes and URIs. It judges
nothing about signatures. OpenSSL has verified a peer's certificate before it is read here, and a file's own is shown to
others who verify it. All input is hostile: whatever is odd is a :class:`BadCertificate`, and nothing else.
"""

from __future__ import annotations

import binascii
import hashlib
import ipaddress
import re
from dataclasses import dataclass
from datetime import UTC, datetime

__all__ = ["CLIENT_AUTH", "BadCertificate", "Certificate", "Identity", "edge_fault", "read_pem"]

CERTIFICATE_BYTES = 256 * 1024
CHAIN_LENGTH = 32

SERVER_AUTH, CLIENT_AUTH = "1.3.6.1.5.5.7.3.1", "1.3.6.1.5.5.7.3.2"

_SEQUENCE, _BOOLEAN, _OID, _OCTETS, _UTC, _GENERALIZED = 0x30, 0x01, 0x06, 0x04, 0x17, 0x18
_BITS = 0x03
_VERSION, _EXTENSIONS, _DNS, _URI, _IP = 0xA0, 0xA3, 0x82, 0x86, 0x87
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]*)-----END CERTIFICATE-----")
_IDENTITY = re.compile(r"spiffe://([a-z0-9._-]{1,255})/iop/(edge|node)/([A-Za-z0-9][A-Za-z0-9._-]{0,63})")


class BadCertificate(ValueError):
    """These bytes are no certificate that could be used here; the text says what is odd and quotes nothing."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a certificate stands for: the URI ``spiffe://<trust_domain>/iop/<kind>/<id>``, kind ``edge`` or ``node``."""

    trust_domain: str
    kind: str
    id: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """One certificate. Instants are seconds since 1970; ``purposes`` None: any, since none are named. ``signs``: its
    key may sign certificates or lists of revoked ones, whatever ``is_ca`` says. ``self_issued``: subject and issuer are
    the same, as in the CA where every chain has to end."""

    der: bytes
    serial: int
    self_issued: bool
    not_before_at: float
    not_after_at: float
    is_ca: bool
    dns_names: tuple[str, ...]
    addresses: tuple[str, ...]
    uris: tuple[str, ...]
    purposes: frozenset[str] | None
    signs: bool = False

    @classmethod
    def parse(cls, der: bytes) -> Certificate:
        """Raises :class:`BadCertificate`."""
        if len(der) > CERTIFICATE_BYTES:
            raise BadCertificate("a certificate of more than 256 KiB")
        outer = _Reader(der, 0, len(der)).enter(_SEQUENCE)
        fields = outer.enter(_SEQUENCE)
        if fields.peek() == _VERSION:
            fields.next()
        serial = int.from_bytes(fields.take(0x02), "big", signed=True)
        fields.next()  # signature algorithm
        issuer = fields.take(_SEQUENCE)
        validity = fields.enter(_SEQUENCE)
        not_before_at, not_after_at = validity.time(), validity.time()
        subject = fields.take(_SEQUENCE)
        fields.next()  # public key
        found: dict[str, bytes] = {}
        while not fields.at_end:
            if fields.peek() != _EXTENSIONS:
                fields.next()
                continue
            extensions = fields.enter(_EXTENSIONS).enter(_SEQUENCE)
            while not extensions.at_end:
                one = extensions.enter(_SEQUENCE)
                name = one.oid()
                if one.peek() == _BOOLEAN:
                    one.next()
                if name in found:
                    raise BadCertificate("the same extension twice")
                found[name] = one.take(_OCTETS)
        names = _names(found.get("2.5.29.17"))
        return cls(
            der,
            serial,
            issuer == subject,
            not_before_at,
            not_after_at,
            _is_ca(found.get("2.5.29.19")),
            *names,
            _purposes(found.get("2.5.29.37")),
            _signs(found.get("2.5.29.15")),
        )

    @property
    def sha256(self) -> str:
        """Of the DER form, in hex: what a join token carries of the edge's CA."""
        return hashlib.sha256(self.der).hexdigest()

    def identity(self, *, strict: bool = True) -> Identity | None:
        """Whom it stands for, or None if for nobody of ours. Raises :class:`BadCertificate` if it has a URI of ours
        and another one beside it, and, if ``strict``, for any other ``spiffe:`` URI: then it is not clear for whom.
        The form is compared byte for byte, and nothing is normalised into it."""
        found = [match for uri in self.uris if (match := _IDENTITY.fullmatch(uri))]
        if not found:
            if strict and any("spiffe" in uri.lower() for uri in self.uris):
                raise BadCertificate("its URI is not of the form spiffe://TRUST-DOMAIN/iop/node/ID, byte for byte")
            return None
        if len(self.uris) > 1:
            raise BadCertificate("it has several URIs, of which one names an edge or node; only one may be there")
        return Identity(*found[0].groups())

    def serves(self, purpose: str) -> bool:
        """Whether it names this purpose. One that names none does not."""
        return self.purposes is not None and purpose in self.purposes

    def names(self, host: str) -> bool:
        """Whether it is a certificate for ``host``, a DNS name or an address (RFC 9525): a wildcard stands for one
        whole left-most label, and the subject's common name does not count."""
        try:
            return str(ipaddress.ip_address(host.partition("%")[0])) in self.addresses
        except ValueError:
            pass
        wanted = host.lower().rstrip(".")
        first, _, rest = wanted.partition(".")
        for pattern in self.dns_names:
            name = pattern.lower().rstrip(".")
            if name == wanted or (name.startswith("*.") and first and "." in rest and name[2:] == rest):
                return True
        return False


def read_pem(text: bytes) -> list[Certificate]:
    """The certificates in a PEM file, in its order. Raises :class:`BadCertificate` if there is none, or one is odd."""
    found: list[Certificate] = []
    for match in _PEM.finditer(text):
        if len(found) == CHAIN_LENGTH:
            raise BadCertificate(f"more than {CHAIN_LENGTH} certificates")
        try:
            der = binascii.a2b_base64(match[1])
        except ValueError:
            raise BadCertificate("a certificate in it is not base64") from None
        found.append(Certificate.parse(der))
    if not found:
        raise BadCertificate("no PEM certificate in it ('-----BEGIN CERTIFICATE-----')")
    return found


def edge_fault(certificate: Certificate, host: str, *, by_identity: bool) -> str | None:
    """What speaks against an edge that shows this certificate, whose chain was verified, at ``host``; None if nothing
    does. ``by_identity``: the CA is one that serves this edge alone, so that a certificate which says that it is an
    edge's needs no name: nodes dial by addresses that change."""
    if certificate.is_ca or certificate.signs:
        return "the edge shows a certificate of a CA, or one that may sign others, not one of its own"
    if not certificate.serves(SERVER_AUTH):
        return "the edge's certificate is not one for servers (extended key usage serverAuth)"
    try:
        identity = certificate.identity(strict=by_identity)
    except BadCertificate as error:
        return f"the edge's certificate is not clear: {error}"
    if identity is not None and identity.kind != "edge":
        return f"the certificate at this address is that of {identity.kind} {identity.id}, not of an edge"
    if (by_identity and identity is not None) or certificate.names(host):
        return None
    known = ", ".join([*certificate.dns_names, *certificate.addresses][:8])
    return f"the edge's certificate is not for {host!r}, but for: {known or 'no name at all'}"


# ---- DER ------------------------------------------------------------------------------------------------------------


class _Reader:
    """Elements of one level, one after the other; every length is checked against the level's end."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self._at = at
        self._end = end

    @property
    def at_end(self) -> bool:
        return self._at >= self._end

    def peek(self) -> int:
        """The tag of the next element, -1 at the end."""
        return self._data[self._at] if self._at < self._end else -1

    def next(self) -> tuple[int, int, int]:
        """Tag, start and end of the next element's value."""
        data, at, end = self._data, self._at, self._end
        if end - at < 2:
            raise BadCertificate("it ends in the middle")
        tag, length = data[at], data[at + 1]
        at += 2
        if tag & 0x1F == 0x1F:
            raise BadCertificate("an element that certificates do not have")
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4 or end - at < count:
                raise BadCertificate("a length that is not DER")
            length = int.from_bytes(data[at : at + count], "big")
            at += count
        if length > end - at:
            raise BadCertificate("it ends in the middle")
        self._at = at + length
        return tag, at, at + length

    def enter(self, tag: int) -> _Reader:
        """The elements inside the next one, which has to be a ``tag``."""
        found, start, end = self.next()
        if found != tag:
            raise BadCertificate("not built as a certificate")
        return _Reader(self._data, start, end)

    def take(self, tag: int) -> bytes:
        """The value of the next element, which has to be a ``tag``."""
        inner = self.enter(tag)
        return inner._data[inner._at : inner._end]

    def oid(self) -> str:
        """An object identifier with dots."""
        value = self.take(_OID)
        if not value or len(value) > 64:
            raise BadCertificate("an odd object identifier")
        arcs: list[int] = []
        arc = 0
        for byte in value:
            arc = arc << 7 | byte & 0x7F
            if arc > 1 << 128:
                raise BadCertificate("an odd object identifier")
            if not byte & 0x80:
                arcs.append(arc)
                arc = 0
        if value[-1] & 0x80:
            raise BadCertificate("an odd object identifier")
        first = min(arcs[0] // 40, 2)
        return ".".join(map(str, [first, arcs[0] - 40 * first, *arcs[1:]]))

    def time(self) -> float:
        """UTCTime or GeneralizedTime as RFC 5280 allows them: whole seconds, Z."""
        tag, start, end = self.next()
        text = self._data[start:end]
        if tag == _UTC and re.fullmatch(rb"[0-9]{12}Z", text):
            text = (b"20" if text[:2] < b"50" else b"19") + text
        elif tag != _GENERALIZED or not re.fullmatch(rb"[0-9]{14}Z", text):
            raise BadCertificate("an odd date")
        try:
            return datetime.strptime(text.decode("ascii"), "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
        except (ValueError, OverflowError):
            raise BadCertificate("a date that does not exist") from None


def _whole(value: bytes) -> _Reader:
    return _Reader(value, 0, len(value)).enter(_SEQUENCE)


def _names(value: bytes | None) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """DNS names, addresses and URIs of a subject alternative name."""
    dns: list[str] = []
    addresses: list[str] = []
    uris: list[str] = []
    if value is not None:
        reader = _whole(value)
        while not reader.at_end:
            tag, start, end = reader.next()
            text = value[start:end]
            if tag in (_DNS, _URI):
                if not text.isascii() or not text.decode("ascii").isprintable():
                    raise BadCertificate("a name that is not plain text")
                (dns if tag == _DNS else uris).append(text.decode("ascii"))
            elif tag == _IP:
                if len(text) not in (4, 16):
                    raise BadCertificate("an odd address")
                addresses.append(str(ipaddress.ip_address(text)))
    return tuple(dns), tuple(addresses), tuple(uris)


def _is_ca(value: bytes | None) -> bool:
    if value is None:
        return False
    reader = _whole(value)
    return reader.peek() == _BOOLEAN and reader.take(_BOOLEAN) not in (b"", b"\0")


def _signs(value: bytes | None) -> bool:
    """keyCertSign (bit 5) or cRLSign (bit 6) of a key usage."""
    if value is None:
        return False
    bits = _Reader(value, 0, len(value)).take(_BITS)
    return len(bits) > 1 and bool(bits[1] & 0x06)


def _purposes(value: bytes | None) -> frozenset[str] | None:
    if value is None:
        return None
    reader = _whole(value)
    found = set()
    while not reader.at_end:
        found.add(reader.oid())
    return frozenset(found)
