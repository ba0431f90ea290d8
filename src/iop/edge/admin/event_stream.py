"""``GET /admin/events``: the event bus as server-sent events, one :class:`Feed` per listener (OBS-3, OBS-4).

What the listener does not take stays in its queue on the bus, where the oldest gives way; the socket's own buffer never
holds more than one batch. Dropped events are told as an event of their own, ``lost``, in front of what follows them.
"""

from __future__ import annotations

import json
from urllib.parse import parse_qs

import msgspec

from iop.errors import InvalidRequest
from iop.net.http.exchange import Exchange
from iop.net.loop import Runtime
from iop.net.wheel import Timer
from iop.observability.events import EVENTS, EventBus, name_of

__all__ = ["Feed", "message", "wanted_of"]

KEEPALIVE_S = 15.0
TICK_S = 0.5  # how soon a listener that reads again is served

_FIELDS = b"content-type: text/event-stream\r\ncache-control: no-store\r\n"
_ENCODER = msgspec.json.Encoder()


def wanted_of(query: bytes) -> frozenset[str]:
    """The events that ``?kind=`` asks for: names, or ``run`` and ``node`` for all of theirs, apart by commas. Raises
    InvalidRequest for what is none."""
    try:
        asked = parse_qs(query.decode("ascii", "replace"), keep_blank_values=True, max_num_fields=16)
    except ValueError:
        raise InvalidRequest("/admin/events takes one parameter, kind, and not as often as that") from None
    unknown = sorted(asked.keys() - {"kind"})
    if unknown:
        raise InvalidRequest("/admin/events takes one parameter: kind", param=unknown[0][:64])
    found: set[str] = set()
    for kind in ",".join(asked.get("kind", [])).split(","):
        if not kind:
            continue
        names = [name for name in EVENTS if name == kind or name.startswith(f"{kind}_")] if kind.isalpha() else [kind]
        if not names or names[0] not in EVENTS:
            raise InvalidRequest(f"kind is run, node, or names of events: {', '.join(EVENTS)}", param="kind")
        found.update(names)
    return frozenset(found)


class Feed:
    """One listener, from its head to its departure. Raises TooManySubscribers, with nothing written."""

    def __init__(self, runtime: Runtime, bus: EventBus, ex: Exchange, wanted: frozenset[str]) -> None:
        self._runtime = runtime
        self._ex = ex
        self._subscription = bus.subscribe(self._wake, wanted)
        self._sent_at = runtime.wheel.now
        self._timer: Timer | None = None
        self._open = True
        ex.begin_stream(_FIELDS)
        self._write(b": the events of this edge, from now on\n\n")
        self._tick()

    def close(self) -> None:
        """The listener is gone. Idempotent."""
        self._open = False
        self._subscription.close()
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        # Not at once: what else this poll round brings goes into the same write.
        self._runtime.loop.call_soon(self._flush)

    def _flush(self) -> None:
        writer = self._ex.writer
        if not self._open or writer.paused or writer.pending_bytes:
            return  # the tick looks again
        lost, events = self._subscription.take()
        lines: list[bytes] = []
        if lost:
            lines.append(message("lost", json.dumps({"event": "lost", "count": lost}).encode()))
        lines += [message(name_of(event), _ENCODER.encode(event)) for event in events]
        if lines:
            self._write(b"".join(lines))

    def _tick(self) -> None:
        if not self._open:
            return
        if self._subscription.waiting:
            self._flush()
        elif self._runtime.wheel.now - self._sent_at >= KEEPALIVE_S and not self._ex.writer.paused:
            self._write(b": keepalive\n\n")
        self._timer = self._runtime.wheel.arm(TICK_S, self._tick)

    def _write(self, data: bytes) -> None:
        self._sent_at = self._runtime.wheel.now
        self._ex.send(data)


def message(name: str, data: bytes) -> bytes:
    """One server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode("ascii"), data)
