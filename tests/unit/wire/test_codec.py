"""Cold messages to frames and back, and what is refused (WIRE-2, WIRE-9, E3)."""

from __future__ import annotations

import random
import typing
from typing import Any

import pytest

from iop._fast import frame
from iop.errors import ProtocolError
from iop.wire import codec, limits
from iop.wire import messages as m
from iop.wire.pb import runtime_pb2 as pb

RNG = random.Random(5)
LEASE = m.LeaseBinding(2**40, True, 2, b"\xff\x00sealed")
EVERY: list[m.Message] = [
    m.RegisterRequest("tok", "1.2", 3, m.Capabilities(["a", "b"]), b"\xffkey", 65536),
    m.RegisterResponse(
        True,
        config=m.NodeConfigPayload(
            "n", 2**40, [m.ProviderConfig("p", "vllm", "http://x/v1", 8, 5000, 4000, 50, "KEY", "/health", 3000, True)]
        ),
        edge_version="1.2",
        protocol_version=1,
    ),
    m.RegisterResponse(False, m.RejectReason.PROTOCOL_MISMATCH, "the edge speaks 1, the node 2"),
    m.NodeReadyRequest("n", 7, [m.HeldSlots("p", 3), m.HeldSlots("q", 0)]),
    m.NodeReadyResponse(False, m.RejectReason.STALE_CONNECTION),
    m.Goodbye(m.GoodbyeReason.CONFIG_REJECTED, 1000, "config_rejected", "p"),
    m.EdgeNodeEvent(draining=m.Draining(30_000)),
    m.EdgeNodeEvent(call_closed=m.CallClosed("p", 9)),
    m.EdgeNodeEvent(health_observation=m.HealthObservation("p", "vllm", "t", m.ProviderHealth.UNAVAILABLE, 5)),
    m.EdgeNodeEvent(lifecycle=m.Lifecycle("started")),
    m.ProviderTunnelRequest(
        2**31 - 1, "req-1", "vllm", "p", "Qwen/Qwen3", 262144, 3_600_000, 300_000, LEASE, b"POST",
        b"/chat/completions", b"a=\xff", b"x-odd: \xe9\r\n", b'{"model":"m"}', 13, b"s", False,
        m.EventDialect.MESSAGES, 0, True,
    ),
    m.ProviderTunnelRequest(
        1, "r", "echo", "p", "t", 1, 0, 0, m.LeaseBinding(), b"GET", b"/", body_bytes=2**33, body_follows=True
    ),
    m.RunRequest(
        4, "r", "ollama", "p", "t", 1, 2, 3, LEASE, b"{}", 2, b"{}", False, True, b"s", first_response_timeout_ms=5
    ),
    m.CancelRequest(4, "r", m.CancelReason.CLIENT_IDLE),
    m.NodeCommandRequest(2**63, m.NodeCommand.OLLAMA_API, "p", "ollama", "t", 1000, True, b"/api/show", b"{}"),
    m.NodeCommandResponse(
        1, m.ErrorCode.UNSUPPORTED_COMMAND, "p", "a", "t", m.ProviderHealth.AVAILABLE, 3, b"\xff", 404, b"why",
        [m.ProviderTransport("p", 1, 2, 3, True, 0, None, True), m.ProviderTransport("q")],
    ),
    m.ConfigRefreshRequest(m.NodeConfigPayload("n", 2)),
    m.ConfigRefreshResponse(2, False, "config_rejected", "p"),
]  # fmt: skip


@pytest.mark.req("WIRE-2")
@pytest.mark.parametrize("message", EVERY, ids=lambda message: type(message).__name__)
def test_every_message_comes_back_as_it_went(message: m.Message) -> None:
    data = codec.encode(message)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert codec.decode(data[4:]) == message
    assert frame.decode(data[4:]) is None, "a cold message taken for a hot one"


def test_every_message_is_in_the_list() -> None:
    assert {type(message) for message in EVERY} == set(typing.get_args(m.Message))


@pytest.mark.parametrize("message", EVERY, ids=lambda message: type(message).__name__)
def test_what_is_written_equals_the_runtime_s_form(message: m.Message) -> None:
    """Also where a message is coded by hand; only the parts of a tunnel's request come in another order."""
    data = codec.encode(message)[4:]
    canonical = pb.Envelope.FromString(data).SerializeToString()
    assert len(canonical) == len(data) if isinstance(message, m.ProviderTunnelRequest) else canonical == data


