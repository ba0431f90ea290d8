"""Whether a request names this very machine: what a listener on loopback asks of a browser (API-4, OBS-4)."""

from __future__ import annotations

import functools
import re

from iop.errors import Forbidden
from iop.net.http.head import RequestHead

__all__ = ["origin_of", "require_local", "require_no_other_page"]

_OWN_SITES = frozenset({b"same-origin", b"none"})  # none: a person, by the address line
_LOOPBACK_NAMES = frozenset({b"localhost", b"127.0.0.1", b"[::1]", b"::1"})
# Exactly one, as browsers send it: of a list the first could be ours and the page another's.
_ORIGIN = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]+)(?::[0-9]{1,5})?")


def origin_of(head: RequestHead) -> bytes | None:
    """The origin of the page that asks, None if it is none; of several fields something that is nobody's."""
    fields = head.fields
    return b"several" if b"origin" in fields.repeated else fields.first.get(b"origin")


@functools.lru_cache(maxsize=64)  # a server is known by few names, and hears one with every request
def require_local(host: bytes, origin: bytes | None) -> None:
    """Raises Forbidden unless Host and Origin both do: a page of another origin must not reach a listener on loopback
    through a name that resolves there (DNS rebinding)."""
    if host and _hostname(host) not in _LOOPBACK_NAMES:
        raise Forbidden(
            "without API keys only loopback host names are served; set http.api_keys, keys_file or allow_anonymous"
        )
    if origin is not None:
        match = _ORIGIN.fullmatch(origin)
        if match is None or match[1].lower() not in _LOOPBACK_NAMES:
            raise Forbidden(
                "without API keys no other origin is served; name it in http.cors_origins, or set http.api_keys"
            )


def require_no_other_page(head: RequestHead) -> None:
    """Raises Forbidden for a request that a page of another origin makes. Browsers say so in ``Sec-Fetch-Site``, also
    where they send no ``Origin``, as for an image."""
    fields = head.fields
    site, origin = fields.first.get(b"sec-fetch-site"), origin_of(head)
    if b"sec-fetch-site" in fields.repeated or (site is not None and site.lower() not in _OWN_SITES):
        raise Forbidden("a page of another origin may not ask for this")
    if origin is not None and origin.partition(b"://")[2] != head.host:
        raise Forbidden("a page of another origin may not ask for this")


def _hostname(authority: bytes) -> bytes:
    if authority.startswith(b"["):
        return authority.partition(b"]")[0].lower() + b"]"
    return authority.partition(b":")[0].lower()
