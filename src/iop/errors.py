"""The one error tree of both programs (API-5, LIVE-6, SUP-3).

Every failure that a user, a client or a peer may see is an instance of :class:`IopError`. Its ``code`` is stable and
public: it is the ``code`` of HTTP error objects, a label value of metrics, and, for the codes in :data:`WIRE_CODES`, a
member of ``ErrorCode`` in the wire contract. Messages say what to do; they never carry a prompt, an output, a URL or a
secret (SEC-4).
"""

from __future__ import annotations

from math import ceil
from typing import ClassVar

__all__ = [
    "WIRE_CODES",
    "AdapterNoTerminal",
    "BodyError",
    "CapacityExceeded",
    "ClientGone",
    "ClientIdle",
    "ConcurrencyLimited",
    "ConfigError",
    "CredentialRejected",
    "DeadlineExceeded",
    "Forbidden",
    "HeadError",
    "HeadTooLarge",
    "InternalError",
    "InvalidArgument",
    "InvalidRequest",
    "InvalidTransition",
    "IopError",
    "MethodNotAllowed",
    "ModelNotFound",
    "NodeDisconnected",
    "NodeDraining",
    "NodeExhausted",
    "NotThere",
    "Overloaded",
    "PayloadTooLarge",
    "ProtocolError",
    "ProviderConnectionLost",
    "ProviderProtocolError",
    "ProviderRedirected",
    "ProviderTruncated",
    "ProviderUnreachable",
    "ProvidersResting",
    "QueueFull",
    "QueueTimeout",
    "RateLimited",
    "RequestCancelled",
    "RequestOverTokenLimit",
    "RequestTimeout",
    "ResponseStalled",
    "RouteNotFound",
    "ScanError",
    "ShuttingDown",
    "TokenRateLimited",
    "TooManyBodyBytes",
    "TooManySubscribers",
    "Unauthorized",
    "Unavailable",
    "UnknownProvider",
    "UnsupportedCommand",
    "UnsupportedMediaType",
    "UpgradeRequired",
    "WorkspaceUnsupported",
    "from_code",
]


class IopError(Exception):
    """Base of the tree.

    Class attributes: ``code`` (stable, public), ``status`` (HTTP status towards clients), ``retryable`` (whether the
    same request may succeed when sent again unchanged), ``retry_after_s`` (sent as ``Retry-After`` where set).
    """

    code: ClassVar[str] = "internal"
    status: int = 500
    retryable: ClassVar[bool] = False
    retry_after_s: int | None = None
    text: ClassVar[str] = "internal error; see the log line with this request id"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.text)

    @property
    def message(self) -> str:
        return str(self.args[0])


class InternalError(IopError):
    """A fault of ours."""


# ---- what the client did --------------------------------------------------------------------------------------------


