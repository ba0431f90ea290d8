"""The reader of certificates against the cryptography package, and against bytes that are none."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtensionOID
from hypothesis import given
from hypothesis import strategies as st

from iop.tls.certificate import BadCertificate, Certificate, Identity, edge_fault, read_pem
from tests.support.certificates import Certificates, leaf_of

NODE_URI, EDGE_URI = "spiffe://iop.internal/iop/node/n1", "spiffe://iop.internal/iop/edge/e1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def judged(der: bytes) -> tuple[object, ...]:
    """The same as another implementation reads it."""
    one = x509.load_der_x509_certificate(der)

    def extension(name: x509.ObjectIdentifier, read: Callable[[Any], Any], absent: Any) -> Any:
        try:
            return read(one.extensions.get_extension_for_oid(name).value)
        except x509.ExtensionNotFound:
            return absent

    def names(kind: type[x509.GeneralName]) -> tuple[str, ...]:
        return extension(
            ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
            lambda value: tuple(map(str, value.get_values_for_type(kind))),
            (),
        )

    return (
        one.serial_number,
        one.not_valid_before_utc.timestamp(),
        one.not_valid_after_utc.timestamp(),
        extension(ExtensionOID.BASIC_CONSTRAINTS, lambda value: value.ca, False),
        names(x509.DNSName),
        names(x509.IPAddress),
        names(x509.UniformResourceIdentifier),
        extension(
            ExtensionOID.EXTENDED_KEY_USAGE,
            lambda value: frozenset(one.dotted_string for one in value),
            None,
        ),
        one.fingerprint(hashes.SHA256()).hex(),
    )


def ours(der: bytes) -> tuple[object, ...]:
    one = Certificate.parse(der)
    return (
        one.serial,
        one.not_before_at,
        one.not_after_at,
        one.is_ca,
        one.dns_names,
        one.addresses,
        one.uris,
        one.purposes,
        one.sha256,
    )


def test_it_reads_what_another_implementation_reads(made: Certificates) -> None:
    files = [
        made.ca,
        made.edge(hosts=("a.example.org", "10.0.0.1", "fd00::1"))["cert"],
        made.node("gpu-1")["cert"],
        made.edge(name="old", expired=True)["cert"],
        made.odd(uri=None, purposes=())["cert"],
        made.odd(more_uris=(NODE_URI,), purposes=("server", "client"), is_ca=True)["cert"],
    ]
    for file in files:
        der = leaf_of(file).der
        assert ours(der) == judged(der)


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_the_systems_own_cas_are_read_as_another_implementation_reads_them() -> None:
    """Certificates by a hundred different hands, where there are some."""
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    if not bundle.exists():
        pytest.skip("this system has no bundle of CAs in the usual place")
    blocks = bundle.read_text().split("-----BEGIN CERTIFICATE-----")[1:]
    for block in blocks:
        der = base64.b64decode(block.partition("-----END")[0])
        assert ours(der) == judged(der)


@given(st.data())
def test_bytes_that_are_no_certificate_are_a_bad_certificate_and_nothing_else(
    made: Certificates, data: st.DataObject
) -> None:
    der = bytearray(leaf_of(made.ca).der)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(der) - 1))
        der[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(der)))
    for text in (bytes(der), bytes(der[:cut]), data.draw(st.binary(max_size=64))):
        with contextlib.suppress(BadCertificate):
            one = Certificate.parse(text)
            one.names("example.org")
            one.identity()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "no PEM certificate"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "no PEM certificate"),
        (b"-----BEGIN CERTIFICATE-----\nAAA\n-----END CERTIFICATE-----\n", "not base64"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "not built as"),
    ],
)
def test_a_file_without_certificates(text: bytes, said: str) -> None:
    with pytest.raises(BadCertificate, match=said):
        read_pem(text)


def test_a_file_of_too_many(made: Certificates) -> None:
    with pytest.raises(BadCertificate, match="more than 32"):
        read_pem(Path(made.ca).read_bytes() * 33)


# ---- whom it stands for ---------------------------------------------------------------------------------------------


@pytest.mark.req("SEC-1")
def test_whom_a_certificate_stands_for(made: Certificates) -> None:
    assert leaf_of(made.edge("edge-7")["cert"]).identity() == Identity("iop.internal", "edge", "edge-7")
    assert leaf_of(made.node("gpu.1_a-b")["cert"]).identity() == Identity("iop.internal", "node", "gpu.1_a-b")
    for uri in (None, "https://example.org/"):
        assert leaf_of(made.odd(uri=uri)["cert"]).identity() is None
    with pytest.raises(BadCertificate, match="several URIs"):
        leaf_of(made.odd(uri=NODE_URI, more_uris=("https://example.org/",))["cert"]).identity()


#: None of them is another spelling of NODE_URI (A4).
ODD_URIS = [
    "SPIFFE://iop.internal/iop/node/n1",
    "Spiffe://iop.internal/iop/node/n1",
    "spiffe://iop.internal/iop/node/n1/",
    "spiffe://iop.internal/iop/node/../node/n1",
    "spiffe://iop.internal/iop/node/./n1",
    "spiffe://iop.internal/iop/node//n1",
    "spiffe://iop.internal/iop/node/%6e1",
    "spiffe://user@iop.internal/iop/node/n1",
    "spiffe://iop.internal:443/iop/node/n1",
    "spiffe://iop.internal/iop/node/n1?x",
    "spiffe://iop.internal/iop/node/n1#x",
    "spiffe://IOP.internal/iop/node/n1",
    "spiffe://iop.internal/iop/Node/n1",
    "spiffe://iop.internal/iop/node/",
    "spiffe://iop.internal/iop/user/n1",
    "spiffe:/iop/node/n1",
    " spiffe://iop.internal/iop/node/n1",
]


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("uri", ODD_URIS)
def test_a4_no_other_form_is_normalised_into_an_identity(uri: str, made: Certificates) -> None:
    with pytest.raises(BadCertificate, match="byte for byte"):
        leaf_of(made.odd(uri=uri)["cert"]).identity()
    assert leaf_of(made.odd(uri=uri)["cert"]).identity(strict=False) is None


@pytest.mark.req("SEC-1")
def test_a4_a_nul_in_a_name_is_no_certificate(made: Certificates) -> None:
    der = leaf_of(made.odd(uri=NODE_URI)["cert"]).der
    with pytest.raises(BadCertificate, match="plain text"):
        Certificate.parse(der.replace(b"/node/n1", b"/node/n\0"))


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize(
    ("options", "host", "by_identity", "said"),
    [
        ({"uri": EDGE_URI}, "anything", True, None),
        ({"uri": EDGE_URI}, "anything", False, "not for 'anything'"),
        ({"uri": None, "hosts": ("a.org",)}, "a.org", True, None),
        ({"uri": None, "hosts": ("a.org",)}, "b.org", True, "not for 'b.org', but for: a.org"),
        ({"uri": None}, "b.org", True, "no name at all"),
        ({"uri": NODE_URI, "hosts": ("a.org",)}, "a.org", True, "that of node n1"),
        ({"uri": EDGE_URI, "more_uris": (NODE_URI,)}, "a", True, "not clear"),
        ({"uri": EDGE_URI, "purposes": ()}, "a", True, "not one for servers"),
        ({"uri": EDGE_URI, "purposes": ("client",)}, "a", True, "not one for servers"),
        ({"uri": EDGE_URI, "is_ca": True}, "a", True, "of a CA"),
        ({"uri": EDGE_URI, "signs": True}, "a", True, "may sign others"),
        ({"uri": "SPIFFE://iop.internal/iop/edge/e1"}, "a", True, "byte for byte"),
        ({"uri": "spiffe://mesh/ns/a/sa/b", "hosts": ("a.org",)}, "a.org", False, None),
    ],
)
def test_what_speaks_against_an_edge(
    options: dict[str, object], host: str, by_identity: bool, said: str | None, made: Certificates
) -> None:
    fault = edge_fault(leaf_of(made.odd(**options)["cert"]), host, by_identity=by_identity)  # type: ignore[arg-type]
    assert (fault is None) is (said is None)
    assert (said or "") in (fault or "")


@pytest.mark.parametrize(
    ("host", "matches"),
    [
        ("edge.example.org", True),
        ("EDGE.Example.Org.", True),
        ("a.wild.org", True),
        ("a.b.wild.org", False),
        ("wild.org", False),
        (".wild.org", False),
        ("a.com", False),  # of *.com
        ("10.0.0.1", True),
        ("10.0.0.2", False),
        ("fd00:0:0:0::1", True),
        ("fd00::1%eth0", True),
        ("", False),
    ],
)
def test_names(host: str, matches: bool, made: Certificates) -> None:
    one = leaf_of(made.edge(hosts=("edge.example.org", "*.wild.org", "*.com", "10.0.0.1", "fd00::1"))["cert"])
    assert one.names(host) is matches


def test_an_address_as_a_dns_name_is_no_address(made: Certificates) -> None:
    assert ipaddress.ip_address("10.0.0.1")
    assert not leaf_of(made.odd(uri=None, hosts=("10.0.0.1",))["cert"]).names("10.0.0.1")
