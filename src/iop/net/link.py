"""One connection between edge and node: a transport under a wire session.

Received bytes go straight into the native multiplexer, whose ``feed`` stands in for ``data_received``; what it queues
leaves in the hub's flush.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol, cast

from iop.net.flow import tune
from iop.wire import limits
from iop.wire.session import Session

__all__ = ["Link", "LinkOwner", "timing"]


def timing() -> limits.Timing:
    """Return the clocks of links (WIRE-7); end-to-end tests shorten two of them by IOP_TEST_TIMING, in seconds."""
    override = os.environ.get("IOP_TEST_TIMING")
    if override is None:
        return limits.TIMING
    interval_s, wait_s = (float(part) for part in override.split(","))
    return limits.Timing(heartbeat_interval_s=interval_s, response_wait_s=wait_s, write_stall_s=wait_s)


class LinkOwner(Protocol):
    """Who owns a link; both are called once, and must not raise."""

    def link_made(self, link: Link) -> None: ...

    def link_lost(self, link: Link, reason: str) -> None:
        """The transport is gone. ``reason``: why this end closed it, ``peer_closed``, or the error's name."""


class Link(asyncio.Protocol):
    """The asyncio face of a session. ``close`` flushes and closes; ``abort`` closes at once."""

    def __init__(self, session: Session, owner: LinkOwner) -> None:
        self.session = session
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._reason = ""
        self.peer = "?"  # address of the other end, for logs
        mux = session.mux
        # Looked up once by the transport: no Python frame between the socket and the native code.
        self.data_received = mux.feed  # type: ignore[method-assign]
        self.pause_writing = mux.pause  # type: ignore[method-assign]
        self.resume_writing = mux.resume  # type: ignore[method-assign]

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
        # One less than the multiplexer's bound: at the bound it stops feeding and relies on a pause having come.
        high = limits.LINK_SEND_HIGH_BYTES - 1
        if transport.get_extra_info("ssl_object") is not None:
            high //= 2  # the transport below the encryption holds as much again, and does not tell
        transport.set_write_buffer_limits(high=high, low=high // 4)
        tune(transport, notsent_lowat_bytes=limits.NOTSENT_LOWAT_BYTES)
        self.session.mux.attach(transport)
        self.session.mux.on_reading = self._read_on
        self._owner.link_made(self)

    def _read_on(self, on: bool) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            if on:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def eof_received(self) -> None:
        return None  # closes the transport: neither end half-closes

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._owner.link_lost(self, self._reason or (type(exc).__name__ if exc is not None else "peer_closed"))

    def close(self, reason: str) -> None:
        """Flushes what is queued, as far as the socket takes it, and closes."""
        if self._transport is not None and not self._transport.is_closing():
            self._reason = self._reason or reason
            self.session.mux.flush_now()
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Closes at once, dropping what is queued."""
        if self._transport is not None:
            self._reason = self._reason or reason
            self._transport.abort()
