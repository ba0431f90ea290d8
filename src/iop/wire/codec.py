"""Messages to frames and back, through the official protobuf runtime (WIRE-2, WIRE-3); nobody else imports ``wire.pb``.

``encode`` gives whole frames, length prefix included. ``decode`` takes one envelope and validates it: required
fields, bounded counts and lengths. Whatever fails is a :class:`~iop.errors.ProtocolError`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, cast

import msgspec
from google.protobuf.message import DecodeError

from iop._fast.message import Message
from iop.errors import ProtocolError
from iop.wire import limits
from iop.wire import messages as m
from iop.wire.checks import BadMessage, check_tunnel
from iop.wire.pb import runtime_pb2 as pb
from iop.wire.registry import BY_PAYLOAD, PAYLOAD_OF

__all__ = ["HotFrame", "decode", "encode", "run_event", "tunnel_error"]


@dataclass(slots=True)
class HotFrame:
    """A hot message that was not in plain form, or that carries usage or a failure: arguments for ``Mux.deliver``."""

    payload: int
    fields: dict[str, Any]


# ---- plain values <-> pb, by field name -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Field:
    name: str
    message: type[Any] | None  # nested message
    enum: type[IntEnum] | None
    repeated: bool
    optional: bool  # absent is None


def _describe(cls: type[Any]) -> list[_Field]:
    out = []
    for name, hint in typing.get_type_hints(cls).items():
        kind = hint
        optional = repeated = False
        if isinstance(kind, types.UnionType):
            (kind,) = (k for k in typing.get_args(kind) if k is not types.NoneType)
            optional = True
        if typing.get_origin(kind) is list:
            (kind,) = typing.get_args(kind)
            repeated = True
        out.append(
            _Field(
                name,
                kind
                if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))
                else None,
                kind if isinstance(kind, type) and issubclass(kind, IntEnum) else None,
                repeated,
                optional,
            )
        )
    return out


_FIELDS: dict[type[Any], list[_Field]] = {}


def _fields(cls: type[Any]) -> list[_Field]:
    found = _FIELDS.get(cls)
    if found is None:
        found = _FIELDS[cls] = _describe(cls)
    return found


def _fill(target: Any, value: Any) -> None:
    for f in _fields(type(value)):
        v = getattr(value, f.name)
        if v is None:
            continue
        if f.repeated:
            into = getattr(target, f.name)
            if f.message is None:
                into.extend(v)
            else:
                for item in v:
                    _fill(into.add(), item)
        elif f.message is not None:
            nested = getattr(target, f.name)
            nested.SetInParent()
            _fill(nested, v)
        else:
            setattr(target, f.name, v)


def _value(cls: type[Any], source: Any) -> Any:
    values: dict[str, Any] = {}
    for f in _fields(cls):
        name = f.name
        if f.optional and not source.HasField(name):
            values[name] = None
            continue
        v = getattr(source, name)
        if f.message is not None:
            v = [_value(f.message, item) for item in v] if f.repeated else _value(f.message, v)
        elif f.repeated:
            v = list(v)
        elif f.enum is not None:
            try:
                v = f.enum(v)
            except ValueError:  # a newer peer's member: what it means is unknown, and that is a value of every enum
                v = f.enum(0)
        values[name] = v
    return cls(**values)


# ---- encoding -------------------------------------------------------------------------------------------------------


def _frame(envelope: Any) -> bytes:
    data = cast("bytes", envelope.SerializeToString())
    return len(data).to_bytes(4, "big") + data


def encode(message: m.Message) -> bytes:
    """One whole frame. A message that is too large for a frame raises ValueError: the caller splits bodies before."""
    if type(message) is m.ProviderTunnelRequest:
        frame = _encode_tunnel_request(message)
    else:
        envelope = pb.Envelope()
        target = getattr(envelope, PAYLOAD_OF[type(message)])
        target.SetInParent()
        _fill(target, message)
        frame = _frame(envelope)
    if len(frame) > limits.MAX_CONTROL_FRAME_BYTES:
        raise ValueError(f"{type(message).__name__} of {len(frame)} bytes; at most {limits.MAX_CONTROL_FRAME_BYTES}")
    return frame


def _numbers(message: Any, *names: str) -> tuple[int, ...]:
    return tuple(message.DESCRIPTOR.fields_by_name[name].number for name in names)


_TUNNEL_REQUEST = pb.Envelope.PROVIDER_TUNNEL_REQUEST_FIELD_NUMBER
_LEASE = Message(_numbers(pb.LeaseBinding, "lease_id", "long", "attempt", "credential_envelope"))
_OWN_PART = Message(
    _numbers(
        pb.ProviderTunnelRequest,
        "stream_id",
        "run_id",
        "window_bytes",
        "deadline_ms",
        "lease",
        "query",
        "header_block",
        "body",
        "body_bytes",
        "session_id",
        "body_follows",
        "fresh_connection",
    )
)


def _encode_tunnel_request(r: m.ProviderTunnelRequest) -> bytes:
    """Natively, since it is made for every request: the runtime takes four times as long. What it shares with all
    requests to its target is encoded once; protobuf merges the parts of a message, in whatever order they come."""
    lease = r.lease
    return _OWN_PART.encode_frame(
        _TUNNEL_REQUEST,
        _shared_part(
            r.adapter,
            r.provider_id,
            r.target,
            r.response_stall_timeout_ms,
            r.first_response_timeout_ms,
            r.method,
            r.path,
            r.dialect,
            r.streaming,
        ),
        r.stream_id,
        r.run_id,
        r.window_bytes,
        r.deadline_ms,
        _LEASE.encode(lease.lease_id, lease.long, lease.attempt, lease.credential_envelope),
        r.query,
        r.header_block,
        r.body,
        r.body_bytes,
        r.session_id,
        r.body_follows,
        r.fresh_connection,
    )


@functools.lru_cache(maxsize=256)  # targets times endpoints that are in use
def _shared_part(  # noqa: PLR0917
    adapter: str,
    provider_id: str,
    target: str,
    response_stall_timeout_ms: int,
    first_response_timeout_ms: int | None,
    method: bytes,
    path: bytes,
    dialect: m.EventDialect,
    streaming: bool,
) -> bytes:
    part = pb.ProviderTunnelRequest(
        adapter=adapter,
        provider_id=provider_id,
        target=target,
        response_stall_timeout_ms=response_stall_timeout_ms,
        first_response_timeout_ms=first_response_timeout_ms,
        method=method,
        path=path,
        dialect=cast("Any", dialect),
        streaming=streaming,
    )
    return part.SerializeToString()


def tunnel_error(stream_id: int, seq: int, failure: m.ExecutionFailure) -> bytes:
    """The terminal ERROR."""
    envelope = pb.Envelope()
    frame = envelope.provider_tunnel_frame
    frame.stream_id, frame.seq, frame.kind = stream_id, seq, pb.TUNNEL_FRAME_KIND_ERROR
    frame.failure.SetInParent()
    _fill(frame.failure, failure)
    return _frame(envelope)


def run_event(stream_id: int, seq: int, event: m.RunEvent) -> bytes:
    """A RunEvent that is more than the text of a delta; those are the native codec's."""
    envelope = pb.Envelope()
    into = envelope.run_event
    into.stream_id, into.seq, into.kind = stream_id, seq, cast("Any", event.kind)
    into.text, into.tool_index = event.text, event.tool_index
    into.tool_call_id, into.tool_name = event.tool_call_id, event.tool_name
    into.finish_reason, into.session_id = event.finish_reason, event.session_id
    if event.usage is not None:
        into.usage.SetInParent()
        for name, count in zip(_USAGE, event.usage, strict=True):
            if count is not None:
                setattr(into.usage, name, count)
    if event.failure is not None:
        into.failure.SetInParent()
        _fill(into.failure, event.failure)
    return _frame(envelope)


