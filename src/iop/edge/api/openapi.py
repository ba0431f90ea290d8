"""``/openapi.json``: the surface for clients, made of the tables that route it (API-1)."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable

from iop import __version__
from iop.edge.api.routes import OTHERS, PAGES, RATES, ROUTES, STORY, Endpoint, Page, Shape, let_through, page_of

__all__ = ["openapi"]

Json = dict[str, object]

_KEYS: list[Json] = [{"bearer": []}, {"x-api-key": []}, {}]  # the last: an edge without keys, or one that asks for none


def _ref(kind: str, name: str) -> Json:
    return {"$ref": f"#/components/{kind}/{name}"}


def _object(required: Iterable[str], **properties: Json) -> Json:
    return {"type": "object", "required": [*required], "properties": properties}


_TEXT: Json = {"type": "string"}
_MAYBE_TEXT: Json = {"type": ["string", "null"]}

_SCHEMAS: Json = {
    "Request": _object(["model"], model={"type": "string", "minLength": 1}, stream={"type": "boolean"})
    | {"additionalProperties": True, "description": "All but `model` passes to the provider as it is."},
    "Form": _object(["model"], model={"type": "string", "minLength": 1})
    | {"additionalProperties": True, "description": "Exactly one `model`, of at most 512 bytes, anywhere."},
    "Error": _object(
        ["error"],
        error=_object(
            ["message", "type", "param", "code"], message=_TEXT, type=_TEXT, param=_MAYBE_TEXT, code=_MAYBE_TEXT
        ),
    ),
    "AnthropicError": _object(
        ["type", "error", "request_id"],
        type={"const": "error"},
        error=_object(["type", "message"], type=_TEXT, message=_TEXT),
        request_id=_TEXT,
    ),
    "Status": _object(["status"], status=_TEXT),
    "Model": _object(
        ["id", "object", "created", "owned_by"],
        id=_TEXT,
        object={"const": "model"},
        created={"type": "integer"},
        owned_by=_TEXT,
    ),
    "Models": _object(
        ["object", "data"], object={"const": "list"}, data={"type": "array", "items": _ref("schemas", "Model")}
    ),
    "AnthropicModel": _object(
        ["type", "id", "display_name", "created_at"],
        type={"const": "model"},
        id=_TEXT,
        display_name=_TEXT,
        created_at={"type": "string", "format": "date-time"},
    ),
    "AnthropicModels": _object(
        ["data", "has_more", "first_id", "last_id"],
        data={"type": "array", "items": _ref("schemas", "AnthropicModel")},
        has_more={"type": "boolean"},
        first_id=_MAYBE_TEXT,
        last_id=_MAYBE_TEXT,
    ),
}


def _header(text: str, kind: str = "string") -> Json:
    return {"description": text, "schema": {"type": kind}}


_HEADERS: Json = {
    "x-request-id": _header("Minted by the edge; the log line of the request has it."),
    "x-iop-provider": _header("Who served the request."),
    "x-iop-attempts": _header("How often the request was sent to a provider.", "integer"),
    "x-iop-queue-ms": _header("How long it waited for a slot.", "integer"),
    "x-iop-provider-request-id": _header("The provider's own x-request-id."),
    "retry-after": _header("Seconds, where trying again later makes sense.", "integer"),
    "x-ratelimit-limit-requests": _header("Requests a minute of this key, if it has that limit.", "integer"),
    "x-ratelimit-remaining-requests": _header("What is left of them.", "integer"),
    "x-ratelimit-reset-requests": _header("Seconds until all are there again, as in `1.500s`."),
    "x-ratelimit-limit-tokens": _header("Tokens a minute of this key, if it has that limit.", "integer"),
    "x-ratelimit-remaining-tokens": _header("What is left of them.", "integer"),
    "x-ratelimit-reset-tokens": _header("Seconds until all are there again, as in `1.500s`."),
}


def _content(schema: Json, *more: str) -> Json:
    content: Json = {kind: {"schema": _TEXT} for kind in more}
    return {"application/json": {"schema": schema}, **content}


def _errors(shape: Shape | None) -> Json:
    """The answers that are not the one that was asked for; ``shape`` None: by the client's anthropic-version."""
    error, anthropic = _ref("schemas", "Error"), _ref("schemas", "AnthropicError")
    schema: Json = {"oneOf": [error, anthropic]} if shape is None else anthropic if shape is Shape.ANTHROPIC else error
    headers = {name: _ref("headers", name) for name in (*STORY[:4], *RATES, "retry-after")}
    return {"default": {"description": "An error of the edge's", "content": _content(schema), "headers": headers}}


