from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GoodbyeReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GOODBYE_REASON_UNSPECIFIED: _ClassVar[GoodbyeReason]
    GOODBYE_REASON_SHUTDOWN: _ClassVar[GoodbyeReason]
    GOODBYE_REASON_CONFIG_REJECTED: _ClassVar[GoodbyeReason]
    GOODBYE_REASON_STREAM_IDS_EXHAUSTED: _ClassVar[GoodbyeReason]
    GOODBYE_REASON_SUPERSEDED: _ClassVar[GoodbyeReason]

class RejectReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REJECT_REASON_UNSPECIFIED: _ClassVar[RejectReason]
    REJECT_REASON_UNKNOWN_TOKEN: _ClassVar[RejectReason]
    REJECT_REASON_DUPLICATE_CONNECTION: _ClassVar[RejectReason]
    REJECT_REASON_CONFIG_BUILD_FAILED: _ClassVar[RejectReason]
    REJECT_REASON_PROTOCOL_MISMATCH: _ClassVar[RejectReason]
    REJECT_REASON_IDENTITY_MISMATCH: _ClassVar[RejectReason]
    REJECT_REASON_STALE_CONNECTION: _ClassVar[RejectReason]
    REJECT_REASON_SHUTTING_DOWN: _ClassVar[RejectReason]

