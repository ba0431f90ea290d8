"""Who may ask, and whose request it is (API-4, API-11)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

from iop.edge.api.cors import Cors
from iop.edge.keys.limits import ANONYMOUS, Key
from iop.errors import Unauthorized
from iop.net.http.head import RequestHead
from iop.net.http.local import origin_of, require_local

__all__ = ["Access"]


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask (API-4). ``keys`` maps the SHA-256 of a good key to it. One of them is asked for unless
    ``anonymous``, even if there is none.

    ``local_only``: without keys the edge serves loopback, and then a browser page of another origin must not reach it
    through a name that resolves there (DNS rebinding). ``cors``: the origins whose pages may read answers, if any.
    ``more_paths``: what they may ask for beside the known endpoints (API-6b).
    """

    keys: Mapping[bytes, Key]
    anonymous: bool
    local_only: bool
    cors: Cors | None = None
    more_paths: tuple[str, ...] = ()

    def key(self, head: RequestHead) -> Key:
        """Whose request it is. Raises Unauthorized or Forbidden."""
        if self.anonymous:
            if self.local_only:
                if b"origin" in head.fields.first:
                    self.require_local(head)
                else:
                    require_local(head.host, None)
            return ANONYMOUS
        # One credential, in either field or the same in both; a hash as the look-up key makes its timing harmless.
        repeated, first = head.fields.repeated, head.fields.first
        if b"authorization" not in repeated and b"x-api-key" not in repeated:
            value = first.get(b"x-api-key")
            bearer = first.get(b"authorization")
            if bearer is not None and bearer[:7].lower() == b"bearer ":
                token = bearer[7:].strip()
                value = token if value is None or value == token else None
            key = self.keys.get(hashlib.sha256(value).digest()) if value is not None else None
            if key is not None and (key.expires_at is None or time.time() < key.expires_at):
                return key
        raise Unauthorized

    def require_local(self, head: RequestHead) -> None:
        """Raises Forbidden. An origin that the configuration names is not a foreign one."""
        cors, origin = self.cors, origin_of(head)
        require_local(head.host, None if cors is not None and cors.names(origin) else origin)
