"""Join tokens: a node's token that also says by which CA its edge is known (REG-1, SEC-1).

    iop-join.<43 url-safe characters>.<SHA-256 of the CA's certificate in DER, 64 hex digits>

The whole string is the token: it is what the node sends and what the edge keeps a hash of. Tokens without that form are
as good; they only say nothing about the edge.
"""

from __future__ import annotations

import hashlib
import re
import secrets

__all__ = ["PREFIX", "ca_of", "new_token", "token_sha256"]

PREFIX = "iop-join."
_FORM = re.compile(r"iop-join\.[A-Za-z0-9_-]{43}\.([0-9a-f]{64})")


def new_token(ca_sha256: str | None = None) -> str:
    """A fresh token of 256 random bits; a join token if the edge has a CA of its own."""
    secret = secrets.token_urlsafe(32)
    while secret.startswith("-"):  # a command line would take it for an option
        secret = secrets.token_urlsafe(32)
    return f"{PREFIX}{secret}.{ca_sha256}" if ca_sha256 else secret


def token_sha256(token: str) -> str:
    """What edge.yaml has of it."""
    return hashlib.sha256(token.encode()).hexdigest()


def ca_of(token: str) -> str | None:
    """The CA that a join token names, in hex; None for any other token. Raises ValueError for one that begins as a join
    token and is none: a part of it got lost, and without it the edge could not be told from others."""
    if not token.startswith(PREFIX):
        return None
    match = _FORM.fullmatch(token)
    if match is None:
        raise ValueError("this join token is damaged; paste all of it: iop-join., 43 characters, a dot, 64 hex digits")
    return match[1]
