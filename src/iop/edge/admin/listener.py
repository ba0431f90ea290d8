"""The admin listener: ``/metrics`` and, under ``/admin/``, ``status``, ``events``, ``requests``, ``trace``, ``reload``,
``runs``, ``drain``, ``undrain``, ``cancel`` and ``ollama`` (OBS-4). Loopback by default; it answers nothing else.

A page of another origin must not read it through a name that resolves to loopback, so only loopback host names and
addresses are served when it listens there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from iop.edge.admin.actions import Operator
from iop.edge.admin.event_stream import Feed, wanted_of
from iop.edge.admin.runs import RunFeed
from iop.edge.api.errors import error_body, error_headers
from iop.edge.api.routes import Shape
from iop.edge.gateway.pages import answer_health
from iop.edge.settings.reload import Reloaded
from iop.errors import (
    ConfigError,
    Forbidden,
    IopError,
    MethodNotAllowed,
    PayloadTooLarge,
    ProviderProtocolError,
    RouteNotFound,
)
from iop.net.http.exchange import Exchange
from iop.net.http.local import origin_of, require_local, require_no_other_page
from iop.net.loop import Runtime
from iop.observability.events import EventBus
from iop.observability.metrics import EdgeMetrics
from iop.wire import messages as m

__all__ = ["Admin"]

_JSON = b"content-type: application/json\r\ncache-control: no-store\r\n"
RUNS = b"/admin/runs"
_ACTIONS = {b"/admin/drain": "drain", b"/admin/undrain": "undrain", b"/admin/cancel": "cancel"}
_WITH_BODY = frozenset({RUNS, *_ACTIONS})
TRACE = b"/admin/trace/"
OLLAMA = b"/admin/ollama/"
_HEALTH = (b"/healthz", b"/readyz")  # here too: the clients' listener closes when a drain begins
_PATHS = frozenset({*_HEALTH, b"/metrics", b"/admin/status", b"/admin/events", b"/admin/requests"})


class Admin:
    """The App of the admin listener. ``status`` makes the snapshot when it is asked for."""

    def __init__(
        self,
        runtime: Runtime,
        metrics: EdgeMetrics,
        status: Callable[[], dict[str, Any]],
        events: EventBus,
        *,
        reload: Callable[[Callable[[Reloaded | IopError], None]], None],
        runs: Callable[[Exchange, bytes], RunFeed],
        operator: Operator,
        ready: Callable[[], bool],
        local_only: bool,
    ) -> None:
        self._runtime = runtime
        self._events = events
        self._metrics = metrics
        self._status = status
        self._reload = reload
        self._runs = runs
        self._operator = operator
        self._ready = ready
        self._local_only = local_only

    def head_received(self, ex: Exchange) -> None:
        """Everything waits for the whole request."""

    def body_piece(self, ex: Exchange, piece: bytes) -> None:
        if ex.head.path not in _WITH_BODY:
            ex.release_body()
        elif ex.context is None:
            ex.context = [piece]
        else:
            ex.context.append(piece)

    def request_complete(self, ex: Exchange) -> None:
        try:
            if self._local_only:
                self._require_local(ex)
            if ex.head.path == b"/admin/reload":
                return self._reload_asked(ex)
            if ex.head.path == RUNS:
                return self._run_asked(ex)
            if ex.head.path.startswith(OLLAMA):
                return self._ollama_asked(ex)
            if ex.head.path in _ACTIONS:
                return self._action_asked(ex, _ACTIONS[ex.head.path])
            if ex.head.path not in _PATHS and not ex.head.path.startswith(TRACE):
                raise RouteNotFound("the admin listener has /metrics and what `iop-edge --help` lists, under /admin/")
            if ex.head.method not in (b"GET", b"HEAD"):
                raise MethodNotAllowed("GET, HEAD")
            if ex.head.path in _HEALTH:
                return answer_health(ex, self._ready())
            if ex.head.path == b"/admin/events":
                require_no_other_page(ex.head)  # which an image's address is enough for, and there are few places
                wanted = wanted_of(ex.head.query)
                if ex.head.method == b"GET":
                    ex.context = Feed(self._runtime, self._events, ex, wanted)
                else:
                    ex.respond(200, b"content-type: text/event-stream\r\n", b"")
                return None
            kind, body = self._page(ex.head.path)
        except IopError as exc:
            self.fail(ex, exc)
        else:
            ex.respond(200, b"content-type: %b\r\ncache-control: no-store\r\n" % kind, body)
        return None

    @staticmethod
    def _require_local(ex: Exchange) -> None:
        try:
            require_local(ex.head.host, origin_of(ex.head))
        except Forbidden:
            raise Forbidden("an admin listener on loopback serves this machine only, and no page of another") from None

    @staticmethod
    def _may_change(ex: Exchange) -> None:
        """Raises MethodNotAllowed or Forbidden for what does not come from an operator."""
        if ex.head.method != b"POST":
            raise MethodNotAllowed("POST")
        require_no_other_page(ex.head)

    def _action_asked(self, ex: Exchange, action: str) -> None:
        self._may_act(ex)
        body, ex.context = b"".join(ex.context or ()), None
        ex.respond(200, _JSON, msgspec.json.encode(self._operator.act(action, body)))

    def _may_act(self, ex: Exchange) -> None:
        """Raises what refuses more than a look, or a reload, which does what the file says and no more."""
        self._may_change(ex)
        if not self._local_only:
            raise Forbidden("only an admin listener on loopback takes this, since it asks for no key")

    def _run_asked(self, ex: Exchange) -> None:
        self._may_act(ex)
        body, ex.context = b"".join(ex.context or ()), None  # in memory, and counted, until the run is over
        feed = self._runs(ex, body)
        if not ex.done:
            ex.context = feed

    def _ollama_asked(self, ex: Exchange) -> None:
        """Answered when the node has asked. Raises what refuses it."""
        if ex.head.method != b"GET":
            raise MethodNotAllowed("GET")
        require_no_other_page(ex.head)  # it makes a node ask
        if not self._local_only:
            raise Forbidden("only an admin listener on loopback takes this, since it asks for no key")

        def answer(outcome: m.NodeCommandResponse | IopError) -> None:
            if ex.done:
                return  # the caller has left
            if isinstance(outcome, IopError):
                self.fail(ex, outcome)
            elif outcome.status == 200:
                ex.respond(200, _JSON, outcome.result)
            else:
                error = ProviderProtocolError(f"the provider answered with status {outcome.status}")
                error.status = outcome.status if 400 <= outcome.status <= 599 else error.status
                self.fail(ex, error)

        provider_id, _, path = unquote(ex.head.path[len(OLLAMA) :].decode("latin-1"), errors="replace").partition("/")
        model = parse_qs(ex.head.query.decode("latin-1")).get("model", [""])
        self._operator.ollama(provider_id, f"/{path}", model[0], answer)

    def _reload_asked(self, ex: Exchange) -> None:
        """Answered when the file was read and the nodes have said what they take. Raises what refuses it."""
        self._may_change(ex)

        def answer(outcome: Reloaded | IopError) -> None:
            if ex.done:
                return  # the caller has left; the log says what became of it
            if isinstance(outcome, Reloaded):
                body = {
                    "result": outcome.result,
                    "revision": outcome.revision,
                    "changed": outcome.change.changed,
                    "needs_restart": outcome.change.needs_restart,
                    "nodes": outcome.nodes,
                    "unanswered": outcome.unanswered,
                    "rejected": outcome.rejected,
                }
                ex.respond(200, _JSON, json.dumps(body).encode())
            elif isinstance(outcome, ConfigError):
                message = "the file was refused; the edge goes on with the configuration that it has"
                error = {"type": "invalid_request_error", "code": outcome.code, "param": None, "message": message}
                ex.respond(400, _JSON, json.dumps({"error": {**error, "faults": outcome.faults}}).encode())
            else:
                self.fail(ex, outcome)

        self._reload(answer)

    def _page(self, path: bytes) -> tuple[bytes, bytes]:
        if path == b"/metrics":
            body, kind = self._metrics.render()
            return kind.encode("ascii"), body
        if path.startswith(TRACE):
            page = self._operator.trace(unquote(path[len(TRACE) :].decode("latin-1"), errors="replace"))
        else:
            page = self._operator.requests() if path == b"/admin/requests" else self._status()
        return b"application/json", msgspec.json.encode(page)  # thousands of providers are a megabyte

    def client_gone(self, ex: Exchange, reason: str) -> None:
        """A feed ends, a run is cancelled; other answers are written at once."""
        if isinstance(ex.context, Feed):
            ex.context.close()
        elif isinstance(ex.context, RunFeed):
            ex.context.client_gone()

    def rejected(self, code: str) -> None:
        """Operators are not counted."""

    @staticmethod
    def fail(ex: Exchange, error: IopError) -> None:
        if isinstance(error, PayloadTooLarge):
            error = PayloadTooLarge("the body is larger than the admin listener takes")  # no setting of http counts
        ex.respond(error.status, error_headers(error), error_body(error, Shape.OPENAI, ""))
