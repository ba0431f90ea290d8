"""The shape and the defaults of a node's file (CONF-3)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PrivateAttr, SecretStr, ValidationInfo, model_validator

from iop.config.fields import (
    Context,
    EnvName,
    HostPort,
    Int,
    Peer,
    Real,
    SecretEnv,
    SecretFile,
    Section,
    StoreUrl,
    secret_from,
)
from iop.config.tls import NodeTls
from iop.kinds import SERVERS

Port = Annotated[Int, Field(ge=1, le=65535)]

__all__ = ["DEFAULT_STORE_URL", "MetricsSection", "NodeConfig", "NodeSection", "ReconnectSection", "StoreSection"]

DEFAULT_STORE_URL = "file:iop.db?cache=shared&mode=rwc"


class NodeSection(Section):
    """Where to dial, as whom, and what this node's owner allows (TUN-6, TUN-7)."""

    edge: Peer
    token_env: SecretEnv | None = None
    token_file: SecretFile | None = None
    #: None: without TLS.
    tls: NodeTls | None = None
    #: None: loopback and unix sockets only.
    allow_upstreams: tuple[Peer, ...] | None = None
    #: Names of environment variables that a provider's ``api_key_env`` may name.
    credentials: tuple[EnvName, ...] = ()
    #: Ports on loopback at which it looks for model servers when the edge's file says ``providers: auto``.
    detect_ports: Annotated[tuple[Port, ...], Field(max_length=64)] = tuple(server.port for server in SERVERS)
    allow_workspaces: tuple[Any, ...] = ()
    drain_timeout_sec: Annotated[Real, Field(ge=0, le=86_400)] = 30.0
    _token: SecretStr = PrivateAttr(default=SecretStr(""))

    @model_validator(mode="after")
    def _resolve(self, info: ValidationInfo) -> NodeSection:
        self._token = secret_from(Context.of(info), env=self.token_env, file=self.token_file)
        return self

    @property
    def token(self) -> SecretStr:
        """The token; ``get_secret_value()`` belongs only where it is put into RegisterRequest."""
        return self._token


class ReconnectSection(Section):
    """SUP-2: ``max_attempts`` 0 is unlimited, and then the interval has to be positive."""

    max_attempts: Annotated[Int, Field(ge=0, le=1_000_000)] = 10
    interval_sec: Annotated[Real, Field(ge=0, le=86_400)] = 10.0


class StoreSection(Section):
    """The run store (EXEC-9); ``url: null`` keeps none."""

    url: StoreUrl = Field(default=DEFAULT_STORE_URL, validate_default=True)


class MetricsSection(Section):
    """``listen: null`` disables it."""

    listen: HostPort | None = None


class NodeConfig(Section):
    """The whole file. Build it with :func:`iop.config.load.load_node` or ``parse_node``."""

    node: NodeSection
    reconnect: ReconnectSection = ReconnectSection()
    store: StoreSection = Field(default_factory=StoreSection)
    metrics: MetricsSection = MetricsSection()
