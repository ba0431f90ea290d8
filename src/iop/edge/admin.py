"""The admin listener: ``/metrics``, ``/admin/status`` and ``/admin/events`` (OBS-4). Loopback by default; it answers
nothing else.

A page of another origin must not read it through a name that resolves to loopback, so only loopback host names and
addresses are served when it listens there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from iop.edge.api.errors import error_body, error_headers
from iop.edge.api.routes import Shape
from iop.edge.feed import Feed, wanted_of
from iop.edge.front import require_local
from iop.errors import IopError, MethodNotAllowed, RouteNotFound
from iop.net.http.exchange import Exchange
from iop.net.loop import Runtime
from iop.observability.events import EventBus
from iop.observability.metrics import EdgeMetrics

__all__ = ["Admin"]

_PATHS = frozenset({b"/metrics", b"/admin/status", b"/admin/events"})


class Admin:
    """The App of the admin listener. ``status`` makes the snapshot when it is asked for."""

    def __init__(
        self,
        runtime: Runtime,
        metrics: EdgeMetrics,
        status: Callable[[], dict[str, Any]],
        events: EventBus,
        *,
        local_only: bool,
    ) -> None:
        self._runtime = runtime
        self._events = events
        self._metrics = metrics
        self._status = status
        self._local_only = local_only

    def head_received(self, ex: Exchange) -> None:
        """Everything waits for the whole request; bodies are of no interest."""

    def body_piece(self, ex: Exchange, piece: bytes) -> None:
        ex.release_body()

    def request_complete(self, ex: Exchange) -> None:
        try:
            if self._local_only:
                require_local(ex.head.host, ex.head.get(b"origin"))
            if ex.head.path not in _PATHS:
                raise RouteNotFound("the admin listener has /metrics, /admin/status and /admin/events")
            if ex.head.method not in (b"GET", b"HEAD"):
                raise MethodNotAllowed("GET, HEAD")
            if ex.head.path == b"/admin/events":
                wanted = wanted_of(ex.head.query)
                if ex.head.method == b"GET":
                    ex.context = Feed(self._runtime, self._events, ex, wanted)
                else:
                    ex.respond(200, b"content-type: text/event-stream\r\n", b"")
                return
            kind, body = self._page(ex.head.path)
        except IopError as exc:
            self.fail(ex, exc)
        else:
            ex.respond(200, b"content-type: %b\r\ncache-control: no-store\r\n" % kind, body)

    def _page(self, path: bytes) -> tuple[bytes, bytes]:
        if path == b"/metrics":
            body, kind = self._metrics.render()
            return kind.encode("ascii"), body
        return b"application/json", json.dumps(self._status()).encode()

    def client_gone(self, ex: Exchange, reason: str) -> None:
        """A feed ends; other answers are written at once."""
        if isinstance(ex.context, Feed):
            ex.context.close()

    def rejected(self, status: int) -> None:
        """Counted by the server."""

    @staticmethod
    def fail(ex: Exchange, error: IopError) -> None:
        ex.respond(error.status, error_headers(error), error_body(error, Shape.OPENAI, ""))
