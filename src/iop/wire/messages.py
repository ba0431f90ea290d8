"""The messages of the wire as plain values (WIRE-2). Field names and numbers are those of proto/iop/runtime.proto.

Hot frames (bodies, credit, heartbeats) never become one of these: the native codec hands them straight to their stream.
Whatever a client or a provider wrote is ``bytes``.

The file is long because it has every message: one that looks for a field finds it here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

__all__ = [
    "CallClosed",
    "CancelReason",
    "CancelRequest",
    "Capabilities",
    "ConfigRefreshRequest",
    "ConfigRefreshResponse",
    "DetectedServer",
    "Draining",
    "EdgeNodeEvent",
    "ErrorCode",
    "EventDialect",
    "ExecutionFailure",
    "Goodbye",
    "GoodbyeReason",
    "HealthObservation",
    "HealthReason",
    "HealthScope",
    "HeldSlots",
    "Inventory",
    "LeaseBinding",
    "Lifecycle",
    "ListFault",
    "LivenessClassification",
    "Message",
    "NodeCommand",
    "NodeCommandRequest",
    "NodeCommandResponse",
    "NodeConfigPayload",
    "NodeReadyRequest",
    "NodeReadyResponse",
    "ProviderConfig",
    "ProviderHealth",
    "ProviderModels",
    "ProviderTransport",
    "ProviderTunnelRequest",
    "RegisterRequest",
    "RegisterResponse",
    "RejectReason",
    "Rejected",
    "RunRequest",
    "TunnelFrameKind",
]


class GoodbyeReason(IntEnum):
    UNSPECIFIED = 0
    SHUTDOWN = 1
    CONFIG_REJECTED = 2
    STREAM_IDS_EXHAUSTED = 3
    SUPERSEDED = 4


class RejectReason(IntEnum):
    UNSPECIFIED = 0
    UNKNOWN_TOKEN = 1
    DUPLICATE_CONNECTION = 2
    CONFIG_BUILD_FAILED = 3
    PROTOCOL_MISMATCH = 4
    IDENTITY_MISMATCH = 5
    STALE_CONNECTION = 6
    SHUTTING_DOWN = 7


class EventDialect(IntEnum):
    UNSPECIFIED = 0
    CHAT = 1
    RESPONSES = 2
    MESSAGES = 3


class TunnelFrameKind(IntEnum):
    UNSPECIFIED = 0
    HEAD = 1
    BODY = 2
    USAGE = 3
    END = 4
    ERROR = 5


class ErrorCode(IntEnum):
    UNSPECIFIED = 0
    INTERNAL = 1
    INVALID_ARGUMENT = 2
    CAPACITY_EXCEEDED = 3
    PROVIDER_UNREACHABLE = 4
    PROVIDER_CONNECTION_LOST = 5
    PROVIDER_PROTOCOL_ERROR = 6
    PROVIDER_TRUNCATED = 7
    RESPONSE_STALLED = 8
    DEADLINE_EXCEEDED = 9
    CANCELLED = 10
    CREDENTIAL_REJECTED = 11
    UNSUPPORTED_COMMAND = 12
    ADAPTER_NO_TERMINAL = 13
    UNKNOWN_PROVIDER = 14
    FORBIDDEN = 15
    NODE_DRAINING = 16
    WORKSPACE_UNSUPPORTED = 17
    PROVIDER_REDIRECTED = 18
    NODE_EXHAUSTED = 19


class ProviderHealth(IntEnum):
    UNSPECIFIED = 0
    AVAILABLE = 1
    UNAVAILABLE = 2
    UNKNOWN = 3


class LivenessClassification(IntEnum):
    UNSPECIFIED = 0
    REQUEST_STALLED = 1
    PROVIDER_UNHEALTHY = 2
    HEALTH_UNKNOWN = 3


class HealthReason(IntEnum):
    """Why something is lowered (HEALTH-8)."""

    UNSPECIFIED = 0
    REFUSED = 1
    FAILING = 2
    NOT_LISTED = 3
    STALLED = 4


class HealthScope(IntEnum):
    """What an observation is about (HEALTH-7); UNSPECIFIED is the provider."""

    UNSPECIFIED = 0
    TARGET = 1


class ListFault(IntEnum):
    """Why a server that is well has no list of models to compare with (HEALTH-10)."""

    UNSPECIFIED = 0
    FAILING = 1
    TOO_LARGE = 2


class CancelReason(IntEnum):
    UNSPECIFIED = 0
    CLIENT_GONE = 1
    CLIENT_IDLE = 2
    DEADLINE = 3
    SHUTDOWN = 4
    PROTOCOL = 5
    OPERATOR = 6


class RunEventKind(IntEnum):
    UNSPECIFIED = 0
    START = 1
    DELTA = 2
    REASONING_DELTA = 3
    TOOL_CALL_DELTA = 4
    USAGE = 5
    COMPLETE = 6
    ERROR = 7
    CANCELLED = 8


class NodeCommand(IntEnum):
    UNSPECIFIED = 0
    CAPABILITIES = 1
    TRANSPORT_STATUS = 2
    OLLAMA_API = 3


@dataclass(slots=True)
class ExecutionFailure:
    """Why an execution ended without an answer (LIVE-6). ``message`` says what to do; it never carries a payload."""

    code: ErrorCode = ErrorCode.UNSPECIFIED
    retryable: bool = False
    provider_health: ProviderHealth = ProviderHealth.UNSPECIFIED
    liveness_classification: LivenessClassification = LivenessClassification.UNSPECIFIED
    health_observation_seq: int = 0
    idle_ms: int = 0
    close_confirmed: bool = False
    slots_held: int = 0
    connection_reused: bool = False
    response_started: bool = False
    message: bytes = b""
    engine_lingers: bool = False
    engine_busy: bool = False
    provider_status: int = 0
    retry_after: bytes = b""


class LeaseBinding(msgspec.Struct, gc=False):
    lease_id: int = 0
    long: bool = False
    attempt: int = 0
    credential_envelope: bytes = b""


# ---- link and registration ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Goodbye:
    reason: GoodbyeReason = GoodbyeReason.UNSPECIFIED
    grace_ms: int = 0
    code: str = ""
    ref: str = ""


@dataclass(slots=True)
class Capabilities:
    adapters: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RegisterRequest:
    token: str
    node_version: str
    protocol_version: int
    capabilities: Capabilities = field(default_factory=Capabilities)
    credential_public_key: bytes = b""
    request_window_bytes: int = 0

    def __repr__(self) -> str:
        """Without the token (SEC-4)."""
        return f"RegisterRequest(node_version={self.node_version!r}, protocol_version={self.protocol_version})"


@dataclass(slots=True)
class ProviderConfig:
    id: str
    kind: str
    base_url: str
    max_concurrency: int
    connect_timeout_ms: int = 0
    idle_ms: int = 0
    reuse_delay_ms: int = 0
    api_key_env: str = ""
    health_path: str = ""
    health_timeout_ms: int = 0
    enabled: bool = False


@dataclass(slots=True)
class NodeConfigPayload:
    node_id: str
    revision: int
    providers: list[ProviderConfig] = field(default_factory=list)
    detect_servers: bool = False
    list_models: bool = False


@dataclass(slots=True)
class RegisterResponse:
    accepted: bool
    reason: RejectReason = RejectReason.UNSPECIFIED
    message: str = ""
    config: NodeConfigPayload | None = None
    edge_version: str = ""
    protocol_version: int = 0


@dataclass(slots=True)
class HeldSlots:
    provider_id: str
    slots: int


@dataclass(slots=True)
class Rejected:
    """A provider that the node may not or cannot have, while it serves the others (CONF-2). ``code``:
    ``upstream_not_allowed``, ``credential_not_listed``, ``credential_not_set``, ``unknown_kind``, ``bad_address`` or
    ``cannot_listen``."""

    provider_id: str
    code: str
    detail: str = ""


@dataclass(slots=True)
class NodeReadyRequest:
    node_id: str
    revision: int
    held: list[HeldSlots] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


@dataclass(slots=True)
class NodeReadyResponse:
    ready: bool
    reason: RejectReason = RejectReason.UNSPECIFIED


@dataclass(slots=True)
class ConfigRefreshRequest:
    config: NodeConfigPayload


@dataclass(slots=True)
class ConfigRefreshResponse:
    revision: int
    applied: bool
    code: str = ""
    ref: str = ""
    rejected: list[Rejected] = field(default_factory=list)


# ---- execution


class ProviderTunnelRequest(msgspec.Struct, gc=False):
    """Opens a tunnel (TUN-1). Made twice for every request, hence a Struct: a dataclass takes thrice as long."""

    stream_id: int
    run_id: str
    adapter: str
    provider_id: str
    target: str
    window_bytes: int
    deadline_ms: int
    response_stall_timeout_ms: int
    lease: LeaseBinding
    method: bytes
    path: bytes
    query: bytes = b""
    header_block: bytes = b""
    body: bytes = b""
    body_bytes: int = 0
    session_id: bytes = b""
    body_follows: bool = False
    dialect: EventDialect = EventDialect.UNSPECIFIED
    first_response_timeout_ms: int | None = None
    streaming: bool = False
    fresh_connection: bool = False


@dataclass(slots=True)
class RunRequest:
    """Opens a normalized run (EXEC-1)."""

    stream_id: int
    run_id: str
    adapter: str
    provider_id: str
    target: str
    window_bytes: int
    deadline_ms: int
    response_stall_timeout_ms: int
    lease: LeaseBinding
    input: bytes = b""
    input_bytes: int = 0
    options: bytes = b""
    input_follows: bool = False
    background: bool = False
    session_id: bytes = b""
    first_response_timeout_ms: int | None = None
    fresh_connection: bool = False


class RunEvent(msgspec.Struct, gc=False):
    """One event of a run that is more than the text of a delta (EXEC-1). ``usage`` is input, output, reasoning and
    cached input tokens, each None where the provider did not say."""

    kind: RunEventKind
    text: bytes = b""
    tool_index: int = 0
    tool_call_id: bytes = b""
    tool_name: bytes = b""
    usage: tuple[int | None, int | None, int | None, int | None] | None = None
    failure: ExecutionFailure | None = None
    finish_reason: bytes = b""
    session_id: bytes = b""


@dataclass(slots=True)
class CancelRequest:
    stream_id: int
    run_id: str
    reason: CancelReason


# ---- commands and events


@dataclass(slots=True)
class NodeCommandRequest:
    command_id: int
    command: NodeCommand
    provider_id: str = ""
    adapter: str = ""
    target: str = ""
    timeout_ms: int = 0
    cancel: bool = False
    argument: bytes = b""
    body: bytes = b""
    reason: HealthReason = HealthReason.UNSPECIFIED
    targets: list[str] = field(default_factory=list)
    session_id: bytes = b""


@dataclass(slots=True)
class ProviderTransport:
    """How one provider is doing as its node sees it (POOL-13)."""

    provider_id: str
    slots_in_use: int = 0
    slots: int = 0
    connections: int = 0
    engine_tells: bool = False
    engine_running: int | None = None
    engine_waiting: int | None = None
    engine_counts_requests: bool = False


@dataclass(slots=True)
class NodeCommandResponse:
    command_id: int
    code: ErrorCode = ErrorCode.UNSPECIFIED
    provider_id: str = ""
    adapter: str = ""
    target: str = ""
    provider_health: ProviderHealth = ProviderHealth.UNSPECIFIED
    health_observation_seq: int = 0
    result: bytes = b""
    status: int = 0
    message: bytes = b""
    transports: list[ProviderTransport] = field(default_factory=list)
    not_listed: list[str] = field(default_factory=list)
    not_an_api: bool = False
    session_id: bytes = b""
    list_fault: ListFault = ListFault.UNSPECIFIED


@dataclass(slots=True)
class Draining:
    grace_ms: int = 0


@dataclass(slots=True)
class CallClosed:
    provider_id: str = ""
    stream_id: int = 0


@dataclass(slots=True)
class HealthObservation:
    provider_id: str = ""
    adapter: str = ""
    target: str = ""
    provider_health: ProviderHealth = ProviderHealth.UNSPECIFIED
    health_observation_seq: int = 0
    reason: HealthReason = HealthReason.UNSPECIFIED
    scope: HealthScope = HealthScope.UNSPECIFIED


@dataclass(slots=True)
class Lifecycle:
    kind: str = ""


@dataclass(slots=True)
class ProviderModels:
    provider_id: str = ""
    models: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class DetectedServer:
    name: str = ""
    kind: str = ""
    port: int = 0
    capacity: int = 0
    models: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Inventory:
    """What there is beside a node, as far as its configuration asks for it; whole each time."""

    providers: list[ProviderModels] = field(default_factory=list)
    servers: list[DetectedServer] = field(default_factory=list)


@dataclass(slots=True)
class EdgeNodeEvent:
    """Exactly one of the fields is set."""

    draining: Draining | None = None
    call_closed: CallClosed | None = None
    health_observation: HealthObservation | None = None
    lifecycle: Lifecycle | None = None
    inventory: Inventory | None = None


Message = (
    RegisterRequest
    | RegisterResponse
    | NodeReadyRequest
    | NodeReadyResponse
    | Goodbye
    | EdgeNodeEvent
    | ProviderTunnelRequest
    | RunRequest
    | CancelRequest
    | NodeCommandRequest
    | NodeCommandResponse
    | ConfigRefreshRequest
    | ConfigRefreshResponse
)
