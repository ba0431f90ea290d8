"""``iop-edge token``: a fresh token for a node, and the line with which it joins (REG-1)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from iop.cli.program import Exit, Usage, config_file
from iop.cli.reach import certified, hosts_option, named, node_id

__all__ = ["add"]


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the parser."""
    token = commands.add_parser(
        "token",
        help="make a token for a node",
        description="Makes a token and prints it this once, with the line for edge.yaml and the line to paste on the "
        "node's machine. Changes nothing: the edge knows the token when its file does and it was reloaded.",
    )
    token.add_argument(
        "node", metavar="NODE", type=node_id, help="the node's id in edge.yaml, there already or not yet"
    )
    config_file(token)
    hosts_option(token)
    token.set_defaults(run=_token)


def _token(arguments: argparse.Namespace) -> int:
    from iop.config.load import node_port
    from iop.tls.contexts import CredentialFault, authority_of, leaf_of
    from iop.tls.join_token import new_token, token_sha256

    node: str = arguments.node
    file: Path = arguments.config
    listen, cert, nodes = node_port(file)
    try:
        authority = authority_of(cert) if cert is not None else None
        leaf = leaf_of(cert) if cert is not None else None
    except CredentialFault as error:
        raise Usage(str(error)) from None
    token = new_token(authority.sha256 if authority is not None else None)
    if node in nodes:
        print(f"In {file}, in place of the token of {node} (which then is good for nothing), and `iop-edge reload`:")
        print(f'    token_sha256: "{token_sha256(token)}"')
    else:
        print(f"In {file}, under nodes, and `iop-edge reload`:")
        print(f"  - id: {node}")
        print(f'    token_sha256: "{token_sha256(token)}"')
        print("    providers: auto")  # without any it would come in and serve nothing
    if listen.is_loopback:
        print(f"The edge lets nodes in on {listen} alone: on this machine, or what brings them there (ssh, WireGuard).")
    hosts: list[str] = arguments.host
    if not hosts and leaf is not None and not listen.is_loopback:
        hosts = certified(leaf.dns_names, leaf.addresses)
    print("On the node's machine; this holds the token, and is shown this once:")
    how = (
        "" if authority is not None else " --tls" if cert is not None else "" if listen.is_loopback else " --plaintext"
    )
    print(f"  $ iop-node join {named(listen, hosts)} --token {token}{how}")
    return Exit.OK
