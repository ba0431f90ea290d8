"""``iop-edge init``: a first pair of files that works as written, with the built-in echo provider."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from iop.cli.program import Usage, command_line

__all__ = ["write"]

EDGE = """\
# The edge. All settings and their defaults: configs/edge.yaml of the project; check with: iop-edge check -c edge.yaml
http:
  listen: "127.0.0.1:8080"        # where clients come in; other addresses need http.api_keys
transport:
  listen: "127.0.0.1:7443"        # where nodes dial in
nodes:
  - id: node-1
    token_sha256: "{token_sha256}"
    providers:
      - {{id: node-1-echo, kind: echo, capacity: 4}}
      # A real model server beside the node:
      # - {{id: node-1-vllm, kind: vllm, base_url: "http://127.0.0.1:8000/v1", capacity: 8}}
models:
  - id: echo
    candidates:
      - {{node: node-1, provider: node-1-echo, target: echo}}
"""

NODE = """\
# The node: copy this file and node-1.token to the machine with the model server, and set where the edge is.
node:
  edge: "127.0.0.1:7443"
  token_file: node-1.token
"""


def write(folder: Path) -> list[str]:
    """Writes ``edge.yaml``, ``node.yaml`` and ``node-1.token`` (mode 0600) and returns the lines to print.

    Raises :class:`Usage` and writes nothing if one of them exists.
    """
    token = secrets.token_urlsafe(32)
    token_sha256 = hashlib.sha256(token.encode()).hexdigest()
    files = {
        "node-1.token": (token + "\n", 0o600),
        "edge.yaml": (EDGE.format(token_sha256=token_sha256), 0o644),
        "node.yaml": (NODE, 0o644),
    }
    for name in files:
        if os.path.lexists(folder / name):
            raise Usage(f"{folder / name} exists already; name another folder or move it away")
    folder.mkdir(parents=True, exist_ok=True)
    for name, (text, mode) in files.items():
        # Created with its mode, so that the token is at no time readable by others.
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
    return [
        f"Wrote {', '.join(str(folder / name) for name in sorted(files))}. Run these two, each in its own terminal:",
        f"  $ {command_line('iop-edge', 'serve', '-c', folder / 'edge.yaml')}",
        f"  $ {command_line('iop-node', 'serve', '-c', folder / 'node.yaml')}",
    ]
