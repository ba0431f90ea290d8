"""The decision trace: for each request that asked for a slot, what was decided about it, and why (OBS-7).

Records that requests leave behind at their end, in bounded rings of about 2 MB, made of what they hold anyway; on the
straight path that is all. What is out of the ordinary (a wait, a refusal, a failure, a cancel) leaves a note when it
happens. Notes have ids of nodes and providers, codes, counts and times, nothing of what was asked or answered (SEC-4).
A page is made of them when somebody asks.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, Protocol

from iop.edge.requests.provider_settings import ProviderSettings
from iop.observability.logs import RequestOutcome
from iop.pool.lease import Lease, ReleaseCause, Ticket
from iop.pool.pool import Pool
from iop.pool.standings import SHOWN, Standing, Standings, Stood, spelled_out
from iop.wire import messages as m

__all__ = [
    "MAX_CANDIDATES",
    "MAX_NOTES",
    "AtOnce",
    "Clocks",
    "Note",
    "Outline",
    "Record",
    "Trace",
    "Traced",
    "candidates",
    "evidence",
    "live",
    "page",
]

KEPT = 1000  # on the straight path: less than a kilobyte each
KEPT_NOTED = 500  # of the others
KEPT_NOTES = 3000  # of all these: about 300 bytes each
MAX_NOTES = 50  # of one request; it cannot be sent often enough for more to tell anything
MAX_CANDIDATES = SHOWN  # in one note

#: (when, in the loop's time; what happened; more about it, plain data)
Note = tuple[float, str, dict[str, Any]]


#: When a request was granted a slot without a wait, and how its candidates stood then.
AtOnce = tuple[float, Stood]

#: The bounds of a request's time: of all of it, in the queue, and what its provider was last given (None: nobody yet).
Clocks = tuple[float, float, ProviderSettings | None]


class Outline(NamedTuple):
    """What an operator sees of a request that is going on; ``accepted_at`` is in the loop's time."""

    id: str
    api: str
    state: str
    principal: str
    model: str
    node: str
    provider: str
    attempts: int
    accepted_at: float


class Traced(Protocol):
    """A request that is going on, as far as its trace shows it."""

    @property
    def request_id(self) -> str: ...

    @property
    def client_request_id(self) -> str: ...

    @property
    def ticket(self) -> Ticket | None: ...

    @property
    def lease(self) -> Lease | None: ...

    @property
    def sent_at(self) -> float: ...

    @property
    def at_once(self) -> AtOnce | None: ...

    @property
    def notes(self) -> list[Note] | None: ...

    def clocks(self) -> Clocks: ...

    def outline(self) -> Outline: ...


class Record(NamedTuple):
    """What is kept of one request. ``accepted_at`` and ``sent_at`` (of its last attempt; 0.0: never) are loop time;
    ``committed_bytes`` of the answer had come when the first was given to the client. ``at_once`` is there if it was
    granted a slot without a wait."""

    outcome: RequestOutcome
    accepted_at: float
    sent_at: float
    committed_bytes: int
    lease: Lease | None
    released: ReleaseCause | None
    timeout_s: float
    queue_timeout_s: float
    settings: ProviderSettings | None
    at_once: AtOnce | None
    notes: list[Note] | None

    def clocks(self) -> Clocks:
        """The bounds of the request's time."""
        return self.timeout_s, self.queue_timeout_s, self.settings


#: The same as a plain tuple, which takes a quarter of the time to make.
Row = tuple[
    RequestOutcome,
    float,
    float,
    int,
    "Lease | None",
    "ReleaseCause | None",
    float,
    float,
    "ProviderSettings | None",
    "AtOnce | None",
    "list[Note] | None",
]


class Trace:
    """Two rings: the last :data:`KEPT` requests on the straight path, and the last :data:`KEPT_NOTED` of the others,
    with at most :data:`KEPT_NOTES` notes. So those that somebody will ask about outlive a busy minute."""

    __slots__ = ("_noted", "_notes", "_straight", "straight")

    def __init__(self) -> None:
        self._straight: deque[Row] = deque(maxlen=KEPT)
        self._noted: deque[Row] = deque()
        self._notes = 0
        #: A request without notes has ended; the row has the fields of a :class:`Record`.
        self.straight = self._straight.append

    def noted(self, row: Row) -> None:
        """One with notes has ended."""
        noted = self._noted
        noted.append(row)
        self._notes += len(row[-1] or ())
        while len(noted) > KEPT_NOTED or self._notes > KEPT_NOTES:
            self._notes -= len(noted.popleft()[-1] or ())

    def find(self, request_id: str) -> Record | None:
        """The record by the edge's id of a request."""
        rows = (*self._straight, *self._noted)
        return next((Record(*row) for row in rows if row[0].request_id == request_id), None)

    def find_of_client(self, client_request_id: str) -> Record | None:
        """The latest record by the id that a client gave its request. Anybody may give any: to be asked only where the
        edge has given no such id, and to be told as such."""
        rows = (*self._straight, *self._noted)
        found = [row for row in rows if row[0].client_request_id == client_request_id]
        return Record(*max(reversed(found), key=lambda row: row[0].ts)) if client_request_id and found else None

    def clear(self) -> None:
        """Forget all requests."""
        self._straight.clear()
        self._noted.clear()
        self._notes = 0

    def __len__(self) -> int:
        return len(self._straight) + len(self._noted)


