"""Whether a request names this very machine: what a listener on loopback asks of a browser (API-4, OBS-4)."""

from __future__ import annotations

import functools

from iop.errors import Forbidden

__all__ = ["require_local"]

_LOOPBACK_NAMES = frozenset({b"localhost", b"127.0.0.1", b"[::1]", b"::1"})


@functools.lru_cache(maxsize=64)  # a server is known by few names, and hears one with every request
def require_local(host: bytes, origin: bytes | None) -> None:
    """Raises Forbidden unless Host and Origin both do: a page of another origin must not reach a listener on loopback
    through a name that resolves there (DNS rebinding)."""
    if host and _hostname(host) not in _LOOPBACK_NAMES:
        raise Forbidden("without API keys only loopback host names are served; set http.api_keys or allow_anonymous")
    if origin is not None and _hostname(origin.partition(b"://")[2]) not in _LOOPBACK_NAMES:
        raise Forbidden("without API keys no other origin is served; set http.api_keys or allow_anonymous")


def _hostname(authority: bytes) -> bytes:
    if authority.startswith(b"["):
        return authority.partition(b"]")[0].lower() + b"]"
    return authority.partition(b":")[0].lower()