# ---- decoding -------------------------------------------------------------------------------------------------------


def decode(data: bytes) -> m.Message | HotFrame:
    """The message in one envelope (no length prefix).

    Raises :class:`~iop.errors.ProtocolError`: ``control_frame_too_large``, ``malformed`` (not protobuf),
    ``empty_payload`` (none, or one that this version does not know), ``unsupported_payload`` (one that is only
    outlined yet), ``bad_message`` (a required field is missing, or something is beyond its bound).
    """
    if len(data) > limits.MAX_CONTROL_FRAME_BYTES:
        # Before it is parsed: a megabyte of empty submessages becomes many megabytes of objects.
        raise ProtocolError("control_frame_too_large", f"{len(data)} bytes; at most {limits.MAX_CONTROL_FRAME_BYTES}")
    try:
        envelope = pb.Envelope.FromString(data)
    except DecodeError:
        raise ProtocolError("malformed", "not a protobuf Envelope") from None
    name = envelope.WhichOneof("payload")
    if name == "provider_tunnel_request":  # first, since it comes with every request
        request = _tunnel_request(envelope.provider_tunnel_request)
        check_tunnel(request, len(data))
        return request
    if name is None:
        raise ProtocolError("empty_payload", "no payload that this version knows")
    hot = _HOT.get(name)
    payload = getattr(envelope, name)
    if hot is not None:
        frame = hot(payload)
        if name == "run_event":
            frame.fields["number"] = len(data) + 4
        return frame
    row = BY_PAYLOAD.get(name)
    if row is None:
        raise ProtocolError("unsupported_payload", name)
    if row.check is not None:
        try:
            row.check(payload)
        except BadMessage as bad:
            raise ProtocolError("bad_message", f"{name}.{bad.args[0]}") from None
    return cast("m.Message", _value(row.message, payload))


