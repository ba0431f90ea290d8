"""Bounds and times of the wire (WIRE-7, WIRE-9). Times are constants of the transport, not settings of a model."""

from __future__ import annotations

from dataclasses import dataclass

PROTOCOL_VERSION = 1

MAX_FRAME_BYTES = 4 * 1024 * 1024  # default of transport.max_frame_bytes
MAX_CONTROL_FRAME_BYTES = 1024 * 1024
MAX_UNREGISTERED_FRAME_BYTES = 16 * 1024
MAX_DATA_BYTES = 64 * 1024  # body bytes in one data frame
INLINE_BODY_BYTES = 48 * 1024  # a request body up to here travels in its opening

STREAM_WINDOW_BYTES = 256 * 1024
SMALL_WINDOW_BYTES = 32 * 1024  # while the edge holds more than max_buffered_bytes
LINK_SEND_HIGH_BYTES = 128 * 1024  # unsent bytes at which a link counts as congested
NOTSENT_LOWAT_BYTES = 64 * 1024

COLD_RATE = 2000  # cold messages a second of one link, on average over a second; above it for
COLD_S = 10.0  # seconds, the link is flooding (WIRE-10)

MAX_TOKEN_CHARS = 4096
MAX_NAME_CHARS = 512  # ids, adapter and target names
MAX_MESSAGE_BYTES = 4096  # error texts
MAX_RETRY_AFTER_BYTES = 64  # the longest date has 31
MAX_PROVIDERS = 4096
MAX_ADAPTERS = 256
MAX_DETECTED_SERVERS = 64
MAX_LISTED_MODELS = 1000  # of one provider
MAX_HEADER_BLOCK_BYTES = 256 * 1024
MAX_LINE_BYTES = 64 * 1024  # method, path, query
MAX_COMMAND_BODY_BYTES = 64 * 1024
MAX_COMMAND_RESULT_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Timing:
    """The clocks of one connection, in seconds. Both ends keep the same ones; they are never on the wire (WIRE-7)."""

    heartbeat_interval_s: float = 30.0
    response_wait_s: float = 45.0
    write_stall_s: float = 45.0
    register_s: float = 10.0
    ready_s: float = 60.0


TIMING = Timing()
