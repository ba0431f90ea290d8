"""The end of a client's connection: the client gets all that was written (TUN-5c), or sees a reset (API-8b).

There are three ways to end, and each connection that closes is on one of them:

- ``DELIVER``: close once the client has taken everything.
- ``REFUSE``: the same for a client that may still be sending. What it sends is read and dropped for a while, because
  closing a socket with unread bytes resets the connection, and the reset takes the answer with it.
- ``CUT``: reset once the client has taken everything, where a close would make a part look whole.

A plain connection can close one direction: FIN goes out behind what is written, and the client closes the other one. A
TLS connection cannot, so it is looked at until nothing of importance is left on this side.

A client that takes nothing for ``client_idle_timeout_s`` is given up.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

from iop.net import flow

__all__ = ["LINGER_S", "REFUSED_BYTES", "Closing", "Way"]

LINGER_S = 5.0  # for the client to close, once it was told that there is no more
TLS_LINGER_S = 1.0  # for a refused client over TLS, from its last byte on, up to LINGER_S
REFUSED_BYTES = 65536  # read and dropped of what comes behind the end
LOOK_S = 0.05
# So few bytes lie in the kernel, which delivers them when the socket is closed. More may lie above it, in the transport
# below the encryption, which does not tell.
KERNEL_BYTES = 16384


class Way(StrEnum):
    DELIVER = "deliver"
    REFUSE = "refuse"
    CUT = "cut"


# By their bare names: looking a member up on its Enum class takes five times as long as a global.
DELIVER, REFUSE, CUT = Way


class Closing:
    """One connection that closes. ``begin`` and then ``look``, whenever it says so, until it is over; ``give_up`` ends
    it at once. All times are seconds of one clock."""

    def __init__(self, way: Way, transport: asyncio.Transport, now: float, idle_s: float) -> None:
        self.way = way
        self._transport = transport
        self._idle_s = idle_s
        self._began_at = self._heard_at = self._moved_at = now
        self._left = -1  # bytes that the client had not taken at the last look
        self._dropped = 0

    def begin(self) -> float | None:
        """Close what can be closed now; the answer is that of ``look``."""
        if self.way is not CUT and self._transport.can_write_eof():
            self._transport.write_eof()  # behind what the transport holds
            return min(LINGER_S, self._idle_s)
        return self.look(self._began_at)

    def look(self, now: float) -> float | None:
        """Go on. Returns the seconds until the next look, or None: it is over, and the transport closes."""
        transport, way = self._transport, self.way
        left, before = flow.untaken(transport), self._left
        if left != before:
            self._left, self._moved_at = left, now
        if left and now - self._moved_at >= self._idle_s:
            self.give_up()
            return None
        if way is CUT:
            # Twice over TLS: what the transport holds below the encryption goes to the kernel between two looks.
            if left or (before and not transport.can_write_eof()):
                return LOOK_S
            flow.abort(transport, reset=True)
            return None
        if transport.can_write_eof():
            if left or now < self._began_at + LINGER_S:
                return min(LINGER_S, self._idle_s)
            transport.abort()
            return None
        if left > KERNEL_BYTES:
            return LOOK_S
        if way is REFUSE and now < min(self._heard_at + TLS_LINGER_S, self._began_at + LINGER_S):
            return LOOK_S
        transport.close()
        return None

    def dropped(self, count: int, now: float) -> bool:
        """So many bytes came behind the end. False: nothing more is to be read, and the clock ends it."""
        self._heard_at = now
        self._dropped += count
        return self._dropped <= REFUSED_BYTES

    def give_up(self) -> None:
        """End at once. A client that gets less than the whole sees RST: where only the close delimits a body, FIN would
        make the part that came look whole."""
        flow.abort(self._transport, reset=self.way is CUT or self._transport.get_write_buffer_size() > 0)
