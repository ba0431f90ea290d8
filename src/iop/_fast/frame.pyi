"""The codec of the hot messages (frame.pyx). Encoders give whole frames; ``decode`` takes an envelope."""

from typing import Any, Final

TUNNEL_FRAME: Final[int]
TUNNEL_BODY: Final[int]
RUN_EVENT: Final[int]
STREAM_CREDIT: Final[int]
HEARTBEAT: Final[int]
HEARTBEAT_ACK: Final[int]

def decode(envelope: bytes) -> dict[str, Any] | None: ...
def encode_tunnel_frame(
    stream_id: int, seq: int, kind: int, body: bytes = b"", flags: int = 0, status: int = 0, header_block: bytes = b""
) -> bytes: ...
def encode_tunnel_end(
    stream_id: int,
    seq: int,
    usage: tuple[int | None, int | None, int | None, int | None] | None = None,
    flags: int = 0,
) -> bytes: ...
def encode_tunnel_body(stream_id: int, body: bytes, last: bool = False) -> bytes: ...
def encode_run_event(stream_id: int, seq: int, kind: int, text: bytes = b"") -> bytes: ...
def encode_credit(stream_id: int, n: int) -> bytes: ...
def encode_heartbeat(seq: int, ack: bool = False) -> bytes: ...
