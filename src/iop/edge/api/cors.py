"""Which web pages of other origins may read answers (API-1, the Fetch standard's CORS protocol).

Nothing here runs without ``http.cors_origins``. Credentials in the sense of that protocol, cookies, are never
allowed: keys travel in fields of their own, so ``*`` is safe with keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from iop.edge.api.routes import RATES, STORY

__all__ = ["Cors"]

MAX_AGE_S = 3600
MAX_NAMES_BYTES = 2048  # of the fields that a page wants to send
_EXPOSED = b"access-control-expose-headers: %b\r\n" % ", ".join((*STORY, *RATES, "retry-after")).encode("ascii")
_ANY = b"access-control-allow-origin: *\r\n" + _EXPOSED
_VARY = b"vary: access-control-request-method, access-control-request-headers\r\n"
_NAMES = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")


class Cors:
    """The origins of ``http.cors_origins``: each exactly as browsers send it, or ``*`` for all."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._known = frozenset(origin.encode() for origin in origins)
        # An answer differs by who asks, so a cache must not give one to another, whoever asked first.
        self._others = b"" if b"*" in self._known else b"vary: origin\r\n"

    def names(self, origin: bytes | None) -> bool:
        """Whether this very origin is listed; ``*`` names nobody."""
        return origin is not None and origin != b"*" and origin in self._known

    def fields(self, origin: bytes | None) -> bytes:
        """What every answer to this origin carries, or to a request without one."""
        if origin is None:
            return self._others
        if b"*" in self._known:
            return _ANY
        if origin in self._known:
            return b"access-control-allow-origin: %b\r\nvary: origin\r\n%b" % (origin, _EXPOSED)
        return self._others

    @staticmethod
    def preflight(allow: str, wanted: bytes | None) -> bytes:
        """What the answer to a browser's question beforehand has besides, for an origin that is allowed. ``allow`` is
        what the path takes, ``wanted`` the fields that the page wants to send: any, as those of unknown clients pass as
        well."""
        block = b"access-control-allow-methods: %b\r\n" % allow.encode("ascii")
        if wanted is not None and len(wanted) <= MAX_NAMES_BYTES and _NAMES.fullmatch(wanted):
            block += b"access-control-allow-headers: %b\r\n" % wanted
        return b"%baccess-control-max-age: %d\r\n%b" % (block, MAX_AGE_S, _VARY)
