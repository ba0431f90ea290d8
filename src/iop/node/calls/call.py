"""One call to a provider, whatever becomes of the answer: connection, clocks, early ends, the slot (EXEC-7, EXEC-11).

    CONNECTING ──connected──▶ WAITING ──head──▶ BODY ──body complete──▶ DONE
        ▲  └─────────┬───────────┴───────────────┴── failure, cancel, stall, deadline ──▶ CLOSING ──call closed──▶ DONE
        └────────────┘ (kept connection found dead before a byte was written)

A call that has to end early is closed first and reported afterwards, so that the terminal can say that it is closed
(EXEC-7); if the close takes longer than the grace, the terminal goes out without that word, and the slot stays held
until the call really ends (LIVE-9, POOL-12). Where the engine may go on with a call that is closed, the terminal says
so, and the slot stays held until the engine is done (TUN-5d, :mod:`iop.node.providers.lingering`). A stall waits for a
probe of its target as well, at the same time (LIVE-5, :mod:`iop.node.calls.watchdog`). The node never sends a request
twice: what it may replace is a connection that was dead before a byte of this request had left (TUN-5).

The file is long because the ways out of each state act on the same few fields and are read together.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from iop.errors import (
    DeadlineExceeded,
    InternalError,
    IopError,
    ProviderConnectionLost,
    ProviderRedirected,
    RequestCancelled,
    ResponseStalled,
)
from iop.execution.failure import ExecutionFailure, ProviderHealth, failure_of
from iop.execution.gate import FREE, Slot
from iop.machine import Step, Transitions
from iop.net.http.client import Connection
from iop.net.http.head import ResponseHead
from iop.net.wheel import Timer
from iop.node.calls.watchdog import CLAIMED, QUIET, Do, Watchdog
from iop.node.providers.probe import Finding
from iop.node.providers.provider import Provider
from iop.store.runs import Kind
from iop.wire import messages as m

if TYPE_CHECKING:
    from iop._fast.out import Writer
    from iop._fast.relay import Body, ProviderStream
    from iop._fast.runs import RunSource
    from iop.net.loop import Runtime
    from iop.node.providers.health import Health
    from iop.node.providers.registry import Backends

__all__ = ["ProviderCall", "State"]

log = logging.getLogger("iop.node.calls.call")

CLOSE_GRACE_S = 2.0  # LIVE-5


class State(StrEnum):
    CONNECTING = "connecting"
    WAITING = "waiting"
    BODY = "body"
    CLOSING = "closing"
    DONE = "done"


# By their bare names: looking a member up on its Enum class takes five times as long as a global.
CONNECTING, WAITING, BODY, CLOSING, DONE = State


class Event(StrEnum):
    CONNECTED = "connected"
    FOUND_DEAD = "found dead"  # a kept connection, before a byte of the request had left
    HEAD = "head"
    STOPPED = "stopped"  # by a cancel, a clock or a fault
    ENDED = "ended"


TRANSITIONS = Transitions(
    "call",
    (CONNECTING,),
    {
        (CONNECTING, Event.CONNECTED): WAITING,
        (WAITING, Event.FOUND_DEAD): CONNECTING,
        (WAITING, Event.HEAD): BODY,
        (CONNECTING, Event.STOPPED): CLOSING,
        (WAITING, Event.STOPPED): CLOSING,
        (BODY, Event.STOPPED): CLOSING,
        (CONNECTING, Event.ENDED): DONE,
        (WAITING, Event.ENDED): DONE,
        (BODY, Event.ENDED): DONE,
        (CLOSING, Event.ENDED): DONE,
    },
)
CONNECTED, FOUND_DEAD, HEAD, STOPPED, ENDED = map(TRANSITIONS.step, Event)


class CallOwner(Protocol):
    """What a call needs of the connection that it came on, which hears how it ends."""

    runtime: Runtime
    backends: Backends
    health: Health

    @property
    def now(self) -> float: ...

    def stalled(self, kind: Kind, watchdog: Watchdog) -> None:
        """A stall is about to be reported."""

    def finished(self, call: ProviderCall, error: IopError | None, *, owed: bool) -> None:
        """The call has really ended. ``owed``: the edge is to hear that its slot is free (POOL-12)."""


class ProviderCall(ABC):
    """See the module. The agent owns it from ``start`` until it reports back with ``agent.finished``.

    What is done with the answer is its subclasses' business, in ``response_head``, ``body_eof`` and the rest of what a
    connection or a stream calls back; they end with ``_complete`` or ``_stop``, and send the terminal when told to.
    """

    __slots__ = (
        "_connection",
        "_deadline_at",
        "_error",
        "_feeds",
        "_grace",
        "_head",
        "_heard",
        "_held_at",
        "_lingers",
        "_look_at",
        "_owner",
        "_pieces",
        "_request",
        "_request_head",
        "_reused",
        "_sent_whole",
        "_since",
        "_unsent_bytes",
        "_watchdog",
        "_written",
        "provider",
        "slot",
        "state",
        "stream",
    )

    kind: Kind  # as the run store calls it
    stream: ProviderStream | RunSource

    def __init__(
        self, owner: CallOwner, request: m.ProviderTunnelRequest | m.RunRequest, provider: Provider, slot: Slot
    ) -> None:
        self._owner = owner
        self._request = request
        self._request_head = b""
        self.provider = provider
        self.slot = slot
        self.state = CONNECTING
        self._connection: Connection | None = None
        self._head: ResponseHead | None = None
        self._pieces: list[bytes] = []  # of the request's body, while they may have to be sent again
        self._deadline_at = owner.runtime.wheel.now + request.deadline_ms / 1000 if request.deadline_ms else None
        self._look_at = 0.0  # before that no clock can have run out
        self._since = 0.0  # silence counts from here, or from the last progress
        self._held_at = 0.0  # when it was paused
        self._watchdog: Watchdog | None = None
        self._error: IopError | None = None
        self._grace: Timer | None = None
        self._reused = False
        self._unsent_bytes = 0  # of the request's body: still to come from the edge
        self._feeds: Callable[[Writer | None], None] | None = None  # hears where that goes, None: nowhere any more
        self._sent_whole = False  # the provider has certainly read all of the request, now that it answers
        self._heard = False
        self._written = False  # something of the request had left when its connection was closed
        self._lingers = False

    @property
    def target(self) -> str:
        return self._request.target

    # ---- the call's way out ------------------------------------------------------------------------------------------

    @abstractmethod
    def open(self) -> None:
        """The stream is in the link's table: the call begins."""

    def start(self) -> None:
        """Take a kept connection to the provider, or make one."""
        # A kept connection may turn out dead. What was sent again may have been lost on one, and the others are as old;
        # and what cannot be sent again, as without a lease, must not be lost (TUN-5, TUN-5b).
        request = self._request
        fresh = request.lease.attempt > 1 or request.fresh_connection or not request.lease.lease_id
        connection = None if fresh else self.provider.pool.take()
        if connection is None:
            self.provider.pool.connect(self)
        else:
            self.connected(connection)

    def connected(self, connection: Connection) -> None:
        """A connection is there: the request goes out, as much of it as has come."""
        self._move(CONNECTED)
        self._connection = connection
        self._since = self._owner.runtime.wheel.now
        self._reused = connection.reused
        connection.begin(self, self._request_head)
        for piece in self._pieces:
            connection.writer.write(piece)
        if self._feeds is not None:
            self._feeds(connection.writer)

    def connect_failed(self, error: IopError) -> None:
        self._error = error
        self._report()

    # ---- what subclasses do ------------------------------------------------------------------------------------------

    @abstractmethod
    def response_head(self, head: ResponseHead) -> Body:
        """The answer begins: who takes the body behind this head (see :class:`iop.net.http.client.Call`)."""

    @abstractmethod
    def body_eof(self) -> None:
        """The provider closed its side while the body was being read."""

    @abstractmethod
    def _ends_later(self) -> bool:
        """Whether the end of the body is known and only waits for the edge to take what came before it."""

    @abstractmethod
    def _progress_at(self) -> float:
        """When the provider last made progress, 0 if never (LIVE-2)."""

    @abstractmethod
    def _body_begun(self) -> bool:
        """Whether a byte of the answer's body has come."""

    def _comes_whole(self) -> bool:
        """Whether the answer is no stream: nothing is said before it is all there (LIVE-2b)."""
        return False

    @property
    @abstractmethod
    def dropped_bytes(self) -> int:
        """Of the answer, what came behind the fence."""

    def _starved(self) -> bool:
        """Whether the provider waits for the rest of the request, which has not come from the edge."""
        return False

    @abstractmethod
    def _send_end(self) -> None:
        """The terminal of a whole answer."""

    @abstractmethod
    def _send_error(self, failure: ExecutionFailure) -> None:
        """The terminal of one that failed or was cancelled."""

    # ---- for subclasses ----------------------------------------------------------------------------------------------

    def _answered(self, head: ResponseHead, *, has_body: bool) -> None:
        """The answer begins. A provider may answer without reading the request's body and keep the connection: the next
        request would then come behind what is unread, and be read as a part of it (TUN-5b)."""
        self._move(HEAD)
        self._head = head
        self._pieces = []
        if not has_body or 200 <= head.status < 300:
            connection = self._connection
            self._sent_whole = self._unsent_bytes == 0 and connection is not None and not connection.writer.unsent

    def _redirected(self, head: ResponseHead) -> None:
        """The provider tells to ask elsewhere, where nobody goes (TUN-9)."""
        self.provider.log_redirect(head, self._owner.now)
        self._stop(ProviderRedirected())

    def _let_go(self, *, sound: bool, streamed: bool) -> None:
        """The answer is whole: keeps the connection for another call if it is ``sound``, the provider has read the
        whole request, and allows it."""
        head, connection = self._head, self._connection
        assert head is not None
        self._connection = None
        if self._feeds is not None:
            self._feeds(None)
        if connection is not None:
            keep = sound and self._sent_whole and head.keep_alive
            connection.finished(keep=keep, rest_s=self.provider.rest_s if streamed else 0.0)

    def pause_source(self) -> None:
        """Stops reading: there is no credit, or the link is full."""
        self._held_at = self._owner.runtime.wheel.now
        if self._connection is not None:
            self._connection.pause_reading()

    def resume_source(self) -> None:
        """Reads on. The time until now was ours, so the silence before it goes on from here (LIVE-4)."""
        since = max(self._since, self._progress_at())
        self._since = since + self._owner.runtime.wheel.now - max(self._held_at, since)
        if self._connection is not None:
            self._connection.resume_reading()

    def on_broken(self, exc: Exception) -> None:
        """A fault of ours while a frame was handled: it ends this call, and no other."""
        log.error("call_broken", exc_info=exc)
        self._stop(InternalError())

    # ---- early ends --------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """The edge wants no more (EXEC-7), or the session is gone. A stall that was claimed stands, and its probe holds
        nothing any longer."""
        if self._watchdog is not None and self._watchdog.awaits_probe:
            self._evidence(ProviderHealth.UNKNOWN)
        self._stop(RequestCancelled())

    def slept(self, lost_s: float) -> None:
        """This loop did not run for so long: that was no silence of the provider's (LIVE-4)."""
        if not self.stream.paused:  # else the end of the pause sees to it
            self._since = max(self._since, self._progress_at()) + lost_s
        if self._watchdog is not None:
            self._watchdog.slept(lost_s)

    def tick(self, now: float) -> None:
        """Looks at the clocks: the deadline first, then silence (LIVE-9, API-10)."""
        if now < self._look_at or self.state in (CLOSING, DONE):
            return
        deadline_at = self._deadline_at
        if deadline_at is not None and now >= deadline_at:
            self._stop(DeadlineExceeded())
            return
        if self.state is CONNECTING:
            return  # that has a clock of its own
        watchdog = self._watchdog
        if watchdog is None:
            request = self._request
            watchdog = self._watchdog = Watchdog(
                request.response_stall_timeout_ms, request.first_response_timeout_ms, whole=self._comes_whole()
            )
        progress_at = self._progress_at()
        look_at = watchdog.look(
            now,
            max(progress_at, self._since),
            progressed=self._body_begun() if watchdog.phase is QUIET else progress_at > 0.0,
            held=self.stream.paused or self._starved(),
        )
        if look_at is Do.CLAIM:
            self._stall()
        elif look_at is Do.PROBE:
            self._probe(self._probed_quietly)
        else:
            self._look_at = look_at if deadline_at is None else min(look_at, deadline_at)

    def _stall(self) -> None:
        """A stall was claimed: the call is closed, and its target probed."""
        self._stop(ResponseStalled())
        self._probe(self._probed)

    def _probe(self, heard: Callable[[Finding], None]) -> None:
        """Probe the target of a call that is silent."""
        since = max(self._progress_at(), self._since)
        self._owner.health.ask(self.provider, self.target, "stall", heard, since=since)

    def _probed_quietly(self, found: Finding) -> None:
        """The probe at an interval of an answer that comes whole has ended (LIVE-2b)."""
        watchdog = self._watchdog
        assert watchdog is not None
        now, since = self._owner.runtime.wheel.now, max(self._progress_at(), self._since)
        stalled = self.state not in (CLOSING, DONE) and watchdog.looked(
            now, since, found.health, idle=found.idle, progressed=self._body_begun()
        )
        if not stalled and self._head is not None:
            return  # the answer has begun meanwhile, and says more of the provider than the probe
        self._announce(found)
        if not stalled:
            if found.health is ProviderHealth.UNAVAILABLE:
                self._owner.health.tell(self.provider, self.target, found)  # no terminal will say it
        elif found.health is ProviderHealth.UNAVAILABLE:
            self._evidence(found.health)
            self._stop(ResponseStalled())
        else:
            self._stall()

    def _stop(self, error: IopError) -> None:
        """Fences what the provider still says, closes the call, and reports once it is closed."""
        if self.state in (CLOSING, DONE):
            return
        self._error = error
        self.stream.fence()
        connection = self._connection
        if connection is None:
            self.provider.pool.forsake(self)
            if not self._stalling:
                self._report()
                return
        self._move(STOPPED)
        if connection is None:
            self._closed()
            return
        self._grace = self._owner.runtime.wheel.arm(CLOSE_GRACE_S, self._grace_over)
        connection.abort()

    @property
    def _stalling(self) -> bool:
        """Whether a stall was claimed and is not reported yet: then the watchdog says when it is."""
        return self._watchdog is not None and self._watchdog.phase is CLAIMED

    def _probed(self, found: Finding) -> None:
        """The probe of a stall has ended."""
        watchdog = self._watchdog
        assert watchdog is not None
        self._announce(found)
        if watchdog.awaits_probe:
            self._evidence(found.health, busy=found.busy)
        elif found.health is ProviderHealth.UNAVAILABLE:
            self._owner.health.tell(self.provider, self.target, found)  # its terminal could not wait for it

    def _announce(self, found: Finding) -> None:
        self._owner.health.announce(self.provider, self.target, found, stalled=True)

    def _evidence(self, health: ProviderHealth, *, busy: bool = False) -> None:
        """What the terminal of a stall is to say of its provider."""
        watchdog = self._watchdog
        assert watchdog is not None
        seq = self._owner.health.number() if self._request.lease.lease_id else 0  # an unbound path has none (LIVE-8)
        if watchdog.probed(health, seq, busy=busy):
            self._stalled(watchdog)

    def _grace_over(self) -> None:
        """The call did not close in time."""
        watchdog = self._watchdog
        if watchdog is None or not self._stalling:
            self._due()
        elif watchdog.grace_ended():
            self._stalled(watchdog)

    def _closed(self) -> None:
        """The call is closed, as it was to be: its slot is free, unless the engine may go on with it."""
        backends = self._owner.backends
        watchdog = self._watchdog
        if self.provider.adapter.works_on and self._written and not self._refused and not self._body_begun():
            self._lingers = True
            backends.lingering.add(self.provider, self.slot, self.stream.stream_id)
            if watchdog is not None:
                watchdog.lingers = True
        elif self.slot.release():
            backends.call_closed(self.slot.provider_id, self.stream.stream_id)
        if watchdog is None or not self._stalling:
            self._due()
        elif watchdog.call_closed():
            self._stalled(watchdog)

    @property
    def _refused(self) -> bool:
        """Whether the final head says that the engine does not work on the request."""
        return self._head is not None and self._head.status >= 300

    def _stalled(self, watchdog: Watchdog) -> None:
        """All is known that a stall's terminal says."""
        self._owner.stalled(self.kind, watchdog)
        self._due()

    def _due(self) -> None:
        """The terminal. If the call has not closed yet, it says so, and the slot is held until it does (POOL-12)."""
        if self.slot.state is FREE or self._lingers:
            self._report()
            return
        assert self._error is not None
        self._send_error(self._failure(self._error, close_confirmed=False))
        self.slot.linger()

    def connection_lost(self, error: IopError | None, *, written: bool, heard: bool) -> None:
        """The provider's socket is closed for certain."""
        self._connection = None
        self._heard = heard
        self._written = written
        if self._feeds is not None:
            self._feeds(None)
        if self.state is CLOSING:
            self._closed()
        elif error is not None:
            self._error = error
            self._report()
        elif self.state is WAITING and self._reused and not written:
            self._move(FOUND_DEAD)  # it was dead before we used it: part of setting up a connection
            self.provider.pool.connect(self)
        elif self.state is BODY and self._ends_later():
            pass  # it will end by itself
        else:
            self._error = ProviderConnectionLost()
            self._report()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        """The one terminal, and the slot back."""
        if self.state is DONE:
            return
        self._move(ENDED)
        if self._grace is not None:
            self._grace.cancel()
        error = self._error
        # Before the terminal, which says that the call is closed.
        owed = not self._lingers and self.slot.state is not FREE and self.slot.release()
        if error is None:
            self._send_end()
        else:
            self._send_error(self._failure(error, close_confirmed=True))
        self._owner.finished(self, error, owed=owed)

    def _failure(self, error: IopError, *, close_confirmed: bool) -> ExecutionFailure:
        if isinstance(error, ResponseStalled) and self._watchdog is not None:
            return self._watchdog.failure()
        return failure_of(
            error,
            close_confirmed=close_confirmed,
            connection_reused=self._reused,
            response_started=self._heard or self._head is not None,
            engine_lingers=self._lingers,
        )

    def _move(self, step: Step[State]) -> None:
        self.state = step[self.state]
