"""Running totals of a pool; metrics read them at scrape time, nothing is published per event (OBS-1)."""

from __future__ import annotations

from dataclasses import dataclass, field

from iop.errors import ModelNotFound, ProvidersResting, QueueFull, QueueTimeout, ShuttingDown, Unavailable
from iop.pool.lease import ReleaseCause

__all__ = ["REFUSALS", "Stats"]

#: The error codes that the pool refuses with.
REFUSALS = tuple(e.code for e in (ModelNotFound, Unavailable, QueueFull, QueueTimeout, ProvidersResting, ShuttingDown))


@dataclass(slots=True)
class Stats:
    """``queued`` counts new requests that had to wait, ``refused`` requests by error code, ``released`` each lease
    exactly once by cause. ``returned_*`` and ``stale_events`` count what changed nothing (POOL-7, REG-5)."""

    queued: int = 0
    readmitted: int = 0
    cancelled: int = 0
    returned_twice: int = 0
    returned_unknown: int = 0
    stale_events: int = 0
    surplus_call_closed: int = 0
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSALS, 0))
    released: dict[ReleaseCause, int] = field(default_factory=lambda: dict.fromkeys(ReleaseCause, 0))
