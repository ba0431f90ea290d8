"""The table of messages: it has all of the protocol, and whoever hears a message has a handler for it."""

from __future__ import annotations

import pytest

from iop.edge.nodes.connection import NodeLink
from iop.node.uplink.agent import Agent
from iop.wire import codec
from iop.wire import messages as m
from iop.wire.registry import BY_PAYLOAD, EDGE_HEARS, NODE_HEARS, ROWS, State


@pytest.mark.req("WIRE-2")
def test_every_payload_of_the_protocol_is_a_row_or_a_hot_frame() -> None:
    payloads = {field.name for field in codec.pb.Envelope.DESCRIPTOR.oneofs_by_name["payload"].fields}
    # Workspaces have numbers in the protocol and no code yet: a program answers them as unsupported.
    built = {name for name in payloads if not name.startswith("workspace_")}
    assert built == BY_PAYLOAD.keys() | codec._HOT.keys()


@pytest.mark.req("WIRE-9")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.payload)
def test_every_message_has_somebody_who_hears_it(row) -> None:  # type: ignore[no-untyped-def]
    assert row.edge or row.node
    assert State.CLOSED not in row.edge + row.node


@pytest.mark.req("WIRE-9")
def test_whoever_hears_a_message_has_a_handler_for_it() -> None:
    assert set().union(*EDGE_HEARS.values()) == NodeLink._HANDLERS.keys()
    # Events of an edge may come (WIRE-9); none is known today.
    assert set().union(*NODE_HEARS.values()) - {m.EdgeNodeEvent} == Agent._HANDLERS.keys()
