"""Certificates for tests: a CA, what it issues, and the files of it.

made = Certificates(tmp_path)
made.edge()                     # edge.pem, edge-key.pem: {"cert": ..., "key": ...}
made.node("n1")
made.ca                         # ca.pem
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from iop.tls.authority import Authority, Issued
from iop.tls.certificate import Certificate, read_pem

HOSTS = ("localhost", "127.0.0.1", "::1")


class Certificates:
    """A CA of its own in ``folder``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.authority = Authority.create()
        self.ca = str(self._write("ca.pem", self.authority.certificate_pem))

    @property
    def sha256(self) -> str:
        return self.authority.sha256

    def edge(
        self, edge_id: str = "edge-1", hosts: tuple[str, ...] = HOSTS, *, name: str = "edge", expired: bool = False
    ) -> dict[str, str]:
        """The ``cert`` and ``key`` of a tls section; written anew with each call."""
        start = datetime.now(UTC) - timedelta(days=10) if expired else None
        return self.put(name, self.authority.edge(edge_id, hosts, days=5 if expired else 90, valid_from=start))

    def node(self, node_id: str, *, name: str | None = None) -> dict[str, str]:
        return self.put(name or node_id, self.authority.node(node_id))

    def odd(
        self,
        *,
        uri: str | None = "spiffe://iop.internal/iop/edge/edge-1",
        more_uris: Sequence[str] = (),
        hosts: Sequence[str] = (),
        purposes: Sequence[str] = ("server",),
        is_ca: bool = False,
        signs: bool = False,
        seconds: float = 86_400,
    ) -> dict[str, str]:
        """One that the CA would not issue by itself, from a certificate of it and a fresh key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
        names += [x509.UniformResourceIdentifier(one) for one in (uri, *more_uris) if one is not None]
        known = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "client": ExtendedKeyUsageOID.CLIENT_AUTH}
        authority = x509.load_pem_x509_certificate(self.authority.certificate_pem)
        signer = serialization.load_pem_private_key(self.authority.issued.key_pem, None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(seconds=seconds))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if purposes:
            builder = builder.add_extension(x509.ExtendedKeyUsage([known[one] for one in purposes]), critical=False)
        if signs:
            usage = x509.KeyUsage(
                digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
                key_agreement=False, key_cert_sign=True, crl_sign=False, encipher_only=False, decipher_only=False,
            )  # fmt: skip
            builder = builder.add_extension(usage, critical=True)
        pem = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        key_pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self.put("odd", Issued(pem + self.authority.certificate_pem, key_pem))

    def put(self, name: str, issued: Issued) -> dict[str, str]:
        key = self._write(f"{name}-key.pem", issued.key_pem)
        cert = self._write(f"{name}.pem", issued.certificate_pem)
        return {"cert": str(cert), "key": str(key)}

    def _write(self, name: str, text: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(text)
        return path


def leaf_of(file: str | Path) -> Certificate:
    """The first certificate in a file."""
    return read_pem(Path(file).read_bytes())[0]
