"""``iop-edge init``, ``token`` and ``certify``: files, modes, what is printed, and nothing half done."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import ssl
import stat
from pathlib import Path

import pytest

from iop.cli import certify, reach
from iop.cli.edge import main
from iop.cli.program import Usage
from iop.config.fields import HostPort, digest
from iop.config.load import load_edge, load_node
from iop.config.replace import replace_file
from iop.tls.certificate import read_pem
from iop.tls.join_token import ca_of
from tests.support.certificates import Certificates, leaf_of

FILES = {
    "ca.pem": 0o644,
    "ca-key.pem": 0o600,
    "edge.pem": 0o644,
    "edge-key.pem": 0o600,
    "node-1.pem": 0o644,
    "node-1-key.pem": 0o600,
    "node-1.token": 0o600,
    "edge.yaml": 0o644,
    "node.yaml": 0o644,
}


def call(argv: list[str]) -> int:
    """The exit code, also where argparse exits by itself."""
    try:
        return main(argv)
    except SystemExit as error:
        return int(error.code or 0)


def pasted(out: str) -> list[list[str]]:
    return [shlex.split(line.removeprefix("  $ ")) for line in out.splitlines() if line.startswith("  $ ")]


@pytest.mark.req("SEC-1", "CONF-3")
def test_init_writes_files_that_load_and_belong_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "my iop"
    old = os.umask(0o022)
    try:
        assert call(["init", str(folder), "--host", "Edge.example.org", "--host", "10.1.2.3"]) == 0
    finally:
        os.umask(old)
    serve, node_serve, join = pasted(capsys.readouterr().out)
    assert serve[1:] == ["serve", "-c", f"{folder}/edge.yaml"]
    assert node_serve[1:] == ["serve", "-c", f"{folder}/node.yaml"]
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == FILES

    edge, node = load_edge(folder / "edge.yaml"), load_node(folder / "node.yaml")
    token = node.node.token.get_secret_value()
    assert join == ["iop-node", "join", "edge.example.org:7443", "--token", token]
    assert edge.nodes[0].token_hash == digest(token)
    assert token not in (folder / "edge.yaml").read_text()
    assert [(p.id, p.kind) for p in edge.nodes[0].providers] == [("node-1", "auto"), ("node-1-echo", "echo")]
    assert [entry.id for entry in edge.models] == ["*"]
    assert edge.http.listen.is_loopback
    assert edge.transport.listen == HostPort("0.0.0.0", 7443)
    assert node.node.edge == HostPort("127.0.0.1", 7443)
    assert edge.transport.tls is not None
    assert node.node.tls is not None
    assert not edge.transport.tls.served.demands_certificates
    assert "# client_ca: ca.pem" in (folder / "edge.yaml").read_text()

    leaf, ca = read_pem((folder / "edge.pem").read_bytes())
    assert ca.sha256 == ca_of(token) == leaf_of(folder / "ca.pem").sha256
    assert {"edge.example.org", "localhost"} <= set(leaf.dns_names)
    assert {"10.1.2.3", "127.0.0.1", "::1"} <= set(leaf.addresses)
    assert (identity := leaf.identity()) is not None
    assert (identity.kind, identity.id) == ("edge", edge.edge.id)
    own = leaf_of(folder / "node-1.pem").identity()
    assert own is not None
    assert (own.kind, own.id) == ("node", edge.nodes[0].id)


def test_init_with_certificates_demanded_loads_too(tmp_path: Path) -> None:
    assert call(["init", str(tmp_path / "x")]) == 0
    file = tmp_path / "x/edge.yaml"
    file.write_text(file.read_text().replace("# client_ca", "client_ca"))
    edge = load_edge(file)
    assert edge.transport.tls is not None
    assert edge.transport.tls.served.demands_certificates


def test_init_listens_where_it_is_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["init", str(tmp_path / "x"), "--listen", "10.0.0.5:9443"]) == 0
    join = pasted(capsys.readouterr().out)[2]
    assert join[2] == "10.0.0.5:9443"
    assert str(load_node(tmp_path / "x/node.yaml").node.edge) == "10.0.0.5:9443"
    assert "10.0.0.5" in leaf_of(tmp_path / "x/edge.pem").addresses
    assert call(["init", str(tmp_path / "y"), "--listen", "127.0.0.1:9443"]) == 0
    assert len(pasted(capsys.readouterr().out)) == 2  # nobody else gets there


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--listen", "x"], "HOST:PORT"),
        (["--listen", "0.0.0.0:0"], "name a port"),
        (["--host", "a b"], "neither a host name nor an address"),
        (["--host", "*.example.org"], "neither a host name nor an address"),
    ],
)
def test_init_that_cannot_work_is_one_line(
    argv: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["init", str(tmp_path / "x"), *argv]) == 2
    err = capsys.readouterr().err
    assert text in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(FILES))
def test_init_overwrites_nothing(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).symlink_to("dangling")
    assert call(["init", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_init_where_it_may_not_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert call(["init", str(tmp_path / "file" / "sub")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("there", [False, True])
def test_init_on_a_full_disk_leaves_nothing_behind(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a/b"
    if there:
        folder.mkdir(parents=True)
        (folder / "mine").write_text("x")
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert call(["init", str(folder)]) == 1
    assert "No space left" in capsys.readouterr().err
    left = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")]
    assert sorted(left) == (["a", "a/b", "a/b/mine"] if there else [])


# ---- token ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("REG-1")
def test_a_token_names_the_ca_and_comes_with_its_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["init", str(tmp_path / "x")]) == 0
    capsys.readouterr()
    before = {path: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    assert call(["token", "node-2", "-c", str(tmp_path / "x/edge.yaml"), "--host", "fd00::1"]) == 0
    out = capsys.readouterr().out
    ((program, join, where, _, token),) = pasted(out)
    assert (program, join, where) == ("iop-node", "join", "[fd00::1]:7443")
    assert ca_of(token) == leaf_of(tmp_path / "x/ca.pem").sha256
    assert f'  - id: node-2\n    token_sha256: "{digest(token).hex()}"\n' in out
    assert {path: path.read_bytes() for path in (tmp_path / "x").iterdir()} == before
    entry = "\n".join(line for line in out.splitlines() if line.startswith(("  - id", "    ")))
    file = (tmp_path / "x/edge.yaml").read_text()
    (tmp_path / "x/edge.yaml").write_text(file.replace("nodes:\n", f"nodes:\n{entry}\n"))
    pasted_in = load_edge(tmp_path / "x/edge.yaml").nodes[0]
    assert (pasted_in.id, pasted_in.token_hash) == ("node-2", digest(token))
    assert [provider.kind for provider in pasted_in.providers] == ["auto"]
    assert call(["token", "node-1", "-c", str(tmp_path / "x/edge.yaml")]) == 0
    out = capsys.readouterr().out
    assert "in place of the token of node-1" in out
    assert pasted(out)[0][4] != token


@pytest.mark.req("REG-1")
@pytest.mark.parametrize(
    ("hosts", "listen", "where"),
    [
        (["edge.example.org"], "0.0.0.0:7443", "edge.example.org:7443"),
        (["203.0.113.5", "edge.example.org"], "0.0.0.0:7443", "edge.example.org:7443"),
        (["203.0.113.5"], "0.0.0.0:7443", "203.0.113.5:7443"),
        (["edge.example.org"], "10.0.0.1:7443", "edge.example.org:7443"),
        ([], "10.0.0.1:7443", "10.0.0.1:7443"),
        ([], "0.0.0.0:7443", "192.0.2.7:7443"),
        (["edge.example.org"], "127.0.0.1:7443", "127.0.0.1:7443"),
    ],
)
def test_a_token_s_line_names_the_edge_as_its_certificate_does(
    hosts: list[str],
    listen: str,
    where: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("iop.cli.init.own_names", lambda: ["192.0.2.7", "box"])
    monkeypatch.setattr(reach, "own_names", lambda: ["192.0.2.99", "box"])
    monkeypatch.setattr(reach.socket, "gethostname", lambda: "box.lan")
    options = [argument for host in hosts for argument in ("--host", host)]
    assert call(["init", str(tmp_path / "x"), "--listen", listen, *options]) == 0
    capsys.readouterr()
    assert call(["token", "gpu-2", "-c", str(tmp_path / "x/edge.yaml")]) == 0
    assert pasted(capsys.readouterr().out)[0][2] == where


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("{}", []),
        ("transport: {listen: '10.0.0.1:7443', allow_plaintext: true}", ["--plaintext"]),
        # A chain without a CA of its own: a public one, say. What else is wrong with the file is not looked at.
        ("http: {keys: [$]}\ntransport: {listen: '0.0.0.0:7443', tls: {cert: leaf.pem, key: k}}", ["--tls"]),
        ("transport: {listen: '0.0.0.0:7443', tls: {cert: chain.pem, key: k}}", ["--tls"]),
    ],
)
def test_a_token_for_an_edge_without_a_ca_of_its_own(
    text: str, end: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["init", str(tmp_path / "x")]) == 0
    leaf = re.match(r".*?-----END CERTIFICATE-----\n", (tmp_path / "x/edge.pem").read_text(), re.DOTALL)
    assert leaf is not None
    (tmp_path / "leaf.pem").write_text(leaf[0])
    between = leaf_of(Certificates(tmp_path / "other").odd(is_ca=True)["cert"])
    (tmp_path / "chain.pem").write_text(leaf[0] + ssl.DER_cert_to_PEM_cert(between.der))
    (tmp_path / "edge.yaml").write_text(text)
    capsys.readouterr()
    assert call(["token", "n", "-c", str(tmp_path / "edge.yaml")]) == 0
    line = pasted(capsys.readouterr().out)[0]
    assert line[5:] == end
    assert ca_of(line[4]) is None


@pytest.mark.parametrize(
    ("node", "text", "said"),
    [
        ("a b", "{}", "NODE: use 1 to 64"),
        ("n", "[1]", "not the file of an edge"),
        ("n", "transport: {listen: x}", "transport.listen"),
        ("n", "transport: {tls: {cert: gone.pem}}", "gone.pem: No such file"),
        ("n", "transport: {tls: {cert: edge.yaml}}", "no PEM certificate"),
    ],
)
def test_a_token_that_cannot_be_made_is_one_line(
    node: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "edge.yaml").write_text(text)
    assert call(["token", node, "-c", str(tmp_path / "edge.yaml")]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""


def test_where_this_machine_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "own_names", lambda: ["192.0.2.7", "box"])
    wild, bound = HostPort("0.0.0.0", 1), HostPort("10.0.0.1", 1)
    assert [str(reach.named(listen, hosts)) for listen in (wild, bound) for hosts in ([], ["e"])] == [
        "192.0.2.7:1",
        "e:1",
        "10.0.0.1:1",
        "e:1",
    ]
    monkeypatch.setattr(reach, "own_names", list)
    assert str(reach.named(wild, [])) == "127.0.0.1:1"


# ---- certify --------------------------------------------------------------------------------------------------------


@pytest.mark.req("SEC-1")
def test_certify_issues_for_new_nodes_and_renews_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "x"
    assert call(["init", str(folder)]) == 0
    assert call(["certify", str(folder), "gpu-2", "gpu-3"]) == 0
    own = leaf_of(folder / "gpu-2.pem").identity()
    assert own is not None
    assert (own.kind, own.id) == ("node", "gpu-2")
    assert stat.S_IMODE((folder / "gpu-2-key.pem").stat().st_mode) == 0o600
    (folder / "edge-key.pem").chmod(0o640)  # as for a group that the edge runs in
    before = {name: leaf_of(folder / f"{name}.pem") for name in ("ca", "edge", "node-1", "gpu-2", "gpu-3")}
    key = (folder / "edge-key.pem").read_bytes()
    assert call(["certify", str(folder), "--host", "new.example.org"]) == 0
    after = {name: leaf_of(folder / f"{name}.pem") for name in before}
    assert [name for name in before if before[name] == after[name]] == ["ca"]
    assert after["edge"].dns_names == ("new.example.org", *before["edge"].dns_names)
    assert {name: one.identity() for name, one in after.items()} == {n: one.identity() for n, one in before.items()}
    assert (folder / "edge-key.pem").read_bytes() == key
    assert stat.S_IMODE((folder / "edge-key.pem").stat().st_mode) == 0o640
    assert load_edge(folder / "edge.yaml").transport.tls is not None
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


class _Killed(BaseException):
    pass


def _fit(folder: Path, name: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}-key.pem")
    except ssl.SSLError:
        return False
    return True


@pytest.mark.req("SEC-1")
@pytest.mark.parametrize("more", [[], ["gpu-2"], ["--new-keys"]])
def test_certify_that_is_killed_leaves_pairs_that_fit_or_that_the_next_one_makes_fit(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace
    for lived in range(4):
        folder = tmp_path / str(lived)
        assert call(["init", str(folder)]) == 0
        left = [lived]

        def dying(source: Path, target: Path, left: list[int] = left) -> None:
            if not left[0]:
                raise _Killed
            left[0] -= 1
            replace(source, target)

        monkeypatch.setattr(os, "replace", dying)
        with contextlib.suppress(_Killed):
            call(["certify", str(folder), *more])
        monkeypatch.setattr(os, "replace", replace)
        names = [path.stem for path in folder.glob("*.pem") if (folder / f"{path.stem}-key.pem").exists()]
        if "--new-keys" not in more:
            assert all(_fit(folder, name) for name in names)
        assert call(["certify", str(folder), *(n for n in more if n != "--new-keys")]) == 0
        assert all(_fit(folder, name) for name in names)
        assert load_edge(folder / "edge.yaml").transport.tls is not None


def test_new_keys_are_made_on_demand_and_a_broken_one_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "x"
    assert call(["init", str(folder)]) == 0
    key = folder / "edge-key.pem"
    before = key.read_bytes()
    assert call(["certify", str(folder), "--new-keys"]) == 0
    assert key.read_bytes() != before
    assert _fit(folder, "edge")
    key.write_text("nonsense")
    capsys.readouterr()
    assert call(["certify", str(folder)]) == 2
    assert "edge-key.pem: not a key without a password, in PEM; --new-keys makes" in capsys.readouterr().err
    assert call(["certify", str(folder), "--new-keys"]) == 0
    assert _fit(folder, "edge")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["a b"], "NODE: use 1 to 64"),
        (["n", "--host", "e"], "when no node is named"),
        ([], "no certificate of an edge or node"),
    ],
)
def test_certify_that_cannot_work_is_one_line(
    argv: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["init", str(tmp_path / "x")]) == 0
    for name in ("edge", "node-1"):
        (tmp_path / f"x/{name}.pem").unlink()
    before = sorted(path.name for path in (tmp_path / "x").iterdir())
    assert call(["certify", str(tmp_path / "x"), *argv]) == 2
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == before


def test_certify_without_a_ca_or_with_another_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["certify", str(tmp_path), "n"]) == 2
    assert "ca.pem: No such file" in capsys.readouterr().err
    assert call(["init", str(tmp_path / "x")]) == 0
    (tmp_path / "x/ca-key.pem").write_bytes((tmp_path / "x/edge-key.pem").read_bytes())
    capsys.readouterr()
    assert call(["certify", str(tmp_path / "x"), "n"]) == 2
    err = capsys.readouterr().err
    assert "not that of the CA" in err
    assert len(err.splitlines()) == 1


def test_a_file_is_replaced_whole_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "f"
    file.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        certify._replace(file, b"new", 0o600)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert file.read_text() == "old"


def test_a_file_that_is_a_link_or_somebody_else_s_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, link = tmp_path / "f", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    certify._replace(link, b"new", 0o600)
    assert link.is_symlink()
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("new", 0o640)

    def somebody(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        seen = os.stat(path, follow_symlinks=follow_symlinks)
        return os.stat_result((*seen[:4], seen.st_uid + 1, *seen[5:]))

    def refused(descriptor: int, owner: int, group: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "stat", somebody)
    monkeypatch.setattr(os, "fchown", refused)
    with pytest.raises(Usage, match=r"link is somebody else's.*as root"):
        certify._replace(link, b"newer", 0o600)
    monkeypatch.undo()
    assert file.read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "link"]


def test_nobody_reads_a_new_file_before_it_is_given_to_them(tmp_path: Path) -> None:
    seen = []

    def give(descriptor: int) -> None:
        now = os.fstat(descriptor)
        seen.append((stat.S_IMODE(now.st_mode), now.st_size))
        os.fchmod(descriptor, 0o644)

    replace_file(tmp_path / "f", b"secret", give)
    assert seen == [(0o600, 0)]
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o644
