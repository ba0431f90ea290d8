"""The messages of the wire, one row each: name, value, check, and who hears it in which state of a session (WIRE-9).

A new message is a row here, its value in :mod:`iop.wire.messages`, its check in :mod:`iop.wire.checks`, and the
protobuf message. The hot frames of a stream are not in here, since native code reads and writes them
(:mod:`iop._fast.frame`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from iop.wire import checks
from iop.wire import messages as m

__all__ = ["BY_PAYLOAD", "EDGE_HEARS", "NODE_HEARS", "PAYLOAD_OF", "ROWS", "Row", "State"]


class State(StrEnum):
    """Of a session, at either end."""

    CONNECTED = "connected"
    REGISTERING = "registering"
    PENDING = "pending"
    READY = "ready"
    CLOSED = "closed"


CONNECTED, REGISTERING, PENDING, READY, CLOSED = State


class Row(NamedTuple):
    """``payload`` is the name in the envelope, ``check`` takes the parsed protobuf message. ``edge`` and ``node`` are
    the states in which each end hears the message; in any other it is a protocol error, ``wrong_state``."""

    payload: str
    message: type[Any]
    check: Callable[[Any], None] | None = None
    edge: tuple[State, ...] = ()
    node: tuple[State, ...] = ()


ROWS = (
    Row("register_request", m.RegisterRequest, checks.check_register, edge=(CONNECTED,)),
    Row("register_response", m.RegisterResponse, checks.check_register_response, node=(REGISTERING,)),
    Row("node_ready_request", m.NodeReadyRequest, checks.check_ready, edge=(PENDING, READY)),
    Row("node_ready_response", m.NodeReadyResponse, node=(PENDING, READY)),
    Row(
        "goodbye",
        m.Goodbye,
        checks.check_code,
        edge=(REGISTERING, PENDING, READY),
        node=(REGISTERING, PENDING, READY),
    ),
    Row("edge_node_event", m.EdgeNodeEvent, checks.check_event, edge=(READY,), node=(READY,)),
    Row("provider_tunnel_request", m.ProviderTunnelRequest, node=(READY,)),  # checked as a value: check_tunnel
    Row("run_request", m.RunRequest, checks.check_run, node=(READY,)),
    Row("cancel_request", m.CancelRequest, checks.check_cancel, node=(READY,)),
    Row("node_command_request", m.NodeCommandRequest, checks.check_command, node=(READY,)),
    Row("node_command_response", m.NodeCommandResponse, checks.check_command_response, edge=(READY,)),
    Row(
        "config_refresh_request",
        m.ConfigRefreshRequest,
        lambda p: checks.check_config(p.config),
        node=(PENDING, READY),
    ),
    Row("config_refresh_response", m.ConfigRefreshResponse, checks.check_refreshed, edge=(PENDING, READY)),
)

BY_PAYLOAD = {row.payload: row for row in ROWS}
PAYLOAD_OF: dict[type[Any], str] = {row.message: row.payload for row in ROWS}
EDGE_HEARS = {state: frozenset(row.message for row in ROWS if state in row.edge) for state in State}
NODE_HEARS = {state: frozenset(row.message for row in ROWS if state in row.node) for state in State}
