"""``iop-edge init``: a first pair of files that works as written, with the model servers that the node finds and the
built-in echo provider, and the certificates and the token with which a node on any machine comes in over TLS (SEC-1).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iop.cli.program import Exit, Usage, command_line
from iop.cli.reach import hosts_option, named, own_names
from iop.config.fields import HostPort

__all__ = ["add", "write"]

EDGE_ID, NODE_ID = "edge-1", "node-1"
LISTEN = "0.0.0.0:7443"

EDGE = """\
# The edge. All settings and their defaults: configs/edge.yaml of the project; check with: iop-edge check -c edge.yaml
http:
  listen: "127.0.0.1:8080"        # where clients come in; other addresses need http.keys_file
transport:
  listen: "{listen}"{gap}# where nodes dial in, over TLS
  tls:
    cert: edge.pem                # with its CA behind it, which a node that joins looks for
    key: edge-key.pem
    # client_ca: ca.pem           # with this a node also has to show a certificate, as node.yaml does
nodes:
  - id: node-1
    token_sha256: "{token_sha256}"
    providers:
      - {{id: node-1, kind: auto}}              # model servers that it finds beside it: Ollama, vLLM, llama.cpp, ...
      - {{id: node-1-echo, kind: echo}}         # to try: repeats what it is told
      # One that is written down, with settings of its own:
      # - {{id: node-1-vllm, kind: vllm, base_url: "http://127.0.0.1:8000/v1", capacity: 8}}
models: auto                      # what they list, under its own name
"""

NODE = """\
# The node. To run it elsewhere copy this file, ca.pem, node-1.pem, node-1-key.pem and node-1.token to that machine, and
# set where the edge is. Or leave all of it here and join: iop-node join HOST:PORT --token T needs no file.
node:
  edge: "{edge}"
  token_file: node-1.token
  tls:
    ca: ca.pem
    cert: node-1.pem              # for an edge that demands one (transport.tls.client_ca)
    key: node-1-key.pem
reconnect:
  max_attempts: 0                 # for ever: who started it wants it to keep trying
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the parser."""
    init = commands.add_parser(
        "init",
        help="write a first configuration",
        description="Writes edge.yaml, node.yaml, a CA, certificates and a token into DIR, prints the two commands to "
        "run here, and the line to paste on another machine.",
    )
    init.add_argument("dir", metavar="DIR", type=Path, help="folder to write into; made if absent")
    hosts_option(init)
    init.add_argument(
        "--listen", metavar="HOST:PORT", default=LISTEN, help=f"where nodes dial in (default: {LISTEN}, all addresses)"
    )
    init.set_defaults(run=_init)


def _init(arguments: argparse.Namespace) -> int:
    try:
        listen = HostPort.parse(arguments.listen)
    except ValueError as error:
        raise Usage(f"--listen: {error}") from None
    if listen.port == 0:
        raise Usage("--listen: name a port, since nodes are told where to dial")
    for line in write(arguments.dir, hosts=arguments.host, listen=listen):
        print(line)
    return Exit.OK


def write(folder: Path, *, hosts: Sequence[str], listen: HostPort) -> list[str]:
    """Write the files and return the lines to print. What is secret has mode 0600 from the start.

    Raises :class:`Usage` if one of them exists and OSError if one cannot be written; then nothing of it is left.
    """
    from iop.tls.authority import Authority
    from iop.tls.join_token import new_token, token_sha256

    everywhere = listen.host in ("0.0.0.0", "::")
    here = HostPort("127.0.0.1" if listen.host == "0.0.0.0" else "::1", listen.port) if everywhere else listen
    authority = Authority.create()
    own = [] if everywhere else [listen.host]
    edge = authority.edge(EDGE_ID, [*hosts, *own, *own_names(), "localhost", "127.0.0.1", "::1"])
    node = authority.node(NODE_ID)
    token = new_token(authority.sha256)
    edge_yaml = EDGE.format(listen=listen, gap=" " * max(1, 22 - len(str(listen))), token_sha256=token_sha256(token))
    _create(
        folder,
        {
            "ca.pem": (authority.certificate_pem, 0o644),
            "ca-key.pem": (authority.issued.key_pem, 0o600),
            "edge.pem": (edge.certificate_pem, 0o644),
            "edge-key.pem": (edge.key_pem, 0o600),
            "node-1.pem": (node.certificate_pem, 0o644),
            "node-1-key.pem": (node.key_pem, 0o600),
            "node-1.token": (token.encode() + b"\n", 0o600),
            "edge.yaml": (edge_yaml.encode(), 0o644),
            "node.yaml": (NODE.format(edge=here).encode(), 0o644),
        },
    )
    lines = [
        f"Wrote edge.yaml, node.yaml, certificates and a token into {folder}.",
        "Run these two, each in its own terminal:",
        f"  $ {command_line('iop-edge', 'serve', '-c', folder / 'edge.yaml')}",
        f"  $ {command_line('iop-node', 'serve', '-c', folder / 'node.yaml')}",
    ]
    if not here.is_loopback or everywhere:
        lines += [
            "Or, in place of the second one, paste this on the machine with the model server (it holds the token):",
            f"  $ iop-node join {named(listen, hosts)} --token {token}",
        ]
    return lines


def _create(folder: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """All of the files or none."""
    for name in files:
        if os.path.lexists(folder / name):
            raise Usage(f"{folder / name} exists already; name another folder or move it away")
    made: list[Path] = []
    for parent in [folder, *folder.parents]:
        if parent.exists():
            break
        made.append(parent)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    try:
        for name, (data, mode) in files.items():
            path = folder / name
            # Created with its mode, so that a secret is at no time readable by others.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            written.append(path)
            with open(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(descriptor)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        for parent in made:
            parent.rmdir()
        raise
