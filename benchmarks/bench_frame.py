"""The codec of the hot messages: native, the official protobuf runtime, and a plain-Python twin.

One frame is one event of about 220 bytes, as a node sends and an edge reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from iop._fast import frame
from iop.wire.pb import runtime_pb2 as pb

EVENT = b'data: {"id":"chatcmpl-0123456789abcdef","choices":[{"index":0,"delta":{"content":" hello there"}}]}\n\n' * 2
N = 1000
FIELDS = {"stream_id": 1234, "seq": 567, "kind": 2, "body": EVENT, "flags": 18}
ENVELOPE = frame.encode_tunnel_frame(**FIELDS)[4:]  # type: ignore[arg-type]


# ---- the twins ------------------------------------------------------------------------------------------------------


def _put(out: bytearray, tag: int, value: int) -> None:
    out.append(tag)
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def python_encode() -> bytes:
    inner = bytearray()
    _put(inner, 0x08, FIELDS["stream_id"])  # type: ignore[arg-type]
    _put(inner, 0x10, FIELDS["seq"])  # type: ignore[arg-type]
    _put(inner, 0x18, 2)
    _put(inner, 0x22, len(EVENT))
    inner += EVENT
    _put(inner, 0x28, 18)
    out = bytearray()
    _put(out, 0x0A, len(inner))
    out += inner
    return len(out).to_bytes(4, "big") + bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def python_decode(data: bytes) -> dict[int, int | bytes]:
    _, at = _varint(data, 1)
    fields: dict[int, int | bytes] = {}
    while at < len(data):
        tag = data[at]
        value, at = _varint(data, at + 1)
        if tag & 7 == 2:
            fields[tag >> 3] = data[at : at + value]
            at += value
        else:
            fields[tag >> 3] = value
    return fields


def native_encode() -> bytes:
    return frame.encode_tunnel_frame(1234, 567, 2, EVENT, 18)


def protobuf_encode() -> bytes:
    message = pb.ProviderTunnelFrame(stream_id=1234, seq=567, kind=pb.TUNNEL_FRAME_KIND_BODY, body=EVENT, flags=18)
    data = pb.Envelope(provider_tunnel_frame=message).SerializeToString()
    return len(data).to_bytes(4, "big") + data


def protobuf_decode(data: bytes) -> tuple[int, int, int, bytes, int]:
    message = pb.Envelope.FromString(data).provider_tunnel_frame
    return message.stream_id, message.seq, message.kind, message.body, message.flags


ENCODERS: dict[str, Callable[[], bytes]] = {
    "native": native_encode,
    "protobuf": protobuf_encode,
    "python": python_encode,
}
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "native": frame.decode,
    "protobuf": protobuf_decode,
    "python": python_decode,
}


@pytest.mark.benchmark(group="encode 1000 frames of 220 bytes")
@pytest.mark.parametrize("kind", ENCODERS)
def test_encode(benchmark: Any, kind: str) -> None:
    encode = ENCODERS[kind]
    assert encode() == native_encode()

    def many() -> None:
        for _ in range(N):
            encode()

    benchmark(many)
    benchmark.extra_info["ns_per_frame"] = round(benchmark.stats.stats.min / N * 1e9)


@pytest.mark.benchmark(group="decode 1000 frames of 220 bytes")
@pytest.mark.parametrize("kind", DECODERS)
def test_decode(benchmark: Any, kind: str) -> None:
    """The native one includes the dict of its Python face, which the relay does not make."""
    decode = DECODERS[kind]
    assert decode(ENVELOPE)

    def many() -> None:
        for _ in range(N):
            decode(ENVELOPE)

    benchmark(many)
    benchmark.extra_info["ns_per_frame"] = round(benchmark.stats.stats.min / N * 1e9)
