"""Certificates for tests: a CA, what it issues, and the files of it.

made = Certificates(tmp_path)
made.edge()                     # edge.pem, edge-key.pem: {"cert": ..., "key": ...}
made.node("n1")
made.ca                         # ca.pem
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from iop.credentials.authority import Authority, Issued
from iop.credentials.certificate import Certificate, read_pem

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