def _asked(endpoint: Endpoint) -> Json:
    """A POST that becomes a provider's."""
    known = endpoint.name != "other"
    body = _content(_ref("schemas", "Request"))
    if not known:
        body["multipart/form-data"] = {"schema": _ref("schemas", "Form")}
    told: Json = {
        "description": "The provider's answer; its status may be another one",
        "headers": {name: _ref("headers", name) for name in (*STORY, *RATES)},
    }
    if known:
        told["content"] = _content({"type": "object"}, "text/event-stream")
    else:
        told["content"] = {"*/*": {}}
    return {
        "summary": endpoint.summary if known else "The provider's own endpoint",
        "operationId": endpoint.name if known else endpoint.path.decode().strip("/").replace("/", "_"),
        "security": _KEYS,
        "requestBody": {"required": True, "content": body},
        "responses": {"200": told} | _errors(endpoint.shape if known else None),
    }


_ANSWERS: dict[bytes, Json] = {
    b"/": _object(["service"], service={"const": "iop"}),
    b"/openapi.json": {"type": "object"},
    b"/v1/models": {"oneOf": [_ref("schemas", "Models"), _ref("schemas", "AnthropicModels")]},
    b"/v1/models/{id}": {"oneOf": [_ref("schemas", "Model"), _ref("schemas", "AnthropicModel")]},
}


def _parameter(name: str, place: str, text: str, kind: str = "string") -> Json:
    return {"name": name, "in": place, "required": place == "path", "description": text, "schema": {"type": kind}}


_PARAMETERS: dict[bytes, list[Json]] = {
    b"/v1/models": [
        _parameter("anthropic-version", "header", "With it the list, and errors, have Anthropic's shape."),
        _parameter("limit", "query", "Anthropic's shape only: at most so many, 1 to 1000.", "integer"),
        _parameter("after_id", "query", "Anthropic's shape only: those behind this one."),
        _parameter("before_id", "query", "Anthropic's shape only: those before this one."),
    ],
    b"/v1/models/{id}": [_parameter("id", "path", "May contain slashes, as they are or as %2F.")],
}


def _read(page: Page, method: str) -> Json:
    told: Json = {"description": page.summary}
    if method == "get":
        told["content"] = _content(_ANSWERS.get(page.path, _ref("schemas", "Status")))
    responses: Json = {"200": told}
    if page.path == b"/readyz":
        responses["503"] = {"description": "Draining"} | ({"content": told["content"]} if method == "get" else {})
    if not page.keyless:
        responses |= _errors(None)
    operation: Json = {"summary": page.summary, "security": [] if page.keyless else _KEYS, "responses": responses}
    if page.path in _PARAMETERS:
        operation["parameters"] = _PARAMETERS[page.path]
    return operation


@functools.lru_cache(maxsize=4)
def openapi(more_paths: tuple[str, ...] = ()) -> bytes:
    """The document, as JSON, with the paths that the owner lets through. OpenAPI 3.1.0."""
    paths: Json = {}
    one = page_of(b"/v1/models/x")
    assert one is not None
    for page in (*PAGES.values(), one):
        paths[page.path.decode()] = {"get": _read(page, "get"), "head": _read(page, "head")}
    for endpoint in (*ROUTES.values(), *OTHERS.values(), *let_through(more_paths)):
        paths[endpoint.path.decode()] = {"post": _asked(endpoint)}
    document: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "IOP edge",
            "version": __version__,
            "description": "LLM servers behind one HTTP endpoint. Bodies are the providers' own; only `model` is "
            "replaced. OPTIONS is answered on every path.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "headers": _HEADERS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }
    return json.dumps(document).encode()