class InvalidRequest(IopError):
    code, status = "invalid_request_error", 400
    text = "the request is malformed"

    def __init__(self, message: str | None = None, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


#: What the kernels find, in words. A reason that is not here is a sentence already.
_FRAMING = {
    "bad_start": "malformed HTTP head: it does not begin with a method; is TLS spoken to a port without it?",
    "bare_cr": "malformed HTTP: a carriage return without a line feed",
    "chunk_end": "malformed HTTP body: a chunk is longer than its size says",
    "chunk_extension": "malformed HTTP body: a control character in a chunk extension",
    "chunk_extension_too_long": "malformed HTTP body: chunk extensions are too long",
    "chunk_size": "malformed HTTP body: the size of a chunk is not a hexadecimal number followed by CRLF",
    "content_length": "malformed HTTP head: content-length is not one decimal number",
    "control_character": "malformed HTTP head: a control character, or a line feed without a carriage return",
    "field_name": "malformed HTTP head: the name of a field is empty or has characters that are not allowed there",
    "field_value": "malformed HTTP head: the value of a field has characters that are not allowed there",
    "folded_line": "malformed HTTP head: a line begins with a blank",
    "status": "malformed HTTP head: the status is not one that can be passed on",
    "trailer": "malformed HTTP body: a line behind the last chunk is not a field",
    "trailer_too_long": "malformed HTTP body: the fields behind the last chunk are too long",
}


class HeadError(InvalidRequest):
    """An HTTP head or field block breaks RFC 9112 (API-6). ``reason`` is a name of ``_FRAMING``, or a sentence."""

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        super().__init__(_FRAMING.get(reason, reason))
        self.reason = reason
        if status is not None:
            self.status = status


class HeadTooLarge(HeadError):
    """An HTTP head has more bytes or fields than its limit (API-6)."""

    code, status = "head_too_large", 431


class BodyError(InvalidRequest):
    """A message body's framing breaks RFC 9112 (API-6). ``reason`` is a name of ``_FRAMING``."""

    def __init__(self, reason: str) -> None:
        super().__init__(_FRAMING[reason])
        self.reason = reason


class ScanError(InvalidRequest):
    """A request body is not one well-formed JSON object with the members that routing needs (API-8c).

    ``reason`` is a closed-set name, ``param`` the member at fault, ``offset`` the byte at which it was noticed.
    """

    def __init__(self, reason: str, message: str, *, param: str | None = None, offset: int | None = None) -> None:
        super().__init__(message, param=param)
        self.reason = reason
        self.offset = offset


class InvalidArgument(IopError):
    code, status = "invalid_argument", 400
    text = "an argument is outside its range"


class Unauthorized(IopError):
    code, status = "unauthorized", 401
    text = "missing or unknown API key; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"


class Forbidden(IopError):
    code, status = "forbidden", 403
    text = "this is not allowed here"


class ModelNotFound(IopError):
    code, status = "model_not_found", 404
    text = "unknown model; GET /v1/models lists the models that this endpoint serves"


class RouteNotFound(IopError):
    code, status = "not_found", 404
    text = "unknown path"


class NotThere(IopError):
    """An operator named a node, a provider or a request that is not there."""

    code, status = "not_there", 404
    text = "there is nothing of this name"


class MethodNotAllowed(IopError):
    """The path exists, for other methods: ``allow`` lists them as the field of that name does."""

    code, status = "method_not_allowed", 405
    text = "this path does not take this method"

    def __init__(self, allow: str) -> None:
        super().__init__(f"this path takes {allow} only")
        self.allow = allow


class RateLimited(IopError):
    """A limit of the client's own key (API-11). ``fields`` are the ``x-ratelimit-*`` lines that go with the answer,
    ``reason`` is a closed-set name for the counter."""

    code, status, retryable = "rate_limit_exceeded", 429, True
    text = "this key has reached its rate"
    reason: ClassVar[str] = "rate"

    def __init__(self, message: str | None = None, retry_after_s: int | None = None, fields: bytes = b"") -> None:
        super().__init__(f"{message}; try again in {retry_after_s} s" if message and retry_after_s else message)
        self.retry_after_s = retry_after_s
        self.fields = fields


class TokenRateLimited(RateLimited):
    text = "this key has used its tokens of this minute"
    reason = "tokens"


class ConcurrencyLimited(RateLimited):
    code = "concurrency_limit_exceeded"
    text = "this key has as many requests under way as it may"
    reason = "concurrency"


class RequestOverTokenLimit(RateLimited):
    """One request has more tokens than its key may use in a minute: it would never be let in."""

    code, status, retryable = "request_over_token_limit", 413, False
    text = "this request has more tokens than its key may use in a minute"
    reason = "tokens"


class PayloadTooLarge(IopError):
    code, status = "payload_too_large", 413
    text = "the body is larger than http.max_body_bytes"


class Overloaded(IopError):
    """All clients together hold more body bytes than http.max_buffered_body_bytes (API-8c)."""

    code, status, retryable, retry_after_s = "overloaded", 503, True, 1
    text = "too many request bodies are being received; try again"


class TooManyBodyBytes(IopError):
    """The clients of one principal hold as many body bytes as one may (API-10)."""

    code, status, retryable, retry_after_s = "too_many_body_bytes", 429, True, 1
    text = "requests of this key hold a quarter of http.max_buffered_body_bytes; try again when one is done"


class UpgradeRequired(IopError):
    """A websocket was asked for where there is HTTP only."""

    code, status = "upgrade_required", 426
    text = "this path takes no websocket; send an HTTP POST"


class RequestTimeout(IopError):
    """A head or a body came too slowly (API-6)."""

    code, status = "timeout", 408
    text = "the request did not arrive in time; see http.header_timeout_sec and http.body_timeout_sec"


class UnsupportedMediaType(IopError):
    code, status = "unsupported_media_type", 415
    text = "use a body that is plain, or has content-encoding gzip or deflate"


class ClientGone(IopError):
    """The client closed its connection; only logs see this."""

    code, status = "client_gone", 499
    text = "the client closed the connection"


class ClientIdle(IopError):
    code, status = "client_idle", 499
    text = "the client accepted no byte for http.client_idle_timeout_sec"


# ---- admission ------------------------------------------------------------------------------------------------------


class QueueFull(IopError):
    code, status, retryable, retry_after_s = "queue_full", 429, True, 1
    text = "too many requests wait for this model; try again later"


class QueueTimeout(IopError):
    code, status, retryable, retry_after_s = "queue_timeout", 503, True, 1
    text = "no provider slot became free within queue.timeout_ms"


class Unavailable(IopError):
    code, status, retryable, retry_after_s = "unavailable", 503, True, 5
    text = "no provider of this model is available now"


class ProvidersResting(IopError):
    """All providers of a model have asked for a pause (HEALTH-9). ``rest_s`` is until the first of them ends."""

    code, status, retryable, retry_after_s = "providers_resting", 429, True, 1
    text = "every provider of this model has asked to be left alone for a while; see Retry-After"

    def __init__(self, message: str | None = None, *, rest_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = max(1, ceil(rest_s))


class TooManySubscribers(IopError):
    """The event bus has as many listeners as it takes (OBS-3)."""

    code, status, retryable, retry_after_s = "too_many_subscribers", 503, True, 5
    text = "too many listen to the events of this edge; try again when one has left"


class ShuttingDown(IopError):
    code, status, retryable, retry_after_s = "shutting_down", 503, True, 5
    text = "this edge is shutting down; try again"


# ---- execution (these cross the wire) ------------------------------------------------------------------------------


class CapacityExceeded(IopError):
    """The node's gate is full (EXEC-3); the edge re-admits, so a client never sees this."""

    code, status, retryable = "capacity_exceeded", 503, True
    text = "the provider holds as many requests as it may"


class ProviderUnreachable(IopError):
    code, status, retryable = "provider_unreachable", 502, True
    text = "the provider does not accept connections; is its server running?"


class NodeExhausted(IopError):
    """The node itself cannot open another connection: that says nothing of the provider."""

    code, status, retryable = "node_exhausted", 503, True
    text = "the node has no file descriptor or memory left for a connection; raise its limit of open files"


class ProviderConnectionLost(IopError):
    code, status, retryable = "provider_connection_lost", 502, True
    text = "the provider closed the connection before the answer was complete"


class ProviderProtocolError(IopError):
    code, status = "provider_protocol_error", 502
    text = "the provider's answer is not valid HTTP/1.1"


class ProviderRedirected(IopError):
    """Nobody follows a provider's redirect: it leads where the node's owner did not allow, or back to the node."""

    code, status, retryable = "provider_redirected", 502, True
    text = "the provider answers with a redirect; set its base_url to where that leads, which the node's log says"


class ProviderTruncated(IopError):
    code, status, retryable = "provider_truncated", 502, True
    text = "the provider's event stream ended without its last event"


class ResponseStalled(IopError):
    code, status, retryable = "response_stalled", 504, True
    text = "the provider made no progress within its stall timeout"


class DeadlineExceeded(IopError):
    code, status = "deadline_exceeded", 504
    text = "the request took longer than the model's request_timeout_ms"


class NodeDisconnected(IopError):
    code, status, retryable = "node_disconnected", 502, True
    text = "the node that ran this request lost its connection"


class NodeDraining(IopError):
    code, status, retryable = "node_draining", 503, True
    text = "the node is shutting down"


class RequestCancelled(IopError):
    code, status = "cancelled", 499
    text = "the request was cancelled"


class CredentialRejected(IopError):
    code, status = "credential_rejected", 502
    text = "the provider credential was refused on the node"


class UnknownProvider(IopError):
    code, status, retryable = "unknown_provider", 502, True
    text = "the node does not have this provider"


class UnsupportedCommand(IopError):
    code, status = "unsupported_command", 400
    text = "the node does not know this command"


class AdapterNoTerminal(IopError):
    code, status = "adapter_no_terminal", 502
    text = "the adapter ended without a final event"


class WorkspaceUnsupported(IopError):
    code, status = "workspace_unsupported", 501
    text = "the node has no workspace handler"


#: Codes that travel in ``ExecutionFailure``; the names are those of the wire's ``ErrorCode`` in lower case.
_WIRE_CLASSES: tuple[type[IopError], ...] = (
    InternalError,
    InvalidArgument,
    CapacityExceeded,
    ProviderUnreachable,
    ProviderConnectionLost,
    ProviderProtocolError,
    ProviderTruncated,
    ResponseStalled,
    DeadlineExceeded,
    RequestCancelled,
    CredentialRejected,
    UnsupportedCommand,
    AdapterNoTerminal,
    UnknownProvider,
    Forbidden,
    NodeDraining,
    WorkspaceUnsupported,
    ProviderRedirected,
    NodeExhausted,
)
WIRE_CODES: dict[str, type[IopError]] = {c.code: c for c in _WIRE_CLASSES}


def from_code(code: str, message: str | None = None) -> IopError:
    """The error that a wire ``code`` stands for; an unknown code becomes :class:`InternalError`."""
    return WIRE_CODES.get(code, InternalError)(message)


# ---- ours, never sent to clients ------------------------------------------------------------------------------------


class ProtocolError(IopError):
    """The peer broke the wire contract (WIRE-2). Closes that connection, and no other.

    ``reason`` is a short closed-set name for the counter and the log.
    """

    code, status = "protocol_error", 502

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class InvalidTransition(IopError):
    """A state machine was given an event that its table does not list: a fault of ours."""

    def __init__(self, machine: str, state: str, event: str, story: tuple[str, ...] = ()) -> None:
        tail = f" (before: {' > '.join(story)})" if story else ""
        super().__init__(f"{machine}: no transition for {event!r} in state {state!r}{tail}")


class ConfigError(IopError):
    """One or more faults in a configuration file, all of them, each with its path (CONF-1)."""

    code = "config_error"

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults
