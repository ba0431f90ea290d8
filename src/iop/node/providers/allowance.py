"""What the owner of this node permits to an edge: addresses, names of keys, ports to look at (TUN-6, TUN-7)."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from iop.net.http.client import Origin

__all__ = ["Allowance", "ProviderRejected"]

LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})


class ProviderRejected(Exception):
    """This node may not or cannot have a provider that the edge configured (CONF-2). No request hears of it: the edge
    is told with ``reason``, a code of the wire's ``Rejected``, and ``message``."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the node's owner permits, from node.yaml.

    ``upstreams``: None means loopback and unix sockets only, else (host, port) pairs. ``credentials``: names of
    environment variables that a provider's ``api_key_env`` may name. ``detect_ports``: where on loopback model servers
    may be looked for.
    """

    upstreams: Sequence[tuple[str, int]] | None = None
    credentials: frozenset[str] = frozenset()
    detect_ports: Sequence[int] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def check_origin(self, origin: Origin) -> None:
        """Raises ProviderRejected unless a tunnel may go there (TUN-7)."""
        if self.upstreams is None:
            if origin.scheme != "unix" and not _is_loopback(origin.host):
                raise ProviderRejected(
                    "upstream_not_allowed", "its base_url is not on loopback; allow it in node.yaml's allow_upstreams"
                )
        elif origin.scheme == "unix" or (origin.host, origin.port) not in self.upstreams:
            raise ProviderRejected("upstream_not_allowed", "its base_url is not in node.yaml's allow_upstreams")

    def credential(self, name: str) -> bytes:
        """The value of a permitted variable, or b"" for no name. Raises ProviderRejected (TUN-6)."""
        if not name:
            return b""
        if name not in self.credentials:
            raise ProviderRejected(
                "credential_not_listed", f"its api_key_env {name} is not listed in node.yaml's credentials"
            )
        value = self.environment.get(name, "")
        if not value or not value.isascii() or not value.isprintable():
            raise ProviderRejected(
                "credential_not_set", f"the environment variable {name} is empty or not printable ASCII"
            )
        return value.encode("ascii")


def _is_loopback(host: str) -> bool:
    if host in LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
