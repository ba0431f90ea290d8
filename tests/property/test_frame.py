"""The codec of the hot messages against the official protobuf runtime (WIRE-3), both ways."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop._fast import frame
from iop._fast.message import Message
from iop.wire.pb import runtime_pb2 as pb

pytestmark = pytest.mark.req("WIRE-3")

U32 = st.one_of(
    st.integers(0, 300),
    st.integers(0, 2**32 - 1),
    st.sampled_from([2**7 - 1, 2**7, 2**14 - 1, 2**14, 2**21, 2**28 - 1, 2**28, 2**32 - 1]),
)
U64 = st.one_of(U32, st.integers(0, 2**64 - 1), st.sampled_from([2**63, 2**64 - 1]))
BYTES = st.one_of(st.binary(max_size=40), st.integers(100, 20_000).map(lambda n: b"x" * n))
COUNT = st.none() | U64
USAGE = ("input_tokens", "output_tokens", "reasoning_tokens", "cached_input_tokens")


def official(name: str, **fields: Any) -> bytes:
    envelope = pb.Envelope()
    message = getattr(envelope, name)
    message.SetInParent()
    for key, value in fields.items():
        setattr(message, key, value)
    return framed(envelope.SerializeToString())


def framed(envelope: bytes) -> bytes:
    return len(envelope).to_bytes(4, "big") + envelope


# ---- the encoders ---------------------------------------------------------------------------------------------------


@given(stream_id=U32, seq=U32, kind=st.integers(0, 127), body=BYTES, flags=U32, status=U32, header_block=BYTES)
def test_tunnel_frames_are_encoded_as_the_runtime_would(**fields: Any) -> None:
    assert frame.encode_tunnel_frame(**fields) == official("provider_tunnel_frame", **fields)


@given(stream_id=U32, seq=U32, counts=st.none() | st.tuples(COUNT, COUNT, COUNT, COUNT), flags=U32)
def test_ends_are_encoded_as_the_runtime_would(
    stream_id: int, seq: int, counts: tuple[int | None, ...] | None, flags: int
) -> None:
    envelope = pb.Envelope()
    message = envelope.provider_tunnel_frame
    message.stream_id, message.seq, message.kind = stream_id, seq, pb.TUNNEL_FRAME_KIND_END
    message.flags = flags
    if counts is not None:
        message.usage.SetInParent()
        for name, count in zip(USAGE, counts, strict=True):
            if count is not None:
                setattr(message.usage, name, count)
    assert frame.encode_tunnel_end(stream_id, seq, counts, flags) == framed(envelope.SerializeToString())  # type: ignore[arg-type]


@given(stream_id=U32, body=BYTES, last=st.booleans())
def test_tunnel_bodies_are_encoded_as_the_runtime_would(**fields: Any) -> None:
    assert frame.encode_tunnel_body(**fields) == official("provider_tunnel_body", **fields)


@given(stream_id=U32, seq=U32, kind=st.integers(0, 127), text=BYTES)
def test_run_events_are_encoded_as_the_runtime_would(**fields: Any) -> None:
    assert frame.encode_run_event(**fields) == official("run_event", **fields)


@given(stream_id=U32, n=U32)
def test_credit_is_encoded_as_the_runtime_would(stream_id: int, n: int) -> None:
    assert frame.encode_credit(stream_id, n) == official("stream_credit", stream_id=stream_id, bytes=n)


OWN = ("stream_id", "run_id", "window_bytes", "lease", "header_block", "body_bytes", "session_id", "body_follows")


@given(
    stream_id=U32,
    run_id=st.text(max_size=200),
    window_bytes=U32,
    lease_id=U64,
    header_block=BYTES,
    body_bytes=U64,
    session_id=BYTES,
    body_follows=st.booleans(),
    target=st.text(max_size=20),
)
def test_messages_are_encoded_as_the_runtime_would(lease_id: int, target: str, **fields: Any) -> None:
    descriptor = pb.ProviderTunnelRequest.DESCRIPTOR.fields_by_name
    own = Message(tuple(descriptor[name].number for name in OWN))
    lease = Message((pb.LeaseBinding.LEASE_ID_FIELD_NUMBER,)).encode(lease_id)
    envelope = pb.Envelope()
    request = envelope.provider_tunnel_request
    request.SetInParent()
    for name, value in fields.items():
        setattr(request, name, value)
    if lease_id:
        request.lease.lease_id = lease_id
    values = [lease if name == "lease" else fields[name] for name in OWN]
    assert own.encode(*values) == request.SerializeToString()
    payload = pb.Envelope.PROVIDER_TUNNEL_REQUEST_FIELD_NUMBER
    assert own.encode_frame(payload, b"", *values) == framed(envelope.SerializeToString())
    front = pb.ProviderTunnelRequest(target=target).SerializeToString()
    request.target = target
    found = own.encode_frame(payload, front, *values)
    assert pb.Envelope.FromString(found[4:]) == envelope
    assert len(found) == len(framed(envelope.SerializeToString()))


class Changing:
    """It was 1 when its size was asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __index__(self) -> int:
        self.asked += 1
        return 1 << 7 * self.asked


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ((-1, 0), OverflowError),
        ((1 << 64, 0), OverflowError),
        ((1.0, 0), TypeError),
        ((None, 0), TypeError),
        ((Changing(), 0), TypeError),
        (("\ud800", 0), UnicodeEncodeError),
        ((1,), ValueError),
        ((1, 2, 3), ValueError),
    ],
)
def test_values_that_are_no_fields_are_refused(values: tuple[Any, ...], error: type[Exception]) -> None:
    message = Message((1, 1 << 28))
    with pytest.raises(error):
        message.encode(*values)
    with pytest.raises(error):
        message.encode_frame(7, b"front", *values)
    assert message.encode(5, b"x") == b"\x08\x05\x82\x80\x80\x80\x08\x01x"
    for numbers in ((0,), (1 << 29,), (-1,)):
        with pytest.raises(ValueError, match="field number"):
            Message(numbers)


