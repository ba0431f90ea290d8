"""The shape and the defaults of the edge's file (CONF-3). Durations end ``_ms`` or ``_sec``, sizes ``_bytes``.

Sections that a later version gives meaning to are here in their outline, so that a file that uses them is refused with
a reason (:mod:`iop.config.rules`) rather than half obeyed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from iop.config.fields import (
    BaseUrl,
    Bytes,
    ClientPaths,
    ConfigPath,
    Context,
    Count,
    EnvName,
    HostPort,
    Ident,
    Int,
    Millis,
    ModelName,
    Real,
    Seconds,
    SecretEnv,
    SecretFile,
    Section,
    ServerPath,
    Sha256,
    WebOrigins,
    digest,
    secret_from,
)
from iop.config.keys import KeyRules
from iop.config.rules import ADMIN_LISTEN, BODY_BYTES, BUFFERED_BODY_BYTES, HTTP_LISTEN, TRANSPORT_LISTEN
from iop.config.tls import HttpTls, TransportTls
from iop.kinds import KINDS

__all__ = [
    "AdminSection",
    "ApiKey",
    "Candidate",
    "EdgeConfig",
    "EdgeSection",
    "HealthSection",
    "HttpSection",
    "ModelEntry",
    "NodeEntry",
    "ProviderEntry",
    "QueueSection",
    "RecoverySection",
    "SecuritySection",
    "TransportSection",
    "without_effect",
]

STALL_MS_MAX = 86_400_000  # LIVE-1
AUTO = "auto"
#: The kinds of :mod:`iop.kinds`, and ``auto`` for what a node finds.
if TYPE_CHECKING:
    ProviderKind = str
else:
    ProviderKind = Literal[(*(kind.name for kind in KINDS), AUTO)]


class EdgeSection(Section):
    id: Ident = "edge-1"
    state_dir: ConfigPath = Field(default=Path("state"), validate_default=True)
    drain_timeout_sec: Annotated[Real, Field(ge=0, le=86_400)] = 30.0


class ApiKey(KeyRules):
    """One client key (API-4). Exactly one source; only its SHA-256 is kept, in :attr:`key_hash`."""

    key_env: SecretEnv | None = None
    key_file: SecretFile | None = None
    key_sha256: Sha256 | None = None
    _hash: bytes = PrivateAttr(default=b"")

    @model_validator(mode="after")
    def _resolve(self, info: ValidationInfo) -> ApiKey:
        self._hash = _hash_of(info, self.key_env, self.key_file, self.key_sha256)
        return self

    @property
    def key_hash(self) -> bytes:
        """SHA-256 of the key, 32 bytes."""
        return self._hash


class HttpSection(Section):
    """The clients' side (API)."""

    listen: HostPort = HostPort.parse(HTTP_LISTEN)
    tls: HttpTls | None = None
    allow_anonymous: bool = False
    api_keys: tuple[ApiKey, ...] = ()
    keys_file: ConfigPath | None = None
    max_body_bytes: Bytes = BODY_BYTES
    max_buffered_body_bytes: Bytes = BUFFERED_BODY_BYTES
    max_header_bytes: Annotated[Int, Field(ge=1024, le=196_608)] = 32_768
    stream_keepalive_sec: Annotated[Real, Field(ge=0, le=3600)] = 15.0
    client_idle_timeout_sec: Seconds = 60.0
    header_timeout_sec: Seconds = 10.0
    body_timeout_sec: Seconds = 60.0
    idle_timeout_sec: Seconds = 75.0
    max_connections: Annotated[Int, Field(ge=1, le=1_000_000)] = 20_000
    cors_origins: WebOrigins = ()
    more_paths: ClientPaths = ()


class TransportSection(Section):
    """The nodes' side (WIRE)."""

    listen: HostPort = HostPort.parse(TRANSPORT_LISTEN)
    max_frame_bytes: Annotated[Int, Field(ge=131_072, le=67_108_864)] = 4_194_304
    stream_window_bytes: Annotated[Int, Field(ge=16_384, le=16_777_216)] = 262_144
    max_buffered_bytes: Bytes = 268_435_456
    allow_plaintext: bool = False
    tls: TransportTls | None = None


class AdminSection(Section):
    """``/metrics`` and ``/admin`` (OBS-4); ``listen: null`` disables it."""

    listen: HostPort | None = HostPort.parse(ADMIN_LISTEN)


class QueueSection(Section):
    """POOL-6."""

    timeout_ms: Millis = 60_000
    max_waiters: Count = 10_000
    max_waiters_per_principal: Count = 1_000


class RecoverySection(Section):
    """API-8."""

    max_attempts: Annotated[Int, Field(ge=0, le=100)] = 2
    max_body_bytes: Annotated[Int, Field(ge=0, le=1 << 40)] = 8_388_608


class MetricsSection(Section):
    """``principals``: counters of requests and tokens carry the principal."""

    principals: bool = False