def test_tunnel_requests_of_every_shape() -> None:
    """They are coded by hand in both directions: any combination of fields, present and absent."""
    base = EVERY[10]
    assert isinstance(base, m.ProviderTunnelRequest)
    for _ in range(300):
        values = {}
        for name in m.ProviderTunnelRequest.__struct_fields__:
            value = getattr(base, name)
            if RNG.random() < 0.4 and name not in _REQUIRED:
                value = {int: 0, str: "", bytes: b"", bool: False}.get(type(value), value)
            elif isinstance(value, bool):
                value = RNG.random() < 0.5
            elif type(value) is int:
                value = RNG.choice([1, 127, 128, 2**31 - 1])
            elif type(value) is bytes:
                value = RNG.randbytes(RNG.choice([1, 30, 127, 128, 5000]))[: _AT_MOST.get(name)]
            values[name] = value
        if RNG.random() < 0.3:
            values["first_response_timeout_ms"] = None
        if RNG.random() < 0.3:
            values["lease"] = m.LeaseBinding(RNG.choice([0, 5]), False, 0, b"")
        if values["body"]:
            values["body_follows"] = False
        request = m.ProviderTunnelRequest(**values)
        data = codec.encode(request)[4:]
        assert codec.decode(data) == request
        assert len(pb.Envelope.FromString(data).SerializeToString()) == len(data), "something is there twice"


_AT_MOST = {"method": 32, "session_id": limits.MAX_NAME_CHARS}
_REQUIRED = {"stream_id", "run_id", "adapter", "provider_id", "target", "window_bytes", "method", "path", "lease"}


def test_failures_travel_in_the_terminal() -> None:
    failure = m.ExecutionFailure(
        m.ErrorCode.CAPACITY_EXCEEDED, True, m.ProviderHealth.UNAVAILABLE, m.LivenessClassification.HEALTH_UNKNOWN,
        9, 10, True, 11, True, True, b"\xffwhy",
    )  # fmt: skip
    hot = codec.decode(codec.tunnel_error(3, 7, failure)[4:])
    assert isinstance(hot, codec.HotFrame)
    assert hot.payload == frame.TUNNEL_FRAME
    assert (hot.fields["stream_id"], hot.fields["seq"], hot.fields["kind"]) == (3, 7, m.TunnelFrameKind.ERROR)
    assert hot.fields["extra"] == failure
    assert hot.fields["usage"] is None


@pytest.mark.req("WIRE-3")
def test_a_hot_message_that_is_not_plain_means_the_same() -> None:
    """Fields out of order: the runtime reads them, and its word counts."""
    hot = codec.decode(b"\x0a\x0b" + b"\x18\x02\x10\x05\x08\x07\x22\x01x\x28\x02")
    assert isinstance(hot, codec.HotFrame)
    assert {k: v for k, v in hot.fields.items() if v} == {"stream_id": 7, "seq": 5, "kind": 2, "body": b"x", "flags": 2}


@pytest.mark.req("WIRE-2")
def test_unknown_fields_are_ignored() -> None:
    data = codec.encode(m.CancelRequest(4, "r", m.CancelReason.OPERATOR))[4:]
    assert codec.decode(data + b"\xa2\x06\x03new") == m.CancelRequest(4, "r", m.CancelReason.OPERATOR)


def test_an_enum_member_of_a_newer_peer_is_unspecified() -> None:
    data = pb.Envelope(cancel_request=pb.CancelRequest(stream_id=1, reason=77)).SerializeToString()  # type: ignore[arg-type]
    assert codec.decode(data) == m.CancelRequest(1, "", m.CancelReason.UNSPECIFIED)


def test_a_long_error_text_is_cut() -> None:
    hot = codec.decode(codec.tunnel_error(1, 0, m.ExecutionFailure(message=b"x" * 10_000))[4:])
    assert isinstance(hot, codec.HotFrame)
    assert len(hot.fields["extra"].message) == limits.MAX_MESSAGE_BYTES


def envelope(**payload: Any) -> bytes:
    return pb.Envelope(**payload).SerializeToString()


def request(**changes: Any) -> bytes:
    base: dict[str, Any] = {
        "stream_id": 1, "run_id": "r", "adapter": "a", "provider_id": "p", "target": "t", "window_bytes": 1,
        "method": b"POST", "path": b"/",
    }  # fmt: skip
    return envelope(provider_tunnel_request=pb.ProviderTunnelRequest(**{**base, **changes}))


def run(**changes: Any) -> bytes:
    base: dict[str, Any] = {
        "stream_id": 1, "run_id": "r", "adapter": "a", "provider_id": "p", "target": "t", "window_bytes": 1,
    }  # fmt: skip
    return envelope(run_request=pb.RunRequest(**{**base, **changes}))


