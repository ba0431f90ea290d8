"""Nodes and the edge, as commands name them: by which name or address other machines reach this one, and what an id
is."""

from __future__ import annotations

import argparse
import ipaddress
import re
import socket
from collections.abc import Sequence

from iop.config.fields import IDENT_FORM, HostPort, is_ident

__all__ = ["certified", "hosts_option", "named", "node_id", "own_names"]

# Addresses of documentation: a UDP socket that is connected sends nothing, and tells which way it would go.
_SOMEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*")


def hosts_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--host``, which may come several times."""
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME_OR_IP",
        type=_host,
        help="a name or address by which nodes reach this machine; give it again for more (default: found by itself)",
    )


def node_id(text: str) -> str:
    """For argparse: what can be the id of a node."""
    if not is_ident(text):
        raise argparse.ArgumentTypeError(IDENT_FORM)
    return text


def own_names() -> list[str]:
    """The address that this machine has towards others, if it has one, and its host name."""
    found = []
    for family, somewhere in _SOMEWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((somewhere, 9))
                address = str(sock.getsockname()[0])
        except OSError:
            continue
        if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            found.append(address.partition("%")[0])
    name = socket.gethostname()
    return [*found, name] if _NAME.fullmatch(name) else found


def certified(names: Sequence[str], addresses: Sequence[str]) -> list[str]:
    """Of what an edge's certificate stands for, what other machines may reach it by, the best first: names that
    somebody gave it, then addresses. Its machine's own name, which others seldom know, and this machine's loopback are
    not among them."""
    own = socket.gethostname().lower()
    local = {"localhost", own, own.partition(".")[0]}
    given = [name for name in names if name.lower() not in local and not name.startswith("*")]
    return given + [address for address in addresses if not ipaddress.ip_address(address).is_loopback]


def named(listen: HostPort, hosts: Sequence[str]) -> HostPort:
    """Where a node on another machine finds a listener: by the first of ``hosts``, else by the address that it listens
    on, else by this machine's own."""
    if hosts:
        return HostPort(hosts[0], listen.port)
    if listen.host not in ("0.0.0.0", "::"):
        return listen
    return HostPort((own_names() or ["127.0.0.1"])[0], listen.port)


def _host(text: str) -> str:
    bare = text.removeprefix("[").removesuffix("]")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        pass
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a host name nor an address")
    return text.lower()
