"""How each API says what went wrong: error objects, error events, and the headers that go with them (API-5, API-8b)."""

from __future__ import annotations

import json

from iop.edge.api.routes import Shape
from iop.errors import (
    InternalError,
    InvalidRequest,
    IopError,
    MethodNotAllowed,
    NodeDraining,
    ProviderProtocolError,
    RateLimited,
    UpgradeRequired,
    from_code,
)
from iop.wire.messages import ErrorCode, ExecutionFailure

__all__ = ["error_body", "error_event", "error_headers", "error_object", "error_of", "provider_event", "says_why"]

# Anthropic names its error types by status; anything else is an api_error.
_ANTHROPIC_TYPES: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# OpenAI's type is a class of error, its code the exact one. These two are both.
_OPENAI_TYPES: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}


MAX_REPORT_CHARS = 512


def error_of(failure: ExecutionFailure, provider_id: str) -> IopError:
    """What a client is told of a node's failure: the code's own class, with the provider's id. The node's words are
    passed on if they are plain ones; what would blame the client is a fault between edge and node (SEC-4, API-5). A
    cancel that this edge did not ask for is a node that stops (SUP-4)."""
    if failure.code is ErrorCode.CANCELLED:
        return NodeDraining(f"provider {provider_id}: {NodeDraining.text} and ended this request")
    text = failure.message.decode("utf-8", "replace")
    error = from_code(failure.code.name.lower())
    if text and text.isprintable() and "://" not in text and len(text) <= MAX_REPORT_CHARS:
        error = type(error)(text)
    if error.status < 500:
        error = InternalError(error.message)
    return type(error)(f"provider {provider_id}: {error.message}")


_NO_STREAM = "the provider answered with status %d instead of an event stream"


def _object(error: IopError, shape: Shape, request_id: str) -> dict[str, object]:
    if shape is Shape.OLLAMA:
        return {"error": error.message}
    param = error.param if isinstance(error, InvalidRequest) else None
    if shape is Shape.ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": request_id}
    kind = _OPENAI_TYPES.get(error.status, "server_error")
    return {"error": {"message": error.message, "type": kind, "param": param, "code": error.code}}


def error_object(error: IopError) -> object:
    """What stands under ``error`` in OpenAI's form."""
    return _object(error, Shape.OPENAI, "")["error"]


def error_body(error: IopError, shape: Shape, request_id: str) -> bytes:
    """The JSON body of an error answer."""
    return json.dumps(_object(error, shape, request_id), ensure_ascii=False).encode("utf-8", "replace")


def error_headers(error: IopError) -> bytes:
    """Field lines of an error answer."""
    block = b"content-type: application/json\r\n"
    if error.retry_after_s is not None:
        block += b"retry-after: %d\r\n" % error.retry_after_s
    if error.status == 401:
        block += b"www-authenticate: Bearer\r\n"
    if isinstance(error, RateLimited):
        block += error.fields
    if isinstance(error, UpgradeRequired):
        block += b"upgrade: HTTP/1.1\r\nconnection: upgrade\r\n"  # RFC 9110 sections 15.5.22 and 7.8
    if isinstance(error, MethodNotAllowed):
        block += b"allow: %b\r\n" % error.allow.encode("ascii")
    return block


#: What web frameworks say of a path or a method that they do not have: FastAPI (vLLM), llama.cpp's server.
_BARE = frozenset({"not found", "method not allowed", "file not found"})


def says_why(body: bytes) -> bool:
    """Tell whether a provider's 404 or 405 has a text of its own, so that its client can make something of it."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return False
    if not isinstance(said, dict):
        return bool(said)
    error = said.get("error")
    if isinstance(error, dict):
        error = error.get("message") or error
    text = error or said.get("detail") or said.get("message")
    return bool(said) and not (isinstance(text, str) and text.strip(" .").lower() in _BARE)


def provider_event(status: int, body: bytes, shape: Shape, api: str, request_id: str) -> bytes:
    """A provider's answer that is no event stream, as the event that ends one: its own error object if it has one, in
    this API's form (API-7b)."""
    try:
        said = json.loads(body)["error"]
        message = said["message"]
        if not isinstance(message, str):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        return error_event(ProviderProtocolError(_NO_STREAM % status), shape, api, request_id)
    if shape is Shape.ANTHROPIC:
        said = {"type": said.get("type") or _ANTHROPIC_TYPES.get(status, "api_error"), "message": message}
        whole: dict[str, object] = {"type": "error", "error": said, "request_id": request_id}
        return b"event: error\ndata: %b\n\n" % json.dumps(whole).encode()
    if api == "responses":
        event = {"type": "error", "code": said.get("code"), "message": message, "param": said.get("param")}
        return b"event: error\ndata: %b\n\n" % json.dumps(event).encode()
    return b"data: %b\n\n" % json.dumps({"error": said}).encode()


def error_event(error: IopError, shape: Shape, api: str, request_id: str) -> bytes:
    """The event that ends a stream that cannot go on, in the API's own form (API-8b)."""
    body = _object(error, shape, request_id)
    if shape is Shape.ANTHROPIC:
        return b"event: error\ndata: %b\n\n" % json.dumps(body).encode()
    if api == "responses":
        event = {"type": "error", "code": error.code, "message": error.message, "param": None}
        return b"event: error\ndata: %b\n\n" % json.dumps(event).encode()
    return b"data: %b\n\n" % json.dumps(body).encode()
