"""What a message of the wire has to be beyond its protobuf shape: required fields, bounded counts and lengths (WIRE-9).

Each check takes the parsed protobuf message; the one of a tunnel's request, which is made for every request, the plain
value.
"""

from __future__ import annotations

import re
from typing import Any

from iop.errors import ProtocolError
from iop.wire import limits
from iop.wire import messages as m

__all__ = [
    "BadMessage", "check_cancel", "check_code", "check_command", "check_command_response", "check_config",
    "check_event", "check_ready", "check_refreshed", "check_register", "check_register_response", "check_run",
    "check_tunnel",
]  # fmt: skip


class BadMessage(Exception):
    """``args[0]`` names the field at fault."""


def _need(ok: bool, what: str) -> None:
    if not ok:
        raise BadMessage(what)


def _name(value: str, what: str) -> None:
    _need(0 < len(value) <= limits.MAX_NAME_CHARS, what)


def check_register(p: Any) -> None:
    _need(0 < len(p.token) <= limits.MAX_TOKEN_CHARS, "token")
    _need(len(p.node_version) <= limits.MAX_NAME_CHARS, "node_version")
    _need(len(p.capabilities.adapters) <= limits.MAX_ADAPTERS, "capabilities")


def check_config(p: Any) -> None:
    _name(p.node_id, "node_id")
    _need(len(p.providers) <= limits.MAX_PROVIDERS, "providers")
    for provider in p.providers:
        _name(provider.id, "providers.id")
        _name(provider.kind, "providers.kind")
        _need(provider.max_concurrency > 0, "providers.max_concurrency")


def check_register_response(p: Any) -> None:
    if p.accepted:
        _need(p.HasField("config"), "config")
        check_config(p.config)


def check_ready(p: Any) -> None:
    _name(p.node_id, "node_id")
    _need(len(p.held) <= limits.MAX_PROVIDERS, "held")
    _check_rejected(p)


def check_refreshed(p: Any) -> None:
    check_code(p)
    _check_rejected(p)


def _check_rejected(p: Any) -> None:
    _need(len(p.rejected) <= limits.MAX_PROVIDERS, "rejected")
    for one in p.rejected:
        _name(one.provider_id, "rejected.provider_id")
        _name(one.code, "rejected.code")
        _need(len(one.detail) <= limits.MAX_NAME_CHARS, "rejected.detail")


def check_run(p: Any) -> None:
    _need(p.stream_id > 0, "stream_id")
    _name(p.run_id, "run_id")
    _name(p.adapter, "adapter")
    _name(p.provider_id, "provider_id")
    _name(p.target, "target")
    _need(p.window_bytes > 0, "window_bytes")
    _need(len(p.session_id) <= limits.MAX_NAME_CHARS, "session_id")


def check_tunnel(r: m.ProviderTunnelRequest, size: int) -> None:
    """On the plain value, in one expression: it runs for every request, and what is wrong is told only when it is.
    ``size`` is the whole message's. If what is neither header nor body is no longer than a name may be, no name and no
    line is."""
    if not (
        r.stream_id
        and r.run_id
        and r.adapter
        and r.provider_id
        and r.target
        and r.window_bytes
        and r.path
        and 0 < len(r.method) <= 32
        and len(r.header_block) <= limits.MAX_HEADER_BLOCK_BYTES
        and not (r.body_follows and r.body)
        and (size - len(r.body) - len(r.header_block) <= limits.MAX_NAME_CHARS or _short_enough(r))
    ):
        raise ProtocolError("bad_message", "provider_tunnel_request: a field is missing or beyond its bound")


def _short_enough(r: m.ProviderTunnelRequest) -> bool:
    names = max(len(r.run_id), len(r.adapter), len(r.provider_id), len(r.target), len(r.session_id))
    return names <= limits.MAX_NAME_CHARS and max(len(r.path), len(r.query)) <= limits.MAX_LINE_BYTES


def check_code(p: Any) -> None:
    _need(len(p.code) <= limits.MAX_NAME_CHARS and len(p.ref) <= limits.MAX_NAME_CHARS, "code")


def _check_command_address(p: Any) -> None:
    _need(p.command_id > 0, "command_id")
    for name in ("provider_id", "adapter", "target"):
        _need(len(getattr(p, name)) <= limits.MAX_NAME_CHARS, name)
    _need(len(p.session_id) <= limits.MAX_NAME_CHARS, "session_id")


def check_cancel(p: Any) -> None:
    _need(p.stream_id > 0, "stream_id")


def check_command(p: Any) -> None:
    _check_command_address(p)
    _need(len(p.argument) <= limits.MAX_LINE_BYTES, "argument")
    _need(len(p.body) <= limits.MAX_COMMAND_BODY_BYTES, "body")
    _check_names(p.targets, "targets")


def check_command_response(p: Any) -> None:
    _check_command_address(p)
    _need(len(p.message) <= limits.MAX_MESSAGE_BYTES, "message")
    _need(len(p.result) <= limits.MAX_COMMAND_RESULT_BYTES, "result")
    _need(len(p.transports) <= limits.MAX_PROVIDERS, "transports")
    for transport in p.transports:
        _name(transport.provider_id, "transports.provider_id")
    _check_names(p.not_listed, "not_listed")


def _check_names(names: Any, what: str) -> None:
    _need(len(names) <= limits.MAX_LISTED_MODELS, what)
    for name in names:
        _name(name, what)


def check_event(p: Any) -> None:
    _need(p.WhichOneof("event") is not None, "event")
    _check_inventory(p.inventory)


def _check_inventory(p: Any) -> None:
    _need(len(p.providers) <= limits.MAX_PROVIDERS, "inventory.providers")
    _need(len(p.servers) <= limits.MAX_DETECTED_SERVERS, "inventory.servers")
    for provider in p.providers:
        _name(provider.provider_id, "inventory.providers.provider_id")
    for server in p.servers:
        # It becomes part of an id.
        _need(re.fullmatch("[a-z0-9-]{1,32}", server.name) is not None, "inventory.servers.name")
        _name(server.kind, "inventory.servers.kind")
        _need(0 < server.port < 65536 and server.capacity > 0, "inventory.servers.port")
    for lists in (p.providers, p.servers):
        for entry in lists:
            _need(len(entry.models) <= limits.MAX_LISTED_MODELS, "inventory.models")
            _need(all(0 < len(name) <= limits.MAX_NAME_CHARS for name in entry.models), "inventory.models")