def evidence(failure: m.ExecutionFailure) -> dict[str, Any]:
    """What a note says of a failed attempt beside its code."""
    said: dict[str, Any] = {"close_confirmed": failure.close_confirmed}
    if failure.code is m.ErrorCode.RESPONSE_STALLED:
        said |= {"idle_ms": failure.idle_ms, "provider_health": failure.provider_health.name.lower()}
    elif failure.code is m.ErrorCode.PROVIDER_CONNECTION_LOST:
        said |= {"connection_reused": failure.connection_reused, "response_started": failure.response_started}
    elif failure.code is m.ErrorCode.CAPACITY_EXCEEDED:
        said["slots_held"] = failure.slots_held
    said |= {name: True for name in ("engine_lingers", "engine_busy") if getattr(failure, name)}
    return said


def candidates(pool: Pool, ticket: Ticket) -> dict[str, Any]:
    """What a note says of the candidates at its time."""
    return _told_of(pool.explain(ticket, MAX_CANDIDATES))


def _told_of(standings: Standings) -> dict[str, Any]:
    """The same of candidates as they stood before."""
    found, total = standings
    said: dict[str, Any] = {"candidates": found}
    if total > len(found):
        said["more_candidates"] = total - len(found)
    return said


def _clocks(clocks: Clocks) -> dict[str, Any]:
    """The bounds of a request's time, in milliseconds; null where there is none."""
    timeout_s, queue_s, provider = clocks
    said: dict[str, Any] = {"request_timeout_ms": round(timeout_s * 1000), "queue_timeout_ms": round(queue_s * 1000)}
    if provider is not None:
        said["response_stall_timeout_ms"] = provider.response_stall_timeout_ms
        said["first_response_timeout_ms"] = provider.first_response_timeout_ms
    return said


def page(record: Record) -> dict[str, Any]:
    """A record as ``/admin/trace/REQUEST`` shows it: the request, then what happened in order."""
    o, since = record.outcome, record.accepted_at
    steps, first = _steps(record, since, o), _granted(record, since)
    if o.first_token_ms or record.committed_bytes:  # the first may come in the same millisecond
        committed_at, notes = since + o.first_token_ms / 1000, record.notes or []
        at = next((i for i, note in enumerate(notes) if note[0] >= committed_at and _of(note, o.attempts)), len(notes))
        steps.insert(at + 1, _step(o.first_token_ms, "committed", {"body_bytes": record.committed_bytes}))
    ended: dict[str, Any] = {"outcome": o.outcome, "status": o.status}
    if record.released is not None:
        ended["released"] = record.released.value
    steps.append(_step(o.duration_ms, "ended", ended))
    return {
        "request_id": o.request_id,
        "client_request_id": o.client_request_id,
        "state": "done",
        "accepted_at": round(o.ts - o.duration_ms / 1000, 3),
        "api": o.api,
        "principal": o.principal,
        "model": o.model,
        "stream": o.stream,
        "outcome": o.outcome,
        "status": o.status,
        "attempts": o.attempts,
        "bytes_in": o.bytes_in,
        "bytes_out": o.bytes_out,
        "total_ms": o.duration_ms,
        "queue_ms": o.queue_ms,
        "first_ms": o.first_token_ms,
        "clocks": _clocks(record.clocks()),
        "events": [*first, *steps],
    }


def live(request: Traced, now: float) -> dict[str, Any]:
    """The same of a request that is going on; ``now`` is the loop's time."""
    outline = request.outline()
    since = outline.accepted_at
    return {
        "request_id": request.request_id,
        "state": outline.state,
        "api": outline.api,
        "principal": outline.principal,
        "model": outline.model,
        "attempts": outline.attempts,
        "total_ms": round((now - since) * 1000, 1),
        "clocks": _clocks(request.clocks()),
        "events": [*_granted(request, since), *_steps(request, since, outline)],
    }


def _granted(of: Record | Traced, since: float) -> list[dict[str, Any]]:
    """The first step of a request that did not wait."""
    if of.at_once is None:
        return []
    at, stood = of.at_once
    return [_step((at - since) * 1000, "granted", _told_of(spelled_out(stood)))]


def _steps(of: Record | Traced, since: float, told: RequestOutcome | Outline) -> list[dict[str, Any]]:
    """Notes are in order by themselves. The start of the last attempt is put between them by what it must come before,
    since the loop's time stands still for a millisecond and longer. A run that went past the pool has no lease, but is
    ``told`` where it is."""
    notes, attempt = of.notes or [], told.attempts
    steps = [_step((at - since) * 1000, what, said) for at, what, said in notes]
    if of.sent_at:
        where = _leased(of.lease) if of.lease is not None else {"node": told.node, "provider": told.provider}
        at = next((i for i, note in enumerate(notes) if note[0] > of.sent_at or _of(note, attempt)), len(notes))
        steps.insert(at, _step((of.sent_at - since) * 1000, "sent", {"attempt": attempt, **where}))
    return steps


def _of(note: Note, attempt: int) -> bool:
    """Whether it tells how the attempt ended."""
    return note[1] == "cancelling" or note[2].get("attempt") == attempt


def _leased(lease: Lease) -> dict[str, Any]:
    """What a lease is for."""
    return {
        "lease": lease.lease_id,
        "node": lease.node_id,
        "provider": lease.provider_id,
        "target": lease.target,
        "generation": lease.generation,
        "long": lease.long,
    }


def _step(after_ms: float, what: str, said: dict[str, Any]) -> dict[str, Any]:
    if "candidates" in said:
        said = {**said, "candidates": [Standing(*standing)._asdict() for standing in said["candidates"]]}
    return {"at_ms": round(max(0.0, after_ms), 1), "what": what, **said}
