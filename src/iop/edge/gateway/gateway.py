"""The edge's HTTP face: who may ask what, and what becomes of it (API-1, API-4, API-5).

Every exchange ends in one of three ways: answered here (health, models, refusals), or handed to a ``ClientRequest``
once its body is complete, or dropped because the client left before that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iop.edge.api.body import Intake, form_of, require_plain_query
from iop.edge.api.cors import Cors
from iop.edge.api.errors import error_body, error_headers
from iop.edge.api.models import ModelInfo, model_id, one_model, some_models
from iop.edge.api.routes import (
    MODELS,
    OLLAMA_PREFIX,
    READ,
    WRITE,
    Endpoint,
    Page,
    Shape,
    endpoints,
    not_there,
    page_of,
    shaped,
)
from iop.edge.gateway.access import Access
from iop.edge.gateway.pages import JSON, answer_health, request_id_field, require_reading
from iop.edge.keys.limits import ANONYMOUS, Key
from iop.edge.requests.client_request import ClientRequest
from iop.edge.requests.dispatcher import Dispatcher
from iop.errors import (
    IopError,
    MethodNotAllowed,
    ModelNotFound,
    RateLimited,
    RouteNotFound,
    ShuttingDown,
    Unauthorized,
    Unavailable,
    UpgradeRequired,
)
from iop.ids import new_request_id
from iop.net.http.exchange import Exchange
from iop.net.http.local import origin_of

__all__ = ["Gateway"]


class Gateway:
    """The server's App. ``models`` maps every name that clients may use, aliases included, to its group."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        access: Access,
        models: Mapping[str, ModelInfo],
        *,
        max_body_bytes: int,
        started_at: int,
        ready: Callable[[], bool],
        may_come: Callable[[str], bool],
    ) -> None:
        self._dispatcher = dispatcher
        self.set_access(access)
        self._models = models
        self._max_body_bytes = max_body_bytes
        self._started_at = started_at
        self._ready = ready
        self._may_come = may_come

    def configure(self, access: Access, models: Mapping[str, ModelInfo], max_body_bytes: int) -> None:
        """From here on these count; requests whose head was read keep who they are and what they may send (CONF-2)."""
        self.set_access(access)
        self._models = models
        self._max_body_bytes = max_body_bytes

    def set_access(self, access: Access) -> None:
        """Replace the access rules; those of the keys file may have changed."""
        self._access = access
        self._endpoints = endpoints(access.more_paths)

    # ---- the App protocol --------------------------------------------------------------------------------------------

    def head_received(self, ex: Exchange) -> None:
        head = ex.head
        endpoint, form = self._endpoints.get(head.path), None
        try:
            cors = self._access.cors
            if cors is not None:
                ex.more_fields = cors.fields(origin_of(head))
            if endpoint is None or head.method != b"POST":
                self._aside(ex, endpoint)
                return
            if endpoint.name == "other":
                form = form_of(head)
                endpoint = shaped(endpoint, self._shape(ex, None))
            if not self._ready():
                raise ShuttingDown
            key = self._access.key(head)
            if key is not ANONYMOUS:
                ex.principal = key.principal
            if head.query:
                require_plain_query(head.query)
            intake = Intake(head, self._max_body_bytes, form, ex.hold)
            # Last, so that whatever comes later finds the permit in the context.
            ex.context = (endpoint, key, intake, key.admit(ex.accepted_at) if key.limited else None)
        except IopError as exc:
            self.fail(ex, exc)

    def body_piece(self, ex: Exchange, piece: bytes) -> None:
        if ex.context is None:
            return
        try:
            if ex.context[2].feed(piece):
                ex.defer(lambda: self._step(ex))
        except IopError as exc:
            self.fail(ex, exc)

    def _step(self, ex: Exchange) -> bool:
        """A part of what a piece takes; whether there is more."""
        try:
            return bool(ex.context[2].step())
        except IopError as exc:
            self.fail(ex, exc)
            return False

    def request_complete(self, ex: Exchange) -> None:
        endpoint, key, intake, permit = ex.context
        d = self._dispatcher
        try:
            intake.finish()
            model = self._models.get(intake.model)
            if key.restricted and model is not None and not key.may_use(intake.model, model.group_id):
                d.metrics.key_refusals["model"].value += 1
                model = None  # what a key may not use is not there for it
            if model is None:
                raise self._no_model(intake.model)
            if permit is not None:
                permit.reserve(intake.estimated_tokens, d.runtime.loop.time())
        except IopError as exc:
            return self.fail(ex, exc)
        request = ClientRequest(d, ex, endpoint, key.principal, intake, permit)
        ex.context = request
        request.start(model.group_id, model.request_timeout_s, key.weight)
        return None

    def client_gone(self, ex: Exchange, reason: str) -> None:
        if isinstance(ex.context, ClientRequest):
            ex.context.client_gone(reason)
        else:
            self._return_permit(ex)

    def rejected(self, code: str) -> None:
        self._dispatcher.metrics.requests["other", code, "", "", "", ""].value += 1

    def _no_model(self, name: str) -> IopError:
        if self._may_come(name):
            return Unavailable(f"no connected node lists model {name[:100]!r}, and not all nodes have come yet")
        return ModelNotFound(f"model {name[:100]!r} does not exist; GET /v1/models lists what there is")

    # ---- answers of our own ------------------------------------------------------------------------------------------

    def fail(self, ex: Exchange, error: IopError) -> None:
        """Answers with an error, in the shape of the API that was asked."""
        request_id = new_request_id()
        endpoint = self._endpoints.get(ex.head.path)
        shape = self._shape(ex, endpoint)
        api = endpoint.name if endpoint is not None else "other"
        self._dispatcher.metrics.requests[api, error.code, "", "", "", ""].value += 1
        block = b"x-request-id: %b\r\n%b" % (request_id.encode(), error_headers(error))
        if isinstance(error, RateLimited | Unauthorized):
            reason = error.reason if isinstance(error, RateLimited) else "unknown_key"
            self._dispatcher.metrics.key_refusals[reason].value += 1
        self._return_permit(ex)
        ex.respond(error.status, block, error_body(error, shape, request_id))

    def _return_permit(self, ex: Exchange) -> None:
        """A request ends that did not become one of the pool's."""
        context, ex.context = ex.context, None
        if context is not None and context[3] is not None:
            context[3].end(self._dispatcher.runtime.loop.time())

    @staticmethod
    def _shape(ex: Exchange, endpoint: Endpoint | None) -> Shape:
        if endpoint is not None and endpoint.name != "other":
            return endpoint.shape
        if ex.head.path.startswith(OLLAMA_PREFIX):
            return Shape.OLLAMA
        return Shape.ANTHROPIC if ex.head.get(b"anthropic-version") is not None else Shape.OPENAI

    def _aside(self, ex: Exchange, endpoint: Endpoint | None) -> None:
        """Answers whatever is not a POST of an endpoint. Raises what refuses it."""
        head = ex.head
        if head.method == b"OPTIONS":
            self._options(ex, endpoint)
            return
        page = page_of(head.path) if endpoint is None else None
        if page is not None and page.keyless:
            require_reading(ex)
            answer_health(ex, self._ready(), request_id_field())
            return
        if not self._ready():
            raise ShuttingDown
        key = self._access.key(head)
        if endpoint is not None:
            if endpoint.name == "responses" and (head.get(b"upgrade") or b"").lower() == b"websocket":
                raise UpgradeRequired  # Codex tries that first, and goes over to HTTP at once on this answer alone
            raise MethodNotAllowed(WRITE)
        if page is None:
            raise RouteNotFound(not_there(head.path))
        require_reading(ex)
        ex.respond(200, JSON + request_id_field(), self._page(ex, page, key))

    def _page(self, ex: Exchange, page: Page, key: Key) -> bytes:
        """Raises ModelNotFound or InvalidRequest."""
        if page.path == b"/openapi.json":
            from iop.edge.api.openapi import openapi

            return openapi(self._access.more_paths)
        shape = self._shape(ex, None)
        if page is MODELS:
            names = [name for name, info in self._models.items() if key.may_use(name, info.group_id)]
            return some_models(names, shape, ex.head.query, self._started_at)
        name = model_id(ex.head.path)
        info = self._models.get(name)
        if info is None or not key.may_use(name, info.group_id):
            raise ModelNotFound(f"model {name[:100]!r} does not exist")
        return one_model(name, shape, self._started_at)

    def _options(self, ex: Exchange, endpoint: Endpoint | None) -> None:
        """What a path takes, and what a browser asks before a page's request. Raises RouteNotFound or Forbidden."""
        path, first = ex.head.path, ex.head.fields.first
        if path == b"*":
            allow = "GET, HEAD, POST, OPTIONS"
        elif page_of(path) is not None:
            allow = READ
        elif endpoint is not None:
            allow = WRITE
        else:
            raise RouteNotFound(not_there(path))
        if self._access.anonymous and self._access.local_only:
            self._access.require_local(ex.head)
        block = b"allow: %b\r\n%b" % (allow.encode("ascii"), request_id_field())
        if b"access-control-allow-origin" in ex.more_fields and b"access-control-request-method" in first:
            block += Cors.preflight(allow, first.get(b"access-control-request-headers"))
        ex.respond(204, block, b"")