def _tunnel_request(p: Any) -> m.ProviderTunnelRequest:
    """By hand, as its encoder and for the same reason."""
    lease = p.lease
    return m.ProviderTunnelRequest(
        p.stream_id,
        p.run_id,
        p.adapter,
        p.provider_id,
        p.target,
        p.window_bytes,
        p.deadline_ms,
        p.response_stall_timeout_ms,
        m.LeaseBinding(lease.lease_id, lease.long, lease.attempt, lease.credential_envelope),
        p.method,
        p.path,
        p.query,
        p.header_block,
        p.body,
        p.body_bytes,
        p.session_id,
        p.body_follows,
        _DIALECTS.get(p.dialect, _UNSPECIFIED),
        p.first_response_timeout_ms if p.HasField("first_response_timeout_ms") else None,
        p.streaming,
        p.fresh_connection,
    )


_DIALECTS = {dialect.value: dialect for dialect in m.EventDialect}
_UNSPECIFIED = m.EventDialect.UNSPECIFIED  # by its bare name, as all members that every request looks at


_USAGE = ("input_tokens", "output_tokens", "reasoning_tokens", "cached_input_tokens")


def _usage(p: Any) -> Any:
    if not p.HasField("usage"):
        return None
    return tuple(getattr(p.usage, name) if p.usage.HasField(name) else None for name in _USAGE)


def _failure(p: Any) -> m.ExecutionFailure | None:
    if not p.HasField("failure"):
        return None
    failure = cast("m.ExecutionFailure", _value(m.ExecutionFailure, p.failure))
    failure.message = failure.message[: limits.MAX_MESSAGE_BYTES]
    if not 400 <= failure.provider_status <= 599:
        failure.provider_status = 0
    if len(failure.retry_after) > limits.MAX_RETRY_AFTER_BYTES:
        failure.retry_after = b""
    return failure


def _hot_tunnel_frame(p: Any) -> HotFrame:
    fields = {
        "stream_id": p.stream_id,
        "seq": p.seq,
        "kind": max(p.kind, 0),
        "body": p.body,
        "flags": p.flags,
        "status": p.status,
        "header_block": p.header_block,
        "usage": _usage(p),
        "extra": _failure(p),
    }
    return HotFrame(1, fields)


def _hot_run_event(p: Any) -> HotFrame:
    """Always whole in ``extra``; ``number`` is the frame's size as it was sent, prefix included, for the credit."""
    kind = max(p.kind, 0)
    event = m.RunEvent(
        _RUN_KINDS.get(kind, m.RunEventKind.UNSPECIFIED),
        p.text,
        p.tool_index,
        p.tool_call_id,
        p.tool_name,
        _usage(p),
        _failure(p),
        p.finish_reason,
        p.session_id,
    )
    if max(len(event.tool_call_id), len(event.tool_name), len(event.finish_reason)) > limits.MAX_NAME_CHARS:
        raise ProtocolError("bad_message", "run_event: a name is beyond its bound")
    return HotFrame(3, {"stream_id": p.stream_id, "seq": p.seq, "kind": kind, "body": p.text, "extra": event})


_RUN_KINDS = {kind.value: kind for kind in m.RunEventKind}


_HOT: dict[str, Callable[[Any], HotFrame]] = {
    "provider_tunnel_frame": _hot_tunnel_frame,
    "provider_tunnel_body": lambda p: HotFrame(2, {"stream_id": p.stream_id, "body": p.body, "last": p.last}),
    "run_event": _hot_run_event,
    "stream_credit": lambda p: HotFrame(4, {"stream_id": p.stream_id, "number": p.bytes}),
    "heartbeat": lambda p: HotFrame(5, {"stream_id": 0, "number": p.seq}),
    "heartbeat_ack": lambda p: HotFrame(6, {"stream_id": 0, "number": p.seq}),
}