class EventDialect(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_DIALECT_UNSPECIFIED: _ClassVar[EventDialect]
    EVENT_DIALECT_CHAT: _ClassVar[EventDialect]
    EVENT_DIALECT_RESPONSES: _ClassVar[EventDialect]
    EVENT_DIALECT_MESSAGES: _ClassVar[EventDialect]

class TunnelFrameKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TUNNEL_FRAME_KIND_UNSPECIFIED: _ClassVar[TunnelFrameKind]
    TUNNEL_FRAME_KIND_HEAD: _ClassVar[TunnelFrameKind]
    TUNNEL_FRAME_KIND_BODY: _ClassVar[TunnelFrameKind]
    TUNNEL_FRAME_KIND_USAGE: _ClassVar[TunnelFrameKind]
    TUNNEL_FRAME_KIND_END: _ClassVar[TunnelFrameKind]
    TUNNEL_FRAME_KIND_ERROR: _ClassVar[TunnelFrameKind]

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_ARGUMENT: _ClassVar[ErrorCode]
    ERROR_CODE_CAPACITY_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_PROVIDER_UNREACHABLE: _ClassVar[ErrorCode]
    ERROR_CODE_PROVIDER_CONNECTION_LOST: _ClassVar[ErrorCode]
    ERROR_CODE_PROVIDER_PROTOCOL_ERROR: _ClassVar[ErrorCode]
    ERROR_CODE_PROVIDER_TRUNCATED: _ClassVar[ErrorCode]
    ERROR_CODE_RESPONSE_STALLED: _ClassVar[ErrorCode]
    ERROR_CODE_DEADLINE_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_CANCELLED: _ClassVar[ErrorCode]
    ERROR_CODE_CREDENTIAL_REJECTED: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED_COMMAND: _ClassVar[ErrorCode]
    ERROR_CODE_ADAPTER_NO_TERMINAL: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_PROVIDER: _ClassVar[ErrorCode]
    ERROR_CODE_FORBIDDEN: _ClassVar[ErrorCode]
    ERROR_CODE_NODE_DRAINING: _ClassVar[ErrorCode]
    ERROR_CODE_WORKSPACE_UNSUPPORTED: _ClassVar[ErrorCode]
    ERROR_CODE_PROVIDER_REDIRECTED: _ClassVar[ErrorCode]
    ERROR_CODE_NODE_EXHAUSTED: _ClassVar[ErrorCode]

class ProviderHealth(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROVIDER_HEALTH_UNSPECIFIED: _ClassVar[ProviderHealth]
    PROVIDER_HEALTH_AVAILABLE: _ClassVar[ProviderHealth]
    PROVIDER_HEALTH_UNAVAILABLE: _ClassVar[ProviderHealth]
    PROVIDER_HEALTH_UNKNOWN: _ClassVar[ProviderHealth]

class LivenessClassification(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIVENESS_CLASSIFICATION_UNSPECIFIED: _ClassVar[LivenessClassification]
    LIVENESS_CLASSIFICATION_REQUEST_STALLED: _ClassVar[LivenessClassification]
    LIVENESS_CLASSIFICATION_PROVIDER_UNHEALTHY: _ClassVar[LivenessClassification]
    LIVENESS_CLASSIFICATION_HEALTH_UNKNOWN: _ClassVar[LivenessClassification]

class HealthReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEALTH_REASON_UNSPECIFIED: _ClassVar[HealthReason]
    HEALTH_REASON_REFUSED: _ClassVar[HealthReason]
    HEALTH_REASON_FAILING: _ClassVar[HealthReason]
    HEALTH_REASON_NOT_LISTED: _ClassVar[HealthReason]
    HEALTH_REASON_STALLED: _ClassVar[HealthReason]

class HealthScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEALTH_SCOPE_UNSPECIFIED: _ClassVar[HealthScope]
    HEALTH_SCOPE_TARGET: _ClassVar[HealthScope]

class ListFault(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIST_FAULT_UNSPECIFIED: _ClassVar[ListFault]
    LIST_FAULT_FAILING: _ClassVar[ListFault]
    LIST_FAULT_TOO_LARGE: _ClassVar[ListFault]

class RunEventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_EVENT_KIND_UNSPECIFIED: _ClassVar[RunEventKind]
    RUN_EVENT_KIND_START: _ClassVar[RunEventKind]
    RUN_EVENT_KIND_DELTA: _ClassVar[RunEventKind]
    RUN_EVENT_KIND_REASONING_DELTA: _ClassVar[RunEventKind]
    RUN_EVENT_KIND_TOOL_CALL_DELTA: _ClassVar[RunEventKind]
    RUN_EVENT_KIND_USAGE: _ClassVar[RunEventKind]
    RUN_EVENT_KIND_COMPLETE: _ClassVar[RunEventKind]
    RUN_EVENT_KIND_ERROR: _ClassVar[RunEventKind]
    RUN_EVENT_KIND_CANCELLED: _ClassVar[RunEventKind]

class CancelReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CANCEL_REASON_UNSPECIFIED: _ClassVar[CancelReason]
    CANCEL_REASON_CLIENT_GONE: _ClassVar[CancelReason]
    CANCEL_REASON_CLIENT_IDLE: _ClassVar[CancelReason]
    CANCEL_REASON_DEADLINE: _ClassVar[CancelReason]
    CANCEL_REASON_SHUTDOWN: _ClassVar[CancelReason]
    CANCEL_REASON_PROTOCOL: _ClassVar[CancelReason]
    CANCEL_REASON_OPERATOR: _ClassVar[CancelReason]

class NodeCommand(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_COMMAND_UNSPECIFIED: _ClassVar[NodeCommand]
    NODE_COMMAND_CAPABILITIES: _ClassVar[NodeCommand]
    NODE_COMMAND_TRANSPORT_STATUS: _ClassVar[NodeCommand]
    NODE_COMMAND_OLLAMA_API: _ClassVar[NodeCommand]
GOODBYE_REASON_UNSPECIFIED: GoodbyeReason
GOODBYE_REASON_SHUTDOWN: GoodbyeReason
GOODBYE_REASON_CONFIG_REJECTED: GoodbyeReason
GOODBYE_REASON_STREAM_IDS_EXHAUSTED: GoodbyeReason
GOODBYE_REASON_SUPERSEDED: GoodbyeReason
REJECT_REASON_UNSPECIFIED: RejectReason
REJECT_REASON_UNKNOWN_TOKEN: RejectReason
REJECT_REASON_DUPLICATE_CONNECTION: RejectReason
REJECT_REASON_CONFIG_BUILD_FAILED: RejectReason
REJECT_REASON_PROTOCOL_MISMATCH: RejectReason
REJECT_REASON_IDENTITY_MISMATCH: RejectReason
REJECT_REASON_STALE_CONNECTION: RejectReason
REJECT_REASON_SHUTTING_DOWN: RejectReason
EVENT_DIALECT_UNSPECIFIED: EventDialect
EVENT_DIALECT_CHAT: EventDialect
EVENT_DIALECT_RESPONSES: EventDialect
EVENT_DIALECT_MESSAGES: EventDialect
TUNNEL_FRAME_KIND_UNSPECIFIED: TunnelFrameKind
TUNNEL_FRAME_KIND_HEAD: TunnelFrameKind
TUNNEL_FRAME_KIND_BODY: TunnelFrameKind
TUNNEL_FRAME_KIND_USAGE: TunnelFrameKind
TUNNEL_FRAME_KIND_END: TunnelFrameKind
TUNNEL_FRAME_KIND_ERROR: TunnelFrameKind
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode
ERROR_CODE_INVALID_ARGUMENT: ErrorCode
ERROR_CODE_CAPACITY_EXCEEDED: ErrorCode
ERROR_CODE_PROVIDER_UNREACHABLE: ErrorCode
ERROR_CODE_PROVIDER_CONNECTION_LOST: ErrorCode
ERROR_CODE_PROVIDER_PROTOCOL_ERROR: ErrorCode
ERROR_CODE_PROVIDER_TRUNCATED: ErrorCode
ERROR_CODE_RESPONSE_STALLED: ErrorCode
ERROR_CODE_DEADLINE_EXCEEDED: ErrorCode
ERROR_CODE_CANCELLED: ErrorCode
ERROR_CODE_CREDENTIAL_REJECTED: ErrorCode
ERROR_CODE_UNSUPPORTED_COMMAND: ErrorCode
ERROR_CODE_ADAPTER_NO_TERMINAL: ErrorCode
ERROR_CODE_UNKNOWN_PROVIDER: ErrorCode
ERROR_CODE_FORBIDDEN: ErrorCode
ERROR_CODE_NODE_DRAINING: ErrorCode
ERROR_CODE_WORKSPACE_UNSUPPORTED: ErrorCode
ERROR_CODE_PROVIDER_REDIRECTED: ErrorCode
ERROR_CODE_NODE_EXHAUSTED: ErrorCode
PROVIDER_HEALTH_UNSPECIFIED: ProviderHealth
PROVIDER_HEALTH_AVAILABLE: ProviderHealth
PROVIDER_HEALTH_UNAVAILABLE: ProviderHealth
PROVIDER_HEALTH_UNKNOWN: ProviderHealth
LIVENESS_CLASSIFICATION_UNSPECIFIED: LivenessClassification
LIVENESS_CLASSIFICATION_REQUEST_STALLED: LivenessClassification
LIVENESS_CLASSIFICATION_PROVIDER_UNHEALTHY: LivenessClassification
LIVENESS_CLASSIFICATION_HEALTH_UNKNOWN: LivenessClassification
HEALTH_REASON_UNSPECIFIED: HealthReason
HEALTH_REASON_REFUSED: HealthReason
HEALTH_REASON_FAILING: HealthReason
HEALTH_REASON_NOT_LISTED: HealthReason
HEALTH_REASON_STALLED: HealthReason
HEALTH_SCOPE_UNSPECIFIED: HealthScope
HEALTH_SCOPE_TARGET: HealthScope
LIST_FAULT_UNSPECIFIED: ListFault
LIST_FAULT_FAILING: ListFault
LIST_FAULT_TOO_LARGE: ListFault
RUN_EVENT_KIND_UNSPECIFIED: RunEventKind
RUN_EVENT_KIND_START: RunEventKind
RUN_EVENT_KIND_DELTA: RunEventKind
RUN_EVENT_KIND_REASONING_DELTA: RunEventKind
RUN_EVENT_KIND_TOOL_CALL_DELTA: RunEventKind
RUN_EVENT_KIND_USAGE: RunEventKind
RUN_EVENT_KIND_COMPLETE: RunEventKind
RUN_EVENT_KIND_ERROR: RunEventKind
RUN_EVENT_KIND_CANCELLED: RunEventKind
CANCEL_REASON_UNSPECIFIED: CancelReason
CANCEL_REASON_CLIENT_GONE: CancelReason
CANCEL_REASON_CLIENT_IDLE: CancelReason
CANCEL_REASON_DEADLINE: CancelReason
CANCEL_REASON_SHUTDOWN: CancelReason
CANCEL_REASON_PROTOCOL: CancelReason
CANCEL_REASON_OPERATOR: CancelReason
NODE_COMMAND_UNSPECIFIED: NodeCommand
NODE_COMMAND_CAPABILITIES: NodeCommand
NODE_COMMAND_TRANSPORT_STATUS: NodeCommand
NODE_COMMAND_OLLAMA_API: NodeCommand

class Envelope(_message.Message):
    __slots__ = ("provider_tunnel_frame", "provider_tunnel_body", "run_event", "stream_credit", "heartbeat", "heartbeat_ack", "provider_tunnel_request", "run_request", "cancel_request", "register_request", "register_response", "node_ready_request", "node_ready_response", "goodbye", "edge_node_event", "node_command_request", "node_command_response", "config_refresh_request", "config_refresh_response", "workspace_open_request", "workspace_open_response", "workspace_tool_request", "workspace_tool_response", "workspace_cancel_request", "workspace_cancel_response", "workspace_cleanup_request", "workspace_cleanup_response")
    PROVIDER_TUNNEL_FRAME_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_TUNNEL_BODY_FIELD_NUMBER: _ClassVar[int]
    RUN_EVENT_FIELD_NUMBER: _ClassVar[int]
    STREAM_CREDIT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_ACK_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_TUNNEL_REQUEST_FIELD_NUMBER: _ClassVar[int]
    RUN_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUEST_FIELD_NUMBER: _ClassVar[int]
    REGISTER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    REGISTER_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    NODE_READY_REQUEST_FIELD_NUMBER: _ClassVar[int]
    NODE_READY_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    EDGE_NODE_EVENT_FIELD_NUMBER: _ClassVar[int]
    NODE_COMMAND_REQUEST_FIELD_NUMBER: _ClassVar[int]
    NODE_COMMAND_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_REFRESH_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CONFIG_REFRESH_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_OPEN_REQUEST_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_OPEN_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_TOOL_REQUEST_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_TOOL_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_CANCEL_REQUEST_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_CANCEL_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_CLEANUP_REQUEST_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_CLEANUP_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    provider_tunnel_frame: ProviderTunnelFrame
    provider_tunnel_body: ProviderTunnelBody
    run_event: RunEvent
    stream_credit: StreamCredit
    heartbeat: Heartbeat
    heartbeat_ack: HeartbeatAck
    provider_tunnel_request: ProviderTunnelRequest
    run_request: RunRequest
    cancel_request: CancelRequest
    register_request: RegisterRequest
    register_response: RegisterResponse
    node_ready_request: NodeReadyRequest
    node_ready_response: NodeReadyResponse
    goodbye: Goodbye
    edge_node_event: EdgeNodeEvent
    node_command_request: NodeCommandRequest
    node_command_response: NodeCommandResponse
    config_refresh_request: ConfigRefreshRequest
    config_refresh_response: ConfigRefreshResponse
    workspace_open_request: WorkspaceOpenRequest
    workspace_open_response: WorkspaceOpenResponse
    workspace_tool_request: WorkspaceToolRequest
    workspace_tool_response: WorkspaceToolResponse
    workspace_cancel_request: WorkspaceCancelRequest
    workspace_cancel_response: WorkspaceCancelResponse
    workspace_cleanup_request: WorkspaceCleanupRequest
    workspace_cleanup_response: WorkspaceCleanupResponse
    def __init__(self, provider_tunnel_frame: _Optional[_Union[ProviderTunnelFrame, _Mapping]] = ..., provider_tunnel_body: _Optional[_Union[ProviderTunnelBody, _Mapping]] = ..., run_event: _Optional[_Union[RunEvent, _Mapping]] = ..., stream_credit: _Optional[_Union[StreamCredit, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., heartbeat_ack: _Optional[_Union[HeartbeatAck, _Mapping]] = ..., provider_tunnel_request: _Optional[_Union[ProviderTunnelRequest, _Mapping]] = ..., run_request: _Optional[_Union[RunRequest, _Mapping]] = ..., cancel_request: _Optional[_Union[CancelRequest, _Mapping]] = ..., register_request: _Optional[_Union[RegisterRequest, _Mapping]] = ..., register_response: _Optional[_Union[RegisterResponse, _Mapping]] = ..., node_ready_request: _Optional[_Union[NodeReadyRequest, _Mapping]] = ..., node_ready_response: _Optional[_Union[NodeReadyResponse, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., edge_node_event: _Optional[_Union[EdgeNodeEvent, _Mapping]] = ..., node_command_request: _Optional[_Union[NodeCommandRequest, _Mapping]] = ..., node_command_response: _Optional[_Union[NodeCommandResponse, _Mapping]] = ..., config_refresh_request: _Optional[_Union[ConfigRefreshRequest, _Mapping]] = ..., config_refresh_response: _Optional[_Union[ConfigRefreshResponse, _Mapping]] = ..., workspace_open_request: _Optional[_Union[WorkspaceOpenRequest, _Mapping]] = ..., workspace_open_response: _Optional[_Union[WorkspaceOpenResponse, _Mapping]] = ..., workspace_tool_request: _Optional[_Union[WorkspaceToolRequest, _Mapping]] = ..., workspace_tool_response: _Optional[_Union[WorkspaceToolResponse, _Mapping]] = ..., workspace_cancel_request: _Optional[_Union[WorkspaceCancelRequest, _Mapping]] = ..., workspace_cancel_response: _Optional[_Union[WorkspaceCancelResponse, _Mapping]] = ..., workspace_cleanup_request: _Optional[_Union[WorkspaceCleanupRequest, _Mapping]] = ..., workspace_cleanup_response: _Optional[_Union[WorkspaceCleanupResponse, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("seq",)
    SEQ_FIELD_NUMBER: _ClassVar[int]
    seq: int
    def __init__(self, seq: _Optional[int] = ...) -> None: ...

class HeartbeatAck(_message.Message):
    __slots__ = ("seq",)
    SEQ_FIELD_NUMBER: _ClassVar[int]
    seq: int
    def __init__(self, seq: _Optional[int] = ...) -> None: ...

class StreamCredit(_message.Message):
    __slots__ = ("stream_id", "bytes")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    bytes: int
    def __init__(self, stream_id: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason", "grace_ms", "code", "ref")
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REF_FIELD_NUMBER: _ClassVar[int]
    reason: GoodbyeReason
    grace_ms: int
    code: str
    ref: str
    def __init__(self, reason: _Optional[_Union[GoodbyeReason, str]] = ..., grace_ms: _Optional[int] = ..., code: _Optional[str] = ..., ref: _Optional[str] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("token", "node_version", "protocol_version", "capabilities", "credential_public_key", "request_window_bytes")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NODE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    token: str
    node_version: str
    protocol_version: int
    capabilities: Capabilities
    credential_public_key: bytes
    request_window_bytes: int
    def __init__(self, token: _Optional[str] = ..., node_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., capabilities: _Optional[_Union[Capabilities, _Mapping]] = ..., credential_public_key: _Optional[bytes] = ..., request_window_bytes: _Optional[int] = ...) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("adapters",)
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, adapters: _Optional[_Iterable[str]] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("accepted", "reason", "message", "config", "edge_version", "protocol_version")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    EDGE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: RejectReason
    message: str
    config: NodeConfigPayload
    edge_version: str
    protocol_version: int
    def __init__(self, accepted: _Optional[bool] = ..., reason: _Optional[_Union[RejectReason, str]] = ..., message: _Optional[str] = ..., config: _Optional[_Union[NodeConfigPayload, _Mapping]] = ..., edge_version: _Optional[str] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class NodeConfigPayload(_message.Message):
    __slots__ = ("node_id", "revision", "providers", "workspaces", "detect_servers", "list_models")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PROVIDERS_FIELD_NUMBER: _ClassVar[int]
    WORKSPACES_FIELD_NUMBER: _ClassVar[int]
    DETECT_SERVERS_FIELD_NUMBER: _ClassVar[int]
    LIST_MODELS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    revision: int
    providers: _containers.RepeatedCompositeFieldContainer[ProviderConfig]
    workspaces: _containers.RepeatedCompositeFieldContainer[WorkspaceConfig]
    detect_servers: bool
    list_models: bool
    def __init__(self, node_id: _Optional[str] = ..., revision: _Optional[int] = ..., providers: _Optional[_Iterable[_Union[ProviderConfig, _Mapping]]] = ..., workspaces: _Optional[_Iterable[_Union[WorkspaceConfig, _Mapping]]] = ..., detect_servers: _Optional[bool] = ..., list_models: _Optional[bool] = ...) -> None: ...

class ProviderConfig(_message.Message):
    __slots__ = ("id", "kind", "base_url", "max_concurrency", "connect_timeout_ms", "idle_ms", "reuse_delay_ms", "api_key_env", "health_path", "health_timeout_ms", "enabled")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BASE_URL_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    CONNECT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    REUSE_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    API_KEY_ENV_FIELD_NUMBER: _ClassVar[int]
    HEALTH_PATH_FIELD_NUMBER: _ClassVar[int]
    HEALTH_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: str
    base_url: str
    max_concurrency: int
    connect_timeout_ms: int
    idle_ms: int
    reuse_delay_ms: int
    api_key_env: str
    health_path: str
    health_timeout_ms: int
    enabled: bool
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[str] = ..., base_url: _Optional[str] = ..., max_concurrency: _Optional[int] = ..., connect_timeout_ms: _Optional[int] = ..., idle_ms: _Optional[int] = ..., reuse_delay_ms: _Optional[int] = ..., api_key_env: _Optional[str] = ..., health_path: _Optional[str] = ..., health_timeout_ms: _Optional[int] = ..., enabled: _Optional[bool] = ...) -> None: ...

class WorkspaceConfig(_message.Message):
    __slots__ = ("ref",)
    REF_FIELD_NUMBER: _ClassVar[int]
    ref: str
    def __init__(self, ref: _Optional[str] = ...) -> None: ...

class NodeReadyRequest(_message.Message):
    __slots__ = ("node_id", "revision", "held", "rejected")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    revision: int
    held: _containers.RepeatedCompositeFieldContainer[HeldSlots]
    rejected: _containers.RepeatedCompositeFieldContainer[Rejected]
    def __init__(self, node_id: _Optional[str] = ..., revision: _Optional[int] = ..., held: _Optional[_Iterable[_Union[HeldSlots, _Mapping]]] = ..., rejected: _Optional[_Iterable[_Union[Rejected, _Mapping]]] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("provider_id", "code", "detail")
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    provider_id: str
    code: str
    detail: str
    def __init__(self, provider_id: _Optional[str] = ..., code: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class HeldSlots(_message.Message):
    __slots__ = ("provider_id", "slots")
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    provider_id: str
    slots: int
    def __init__(self, provider_id: _Optional[str] = ..., slots: _Optional[int] = ...) -> None: ...

class NodeReadyResponse(_message.Message):
    __slots__ = ("ready", "reason")
    READY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    reason: RejectReason
    def __init__(self, ready: _Optional[bool] = ..., reason: _Optional[_Union[RejectReason, str]] = ...) -> None: ...

class ConfigRefreshRequest(_message.Message):
    __slots__ = ("config",)
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    config: NodeConfigPayload
    def __init__(self, config: _Optional[_Union[NodeConfigPayload, _Mapping]] = ...) -> None: ...

class ConfigRefreshResponse(_message.Message):
    __slots__ = ("revision", "applied", "code", "ref", "rejected")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REF_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    revision: int
    applied: bool
    code: str
    ref: str
    rejected: _containers.RepeatedCompositeFieldContainer[Rejected]
    def __init__(self, revision: _Optional[int] = ..., applied: _Optional[bool] = ..., code: _Optional[str] = ..., ref: _Optional[str] = ..., rejected: _Optional[_Iterable[_Union[Rejected, _Mapping]]] = ...) -> None: ...

class LeaseBinding(_message.Message):
    __slots__ = ("lease_id", "long", "attempt", "credential_envelope")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LONG_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    long: bool
    attempt: int
    credential_envelope: bytes
    def __init__(self, lease_id: _Optional[int] = ..., long: _Optional[bool] = ..., attempt: _Optional[int] = ..., credential_envelope: _Optional[bytes] = ...) -> None: ...

class ProviderTunnelRequest(_message.Message):
    __slots__ = ("stream_id", "run_id", "adapter", "provider_id", "target", "window_bytes", "deadline_ms", "response_stall_timeout_ms", "lease", "method", "path", "query", "header_block", "body", "body_bytes", "session_id", "body_follows", "dialect", "first_response_timeout_ms", "streaming", "fresh_connection")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_STALL_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    HEADER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    DIALECT_FIELD_NUMBER: _ClassVar[int]
    FIRST_RESPONSE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    STREAMING_FIELD_NUMBER: _ClassVar[int]
    FRESH_CONNECTION_FIELD_NUMBER: _ClassVar[int]
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
    query: bytes
    header_block: bytes
    body: bytes
    body_bytes: int
    session_id: bytes
    body_follows: bool
    dialect: EventDialect
    first_response_timeout_ms: int
    streaming: bool
    fresh_connection: bool
    def __init__(self, stream_id: _Optional[int] = ..., run_id: _Optional[str] = ..., adapter: _Optional[str] = ..., provider_id: _Optional[str] = ..., target: _Optional[str] = ..., window_bytes: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., response_stall_timeout_ms: _Optional[int] = ..., lease: _Optional[_Union[LeaseBinding, _Mapping]] = ..., method: _Optional[bytes] = ..., path: _Optional[bytes] = ..., query: _Optional[bytes] = ..., header_block: _Optional[bytes] = ..., body: _Optional[bytes] = ..., body_bytes: _Optional[int] = ..., session_id: _Optional[bytes] = ..., body_follows: _Optional[bool] = ..., dialect: _Optional[_Union[EventDialect, str]] = ..., first_response_timeout_ms: _Optional[int] = ..., streaming: _Optional[bool] = ..., fresh_connection: _Optional[bool] = ...) -> None: ...

class ProviderTunnelBody(_message.Message):
    __slots__ = ("stream_id", "body", "last")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    body: bytes
    last: bool
    def __init__(self, stream_id: _Optional[int] = ..., body: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class ProviderTunnelFrame(_message.Message):
    __slots__ = ("stream_id", "seq", "kind", "body", "flags", "status", "header_block", "usage", "failure", "metadata")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEADER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    seq: int
    kind: TunnelFrameKind
    body: bytes
    flags: int
    status: int
    header_block: bytes
    usage: Usage
    failure: ExecutionFailure
    metadata: _containers.RepeatedCompositeFieldContainer[Metadata]
    def __init__(self, stream_id: _Optional[int] = ..., seq: _Optional[int] = ..., kind: _Optional[_Union[TunnelFrameKind, str]] = ..., body: _Optional[bytes] = ..., flags: _Optional[int] = ..., status: _Optional[int] = ..., header_block: _Optional[bytes] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., failure: _Optional[_Union[ExecutionFailure, _Mapping]] = ..., metadata: _Optional[_Iterable[_Union[Metadata, _Mapping]]] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("input_tokens", "output_tokens", "reasoning_tokens", "cached_input_tokens")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cached_input_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ..., cached_input_tokens: _Optional[int] = ...) -> None: ...

class ExecutionFailure(_message.Message):
    __slots__ = ("code", "retryable", "provider_health", "liveness_classification", "health_observation_seq", "idle_ms", "close_confirmed", "slots_held", "connection_reused", "response_started", "message", "engine_lingers", "engine_busy", "provider_status", "retry_after")
    CODE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_HEALTH_FIELD_NUMBER: _ClassVar[int]
    LIVENESS_CLASSIFICATION_FIELD_NUMBER: _ClassVar[int]
    HEALTH_OBSERVATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_HELD_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_REUSED_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_STARTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_LINGERS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_BUSY_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_STATUS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    retryable: bool
    provider_health: ProviderHealth
    liveness_classification: LivenessClassification
    health_observation_seq: int
    idle_ms: int
    close_confirmed: bool
    slots_held: int
    connection_reused: bool
    response_started: bool
    message: bytes
    engine_lingers: bool
    engine_busy: bool
    provider_status: int
    retry_after: bytes
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., retryable: _Optional[bool] = ..., provider_health: _Optional[_Union[ProviderHealth, str]] = ..., liveness_classification: _Optional[_Union[LivenessClassification, str]] = ..., health_observation_seq: _Optional[int] = ..., idle_ms: _Optional[int] = ..., close_confirmed: _Optional[bool] = ..., slots_held: _Optional[int] = ..., connection_reused: _Optional[bool] = ..., response_started: _Optional[bool] = ..., message: _Optional[bytes] = ..., engine_lingers: _Optional[bool] = ..., engine_busy: _Optional[bool] = ..., provider_status: _Optional[int] = ..., retry_after: _Optional[bytes] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("stream_id", "run_id", "adapter", "provider_id", "target", "window_bytes", "deadline_ms", "response_stall_timeout_ms", "lease", "input", "input_bytes", "options", "input_follows", "background", "session_id", "first_response_timeout_ms", "fresh_connection")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_STALL_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    INPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    INPUT_FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_RESPONSE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    FRESH_CONNECTION_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    run_id: str
    adapter: str
    provider_id: str
    target: str
    window_bytes: int
    deadline_ms: int
    response_stall_timeout_ms: int
    lease: LeaseBinding
    input: bytes
    input_bytes: int
    options: bytes
    input_follows: bool
    background: bool
    session_id: bytes
    first_response_timeout_ms: int
    fresh_connection: bool
    def __init__(self, stream_id: _Optional[int] = ..., run_id: _Optional[str] = ..., adapter: _Optional[str] = ..., provider_id: _Optional[str] = ..., target: _Optional[str] = ..., window_bytes: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., response_stall_timeout_ms: _Optional[int] = ..., lease: _Optional[_Union[LeaseBinding, _Mapping]] = ..., input: _Optional[bytes] = ..., input_bytes: _Optional[int] = ..., options: _Optional[bytes] = ..., input_follows: _Optional[bool] = ..., background: _Optional[bool] = ..., session_id: _Optional[bytes] = ..., first_response_timeout_ms: _Optional[int] = ..., fresh_connection: _Optional[bool] = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("stream_id", "seq", "kind", "text", "tool_index", "tool_call_id", "tool_name", "usage", "failure", "finish_reason", "session_id")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOOL_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_NAME_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    seq: int
    kind: RunEventKind
    text: bytes
    tool_index: int
    tool_call_id: bytes
    tool_name: bytes
    usage: Usage
    failure: ExecutionFailure
    finish_reason: bytes
    session_id: bytes
    def __init__(self, stream_id: _Optional[int] = ..., seq: _Optional[int] = ..., kind: _Optional[_Union[RunEventKind, str]] = ..., text: _Optional[bytes] = ..., tool_index: _Optional[int] = ..., tool_call_id: _Optional[bytes] = ..., tool_name: _Optional[bytes] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., failure: _Optional[_Union[ExecutionFailure, _Mapping]] = ..., finish_reason: _Optional[bytes] = ..., session_id: _Optional[bytes] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("stream_id", "run_id", "reason")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    run_id: str
    reason: CancelReason
    def __init__(self, stream_id: _Optional[int] = ..., run_id: _Optional[str] = ..., reason: _Optional[_Union[CancelReason, str]] = ...) -> None: ...

class NodeCommandRequest(_message.Message):
    __slots__ = ("command_id", "command", "provider_id", "adapter", "target", "timeout_ms", "cancel", "argument", "body", "reason", "targets", "session_id")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    command: NodeCommand
    provider_id: str
    adapter: str
    target: str
    timeout_ms: int
    cancel: bool
    argument: bytes
    body: bytes
    reason: HealthReason
    targets: _containers.RepeatedScalarFieldContainer[str]
    session_id: bytes
    def __init__(self, command_id: _Optional[int] = ..., command: _Optional[_Union[NodeCommand, str]] = ..., provider_id: _Optional[str] = ..., adapter: _Optional[str] = ..., target: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., cancel: _Optional[bool] = ..., argument: _Optional[bytes] = ..., body: _Optional[bytes] = ..., reason: _Optional[_Union[HealthReason, str]] = ..., targets: _Optional[_Iterable[str]] = ..., session_id: _Optional[bytes] = ...) -> None: ...

class NodeCommandResponse(_message.Message):
    __slots__ = ("command_id", "code", "provider_id", "adapter", "target", "provider_health", "health_observation_seq", "result", "status", "message", "transports", "not_listed", "not_an_api", "session_id", "list_fault")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_HEALTH_FIELD_NUMBER: _ClassVar[int]
    HEALTH_OBSERVATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    NOT_LISTED_FIELD_NUMBER: _ClassVar[int]
    NOT_AN_API_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LIST_FAULT_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    code: ErrorCode
    provider_id: str
    adapter: str
    target: str
    provider_health: ProviderHealth
    health_observation_seq: int
    result: bytes
    status: int
    message: bytes
    transports: _containers.RepeatedCompositeFieldContainer[ProviderTransport]
    not_listed: _containers.RepeatedScalarFieldContainer[str]
    not_an_api: bool
    session_id: bytes
    list_fault: ListFault
    def __init__(self, command_id: _Optional[int] = ..., code: _Optional[_Union[ErrorCode, str]] = ..., provider_id: _Optional[str] = ..., adapter: _Optional[str] = ..., target: _Optional[str] = ..., provider_health: _Optional[_Union[ProviderHealth, str]] = ..., health_observation_seq: _Optional[int] = ..., result: _Optional[bytes] = ..., status: _Optional[int] = ..., message: _Optional[bytes] = ..., transports: _Optional[_Iterable[_Union[ProviderTransport, _Mapping]]] = ..., not_listed: _Optional[_Iterable[str]] = ..., not_an_api: _Optional[bool] = ..., session_id: _Optional[bytes] = ..., list_fault: _Optional[_Union[ListFault, str]] = ...) -> None: ...

class ProviderTransport(_message.Message):
    __slots__ = ("provider_id", "slots_in_use", "slots", "connections", "engine_tells", "engine_running", "engine_waiting", "engine_counts_requests")
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_IN_USE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_TELLS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_RUNNING_FIELD_NUMBER: _ClassVar[int]
    ENGINE_WAITING_FIELD_NUMBER: _ClassVar[int]
    ENGINE_COUNTS_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    provider_id: str
    slots_in_use: int
    slots: int
    connections: int
    engine_tells: bool
    engine_running: int
    engine_waiting: int
    engine_counts_requests: bool
    def __init__(self, provider_id: _Optional[str] = ..., slots_in_use: _Optional[int] = ..., slots: _Optional[int] = ..., connections: _Optional[int] = ..., engine_tells: _Optional[bool] = ..., engine_running: _Optional[int] = ..., engine_waiting: _Optional[int] = ..., engine_counts_requests: _Optional[bool] = ...) -> None: ...

class EdgeNodeEvent(_message.Message):
    __slots__ = ("draining", "call_closed", "health_observation", "lifecycle", "inventory")
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    CALL_CLOSED_FIELD_NUMBER: _ClassVar[int]
    HEALTH_OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    draining: Draining
    call_closed: CallClosed
    health_observation: HealthObservation
    lifecycle: Lifecycle
    inventory: Inventory
    def __init__(self, draining: _Optional[_Union[Draining, _Mapping]] = ..., call_closed: _Optional[_Union[CallClosed, _Mapping]] = ..., health_observation: _Optional[_Union[HealthObservation, _Mapping]] = ..., lifecycle: _Optional[_Union[Lifecycle, _Mapping]] = ..., inventory: _Optional[_Union[Inventory, _Mapping]] = ...) -> None: ...

class Inventory(_message.Message):
    __slots__ = ("providers", "servers")
    PROVIDERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    providers: _containers.RepeatedCompositeFieldContainer[ProviderModels]
    servers: _containers.RepeatedCompositeFieldContainer[DetectedServer]
    def __init__(self, providers: _Optional[_Iterable[_Union[ProviderModels, _Mapping]]] = ..., servers: _Optional[_Iterable[_Union[DetectedServer, _Mapping]]] = ...) -> None: ...

class ProviderModels(_message.Message):
    __slots__ = ("provider_id", "models")
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    provider_id: str
    models: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, provider_id: _Optional[str] = ..., models: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DetectedServer(_message.Message):
    __slots__ = ("name", "kind", "port", "capacity", "models")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    port: int
    capacity: int
    models: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., port: _Optional[int] = ..., capacity: _Optional[int] = ..., models: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ("grace_ms",)
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    grace_ms: int
    def __init__(self, grace_ms: _Optional[int] = ...) -> None: ...

class CallClosed(_message.Message):
    __slots__ = ("provider_id", "stream_id")
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    provider_id: str
    stream_id: int
    def __init__(self, provider_id: _Optional[str] = ..., stream_id: _Optional[int] = ...) -> None: ...

class HealthObservation(_message.Message):
    __slots__ = ("provider_id", "adapter", "target", "provider_health", "health_observation_seq", "reason", "scope")
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_HEALTH_FIELD_NUMBER: _ClassVar[int]
    HEALTH_OBSERVATION_SEQ_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    provider_id: str
    adapter: str
    target: str
    provider_health: ProviderHealth
    health_observation_seq: int
    reason: HealthReason
    scope: HealthScope
    def __init__(self, provider_id: _Optional[str] = ..., adapter: _Optional[str] = ..., target: _Optional[str] = ..., provider_health: _Optional[_Union[ProviderHealth, str]] = ..., health_observation_seq: _Optional[int] = ..., reason: _Optional[_Union[HealthReason, str]] = ..., scope: _Optional[_Union[HealthScope, str]] = ...) -> None: ...

class Lifecycle(_message.Message):
    __slots__ = ("kind",)
    KIND_FIELD_NUMBER: _ClassVar[int]
    kind: str
    def __init__(self, kind: _Optional[str] = ...) -> None: ...

class WorkspaceOpenRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class WorkspaceOpenResponse(_message.Message):
    __slots__ = ("request_id", "code")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    code: ErrorCode
    def __init__(self, request_id: _Optional[str] = ..., code: _Optional[_Union[ErrorCode, str]] = ...) -> None: ...

class WorkspaceToolRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class WorkspaceToolResponse(_message.Message):
    __slots__ = ("request_id", "code")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    code: ErrorCode
    def __init__(self, request_id: _Optional[str] = ..., code: _Optional[_Union[ErrorCode, str]] = ...) -> None: ...

class WorkspaceCancelRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class WorkspaceCancelResponse(_message.Message):
    __slots__ = ("request_id", "code")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    code: ErrorCode
    def __init__(self, request_id: _Optional[str] = ..., code: _Optional[_Union[ErrorCode, str]] = ...) -> None: ...

class WorkspaceCleanupRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class WorkspaceCleanupResponse(_message.Message):
    __slots__ = ("request_id", "code")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    code: ErrorCode
    def __init__(self, request_id: _Optional[str] = ..., code: _Optional[_Union[ErrorCode, str]] = ...) -> None: ...
