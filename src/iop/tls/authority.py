"""A CA for one edge and its nodes, and the certificates that it gives them (SEC-1).

The only module that needs the cryptography package, which is imported when a certificate is made: by ``iop-edge init``
and ``iop-edge certify``. A running edge or node never does.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes

__all__ = ["TRUST_DOMAIN", "Authority", "Issued", "identity_uri"]

TRUST_DOMAIN = "iop.internal"
CA_DAYS = 3652
LEAF_DAYS = 825
SKEW = timedelta(hours=1)  # clocks of other machines may be behind


def identity_uri(kind: str, name: str) -> str:
    """The URI that says for whom a certificate stands; ``kind`` is ``edge`` or ``node``."""
    return f"spiffe://{TRUST_DOMAIN}/iop/{kind}/{name}"


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, both PEM. ``key_pem`` is secret and not encrypted."""

    certificate_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        return "Issued(...)"


class Authority:
    """A CA whose key is at hand. ``valid_from`` and the days of a certificate are there for tests."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key
        self.issued = _issued(certificate, key)

    @classmethod
    def create(cls, *, days: float = CA_DAYS, valid_from: datetime | None = None) -> Authority:
        """A new one, with a key on P-256."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        key = ec.generate_private_key(ec.SECP256R1())
        serial = x509.random_serial_number()
        # A name of its own: a chain is never built with another edge's CA.
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"IOP CA {serial & 0xFFFFFFFF:08x}")])
        builder = (
            _builder(key, days, valid_from, serial)
            .subject_name(name)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, certificate_pem: bytes, key_pem: bytes) -> Authority:
        """One that was made before. Raises ValueError, which quotes nothing of the key."""
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            certificate = x509.load_pem_x509_certificate(certificate_pem)
            key = serialization.load_pem_private_key(key_pem, None)
        except (ValueError, TypeError):
            raise ValueError("not a certificate and a key without a password, both PEM") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ValueError("the key is not that of the CA's certificate")
        return cls(certificate, key)

    @property
    def certificate_pem(self) -> bytes:
        return self.issued.certificate_pem

    @property
    def sha256(self) -> str:
        """Of the certificate in DER, in hex."""
        from cryptography.hazmat.primitives import hashes

        return self._certificate.fingerprint(hashes.SHA256()).hex()

    def edge(
        self,
        edge_id: str,
        hosts: Sequence[str],
        *,
        key_pem: bytes | None = None,
        days: float = LEAF_DAYS,
        valid_from: datetime | None = None,
    ) -> Issued:
        """A certificate with which an edge serves as any of ``hosts`` (names and addresses). The CA's own is behind it
        in the same file, since a node that joins is to see it. With ``key_pem`` it is for that key, without for a new
        one; raises ValueError, which quotes nothing of it, for one that cannot be used."""
        leaf = self._leaf(("edge", edge_id), list(dict.fromkeys(hosts)), key_pem, days, valid_from)
        return Issued(leaf.certificate_pem + self.certificate_pem, leaf.key_pem)

    def node(
        self,
        node_id: str,
        *,
        key_pem: bytes | None = None,
        days: float = LEAF_DAYS,
        valid_from: datetime | None = None,
    ) -> Issued:
        """A certificate with which a node shows who it is; the rest as for an edge."""
        return self._leaf(("node", node_id), [], key_pem, days, valid_from)

    def _leaf(
        self,
        whom: tuple[str, str],
        hosts: Sequence[str],
        key_pem: bytes | None,
        days: float,
        valid_from: datetime | None,
    ) -> Issued:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

        kind, name = whom
        key = ec.generate_private_key(ec.SECP256R1()) if key_pem is None else _read_key(key_pem)
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if kind == "edge" else ExtendedKeyUsageOID.CLIENT_AUTH
        names = [*map(_general_name, hosts), x509.UniformResourceIdentifier(identity_uri(kind, name))]
        builder = (
            _builder(key, days, valid_from, x509.random_serial_number())
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"IOP {kind} {name}"[:64])]))
            .issuer_name(self._certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return _issued(builder.sign(self._key, hashes.SHA256()), key)


def _read_key(pem: bytes) -> CertificateIssuerPrivateKeyTypes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("not a key without a password, in PEM") from None
    if not isinstance(
        key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey
    ):
        raise ValueError("not a key for signatures")
    return key


def _builder(
    key: CertificateIssuerPrivateKeyTypes, days: float, valid_from: datetime | None, serial: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    start = (valid_from or datetime.now(UTC) - SKEW).replace(microsecond=0)
    return (
        x509.CertificateBuilder()
        .serial_number(serial)
        .public_key(key.public_key())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _issued(certificate: x509.Certificate, key: CertificateIssuerPrivateKeyTypes) -> Issued:
    from cryptography.hazmat.primitives import serialization

    return Issued(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
