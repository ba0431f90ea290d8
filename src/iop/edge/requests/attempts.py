"""What is dispatched to a node, whatever it carries: admission, one lease at a time, the ways out (POOL-7, EXEC-7).

    NEW ──submit──▶ WAITING ──granted──▶ SENT ──the answer began──▶ OPEN ──terminal──▶ DONE
      └──granted, or past the pool──────▶ │                          │
                                          │ (readmitted: WAITING)    │
                                          └── gone, deadline, stop ──┴──▶ CANCELLING ──terminal──▶ DONE

OPEN begins when something of an answer is shown (API-7). What fails in SENT, before that, may be sent again (API-8). In
CANCELLING the caller has its answer or is gone, and the lease waits until the node says that the call has ended
(POOL-12). Every way into DONE passes ``_end``, which returns the lease, once.

The file is long because the ways out of each state act on the same few fields and are read together.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from iop.edge.requests.retry import (
    ELIGIBLE,
    REFUSED_STATUSES,
    RETRIED_CODES,
    RETRIED_STATUSES,
    Decision,
    OwnAnswer,
    Recovery,
    decide,
)
from iop.edge.requests.trace import MAX_NOTES, AtOnce, Clocks, Note, Outline, candidates, evidence
from iop.errors import ClientGone, ClientIdle, DeadlineExceeded, IopError, RequestCancelled
from iop.ids import new_request_id
from iop.pool.lease import Actions, Lease, ReleaseCause, Ticket
from iop.wire import messages as m
from iop.wire.session import EdgeSession

if TYPE_CHECKING:
    from iop._fast.relay import ClientStream
    from iop._fast.runs import RunSink
    from iop.edge.requests.dispatcher import Dispatcher
    from iop.edge.requests.provider_settings import ProviderSettings
from iop.machine import Step, Transitions

__all__ = ["Dispatched", "Outline", "State", "lingers"]

log = logging.getLogger("iop.edge.requests.attempts")

MAX_REFUSALS = 100  # of one request by nodes; an honest node's slots are held by somebody and waited for
#: What a stall's terminal that the edge has validated gets, and no other (HEALTH-1).
HANDOFF = {"recovery_handoff": "confirmed"}
MAX_MOVES = 3  # of one request that came to its node while that was changing


class State(StrEnum):
    NEW = "new"
    WAITING = "waiting"
    SENT = "sent"
    OPEN = "open"
    CANCELLING = "cancelling"
    DONE = "done"


# By their bare names: looking a member up on its Enum class takes five times as long as a global.
NEW, WAITING, SENT, OPEN, CANCELLING, DONE = State


class Event(StrEnum):
    QUEUED = "queued"
    LEFT = "sent"
    REQUEUED = "requeued"
    SHOWN = "shown"
    CANCELLED = "cancelled"
    ENDED = "ended"


TRANSITIONS = Transitions(
    "request",
    (NEW,),
    {
        (NEW, Event.QUEUED): WAITING,
        (NEW, Event.LEFT): SENT,
        (WAITING, Event.LEFT): SENT,
        (NEW, Event.REQUEUED): WAITING,  # its node was gone before it could be sent
        (WAITING, Event.REQUEUED): WAITING,
        (SENT, Event.REQUEUED): WAITING,
        (SENT, Event.SHOWN): OPEN,
        (SENT, Event.CANCELLED): CANCELLING,
        (OPEN, Event.CANCELLED): CANCELLING,
        (NEW, Event.ENDED): DONE,
        (WAITING, Event.ENDED): DONE,
        (SENT, Event.ENDED): DONE,
        (OPEN, Event.ENDED): DONE,
        (CANCELLING, Event.ENDED): DONE,
    },
)
QUEUED, LEFT, REQUEUED, SHOWN, CANCELLED, ENDED = map(TRANSITIONS.step, Event)

# Refusals of the node itself: no provider was called, so another try cannot do anything twice.
_NOT_THERE = frozenset({m.ErrorCode.UNKNOWN_PROVIDER, m.ErrorCode.NODE_DRAINING})


def lingers(failure: m.ExecutionFailure) -> bool:
    """Whether the unit of the provider stays taken behind this terminal (POOL-12)."""
    held = not failure.close_confirmed or failure.engine_lingers
    return held and failure.code is not m.ErrorCode.CAPACITY_EXCEEDED


class Dispatched(ABC):
    """See the module. Subclasses say what is sent, and what the caller is told."""

    __slots__ = (
        "_dispatcher",
        "_leased",
        "_lost_once",
        "_recovery",
        "_refusals",
        "_session",
        "_timer",
        "at_once",
        "attempts",
        "commit_bytes",
        "error",
        "first_at",
        "lease",
        "notes",
        "released",
        "request_id",
        "sent_at",
        "settings",
        "state",
        "stream",
        "ticket",
        "timeout_s",
    )

    path: ClassVar[str]  # as in the labels of metrics: what a request travels as
    stream: ClientStream | RunSink | None

    @property
    def client_request_id(self) -> str:
        """What its client calls it; "" if that is nothing."""
        return ""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.request_id = new_request_id()
        self.state = NEW
        self.ticket: Ticket | None = None
        self.lease: Lease | None = None
        self.stream = None
        self.attempts = 0
        self._leased = False  # `lease` is ours to return; afterwards it only tells the story
        self._session: EdgeSession | None = None
        self._timer: Any = None
        self._refusals = 0
        self._lost_once = False
        self._recovery: Recovery | None = None  # once an attempt has failed
        self.first_at = 0.0  # when OPEN began, and how much of the answer had come by then
        self.commit_bytes = 0
        self.error: IopError | None = None  # what the caller was told, or would have been
        self.sent_at = 0.0  # the last attempt
        # Of the provider, as they were configured when the request was sent there.
        self.settings: ProviderSettings | None = None
        self.at_once: AtOnce | None = None  # how the candidates stood, when a slot was ours without a wait
        self.timeout_s = 0.0
        self.released: ReleaseCause | None = None  # how the last lease ended, once all is over
        self.notes: list[Note] | None = None  # for the trace

    # ---- what subclasses do ------------------------------------------------------------------------------------------

    @abstractmethod
    def _send(self, session: EdgeSession, lease: Lease) -> None:
        """Opens a stream and sends the request on it. Raises ConnectionResetError or OverflowError, or IopError before
        there is a stream, for what cannot be put in a form for this provider."""

    @abstractmethod
    def _fail(self, error: IopError) -> None:
        """Tell the caller; only the first error counts."""

    @abstractmethod
    def _repeated(self) -> tuple[bool, int | None]:
        """Whether asking a provider twice may do something twice (API-8), and the size of what would be sent again,
        None when it is no longer here. Asked before OPEN."""

    @abstractmethod
    def _withdrawn(self) -> None:
        """An attempt has failed and another comes: what was learnt of its answer does not count."""

    @abstractmethod
    def _over(self) -> None:
        """DONE: what is left to be written down and let go of."""

    @abstractmethod
    def outline(self) -> Outline:
        """Who asks for what, and where it stands."""

    # ---- admission ---------------------------------------------------------------------------------------------------

    def granted(self, lease: Lease) -> None:
        """A slot is ours, after a wait: send, or give it back if its generation died meanwhile (POOL-8)."""
        if self._dispatcher.pool.holds(lease):
            self._dispatch(lease)
        else:
            self.lease = lease
            self._readmit(ReleaseCause.STALE_GRANT)

    def _dispatch(self, lease: Lease) -> None:
        d = self._dispatcher
        self.lease = lease
        self._leased = True
        session = d.nodes.session(lease.node_id, lease.generation)
        if session is None:
            self._readmit(ReleaseCause.STALE_GRANT)
            return
        self._move(LEFT)
        self.attempts += 1
        self.sent_at = d.runtime.loop.time()
        try:
            self._send(session, lease)
        except (ConnectionResetError, OverflowError):
            # The link broke between the grant and here; its loss is about to be reported and fences the rest.
            self._drop_stream()
            self._note("send_failed", attempt=self.attempts, node=lease.node_id, provider=lease.provider_id)
            self._readmit(ReleaseCause.SEND_FAILED)
        except IopError as exc:
            # It cannot be sent to this provider: nothing has left.
            self._fail(exc)
            self._end(ReleaseCause.SEND_FAILED)

    def refused(self, error: IopError) -> None:
        """The pool let us go: no candidate, or the queue's time is up. Behind a failed attempt that is not what
        the caller is told."""
        self._note_refusal(error)
        self._give_up(error)
        self._end()

    def revoked(self, lease: Lease, error: IopError) -> None:
        """The lease's generation is dead, and the lease is back already (REG-5)."""
        if lease is not self.lease or not self._leased:
            return
        self._leased = False
        self.released = ReleaseCause.GENERATION_DEAD
        self._note_failure(error.code)
        if self._lost(error):
            return
        self._drop_stream()  # not before: an open stream still takes the error event
        self._end()

    def _lost(self, error: IopError) -> bool:
        """The node is gone. True if the request is on its way again; else the caller has been told."""
        if self.state is SENT:
            if self._recover(error, avoid=None):
                return True
            self._give_up(error)
        elif self.state is OPEN:
            self._decided(Decision.COMMITTED)
            self._fail(error)
        return False

    def _readmit(
        self, cause: ReleaseCause, *, held: int | None = None, lingering: bool = False, recovery: bool = False
    ) -> None:
        """Back into the queue at our old place, with the body still in hand. ``recovery``: with a new queue time."""
        d, ticket, lease = self._dispatcher, self.ticket, self.lease
        assert ticket is not None
        assert lease is not None
        self._leased = False
        self._move(REQUEUED)
        d.perform(d.pool.readmit(ticket, lease, d.now, cause=cause, held=held, lingering=lingering, recovery=recovery))
        if ticket.waiting:
            self._note_wait()
        d.watch_queue()

    def _turned_away(self, failure: m.ExecutionFailure) -> bool:
        """Whether a refusal of the node itself, before an answer began, only means that we wait again (EXEC-3, POOL-12,
        CONF-2). Nothing was called then."""
        code = failure.code
        if code is m.ErrorCode.CAPACITY_EXCEEDED and self._refusals < MAX_REFUSALS:
            # The node has no free slot: our place in the queue stays, no health effect.
            self._refusals += 1
            self._again(ReleaseCause.CAPACITY_EXCEEDED, held=max(1, failure.slots_held))
            return True
        if code in _NOT_THERE and self._refusals < MAX_MOVES:
            # Sent before, and arrived after the node had changed its configuration or began to drain.
            self._refusals += 1
            self._again(ReleaseCause.STALE_GRANT)
            return True
        return False

    def _kept_too_long(self, failure: m.ExecutionFailure) -> bool:
        """Whether it was a kept connection that the provider had given up: nothing was answered, and that says nothing
        of the provider. True once (TUN-5)."""
        if (
            self._lost_once
            or failure.code is not m.ErrorCode.PROVIDER_CONNECTION_LOST
            or not failure.connection_reused
            or failure.response_started
        ):
            return False
        self._lost_once = True
        return True

    def _again(self, cause: ReleaseCause, *, held: int | None = None) -> None:
        self._drop_stream()
        self._note("sent_again", cause=cause.value)
        self._dispatcher.metrics.readmissions[cause.value].value += 1
        self._readmit(cause, held=held)

    # ---- another attempt (API-8) -------------------------------------------------------------------------------------

    def _attempt_failed(self, failure: m.ExecutionFailure) -> m.ProviderHealth | None:
        """What a failed attempt leaves behind: a note and, of a stall, evidence, which has to count before the slot is
        anybody's again. Answers as :meth:`iop.edge.nodes.health.Health.stall_reported` does."""
        health, said = None, evidence(failure)
        if failure.code is m.ErrorCode.RESPONSE_STALLED and self.lease is not None and self._leased:
            health = self._dispatcher.nodes.health.stall_reported(self.lease, failure)
        if health is not None:
            said |= HANDOFF
        self._note_failure(failure.code.name.lower(), **said)
        return health

    def _attempt_over(self, failure: m.ExecutionFailure, error: IopError, *, answered: bool) -> None:
        """The node's terminal of an attempt: another attempt follows, or this is the end. ``error`` is what that means
        to the caller; ``answered`` says that the provider's answer had begun."""
        lingering = lingers(failure)
        handoff = self._attempt_failed(failure)
        if self.state is SENT:
            # A direct run has no ticket: it names its provider, so no other one is asked.
            if self.ticket is not None and self._made_up_for(failure, error, handoff, answered, lingering):
                return
            self._give_up(error)
        elif self.state is OPEN:
            self._decided(Decision.COMMITTED, handoff)
            self._fail(error)
        elif failure.code is not m.ErrorCode.CANCELLED:  # it failed by itself, and nobody waits for it any more
            self._decided(Decision.CANCELLED, handoff)
        cause = ReleaseCause.CANCEL_CONFIRMED if self.state is CANCELLING else ReleaseCause.TERMINAL
        self._end(cause, lingering=lingering)

    def _made_up_for(
        self,
        failure: m.ExecutionFailure,
        error: IopError,
        handoff: m.ProviderHealth | None,
        answered: bool,
        lingering: bool,
    ) -> bool:
        """Whether an attempt that has shown nothing is followed by another, which is on its way then."""
        code, lease = failure.code, self.lease
        assert lease is not None
        if not answered and self._turned_away(failure):
            return True
        if code is m.ErrorCode.RESPONSE_STALLED:
            # A provider that stalled is asked again only if a probe has found that it serves (POOL-11), and never if
            # its engine works on more than the node has calls open there (LIVE-2b).
            busy = failure.engine_busy
            return self._recover(
                error,
                avoid=lease.provider_id,
                refused=(lease.provider_id, None) if busy else None,
                retryable=handoff is not None and failure.retryable,
                fallback=handoff is m.ProviderHealth.AVAILABLE and not busy,
                lingering=lingering,
                handoff=handoff,
            )
        if failure.provider_status:
            return self._elsewhere(failure.provider_status, error, lingering=lingering)
        if code in RETRIED_CODES:
            avoid = None if self._kept_too_long(failure) else lease.provider_id
            return self._recover(error, avoid=avoid, lingering=lingering)
        return False

    def _elsewhere(
        self, status: int, error: IopError, *, own: OwnAnswer | None = None, lingering: bool = False
    ) -> bool:
        """Whether another provider is asked behind one that answered with this status. Who refused the request is never
        asked that again (HEALTH-9)."""
        lease = self.lease
        assert lease is not None
        if status in REFUSED_STATUSES:
            return self._recover(error, refused=(lease.provider_id, lease.target), own=own, lingering=lingering)
        return status in RETRIED_STATUSES and self._recover(
            error, avoid=lease.provider_id, own=own, lingering=lingering
        )

    def _replay(self, *, retryable: bool) -> Decision:
        """Decide whether the request could be sent again now, behind a failure that is ``retryable`` or not."""
        d, recovery = self._dispatcher, self._recovery
        side_effects, held_bytes = self._repeated()
        return decide(
            side_effects,
            held_bytes,
            recovery.readmissions if recovery is not None else 0,
            d.recovery,
            self._timer.at - d.wheel.now,
            retryable,
        )

    def _recover(
        self,
        error: IopError,
        *,
        avoid: str | None = None,
        refused: tuple[str, str | None] | None = None,
        retryable: bool = True,
        fallback: bool = False,
        lingering: bool = False,
        own: OwnAnswer | None = None,
        handoff: m.ProviderHealth | None = None,
    ) -> bool:
        """Sends the request again if nothing speaks against it; true if it is on its way. The fenced stream is closed
        here first, and nobody is told to cancel: the node has said that the call is over, or is gone. ``avoid`` is for
        this attempt, what has ``refused`` is never asked again: a provider and its target, or None for all of them."""
        d, ticket, recovery = self._dispatcher, self.ticket, self._recovery
        assert ticket is not None
        decision = self._replay(retryable=retryable)
        ticket.avoid_provider_id, ticket.allow_avoided_fallback = avoid, fallback
        if avoid is not None:
            ticket.tried |= {avoid}
        if refused is not None:
            ticket.tried |= {refused[0]}
            ticket.refused |= {refused}
        if decision is ELIGIBLE and not d.pool.has_candidate(ticket):
            decision = Decision.NO_CANDIDATE
        self._decided(decision, handoff)
        more = candidates(d.pool, ticket) if decision is Decision.NO_CANDIDATE else {}
        named = refused[0] if refused is not None else avoid
        self._note("recovery", decision=decision.value, avoid=named, fallback=fallback, **more)
        if recovery is None:
            recovery = self._recovery = Recovery(error)
        if own is not None:
            recovery.answer = own
        if decision is not ELIGIBLE:
            return False
        recovery.readmissions += 1
        self._drop_stream()
        self._withdrawn()
        d.metrics.readmissions["recovery"].value += 1
        self._readmit(ReleaseCause.TERMINAL, lingering=lingering, recovery=True)
        return True

    def _let_rest(self, seconds: float) -> None:
        """The provider asks for a pause: nobody is sent there with this target meanwhile (HEALTH-9)."""
        d, lease = self._dispatcher, self.lease
        if lease is not None and self._leased and seconds > 0:
            self._note("rests", provider=lease.provider_id, target=lease.target, seconds=round(seconds, 1))
            d.perform(d.pool.rest(lease, seconds, d.now))
            d.watch_queue()

    def _decided(self, decision: Decision, handoff: m.ProviderHealth | None = None) -> None:
        """Count and log whether a failed attempt is followed by another, in closed words (OBS-1b, OBS-2)."""
        api = self.outline().api
        self._dispatcher.metrics.recovery_eligibility[api, self.path, decision.value].value += 1
        self._log_recovery(api, decision=decision.value, **(HANDOFF if handoff is not None else {}))

    def _log_recovery(self, api: str, **said: str) -> None:
        fields = {"api": api, "path": self.path, **said}
        log.info("edge_liveness_recovery_observation", extra={"fields": fields})

    def _give_up(self, error: IopError) -> None:
        """Nothing was shown and no attempt is left: the caller is told how the first one failed."""
        self._fail(self._recovery.error if self._recovery is not None else error)

    def _count_recovery(self) -> None:
        """What became of a request that was sent again. Every end passes here, a deadline and a shutdown too."""
        cancelled = isinstance(self.error, ClientGone | ClientIdle | RequestCancelled)
        result = "recovered" if self.first_at else "cancelled" if cancelled else "failed"
        api = self.outline().api
        self._dispatcher.metrics.recovery_results[api, result].value += 1
        self._log_recovery(api, result=result)

    # ---- endings -----------------------------------------------------------------------------------------------------

    def stop(self, error: IopError, reason: m.CancelReason = m.CancelReason.SHUTDOWN) -> None:
        """The edge gives the request up: it shuts down, or an operator cancels."""
        if self.state in (DONE, CANCELLING):
            return
        self._fail(error)
        self._abandon(reason)

    def _deadline(self) -> None:
        """The request's whole time is up (API-10)."""
        if self.state in (DONE, CANCELLING):
            return
        self._fail(DeadlineExceeded())
        self._abandon(m.CancelReason.DEADLINE)

    def _abandon(self, reason: m.CancelReason) -> None:
        state = self.state
        if state in (NEW, WAITING):
            if self.ticket is not None:
                self._dispatcher.pool.cancel(self.ticket, self._dispatcher.now)
            self._end()
        elif state in (SENT, OPEN):
            self._cancel(reason)

    def _cancel(self, reason: m.CancelReason) -> None:
        """Cancels at the node; its terminal brings the lease back."""
        stream, session = self.stream, self._session
        assert stream is not None
        assert session is not None
        stream.discard()
        if self.state is not CANCELLING:
            self._move(CANCELLED)
        self._note("cancelling", reason=reason.name.lower())
        try:
            withdrawn = session.cancel(stream, self.request_id, reason)
        except ConnectionResetError:
            return  # the link is lost, which revokes the lease
        if withdrawn:
            self._end(ReleaseCause.SEND_FAILED)

    def _drop_stream(self) -> None:
        if self.stream is not None:
            self.stream.discard()

    def _end(self, cause: ReleaseCause | None = None, *, lingering: bool = False) -> None:
        """It is over: the lease goes back, once, and the outcome is written down."""
        if self.state is DONE:
            return
        self._move(ENDED)
        d, lease = self._dispatcher, self.lease
        if self._timer is not None:
            self._timer.cancel()
        d.live.discard(self)
        actions: Actions = ()
        if lease is not None and self._leased:
            self._leased = False
            self.released = cause = cause or ReleaseCause.TERMINAL
            actions = d.pool.release(lease, cause, d.runtime.loop.time(), lingering=lingering)
        if self._recovery is not None and self._recovery.readmissions:
            self._count_recovery()
        self._over()
        if self.ticket is not None:
            self.ticket.owner = None  # it refers to us, and we to it: nothing is left for the collector to find
        if actions:
            d.perform(actions)

    def _move(self, step: Step[State]) -> None:
        self.state = step[self.state]

    # ---- the trace (OBS-7) -------------------------------------------------------------------------------------------

    def _ask(self, ticket: Ticket, now: float) -> Lease | None:
        """Submit ``ticket``, and keep how its candidates stood. Raises what the pool refuses with."""
        d = self._dispatcher
        try:
            lease = d.pool.submit(ticket, now)
        except IopError as exc:
            self._note("refused", code=exc.code, **candidates(d.pool, ticket))
            raise
        if ticket.stood is not None:
            self.at_once = now, ticket.stood
        else:
            self._move(QUEUED)
            self._note("waiting", **candidates(d.pool, ticket))
            d.watch_queue()
        return lease

    def clocks(self) -> Clocks:
        """The bounds of this request's time."""
        return self.timeout_s, self._dispatcher.pool.queue.limits.timeout_s, self.settings

    def _note(self, what: str, **said: object) -> None:
        """Ids, codes, counts and times; nothing of what was asked or answered."""
        notes = self.notes
        if notes is None:
            notes = self.notes = []
        if len(notes) < MAX_NOTES:
            notes.append((self._dispatcher.runtime.loop.time(), what, said))

    def _note_wait(self) -> None:
        assert self.ticket is not None
        self._note("waiting", **candidates(self._dispatcher.pool, self.ticket))

    def _note_refusal(self, error: IopError) -> None:
        assert self.ticket is not None
        self._note("refused", code=error.code, **candidates(self._dispatcher.pool, self.ticket))

    def _note_failure(self, code: str, **said: object) -> None:
        """Of an attempt: whose, and how it ended."""
        lease = self.lease
        where = {"node": lease.node_id, "provider": lease.provider_id} if lease is not None else {}
        since_ms = round((self._dispatcher.runtime.loop.time() - self.sent_at) * 1000, 1)
        self._note("failed", attempt=self.attempts, code=code, after_ms=since_ms, **where, **said)
