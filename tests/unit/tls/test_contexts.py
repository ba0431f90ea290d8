"""Files to TLS contexts: what makes two of them equal, and files that change under the reader's eyes."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from iop.tls import contexts
from iop.tls.contexts import CredentialFault, authority_of, dialling, served
from tests.support.certificates import Certificates, leaf_of


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def paths(files: dict[str, str]) -> tuple[Path, Path]:
    return Path(files["cert"]), Path(files["key"])


@pytest.mark.req("SEC-1")
def test_what_a_server_offers(made: Certificates) -> None:
    found = served(*paths(made.edge()), alpn=("http/1.1",)).context
    assert found.minimum_version is ssl.TLSVersion.TLSv1_2
    assert found.options & ssl.OP_NO_COMPRESSION
    assert found.options & ssl.OP_NO_RENEGOTIATION
    assert found.verify_mode is ssl.CERT_NONE
    old = {one["name"] for one in found.get_ciphers() if one["protocol"] == "TLSv1.2"}
    assert old
    assert all(name.startswith("ECDHE-") and ("GCM" in name or "CHACHA20" in name) for name in old)


@pytest.mark.req("SEC-1")
def test_a_server_that_demands_certificates_resumes_nothing(made: Certificates) -> None:
    plain, strict = served(*paths(made.edge())), served(*paths(made.edge()), Path(made.ca))
    assert (plain.demands_certificates, strict.demands_certificates) == (False, True)
    assert strict.context.verify_mode is ssl.CERT_OPTIONAL
    assert strict.context.num_tickets == 0
    assert strict.context.options & ssl.OP_NO_TICKET
    assert plain.context.num_tickets > 0


@pytest.mark.req("CONF-2")
def test_contents_make_two_of_them_equal(made: Certificates) -> None:
    files = made.edge()
    first = served(*paths(files))
    assert served(*paths(files)) == first
    assert served(*paths(files), Path(made.ca)) != first
    assert first.expires_at == leaf_of(files["cert"]).not_after_at
    made.edge()
    assert served(*paths(files)) != first
    assert "context" not in repr(first)


def test_files_that_change_while_they_are_read_are_read_again(
    made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody puts a new certificate there, and then its key."""
    files = made.edge()
    cert, key = paths(files)
    new = made.edge(name="new")
    changes = [
        lambda: cert.write_bytes(Path(new["cert"]).read_bytes()),
        lambda: key.write_bytes(Path(new["key"]).read_bytes()),
    ]
    real = contexts._load_pair

    def load(context: ssl.SSLContext, cert: Path, key: Path) -> None:
        if changes:
            changes.pop(0)()
        real(context, cert, key)

    monkeypatch.setattr(contexts, "_load_pair", load)
    assert served(cert, key).fingerprint == served(*paths(new)).fingerprint
    assert changes == []


def test_files_that_never_rest_are_a_fault(made: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = paths(made.edge())
    real = contexts._load_pair

    def load(context: ssl.SSLContext, cert: Path, key: Path) -> None:
        made.edge()
        real(context, cert, key)

    monkeypatch.setattr(contexts, "_load_pair", load)
    with pytest.raises(CredentialFault, match="change while they are read"):
        served(cert, key)


def test_the_ca_in_a_chain(made: Certificates) -> None:
    found = authority_of(Path(made.edge()["cert"]))
    assert found is not None
    assert found.sha256 == made.sha256
    assert authority_of(Path(made.node("n")["cert"])) is None


@pytest.mark.req("SEC-1", "REG-1")
def test_a_ca_that_another_one_has_signed_ends_no_chain(made: Certificates, tmp_path: Path) -> None:
    """A public chain, say: nobody can verify anything with what is in it alone."""
    signed = leaf_of(made.odd(is_ca=True)["cert"])
    file = tmp_path / "chain.pem"
    pems = [ssl.DER_cert_to_PEM_cert(one.der) for one in (leaf_of(made.edge()["cert"]), signed)]
    file.write_text("".join(pems))
    assert authority_of(file) is None
    with pytest.raises(CredentialFault, match="only CAs that another one has signed"):
        dialling(file, check_name=False)
    with file.open("ab") as stream:
        stream.write(Path(made.ca).read_bytes())
    found = authority_of(file)
    assert found is not None
    assert found.sha256 == made.sha256
    assert dialling(file, check_name=False).context is not None


def test_what_a_client_checks(made: Certificates) -> None:
    by_name = dialling(None, check_name=True).context
    assert by_name is not None
    assert (by_name.verify_mode, by_name.check_hostname) == (ssl.CERT_REQUIRED, True)
    by_ca = dialling(Path(made.ca), check_name=False).context
    assert by_ca is not None
    assert (by_ca.verify_mode, by_ca.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert len(by_ca.get_ca_certs()) == 1
    assert dialling(None, check_name=False, known_later=True).context is None
    found = contexts.trusting(leaf_of(made.ca), None, None)
    assert found.verify_mode is ssl.CERT_REQUIRED
    assert list(found.get_ca_certs(binary_form=True)) == [leaf_of(made.ca).der]
