"""The node's metrics listener: ``/metrics``, ``/healthz`` and ``/readyz``, and nothing else (OBS-4). Off unless
``metrics.listen`` names an address.

On loopback it serves this machine only, whatever name a browser reaches it by.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from iop.errors import Forbidden, IopError, MethodNotAllowed, RouteNotFound
from iop.net.http.exchange import Exchange, ServerLimits
from iop.net.http.local import require_local
from iop.net.http.server import HttpServer
from iop.net.loop import Runtime
from iop.observability.metrics import NodeMetrics

__all__ = ["watch_listener"]

_JSON = b"content-type: application/json\r\n"
_FRESH = b"cache-control: no-store\r\n"
LIMITS = ServerLimits(max_body_bytes=4096, max_connections=64)


class Watch:
    """The App. ``ready`` says whether the session with the edge is."""

    def __init__(self, metrics: NodeMetrics, ready: Callable[[], bool], *, local_only: bool) -> None:
        self._metrics = metrics
        self._ready = ready
        self._local_only = local_only

    def head_received(self, ex: Exchange) -> None:
        """Everything waits for the whole request."""

    def body_piece(self, ex: Exchange, piece: bytes) -> None:
        """No request here has a body that is of interest."""
        ex.release_body()

    def request_complete(self, ex: Exchange) -> None:
        try:
            self._answer(ex)
        except IopError as exc:
            self.fail(ex, exc)

    def _answer(self, ex: Exchange) -> None:
        head = ex.head
        if self._local_only:
            try:
                require_local(head.host, head.get(b"origin"))
            except Forbidden:
                raise Forbidden("a metrics listener on loopback serves this machine only") from None
        if head.path not in (b"/metrics", b"/healthz", b"/readyz"):
            raise RouteNotFound("the metrics listener has /metrics, /healthz and /readyz")
        if head.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed("GET, HEAD")
        if head.path == b"/metrics":
            body, kind = self._metrics.render()
            ex.respond(200, b"content-type: %b\r\n%b" % (kind.encode("ascii"), _FRESH), body)
        elif head.path == b"/healthz" or self._ready():
            ex.respond(200, _JSON + _FRESH, b'{"status":"ok"}')
        else:
            ex.respond(503, _JSON + _FRESH, b'{"status":"not connected"}')

    def client_gone(self, ex: Exchange, reason: str) -> None:
        """Answers are written at once."""

    def rejected(self, code: str) -> None:
        """Nothing to count."""

    @staticmethod
    def fail(ex: Exchange, error: IopError) -> None:
        allow = b"allow: %b\r\n" % error.allow.encode() if isinstance(error, MethodNotAllowed) else b""
        body = json.dumps({"error": {"message": error.message, "code": error.code}}).encode()
        ex.respond(error.status, _JSON + allow, body)


def watch_listener(
    runtime: Runtime, metrics: NodeMetrics, ready: Callable[[], bool], *, local_only: bool
) -> HttpServer:
    """The listener; the caller starts and closes it."""
    app = Watch(metrics, ready, local_only=local_only)
    return HttpServer(runtime, app, app.fail, LIMITS)
