"""Tickets, leases, and what the pool tells its driver to do (POOL-7, POOL-8, POOL-11).

A ticket is one request's claim on the pool for the whole of its life; a lease is one unit of a provider's capacity that
the ticket holds for one dispatch.

::

    new ──submit──► leased ──release──► gone
     │                │  ▲
     │         readmit│  │Granted              lost() revokes a lease: the ticket is then neither waiting nor
     └──submit──► waiting                      leased, and its driver readmits it or lets it go
                      │
                      └── cancel | Refused ──► gone

Where a ticket stands is read off two fields: ``line`` (set while waiting) and ``lease`` (set while leased). Never both.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from iop.errors import IopError
from iop.pool.registry import LossOutcome, ReadyOutcome

if TYPE_CHECKING:
    from iop.pool.fair import Flow
    from iop.pool.lane import Line
    from iop.pool.standings import Stood

__all__ = [
    "NO_ACTIONS",
    "Action",
    "Actions",
    "Granted",
    "Lease",
    "Loss",
    "Readiness",
    "Refused",
    "ReleaseCause",
    "Revoked",
    "Ticket",
]


class ReleaseCause(enum.StrEnum):
    """Why a lease ended. Each is evidence; none is a timer (POOL-7, POOL-12)."""

    TERMINAL = "terminal"
    SEND_FAILED = "send_failed"
    CANCEL_CONFIRMED = "cancel_confirmed"
    CAPACITY_EXCEEDED = "capacity_exceeded"
    STALE_GRANT = "stale_grant"
    GENERATION_DEAD = "generation_dead"
    SHUTDOWN = "shutdown"


class Lease:
    """One unit of a provider's capacity, held by one request. Immutable (``Final`` is checked by mypy and costs
    nothing at run time; a frozen dataclass doubles the price of a cycle).

    ``generation`` is the fencing token of the node connection that it was granted on, ``long`` its class.
    """

    __slots__ = ("adapter", "generation", "lease_id", "long", "node_id", "provider_id", "request_id", "target")

    def __init__(  # noqa: PLR0917 - keywords cost a tenth of a whole cycle
        self,
        lease_id: int,
        node_id: str,
        provider_id: str,
        adapter: str,
        target: str,
        generation: int,
        long: bool,
        request_id: str,
    ) -> None:
        self.lease_id: Final = lease_id
        self.node_id: Final = node_id
        self.provider_id: Final = provider_id
        self.adapter: Final = adapter
        self.target: Final = target
        self.generation: Final = generation
        self.long: Final = long
        self.request_id: Final = request_id

    def __repr__(self) -> str:
        return f"<Lease {self.lease_id} {self.node_id}/{self.provider_id} gen {self.generation} for {self.request_id}>"


_NOBODY: frozenset[str] = frozenset()
_NOTHING: frozenset[tuple[str, str | None]] = frozenset()


class Ticket:
    """One request in the pool. Its owner makes it, submits it once, and may set the avoidance fields while the ticket
    is not waiting (POOL-11): ``avoid_provider_id`` is no candidate, or with ``allow_avoided_fallback`` the last one;
    whoever is in ``tried`` comes behind all others; what is in ``refused``, provider and target or a provider with
    None, is no candidate (HEALTH-9). All else is written by the pool and may be read.

    ``group_id`` may be an alias. ``owner`` is handed back untouched with every action. ``waited_s`` is the time spent
    waiting so far, over all admissions. ``cost`` is 1/weight: what a grant adds to the tag of its principal (POOL-5).
    """

    __slots__ = (
        "allow_avoided_fallback",
        "avoid_provider_id",
        "cost",
        "deadline_at",
        "estimated_tokens",
        "flow",
        "group_id",
        "lease",
        "line",
        "owner",
        "place",
        "principal",
        "refused",
        "request_id",
        "since_at",
        "stood",
        "tried",
        "waited_s",
    )

    def __init__(  # noqa: PLR0917 - keywords cost a request as much as all the rest of this
        self,
        request_id: str,
        principal: str,
        group_id: str,
        estimated_tokens: int = 0,
        owner: Any = None,
        weight: float = 1,
        *,
        avoid_provider_id: str | None = None,
        allow_avoided_fallback: bool = False,
    ) -> None:
        self.request_id = request_id
        self.principal = principal
        self.group_id = group_id
        self.estimated_tokens = estimated_tokens
        self.owner = owner
        self.cost = 1.0 / weight
        self.avoid_provider_id = avoid_provider_id
        self.allow_avoided_fallback = allow_avoided_fallback
        self.tried: frozenset[str] = _NOBODY
        self.refused: frozenset[tuple[str, str | None]] = _NOTHING
        self.place = 0  # order of first submission over the whole pool; 0 = never submitted
        self.lease: Lease | None = None
        self.line: Line | None = None
        self.flow: Flow | None = None  # that was charged for its latest grant
        self.since_at = 0.0  # start of the present wait
        self.deadline_at = 0.0  # end of the present wait (POOL-6)
        self.waited_s = 0.0
        self.stood: Stood | None = None  # how the candidates stood, if it was granted a slot when it was submitted

    @property
    def waiting(self) -> bool:
        return self.line is not None

    def __repr__(self) -> str:
        state = "waiting" if self.line is not None else "leased" if self.lease is not None else "idle"
        return f"<Ticket {self.request_id} {self.group_id} {state}>"


@dataclass(slots=True)
class Granted:
    """``ticket`` now holds ``lease``: check :meth:`Pool.holds`, then send (POOL-8)."""

    ticket: Ticket
    lease: Lease


@dataclass(slots=True)
class Refused:
    """``ticket`` left the queue for good; answer its client with ``error``."""

    ticket: Ticket
    error: IopError


@dataclass(slots=True)
class Revoked:
    """``lease`` died with its generation and is returned already; end the dispatch, or readmit ``ticket`` (REG-5)."""

    ticket: Ticket
    lease: Lease
    error: IopError


Action = Granted | Refused | Revoked
Actions = Sequence[Action]
NO_ACTIONS: Actions = ()


@dataclass(frozen=True, slots=True)
class Readiness:
    """Answer to a node's ready: what to reply, and what to do then."""

    outcome: ReadyOutcome
    actions: Actions = NO_ACTIONS


@dataclass(frozen=True, slots=True)
class Loss:
    """Answer to a lost connection: what it was, and what to do."""

    outcome: LossOutcome
    actions: Actions = NO_ACTIONS
