"""``iop-edge certify``: certificates from the CA of ``iop-edge init``, for new nodes and for when they expire.

A renewed certificate is for the key that is there: one file changes, in one step, and whenever this is killed the two
fit together. With ``--new-keys`` two files change, the key first; killed in between they do not fit until this is run
again without it, which makes a certificate for the key that is there by then.
"""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iop.cli.program import Exit, Usage
from iop.cli.reach import hosts_option, node_id
from iop.config.replace import replace_file
from iop.tls.certificate import BadCertificate, Identity, read_pem

if TYPE_CHECKING:
    from iop.tls.authority import Authority, Issued

__all__ = ["add"]


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the parser."""
    certify = commands.add_parser(
        "certify",
        help="issue or renew certificates",
        description="Writes NODE.pem and NODE-key.pem for each node that is named, from the CA in DIR that `iop-edge "
        "init` made. Without a name all certificates in DIR that stand for an edge or node are renewed. A key that is "
        "there stays. `iop-edge reload` then takes over the edge's, and a node takes its own when it is started again.",
    )
    certify.add_argument("dir", metavar="DIR", type=Path, help="the folder with ca.pem and ca-key.pem")
    certify.add_argument("node", metavar="NODE", type=node_id, nargs="*", help="ids of nodes, as in edge.yaml")
    hosts_option(certify)
    certify.add_argument(
        "--new-keys",
        action="store_true",
        help="with new keys, too. The key is replaced first and then its certificate: if that is cut short, run this "
        "again without --new-keys before the edge is reloaded",
    )
    certify.set_defaults(run=_certify)


def _certify(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.dir
    authority = _authority(folder)
    if arguments.node and arguments.host:
        raise Usage("--host is for the edge's certificate, which is renewed when no node is named")
    wanted: list[tuple[str, Identity, Sequence[str]]] = [
        (name, Identity("", "node", name), ()) for name in arguments.node
    ]
    wanted = wanted or list(_renewed(folder, arguments.host))
    if not wanted:
        raise Usage(f"{folder} has no certificate of an edge or node to renew; name nodes")
    found = [_issue(folder, authority, *one, new_keys=arguments.new_keys) for one in wanted]
    for name, issued, with_key in found:
        if with_key:
            _replace(folder / f"{name}-key.pem", issued.key_pem, 0o600)
        _replace(folder / f"{name}.pem", issued.certificate_pem, 0o644)
        print(f"wrote {folder / name}.pem" + (f" and {folder / name}-key.pem" if with_key else ", for the key it had"))
    return Exit.OK


def _issue(
    folder: Path, authority: Authority, name: str, identity: Identity, hosts: Sequence[str], *, new_keys: bool
) -> tuple[str, Issued, bool]:
    """The name, the certificate, and whether it is for a new key."""
    path = folder / f"{name}-key.pem"
    key = path.read_bytes() if path.exists() and not new_keys else None
    try:
        if identity.kind == "node":
            return name, authority.node(identity.id, key_pem=key), key is None
        return name, authority.edge(identity.id, hosts, key_pem=key), key is None
    except ValueError as error:
        raise Usage(f"{path}: {error}; --new-keys makes a new one") from None


def _authority(folder: Path) -> Authority:
    from iop.tls.authority import Authority
    from iop.tls.contexts import CredentialFault, check_certificate

    cert, key = folder / "ca.pem", folder / "ca-key.pem"
    try:
        check_certificate(cert)
        return Authority.load(cert.read_bytes(), key.read_bytes())
    except CredentialFault as error:
        raise Usage(str(error)) from None
    except ValueError as error:
        raise Usage(f"{cert} and {key}: {error}") from None


def _renewed(folder: Path, hosts: list[str]) -> Iterator[tuple[str, Identity, Sequence[str]]]:
    """Each certificate that stands for somebody, with the names that it has, and ``hosts`` in front."""
    for path in sorted(folder.glob("*.pem")):
        if not path.with_name(f"{path.stem}-key.pem").exists():
            continue
        try:
            leaf = read_pem(path.read_bytes())[0]
            identity = leaf.identity()
        except BadCertificate:
            continue
        if leaf.is_ca or identity is None:
            continue
        yield path.stem, identity, [*hosts, *leaf.dns_names, *leaf.addresses]


def _replace(path: Path, data: bytes, mode: int) -> None:
    """Owner and mode of an old file stay, since the edge may run as somebody else. Raises :class:`Usage` where they
    cannot."""
    old = path.stat() if path.exists() else None

    def give(descriptor: int) -> None:
        mine = os.fstat(descriptor)
        if old is not None and (old.st_uid, old.st_gid) != (mine.st_uid, mine.st_gid):
            try:
                os.fchown(descriptor, old.st_uid, old.st_gid)
            except PermissionError:
                raise Usage(f"{path} is somebody else's, who could not read a new one; run this as root") from None
        os.fchmod(descriptor, mode if old is None else stat.S_IMODE(old.st_mode))  # whatever the umask has taken

    replace_file(path, data, give)