@given(seq=U64, ack=st.booleans())
def test_heartbeats_are_encoded_as_the_runtime_would(seq: int, ack: bool) -> None:
    assert frame.encode_heartbeat(seq, ack) == official("heartbeat_ack" if ack else "heartbeat", seq=seq)


# ---- the decoder ----------------------------------------------------------------------------------------------------

HOT = {
    1: ("provider_tunnel_frame", ["stream_id", "seq", "kind", "body", "flags", "status", "header_block"]),
    2: ("provider_tunnel_body", ["stream_id", "body", "last"]),
    3: ("run_event", ["stream_id", "seq", "kind", "text"]),
    4: ("stream_credit", ["stream_id", "bytes"]),
    5: ("heartbeat", ["seq"]),
    6: ("heartbeat_ack", ["seq"]),
}


def runtime(envelope: bytes) -> dict[str, Any] | None:
    """What the official runtime reads, in the shape of ``frame.decode``; None when it is no hot message or carries
    what the native codec does not read."""
    parsed = pb.Envelope.FromString(envelope)
    name = parsed.WhichOneof("payload")
    number = next((n for n, (known, _) in HOT.items() if known == name), None)
    if number is None:
        return None
    message = getattr(parsed, str(name))
    fields = HOT[number][1]
    out = {"payload": number, **{field: getattr(message, field) for field in fields}}
    if number == 1:
        usage = message.usage
        out["usage"] = None
        if message.HasField("usage"):
            out["usage"] = tuple(getattr(usage, u) if usage.HasField(u) else None for u in USAGE)
        if message.HasField("failure") or len(message.metadata):
            return None
    known = {*fields, "usage"} if number == 1 else set(fields)
    return None if any(f.name not in known for f, _ in message.ListFields()) else out


def agree(envelope: bytes) -> bool:
    """Whether it is plain; if so the runtime must read the same, and write the same or a form with explicit zeros."""
    mine = frame.decode(envelope)
    if mine is None:
        return False
    assert mine == runtime(envelope)
    again = pb.Envelope.FromString(envelope).SerializeToString()
    assert len(again) <= len(envelope), "not minimal"
    return True


@given(data=st.data(), number=st.sampled_from(sorted(HOT)))
def test_the_plain_form_is_decoded_as_the_runtime_would(data: st.DataObject, number: int) -> None:
    name, fields = HOT[number]
    values: dict[str, Any] = {}
    for field in fields:
        match field:
            case "body" | "header_block" | "text":
                values[field] = data.draw(BYTES)
            case "last":
                values[field] = data.draw(st.booleans())
            case "kind":
                values[field] = data.draw(st.integers(0, 127))
            case "seq" if number >= 5:
                values[field] = data.draw(U64)
            case _:
                values[field] = data.draw(U32)
    envelope = official(name, **values)[4:]
    assert agree(envelope), "the runtime's own form is not plain"
    assert frame.decode(envelope) == {"payload": number, **({"usage": None} if number == 1 else {}), **values}


def varint(value: int, *, padding: int = 0) -> bytes:
    """The bytes of a varint; with padding it is not minimal."""
    out = bytearray()
    while value > 127 or padding:
        out.append(value & 127 | 128)
        padding -= value <= 127
        value >>= 7
    return bytes(out + bytes([value]))


def field(number: int, value: int | bytes, *, padding: int = 0) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value, padding=padding)
    return varint(number << 3 | 2) + varint(len(value), padding=padding) + value


