"""One configured backend as this node runs it: what it may be asked, where it is, how its connections are kept.

The edge proposes (``ProviderConfig``); what the node's owner did not allow is refused here, once, when the
configuration is applied (TUN-6, TUN-7). Messages name the provider id, never its URL.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from iop.errors import Forbidden, InvalidArgument, IopError
from iop.net.http.client import Origin, ProviderPool
from iop.net.loop import Runtime
from iop.node.adapters import ADAPTERS, Adapter
from iop.wire import messages as m

__all__ = ["Allowance", "ConfigRejected", "Provider", "check_path"]

LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})
# What a field block may not carry: the tunnel frames the request itself, and the node speaks for itself to providers.
_RESERVED_FIELDS = re.compile(rb"(?im)^(?:content-length|transfer-encoding|host|connection|upgrade|te|trailer)[ \t]*:")


class ConfigRejected(IopError):
    """This node cannot run what the edge configured. ``ref`` is the provider id at fault."""

    code = "config_rejected"

    def __init__(self, ref: str, message: str) -> None:
        super().__init__(f"provider {ref}: {message}")
        self.ref = ref


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the node's owner permits, from node.yaml.

    ``upstreams``: None means loopback and unix sockets only, else (host, port) pairs. ``credentials``: names of
    environment variables that a provider's ``api_key_env`` may name.
    """

    upstreams: Sequence[tuple[str, int]] | None = None
    credentials: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def check_origin(self, origin: Origin) -> None:
        """Raises Forbidden unless a tunnel may go there (TUN-7)."""
        if origin.scheme == "unix":
            return
        if self.upstreams is None:
            if not _is_loopback(origin.host):
                raise Forbidden("its base_url is not on loopback; allow it in node.yaml's allow_upstreams")
        elif (origin.host, origin.port) not in self.upstreams:
            raise Forbidden("its base_url is not in node.yaml's allow_upstreams")

    def credential(self, name: str) -> bytes:
        """The value of a permitted variable, or b"" for no name. Raises Forbidden or InvalidArgument (TUN-6)."""
        if not name:
            return b""
        if name not in self.credentials:
            raise Forbidden(f"its api_key_env {name} is not listed in node.yaml's credentials")
        value = self.environment.get(name, "")
        if not value or not value.isascii() or not value.isprintable():
            raise InvalidArgument(f"the environment variable {name} is empty or not printable ASCII")
        return value.encode("ascii")


def _is_loopback(host: str) -> bool:
    if host in LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Provider:
    """One backend. ``close`` lets running calls end on their own connections."""

    __slots__ = ("_fixed_lines", "adapter", "config", "origin", "pool")

    def __init__(self, runtime: Runtime, config: m.ProviderConfig, allowance: Allowance, base_url: str) -> None:
        """``base_url`` is the configured one, or where the node serves a built-in adapter. Raises ConfigRejected."""
        adapter = ADAPTERS.get(config.kind)
        if adapter is None:
            raise ConfigRejected(config.id, f"this node has no adapter {config.kind!r}")
        try:
            self.origin = Origin.parse(base_url)
            allowance.check_origin(self.origin)
            key = allowance.credential(config.api_key_env)
        except IopError as exc:
            raise ConfigRejected(config.id, exc.message) from None
        credential = b"authorization: Bearer %b\r\n" % key if key else b""
        self._fixed_lines = self.origin.host_line + credential
        self.adapter: Adapter = adapter
        self.config = config
        self.pool = ProviderPool(
            runtime, self.origin, connect_timeout_s=config.connect_timeout_ms / 1000, idle_s=config.idle_ms / 1000
        )

    @property
    def rest_s(self) -> float:
        """How long a connection rests after a streamed answer (TUN-5)."""
        return self.config.reuse_delay_ms / 1000 if self.adapter.rest_after_stream else 0.0

    def request_head(self, request: m.ProviderTunnelRequest) -> bytes:
        """The request's head, blank line included, with the provider's credential added (TUN-6).

        Raises Forbidden for what a tunnel may not ask (TUN-7).
        """
        if request.method not in self.adapter.methods:
            raise Forbidden("this method is not tunnelled")
        check_path(request.path)
        if request.query and any(c <= 0x20 or c == 0x7F for c in request.query):
            raise Forbidden("control characters in the query")
        if _RESERVED_FIELDS.search(request.header_block):
            raise Forbidden("the header block carries fields that the node sets itself")
        query = b"?" + request.query if request.query else b""
        length = b"" if request.method == b"GET" else b"content-length: %d\r\n" % request.body_bytes
        return b"%b %b%b%b HTTP/1.1\r\n%b%b%b\r\n" % (
            request.method,
            self.origin.base_path,
            request.path,
            query,
            self._fixed_lines,
            request.header_block,
            length,
        )

    def close(self) -> None:
        self.pool.close()


@functools.lru_cache(maxsize=256)  # there are a handful, and each is looked at for every request
def check_path(path: bytes) -> None:
    """Raises Forbidden unless ``path`` stays inside the base URL, after one decode (TUN-7)."""
    plain = unquote_to_bytes(path)
    if (
        not path.startswith(b"/")
        or b"//" in plain
        or b"\\" in plain
        or b"?" in path
        or b"#" in path
        or any(c <= 0x20 or c >= 0x7F for c in path)
        or any(c < 0x20 or c == 0x7F for c in plain)
        or any(segment in (b".", b"..") for segment in plain.split(b"/"))
    ):
        raise Forbidden("the path leaves the provider's base URL")
