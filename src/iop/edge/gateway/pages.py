"""Answers that need no model: whether the edge lives and takes requests (API-5)."""

from __future__ import annotations

from iop.edge.api.routes import READ
from iop.errors import MethodNotAllowed
from iop.ids import new_request_id
from iop.net.http.exchange import Exchange

__all__ = ["JSON", "answer_health", "request_id_field", "require_reading"]

JSON = b"content-type: application/json\r\n"
_READING = (b"GET", b"HEAD")


def request_id_field() -> bytes:
    """A fresh ``x-request-id`` field line, which every answer has."""
    return b"x-request-id: %b\r\n" % new_request_id().encode()


def answer_health(ex: Exchange, ready: bool, fields: bytes = b"") -> None:
    """``/readyz`` tells whether the edge takes requests, any other path that it is there."""
    if ex.head.path == b"/":
        ex.respond(200, JSON + fields, b'{"service":"iop"}')
    elif ready or ex.head.path != b"/readyz":
        ex.respond(200, JSON + fields, b'{"status":"ok"}')
    else:
        ex.respond(503, JSON + fields + b"retry-after: 5\r\n", b'{"status":"draining"}')


def require_reading(ex: Exchange) -> None:
    """Raises MethodNotAllowed unless it is a GET or a HEAD."""
    if ex.head.method not in _READING:
        raise MethodNotAllowed(READ)
