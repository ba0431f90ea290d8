"""What all requests share: the pool and its actions, the nodes, the clocks, and what to write down.

The dispatcher carries out the pool's decisions in order. An action that leads to new ones (a send that fails) queues
them behind the rest, as the pool demands; so there is no recursion however long the chain is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from iop.edge.nodes.server import NodeServer
from iop.edge.requests.provider_settings import ProviderSettings
from iop.edge.requests.retry import Limits
from iop.edge.requests.trace import Trace, Traced
from iop.errors import IopError, ShuttingDown
from iop.execution import POSSIBLE_TOKENS, possible
from iop.net.loop import Runtime
from iop.net.wheel import TICK_S, Timer
from iop.observability.events import EventBus, RunEnded
from iop.observability.logs import RequestOutcome, Sink
from iop.observability.metrics import EdgeMetrics
from iop.pool.lease import Action, Actions, Granted, Lease, Refused
from iop.pool.pool import Pool
from iop.wire import limits
from iop.wire import messages as m

if TYPE_CHECKING:
    from iop._fast.relay import Tokens

__all__ = ["Dispatcher", "TicketOwner"]

_MOST = POSSIBLE_TOKENS


class TicketOwner(Traced, Protocol):
    """A client's request or a run, which hears what the pool decides about its ticket."""

    def granted(self, lease: Lease) -> None: ...

    def refused(self, error: IopError) -> None: ...

    def revoked(self, lease: Lease, error: IopError) -> None: ...

    def stop(self, error: IopError, reason: m.CancelReason = ...) -> None:
        """The edge gives it up, for this reason."""


class Dispatcher:
    """See the module. The composition root sets ``nodes``, since the node server needs ``perform`` first, and with each
    configuration ``providers`` up to ``keepalive_s``."""

    nodes: NodeServer

    def __init__(
        self,
        runtime: Runtime,
        pool: Pool,
        metrics: EdgeMetrics,
        sink: Sink,
        events: EventBus | None = None,
    ) -> None:
        self.runtime = runtime
        self.wheel = runtime.wheel
        self.pool = pool
        self.metrics = metrics
        self.sink = sink
        self.providers: Mapping[str, ProviderSettings] = {}
        self.request_timeouts: Mapping[str, float] = {}  # by model group, in seconds (API-10)
        self.window_bytes = limits.STREAM_WINDOW_BYTES
        self.max_buffered_bytes = 268_435_456
        self.recovery = Limits()
        self.keepalive_s = 15.0  # 0: no keepalives
        self.count_principals = False  # counters carry the principal (metrics.principals)
        self.live: set[TicketOwner] = set()
        self.direct_runs = 0
        self.trace = Trace()
        self.events = events or EventBus()
        self.events.on_watched = self._on_watched
        self.watched = False  # somebody listens to the bus
        self.outcome: Callable[[RequestOutcome], None] = sink.outcome  # takes each request's record, at its end
        self._todo: deque[Action] = deque()
        self._performing = False
        self._queue_timer: Timer | None = None
        self._queue_at = 0.0

    @property
    def now(self) -> float:
        """The loop's time, to the millisecond: what waits is measured by it."""
        return self.runtime.loop.time()

    def answer_window_bytes(self) -> int:
        """The credit that a new stream's answer begins with: less while clients leave much in memory (WIRE-5)."""
        window = self.window_bytes
        if self.runtime.hub.buffered_bytes < self.max_buffered_bytes:
            return window
        return min(window, limits.SMALL_WINDOW_BYTES)

    def possible(self, usage: Tokens) -> Tokens:
        """What a node reported, without counts that cannot be: these are dropped, and counted (WIRE-10)."""
        a, b, c, d = usage
        if (a or 0) <= _MOST and (b or 0) <= _MOST and (c or 0) <= _MOST and (d or 0) <= _MOST:
            return usage
        kept = possible(usage)
        self.metrics.tokens_dropped.add(sum(a != b for a, b in zip(usage, kept, strict=True)))
        return kept

    def perform(self, actions: Actions) -> None:
        """Carries out what the pool decided. One that raises, a fault of ours, keeps none of the others back: the first
        exception is raised at the end."""
        if not actions:
            return
        self._todo.extend(actions)
        if self._performing:
            return
        self._performing = True
        failure: Exception | None = None
        try:
            while self._todo:
                try:
                    self._carry_out(self._todo.popleft())
                except Exception as exc:
                    failure = failure or exc
        finally:
            self._performing = False
        if failure is not None:
            raise failure

    @staticmethod
    def _carry_out(action: Action) -> None:
        owner: TicketOwner = action.ticket.owner
        if isinstance(action, Granted):
            owner.granted(action.lease)
        elif isinstance(action, Refused):
            owner.refused(action.error)
        else:
            owner.revoked(action.lease, action.error)

    # ---- what is told (OBS-3) ----------------------------------------------------------------------------------------

    def _on_watched(self, watched: bool) -> None:
        # Swapped rather than asked for at each request: without a listener the bus costs the end of a request nothing.
        self.watched = watched
        self.outcome = self._tell_outcome if watched else self.sink.outcome

    def _tell_outcome(self, record: RequestOutcome) -> None:
        self.sink.outcome(record)
        self.events.publish(RunEnded(**{name: getattr(record, name) for name in RunEnded.__struct_fields__}))

    # ---- the queue's clock -------------------------------------------------------------------------------------------

    def watch_queue(self) -> None:
        """Somebody waits: see to it that the queue's clock is looked at in time (POOL-6)."""
        next_at = self.pool.next_at
        if next_at is None:
            return
        # What is overdue is due at the next tick, and a timer that is armed for that tick stays: newcomers would
        # otherwise push it off for ever.
        now = self.wheel.now
        due_at = max(next_at, now + TICK_S)
        timer = self._queue_timer
        if timer is not None:
            if timer.callback is not None and timer.at <= due_at:
                return
            timer.cancel()
        self._queue_timer = self.wheel.arm(due_at - now, self._queue_due)

    def _queue_due(self) -> None:
        self._queue_timer = None
        self.perform(self.pool.on_time(self.now))
        self.watch_queue()

    def stop_all(self) -> None:
        """Ends every request: waiters are refused, live ones cut (SUP-5, when the drain time is over)."""
        self.perform(self.pool.shutdown(self.now))
        for request in list(self.live):
            request.stop(ShuttingDown())