PROVIDER = pb.ProviderConfig(id="p", kind="vllm", max_concurrency=1)
NAME = "n" * (limits.MAX_NAME_CHARS + 1)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "empty_payload"),
    "an unknown oneof": (b"\xf2\x07\x00", "empty_payload"),
    "only outlined": (envelope(workspace_open_request=pb.WorkspaceOpenRequest()), "unsupported_payload"),
    "cut": (b"\x52\x05ab", "malformed"),
    "garbage": (b"\xff" * 40, "malformed"),
    "bad utf-8 in a string": (b"\x52\x06\x0a\x04ab\xff\xfe", "malformed"),
    "a group 200 deep": (b"\xa3\x06" * 200 + b"\xa4\x06" * 200, "malformed"),
    "a million empty submessages": (b"\x62" + b"\x80\x89\x7a" + b"\x1a\x00" * 1_000_000, "control_frame_too_large"),
    "half a million empty submessages": (b"\x62\xc0\x84\x3d" + b"\x1a\x00" * 500_000, "bad_message"),
    "1 MiB of unknown fields": (request() + b"\xa2\x06\x80\x80\x40" + bytes(1 << 20), "control_frame_too_large"),
    "a hot frame of 1 MiB": (b"\x0a\x85\x80\x40\x3a\x80\x80\x40" + bytes(1 << 20), "control_frame_too_large"),
    "register: no token": (envelope(register_request=pb.RegisterRequest(protocol_version=1)), "bad_message"),
    "register: a long token": (envelope(register_request=pb.RegisterRequest(token="t" * 4097)), "bad_message"),
    "register: a long version": (
        envelope(register_request=pb.RegisterRequest(token="t", node_version=NAME)), "bad_message",
    ),
    "register: 1000 adapters": (
        envelope(
            register_request=pb.RegisterRequest(token="t", capabilities=pb.Capabilities(adapters=["a"] * 1000))
        ),
        "bad_message",
    ),
    "run: a long session id": (run(session_id=NAME.encode()), "bad_message"),
    "request: a long session id": (request(session_id=NAME.encode()), "bad_message"),
    "accepted, and no config": (envelope(register_response=pb.RegisterResponse(accepted=True)), "bad_message"),
    "config without a node": (
        envelope(config_refresh_request=pb.ConfigRefreshRequest(config=pb.NodeConfigPayload())), "bad_message",
    ),
    "a provider without capacity": (
        envelope(
            config_refresh_request=pb.ConfigRefreshRequest(
                config=pb.NodeConfigPayload(node_id="n", providers=[pb.ProviderConfig(id="p", kind="vllm")])
            )
        ),
        "bad_message",
    ),
    "5000 providers": (
        envelope(
            config_refresh_request=pb.ConfigRefreshRequest(
                config=pb.NodeConfigPayload(node_id="n", providers=[PROVIDER] * 5000)
            )
        ),
        "bad_message",
    ),
    "ready: no node": (envelope(node_ready_request=pb.NodeReadyRequest(revision=1)), "bad_message"),
    "ready: 5000 held": (
        envelope(node_ready_request=pb.NodeReadyRequest(node_id="n", held=[pb.HeldSlots(provider_id="p")] * 5000)),
        "bad_message",
    ),
    "tunnel: no stream": (request(stream_id=0), "bad_message"),
    "tunnel: no run": (request(run_id=""), "bad_message"),
    "tunnel: no adapter": (request(adapter=""), "bad_message"),
    "tunnel: no provider": (request(provider_id=""), "bad_message"),
    "tunnel: no target": (request(target=""), "bad_message"),
    "tunnel: a long target": (request(target=NAME), "bad_message"),
    "tunnel: no window": (request(window_bytes=0), "bad_message"),
    "tunnel: no method": (request(method=b""), "bad_message"),
    "tunnel: a long method": (request(method=b"M" * 33), "bad_message"),
    "tunnel: no path": (request(path=b""), "bad_message"),
    "tunnel: a long path": (request(path=b"/" * 70_000), "bad_message"),
    "tunnel: a long query": (request(query=b"q" * 70_000), "bad_message"),
    "tunnel: a long head": (request(header_block=b"h" * 300_000), "bad_message"),
    "tunnel: a body, and more to follow": (request(body=b"x", body_follows=True), "bad_message"),
    "run: no target": (run(target=""), "bad_message"),
    "cancel: no stream": (envelope(cancel_request=pb.CancelRequest(run_id="r")), "bad_message"),
    "an event of no kind": (envelope(edge_node_event=pb.EdgeNodeEvent()), "bad_message"),
}  # fmt: skip


@pytest.mark.req("WIRE-2", "WIRE-9")
@pytest.mark.parametrize("case", HOSTILE)
def test_e3_bad_content_is_a_typed_protocol_error(case: str) -> None:
    data, reason = HOSTILE[case]
    with pytest.raises(ProtocolError) as caught:
        codec.decode(data)
    assert caught.value.reason == reason
    assert len(caught.value.message) < 300


@pytest.mark.req("WIRE-9")
def test_a_message_that_no_peer_would_take_is_not_sent() -> None:
    providers = [m.ProviderConfig("p" * 500, "vllm", "x" * 500, 1) for _ in range(1100)]
    with pytest.raises(ValueError, match="at most 1048576"):
        codec.encode(m.ConfigRefreshRequest(m.NodeConfigPayload("n", 1, providers)))
