"""The configuration as the rooms of the edge take it: plain values, made anew at each reload (CONF-2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from iop.config.auto import Asks
from iop.config.edge import EdgeConfig, HttpSection, NodeEntry, ProviderEntry
from iop.edge.api.cors import Cors
from iop.edge.api.models import ModelInfo
from iop.edge.gateway.access import Access
from iop.edge.keys.limits import Key
from iop.edge.requests.provider_settings import ProviderSettings
from iop.errors import ConfigError
from iop.net.http.exchange import ServerLimits
from iop.pool.evidence import Known, ProviderKey
from iop.pool.specs import Candidate, GroupSpec, ProviderSpec, QueueLimits
from iop.wire import codec
from iop.wire import messages as m

__all__ = ["access", "known", "models", "payloads", "pool_arguments", "server_limits", "settings", "tokens"]


def pool_arguments(config: EdgeConfig) -> dict[str, Any]:
    """What ``Pool.configure`` takes."""
    queue = config.queue
    return {
        "nodes": [node.id for node in config.nodes],
        "providers": [_provider_spec(node, provider) for node in config.nodes for provider in node.providers],
        "groups": [
            GroupSpec(g.id, [Candidate(c.node, c.provider, c.target, c.priority) for c in g.candidates], g.aliases)
            for g in config.models
        ],
        "limits": QueueLimits(queue.timeout_ms / 1000, queue.max_waiters, queue.max_waiters_per_principal),
    }


def _provider_spec(node: NodeEntry, p: ProviderEntry) -> ProviderSpec:
    return ProviderSpec(
        node.id,
        p.id,
        p.kind,
        p.capacity,
        p.effective_long_capacity,
        p.long_threshold_tokens,
        p.enabled,
        (p.base_url, p.api_key_env),
    )


def known(config: EdgeConfig) -> dict[ProviderKey, Known]:
    """What evidence of a provider's health can be about: the enabled ones, as their nodes know them (HEALTH-1)."""
    targets: dict[ProviderKey, set[str]] = {}
    for group in config.models:
        for c in group.candidates:
            targets.setdefault((c.node, c.provider), set()).add(c.target)
    return {
        (node.id, p.id): Known(p.kind, (p.base_url, p.api_key_env), frozenset(targets.get((node.id, p.id), ())))
        for node in config.nodes
        for p in node.providers
        if p.enabled
    }


def settings(config: EdgeConfig) -> dict[str, ProviderSettings]:
    """What travels with a request, by provider id."""
    return {
        p.id: ProviderSettings(p.response_stall_timeout_ms, p.first_response_timeout_ms, p.stores_responses)
        for node in config.nodes
        for p in node.providers
    }


def tokens(config: EdgeConfig) -> dict[bytes, str]:
    """Node ids by the SHA-256 of their tokens."""
    return {node.token_hash: node.id for node in config.nodes}


def payloads(
    config: EdgeConfig,
    revision: int,
    before: Mapping[str, m.NodeConfigPayload] | None = None,
    *,
    asks: Mapping[str, Asks],
) -> dict[str, m.NodeConfigPayload]:
    """What the nodes are told (REG-1), and by ``asks`` what they are to look for; no secret is in it (TUN-6). A node
    for which nothing changes since ``before`` keeps the revision that it had.

    Raises ConfigError if one does not fit into a message.
    """
    found: dict[str, m.NodeConfigPayload] = {}
    faults = []
    for node in config.nodes:
        providers = [_provider_config(p) for p in node.providers]
        old = before.get(node.id) if before is not None else None
        payload = m.NodeConfigPayload(node.id, revision, providers, *asks.get(node.id, Asks()))
        if old is not None and replace(payload, revision=old.revision) == old:
            found[node.id] = old
            continue
        found[node.id] = payload
        if before is not None:
            try:
                codec.encode(m.ConfigRefreshRequest(payload))
            except ValueError:
                faults.append(f"nodes[{node.id}]: its configuration is too large for one message; use fewer providers")
    if faults:
        raise ConfigError(faults)
    return found


def _provider_config(p: ProviderEntry) -> m.ProviderConfig:
    return m.ProviderConfig(
        p.id,
        p.kind,
        p.base_url or "",
        p.capacity,
        p.connect_timeout_ms,
        int(p.idle_sec * 1000),
        p.reuse_delay_ms,
        p.api_key_env or "",
        p.health.path,
        p.health.timeout_ms,
        p.enabled,
    )


def access(http: HttpSection, keys: Mapping[bytes, Key]) -> Access:
    """Who may ask (API-4). That keys are configured counts, not that one of them is good."""
    keyless = not http.api_keys and http.keys_file is None
    cors = Cors(http.cors_origins) if http.cors_origins else None
    return Access(keys, anonymous=keyless, local_only=not http.allow_anonymous, cors=cors, more_paths=http.more_paths)


def models(config: EdgeConfig) -> dict[str, ModelInfo]:
    """Every name that clients may use."""
    names: dict[str, ModelInfo] = {}
    for group in config.models:
        info = ModelInfo(group.id, group.request_timeout_ms / 1000)
        names[group.id] = info
        names.update(dict.fromkeys(group.aliases, info))
    return names


def server_limits(http: HttpSection) -> ServerLimits:
    """Bounds and clocks of the clients' listener. A connection takes up new ones with its next request."""
    return ServerLimits(
        http.max_body_bytes,
        http.max_buffered_body_bytes,
        http.max_header_bytes,
        http.client_idle_timeout_sec,
        http.header_timeout_sec,
        http.body_timeout_sec,
        http.idle_timeout_sec,
        http.max_connections,
    )