PLAIN = field(1, 7) + field(2, 3) + field(3, 2) + field(4, b"body") + field(5, 2)
# Encodings that the runtime takes, each of another kind than the plain one.
ODD = {
    "fields out of order": field(1, field(2, 3) + field(1, 7)),
    "a field twice": field(1, field(1, 7) + field(1, 8)),
    "a body twice": field(1, field(1, 7) + field(4, b"a") + field(4, b"b")),
    "a number with padding": field(1, field(1, 7, padding=1)),
    "a length with padding": field(1, field(4, b"body", padding=2)),
    "an outer length with padding": field(1, PLAIN, padding=1),
    "a tag with padding": field(1, b"\x88\x00\x07"),
    "an unknown field": field(1, PLAIN + field(99, b"?")),
    "an unknown small field": field(1, PLAIN + field(15, 1)),
    "an unknown field outside": field(1, PLAIN) + field(99, b"?"),
    "one payload, then another": field(5, field(1, 9)) + field(1, PLAIN),
    "a payload twice, to be merged": field(1, field(1, 7)) + field(1, field(2, 3)),
    "a group of unknown meaning": field(1, b"\x63\x64" + PLAIN),
    "a fixed32 of unknown meaning": field(1, PLAIN + b"\x65abcd"),
    "a fixed64 of unknown meaning": field(1, PLAIN + b"\x61abcdefgh"),
    "a number beyond 32 bits": field(1, field(1, 2**32 + 7)),
    "a negative kind": field(1, field(3, 2**64 - 1)),
    "a kind beyond 127": field(1, field(3, 1000)),
    "a bool that is 2": field(2, field(3, 2)),
    "a failure": field(1, field(1, 7) + field(3, 5) + field(9, field(1, 10))),
    "metadata": field(1, field(1, 7) + field(16, b"")),
    "a usage with a field out of order": field(1, field(1, 7) + field(8, field(2, 3) + field(1, 7))),
    "a usage with a field twice": field(1, field(8, field(1, 3) + field(1, 7))),
    "a usage with an unknown field": field(1, field(8, field(5, 3))),
    "a usage with padding": field(1, field(8, field(1, 3, padding=1))),
    "usage twice": field(1, field(8, b"") + field(8, b"")),
    "a run event with a tool": field(3, field(1, 7) + field(5, 3)),
    "the wrong type for a number": field(1, field(1, b"7")),
    "the wrong type for a body": field(1, field(4, 7)),
    "a cold message": field(14, b""),
    "nothing": b"",
}


@pytest.mark.parametrize("case", ODD)
def test_whatever_is_valid_and_not_plain_is_left_to_the_runtime(case: str) -> None:
    envelope = ODD[case]
    pb.Envelope.FromString(envelope)  # valid
    assert frame.decode(envelope) is None


BROKEN = {
    "cut in a number": field(1, b"\x08\x80"),
    "cut in a length": b"\x0a\x80",
    "a length beyond the end": b"\x0a\x05\x08\x07",
    "a body beyond the end": field(1, b"\x22\x05ab"),
    "a usage beyond the end": field(1, b"\x42\x05\x08"),
    "a usage cut in a number": field(1, field(8, b"\x08\x80")),
    "a tag alone": field(1, b"\x08"),
    "11 bytes of varint": field(5, b"\x08" + b"\xff" * 10 + b"\x01"),
    "more than 64 bits": field(5, b"\x08" + b"\xff" * 9 + b"\x02"),
    "field 0": field(1, b"\x00\x01"),
    "wire type 6": field(1, b"\x0e\x01"),
    "bytes behind the payload": field(1, PLAIN) + b"\xff",
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_not_plain(case: str) -> None:
    assert frame.decode(BROKEN[case]) is None


def test_explicit_zeros_are_plain() -> None:
    envelope = field(1, b"".join(field(n, b"" if n in (4, 7) else 0) for n in range(1, 8)))
    assert agree(envelope)


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    """Behind a hot tag and the right length, so that the inner fields are reached."""
    for number in HOT:
        envelope = field(number, data)
        if frame.decode(envelope) is not None:
            assert agree(envelope)


@given(st.randoms(use_true_random=False), st.sampled_from(sorted(HOT)), st.integers(0, 6))
def test_random_fields(rng: random.Random, number: int, count: int) -> None:
    """Fields of plausible numbers, types and values in any order: plain exactly when the runtime would write it so, up
    to explicit zeros."""
    parts = []
    for _ in range(count):
        value: int | bytes = rng.choice([0, 1, 2, 127, 128, 2**32 - 1, 2**32, rng.randbytes(rng.randrange(4))])
        parts.append(field(rng.randint(1, 9), value, padding=int(rng.random() < 0.05)))
    envelope = field(number, b"".join(parts))
    try:
        parsed = pb.Envelope.FromString(envelope)
    except Exception:
        assert frame.decode(envelope) is None
        return
    plain = agree(envelope)
    parsed.DiscardUnknownFields()
    read = runtime(envelope)
    if read is not None and parsed.SerializeToString() == envelope:
        assert plain or not 0 <= read.get("kind", 0) <= 127
