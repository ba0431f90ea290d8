"""The tls sections: faults with line and path, and what their files change."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from iop.config.diff import compare
from iop.config.edge import EdgeConfig
from iop.config.load import parse_edge, parse_node
from iop.errors import ConfigError
from tests.support.certificates import Certificates


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    found = Certificates(tmp_path)
    found.edge()
    found.edge(name="old", expired=True)
    found.node("n1")
    other = Certificates(tmp_path / "other").edge()
    (tmp_path / "other-key.pem").write_bytes(Path(other["key"]).read_bytes())
    (tmp_path / "locked.pem").write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nc2VjcmV0\n")
    (tmp_path / "broken.pem").write_text("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n")
    (tmp_path / "large.pem").write_bytes(b"x" * (1 << 20) + b"x")
    (tmp_path / "words.pem").write_text("secret words")
    return found


def faults(text: str, base: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_edge(text, base=base)
    assert "c2VjcmV0" not in str(caught.value)
    assert "secret" not in str(caught.value)
    return caught.value.faults


def tls(cert: str, key: str, **more: str) -> str:
    return "\n" + json.dumps({"transport": {"listen": "0.0.0.0:7443", "tls": {"cert": cert, "key": key, **more}}})


@pytest.mark.req("CONF-1", "SEC-1", "SEC-4")
@pytest.mark.parametrize(
    ("files", "where", "said"),
    [
        (("edge.pem", "other-key.pem"), "tls", "is not the key of the certificate in"),
        (("gone.pem", "edge-key.pem"), "tls.cert", "gone.pem: No such file or directory"),
        (("edge.pem", "gone.pem"), "tls.key", "gone.pem: No such file or directory"),
        ((".", "edge-key.pem"), "tls.cert", "Is a directory"),
        (("old.pem", "old-key.pem"), "tls.cert", "has expired on"),
        (("edge.pem", "locked.pem"), "tls.key", "is encrypted, and nobody is there to type its password"),
        (("edge.pem", "broken.pem"), "tls", "OpenSSL does not take"),
        (("edge.pem", "edge.pem"), "tls.key", "holds no PEM private key"),
        (("edge-key.pem", "edge-key.pem"), "tls.cert", "it is a key"),
        (("words.pem", "edge-key.pem"), "tls.cert", "no PEM certificate"),
        (("large.pem", "edge-key.pem"), "tls.cert", "larger than 1 MiB"),
        (("edge.pem", "edge-key.pem", "n1.pem"), "tls", "n1.pem holds no certificate of a CA"),
        (("edge.pem", "edge-key.pem", "old.pem"), "tls.client_ca", "has expired on"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_fault_like_any_other(
    files: tuple[str, ...], where: str, said: str, made: Certificates
) -> None:
    more = {"client_ca": files[2]} if len(files) > 2 else {}
    (fault,) = faults(tls(files[0], files[1], **more), made.folder)
    assert fault.startswith(f"edge.yaml:2: transport.{where}: ")
    assert said in fault


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(made: Certificates) -> None:
    (made.folder / "edge-key.pem").chmod(0)
    (fault,) = faults(tls("edge.pem", "edge-key.pem"), made.folder)
    assert "Permission denied" in fault


@pytest.mark.req("CONF-1")
def test_all_faults_come_at_once(made: Certificates) -> None:
    found = faults(
        "http: {listen: '0.0.0.0:8443', tls: {cert: gone.pem, kye: x}}\n"
        "transport: {tls: {cert: old.pem, key: words.pem}}",
        made.folder,
    )
    said = ["http.listen", "http.tls.cert", "http.tls.key: required", "did you mean 'key'", "transport.tls.cert"]
    assert [text for text in said if not any(text in fault for fault in found)] == []
    assert any("transport.tls.key" in fault for fault in found)


@pytest.mark.req("SEC-1")
def test_tls_lets_nodes_in_from_everywhere(made: Certificates) -> None:
    config = parse_edge(tls("edge.pem", "edge-key.pem", client_ca="ca.pem"), base=made.folder)
    assert config.transport.tls is not None
    assert config.transport.tls.served.demands_certificates
    assert parse_edge("transport: {tls: null}").transport.tls is None


@pytest.mark.req("CONF-1", "SEC-1")
@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("ca: ca.pem, ca_sha256: '" + "0" * 64 + "'", "node.tls.ca_sha256: ca is given already"),
        ("cert: n1.pem", "node.tls.cert: needs key beside it"),
        ("key: n1-key.pem", "node.tls.key: needs cert beside it"),
        ("ca: n1.pem", "holds no certificate of a CA"),
        ("ca_sha256: abc", "node.tls.ca_sha256: write 64 hex digits"),
        ("server_name: 'a b'", "node.tls.server_name"),
        ("ca: ca.pem, cert: n1.pem, key: edge-key.pem", "is not the key of the certificate"),
        ("cert: old.pem, key: old-key.pem", "node.tls.cert: "),
    ],
)
def test_a_node_that_cannot_know_its_edge(section: str, said: str, made: Certificates) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_node(f"node: {{edge: 'e:1', token_env: T, tls: {{{section}}}}}", base=made.folder, env={"T": "t"})
    assert said in str(caught.value)


# ---- what changed ---------------------------------------------------------------------------------------------------


def config(base: Path, **more: str) -> EdgeConfig:
    return parse_edge(tls("edge.pem", "edge-key.pem", **more), base=base)


@pytest.mark.req("CONF-2")
def test_new_contents_of_the_same_files_are_a_change_that_a_running_edge_takes_over(made: Certificates) -> None:
    before = config(made.folder)
    assert compare(before, config(made.folder)).changed == ()
    made.edge()
    change = compare(before, config(made.folder))
    assert (change.changed, change.needs_restart) == (("transport.tls",), ())
    assert change.config.transport.tls != before.transport.tls
    change = compare(before, config(made.folder, client_ca="ca.pem"))
    assert change.changed == ("transport.tls",)


@pytest.mark.req("CONF-2", "SEC-1")
def test_tls_on_or_off_waits_for_a_restart(made: Certificates) -> None:
    plain = parse_edge("transport: {listen: '0.0.0.0:7443', allow_plaintext: true}", base=made.folder)
    for before, after in ((config(made.folder), plain), (plain, config(made.folder))):
        change = compare(before, after)
        assert change.needs_restart == ("transport.allow_plaintext", "transport.tls")
        assert change.config.transport == before.transport