class SecuritySection(Section):
    """SEC; ``managed`` and everything that belongs to it is a later version's."""

    mode: Literal["open", "managed"] = "open"
    trust_domain: Any = None
    ca: Any = None
    lease_signing_key_file: Any = None
    lease_ttl_sec: Any = None
    credentials: Any = None


class HealthSection(Section):
    """The probe of one provider (HEALTH-5). ``path``, from the root of the server, is asked in the place of what its
    kind is asked otherwise; empty: it is not. ``timeout_ms`` is for one look at the provider; the terminal of a stall
    waits no longer than 3 s for it, whatever this says (LIVE-5)."""

    path: ServerPath = ""
    timeout_ms: Annotated[Int, Field(ge=1, le=10_000)] = 3_000


class ProviderEntry(Section):
    """One backend on a node (POOL-1, LIVE-1, TUN-5, TUN-6, TUN-8). ``base_url`` is absent for ``echo``, and for
    ``auto``: that entry stands for each model server that the node finds on its loopback, with these settings and an
    id that begins with this one (:mod:`iop.config.auto`)."""

    id: Ident
    kind: ProviderKind
    base_url: BaseUrl | None = None
    capacity: Annotated[Int, Field(ge=1, le=100_000)] = 1
    long_capacity: Annotated[Int, Field(ge=0, le=100_000)] | None = None
    long_threshold_tokens: Count | None = None
    connect_timeout_ms: Annotated[Int, Field(ge=1, le=600_000)] = 5_000
    response_stall_timeout_ms: Annotated[Int, Field(ge=1, le=STALL_MS_MAX)] = 300_000
    first_response_timeout_ms: Annotated[Int, Field(ge=0, le=STALL_MS_MAX)] | None = None
    idle_sec: Annotated[Real, Field(ge=0, le=3600)] = 4.0
    reuse_delay_ms: Annotated[Int, Field(ge=0, le=60_000)] = 50
    stores_responses: bool = False
    api_key_env: EnvName | None = None
    health: HealthSection = HealthSection()
    enabled: bool = True

    @property
    def effective_long_capacity(self) -> int:
        """``long_capacity``, which is ``capacity`` when absent (CONF-3)."""
        return self.capacity if self.long_capacity is None else self.long_capacity


class NodeEntry(Section):
    """A node that may register (REG-1). Exactly one token source; only its SHA-256 is kept, in :attr:`token_hash`."""

    id: Ident
    token_env: SecretEnv | None = None
    token_file: SecretFile | None = None
    token_sha256: Sha256 | None = None
    providers: tuple[ProviderEntry, ...] = ()
    workspaces: tuple[dict[str, Any], ...] = ()
    _hash: bytes = PrivateAttr(default=b"")

    @model_validator(mode="after")
    def _resolve(self, info: ValidationInfo) -> NodeEntry:
        self._hash = _hash_of(info, self.token_env, self.token_file, self.token_sha256)
        return self

    @property
    def token_hash(self) -> bytes:
        """SHA-256 of the token, 32 bytes."""
        return self._hash


class Candidate(Section):
    node: Ident
    provider: Ident
    target: ModelName
    priority: Annotated[Int, Field(ge=0, le=1_000_000)] = 0


class ModelEntry(Section):
    """A model group: the name that clients use, and who can serve it (POOL-1).

    Without candidates (``candidates: auto``) it is served by whoever lists ``target``, or else its own name. With ``*``
    in its id it stands for every listed model that the pattern fits (:mod:`iop.config.auto`).
    """

    id: ModelName
    aliases: tuple[ModelName, ...] = ()
    request_timeout_ms: Millis = 3_600_000
    target: ModelName | None = None
    candidates: tuple[Candidate, ...] = ()


class EdgeConfig(Section):
    """The whole file. Build it with :func:`iop.config.load.load_edge` or ``parse_edge``: they also check what spans
    sections."""

    edge: EdgeSection = Field(default_factory=EdgeSection)
    http: HttpSection = HttpSection()
    transport: TransportSection = TransportSection()
    admin: AdminSection = AdminSection()
    queue: QueueSection = QueueSection()
    recovery: RecoverySection = RecoverySection()
    metrics: MetricsSection = MetricsSection()
    security: SecuritySection = SecuritySection()
    nodes: tuple[NodeEntry, ...] = ()
    models: tuple[ModelEntry, ...] = ()
    presets: tuple[dict[str, Any], ...] = ()


def without_effect(config: EdgeConfig) -> list[str]:
    """Settings of the file that this version accepts and does not act on: said at start and by ``check``, so that
    nobody relies on them."""
    found = []
    if config.edge.state_dir.name != "state":
        found.append("edge.state_dir: this version stores nothing there")
    return found


def _hash_of(info: ValidationInfo, env: str | None, file: Path | None, sha256: str | None) -> bytes:
    """The SHA-256 of the secret that one of the three sources gives. That exactly one is given is a rule of the whole
    file, so none at all is let through here."""
    if sha256 is not None:
        return bytes.fromhex(sha256)
    return digest(secret_from(Context.of(info), env=env, file=file).get_secret_value())
