"""Normalized runs from the edge's side: SubmitRun, direct or queued (POOL-10, POOL-14, EXEC-1).

A *direct* run names a node, or has the only connected one, an adapter and a target; it bypasses admission, and the
node's own gate is what bounds it (EXEC-3). A *queued* run names a model and waits for a lease like any request; its
ways through the pool are those of :mod:`iop.edge.requests.attempts`.

A listener hears the run's events in order and then, exactly once, how it ended. What its node says is checked against
the same rule as the events of an adapter are on the node: nothing follows a terminal, and nothing comes before the
start. A queued run that fails before its listener has heard more than the start may be sent to another provider
(API-8); the start of a later attempt is not told again.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from iop._fast.out import Writer
from iop._fast.runs import RunSink
from iop._fast.scan import RequestScanner
from iop.edge.api.errors import error_of
from iop.edge.api.headers import rest_of
from iop.edge.requests.attempts import CANCELLING, DONE, LEFT, OPEN, SENT, SHOWN, Dispatched, lingers
from iop.edge.requests.outcome import write_outcome
from iop.edge.requests.retry import ELIGIBLE, REFUSED_STATUSES
from iop.edge.requests.trace import Outline
from iop.errors import (
    InternalError,
    InvalidArgument,
    IopError,
    NodeDisconnected,
    ProviderProtocolError,
    QueueFull,
    RequestCancelled,
    ScanError,
    ShuttingDown,
    UnknownProvider,
)
from iop.observability.events import RunStarted
from iop.pool.lease import Lease, ReleaseCause, Ticket
from iop.wire import limits
from iop.wire import messages as m
from iop.wire.session import EdgeSession

if TYPE_CHECKING:
    from iop._fast.relay import Tokens
    from iop.edge.requests.dispatcher import Dispatcher

__all__ = ["EdgeRun", "RunListener", "RunResult", "RunSpec", "submit_run"]

log = logging.getLogger("iop.edge.requests.normalized_run")

API = "runs"
MAX_OPTIONS_BYTES = 64 * 1024  # they travel in the opening; what is long is the input
DIRECT_S = 600.0  # the whole time of a direct run that names none
MAX_DIRECT = 256  # direct runs at a time; the queue's bounds hold for the others


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What is to be run: ``model`` for a queued run; ``adapter`` (a provider's id, or its kind if it is the only one of
    that kind there) and ``target`` for a direct one, at ``node`` or the only connected node.

    ``given`` and ``options`` are JSON objects, which the node's adapter reads. ``session_id`` is echoed on the run's
    events and means nothing to anybody (EXEC-6). ``background``: the run does not end when its listener leaves.
    ``replayable``: asking the provider twice does nothing twice (API-8). ``timeout_s`` is the run's whole time: a model
    has one of its own (``request_timeout_ms``), which a run may shorten; a direct run has 600 s where it names none.
    """

    given: bytes
    options: bytes = b""
    model: str = ""
    node: str = ""
    adapter: str = ""
    target: str = ""
    session_id: bytes = b""
    background: bool = False
    timeout_s: float | None = None
    replayable: bool = False


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended: ``error`` is None for a complete one. ``usage`` is what the provider reported."""

    error: IopError | None
    finish_reason: bytes = b""
    usage: tuple[int | None, ...] | None = None


class RunListener(Protocol):
    """Who wants to hear of a run; nothing may raise. ``writer`` is where it writes the events to, whose pace the run
    then follows (WIRE-5), or None: what it heard it has taken."""

    writer: Writer | None

    def run_event(self, event: m.RunEvent) -> None:
        """Any event but a terminal. The first is the start, and there is no other start."""

    def run_ended(self, result: RunResult) -> None:
        """The end; called once, and nothing follows."""


def submit_run(d: Dispatcher, spec: RunSpec, listener: RunListener, principal: str) -> EdgeRun:
    """Starts a run; ``listener`` hears all further. Raises what refuses it at once: InvalidArgument, ModelNotFound,
    Unavailable, QueueFull, NodeDisconnected, UnknownProvider, ShuttingDown."""
    direct = not spec.model
    if direct and not (spec.adapter and spec.target):
        raise InvalidArgument("a run needs a model, or an adapter and a target")
    if not direct and (spec.adapter or spec.target or spec.node):
        raise InvalidArgument("a run has a model, or a node, an adapter and a target, not both")
    if len(spec.target) > limits.MAX_NAME_CHARS:
        raise InvalidArgument(f"the target of a run has at most {limits.MAX_NAME_CHARS} characters")
    if not spec.given:
        raise InvalidArgument("a run needs an input")
    if len(spec.options) > MAX_OPTIONS_BYTES:
        raise InvalidArgument(f"the options of a run have at most {MAX_OPTIONS_BYTES} bytes")
    run = EdgeRun(d, spec, listener, principal)
    if direct:
        run.start_direct()
    else:
        run.start_queued()
    return run


class EdgeRun(Dispatched):
    """One run. ``ticket`` is None for a direct one."""

    __slots__ = ("_ended", "_input_bytes", "_listener", "_node_id", "_provider_id", "_start_told", "_started",
                 "_usage", "accepted_at", "body_bytes_out", "principal", "spec")  # fmt: skip

    path = "run"
    stream: RunSink | None

    def __init__(self, d: Dispatcher, spec: RunSpec, listener: RunListener, principal: str) -> None:
        super().__init__(d)
        self.spec = spec
        self._listener = listener
        self.principal = principal
        self.accepted_at = d.runtime.loop.time()
        self._input_bytes = len(spec.given)
        self.body_bytes_out = 0
        self._started = False  # the node's start event has come, of this attempt
        self._start_told = False  # the listener has heard one
        self._ended = False  # the listener has heard the end
        self._usage: Tokens | None = None
        self._node_id = self._provider_id = ""

    @property
    def listener_done(self) -> bool:
        """Whether the listener has heard the end."""
        return self._ended

    # ---- admission ---------------------------------------------------------------------------------------------------

    def start_queued(self) -> None:
        """Asks the pool. Raises what it refuses with."""
        d, spec = self._dispatcher, self.spec
        ticket = Ticket(self.request_id, self.principal, spec.model, estimated_tokens(spec.given), self)
        lease = self._ask(ticket, d.now)
        self.ticket = ticket
        self._begin()
        if lease is not None:
            self._dispatch(lease)

    def start_direct(self) -> None:
        """Sends at once, past the pool; the node's gate decides (POOL-14). Raises what refuses it."""
        d, spec = self._dispatcher, self.spec
        if d.nodes.closing:
            raise ShuttingDown
        if d.direct_runs >= MAX_DIRECT:
            raise QueueFull(f"{MAX_DIRECT} direct runs are under way; wait for one to end")
        node_id, session = d.nodes.only_ready(spec.node)
        provider = _provider(d.nodes.payloads[node_id], spec.adapter)
        self._begin()
        d.direct_runs += 1
        self._move(LEFT)
        self._node_id, self._provider_id = node_id, provider.id
        self.attempts = 1
        self.sent_at = d.runtime.loop.time()
        try:
            self._open(session, provider.kind, provider.id, spec.target, m.LeaseBinding(0, False, 1))
        except (ConnectionResetError, OverflowError):
            self._fail(NodeDisconnected())
            self._end()

    def _begin(self) -> None:
        d = self._dispatcher
        model_s = d.request_timeouts.get(d.pool.group_id(self.spec.model), DIRECT_S)
        asked_s = self.spec.timeout_s
        self.timeout_s = model_s if asked_s is None else min(asked_s, model_s) if self.spec.model else asked_s
        self._timer = d.wheel.arm(self.timeout_s, self._deadline)
        d.live.add(self)

    def _send(self, session: EdgeSession, lease: Lease) -> None:
        self._node_id, self._provider_id = lease.node_id, lease.provider_id
        binding = m.LeaseBinding(lease.lease_id, lease.long, self.attempts)
        self._open(session, lease.adapter, lease.provider_id, lease.target, binding)

    def _open(self, session: EdgeSession, adapter: str, provider_id: str, target: str, lease: m.LeaseBinding) -> None:
        d, spec = self._dispatcher, self.spec
        settings = self.settings = d.providers[provider_id]
        self._session = session
        stream = self.stream = RunSink(self)
        if self._listener.writer is not None:
            stream.feeds(self._listener.writer)
        window = d.answer_window_bytes()
        session.mux.open(stream, window, session.request_window_bytes)
        inline = len(spec.given) <= limits.INLINE_BODY_BYTES
        request = m.RunRequest(
            stream.stream_id,
            self.request_id,
            adapter,
            provider_id,
            target,
            window,
            max(1, int((self._timer.at - d.wheel.now) * 1000)),
            settings.response_stall_timeout_ms,
            lease,
            spec.given if inline else b"",
            len(spec.given),
            spec.options,
            not inline,
            spec.background,
            spec.session_id,
            settings.first_response_timeout_ms,
            self._replay(retryable=True) is not ELIGIBLE,  # on a fresh connection (TUN-5b)
        )
        session.send(request, stream, opening=True)
        if d.watched:
            d.events.publish(
                RunStarted(
                    time.time(),
                    self.request_id,
                    API,
                    spec.model,
                    self._node_id,
                    provider_id,
                    self.attempts,
                    stream=True,
                )
            )
        if not inline:
            stream.send_body([spec.given])

    # ---- the stream's callbacks --------------------------------------------------------------------------------------

    def on_event(self, kind: int, text: bytes, extra: m.RunEvent | None) -> None:
        """An event from the node, in order."""
        event = extra if extra is not None else m.RunEvent(m.RunEventKind(kind), text)
        if kind in _TERMINALS:
            self._terminal(event)
            return
        if self._started is (kind == m.RunEventKind.START):
            # A second start, or something before the first: no order that a run has.
            self._fail(ProviderProtocolError(_DISORDER))
            self._cancel(m.CancelReason.PROTOCOL)
            return
        self._started = True
        if kind == m.RunEventKind.START:
            if self._start_told:
                return  # another attempt's was told
            self._start_told = True
        elif self.state is SENT:
            self._shown(len(event.text))
        if kind == m.RunEventKind.USAGE and event.usage is not None:
            self._usage = event.usage = self._dispatcher.possible(event.usage)
        self.body_bytes_out += len(event.text)
        if not self._ended:
            self._listener.run_event(event)

    def _terminal(self, event: m.RunEvent) -> None:
        complete, told = event.kind is m.RunEventKind.COMPLETE, event.failure
        if self.state is CANCELLING and (complete or (told is not None and told.provider_status)):
            # A whole answer that came too late is no failure, whatever its status: as for requests.
            self._end(ReleaseCause.CANCEL_CONFIRMED, lingering=told is not None and lingers(told))
            return
        if complete:
            if self._started and self.state is SENT:
                self._shown(0)  # an answer without a word is one, too
            self._finish(None if self._started else ProviderProtocolError(_DISORDER), event.finish_reason)
            self._end(ReleaseCause.TERMINAL)
            return
        code = m.ErrorCode.CANCELLED if event.kind is m.RunEventKind.CANCELLED else m.ErrorCode.INTERNAL
        failure = told or m.ExecutionFailure(code, close_confirmed=True)
        error = _error(failure, self._provider_id)
        if failure.provider_status:
            if self._recovery is not None:
                self._recovery.error = error
            if failure.provider_status in REFUSED_STATUSES and failure.retry_after:
                self._let_rest(rest_of(failure.retry_after, time.time()))
        self._attempt_over(failure, error, answered=self._started)

    def _shown(self, text_bytes: int) -> None:
        """The listener hears more than the start: from here on there is no other answer, and the input is let go of."""
        self._move(SHOWN)
        self.first_at = self._dispatcher.runtime.loop.time()
        self.commit_bytes = text_bytes
        self.spec = replace(self.spec, given=b"")

    # ---- another attempt (API-8) -------------------------------------------------------------------------------------

    def _repeated(self) -> tuple[bool, int]:
        return not self.spec.replayable, self._input_bytes

    def _withdrawn(self) -> None:
        self._started = False

    def on_broken(self, exc: Exception, ended: bool) -> None:
        """A fault of ours in a callback: it ends this run, and no other."""
        log.error("run_broken", exc_info=exc)
        self._fail(InternalError())
        if ended:
            self._end(ReleaseCause.TERMINAL)
        elif self.state in (SENT, OPEN):
            self._cancel(m.CancelReason.PROTOCOL)

    def on_lost(self) -> None:
        """The link is gone. A leased run hears of it from the pool."""
        if not self._leased and self.state in (SENT, OPEN, CANCELLING):
            self._fail(NodeDisconnected())
            self._end()

    # ---- endings -----------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Nobody wants the run any more. Its lease comes back when the node says that the call is closed (EXEC-7)."""
        if self.state not in (CANCELLING, DONE):
            self._fail(RequestCancelled())
            self._abandon(m.CancelReason.CLIENT_GONE)

    def _fail(self, error: IopError) -> None:
        self._finish(error)

    def _finish(self, error: IopError | None, finish_reason: bytes = b"") -> None:
        """Tells the listener, once."""
        if self._ended:
            return
        self._ended = True
        self.error = error
        self._listener.run_ended(RunResult(error, finish_reason, self._usage))

    def outline(self) -> Outline:
        return Outline(
            self.request_id, API, self.state.value, self.principal, self.spec.model or self.spec.target, self._node_id,
            self._provider_id, self.attempts, self.accepted_at,
        )  # fmt: skip

    def _over(self) -> None:
        self._dispatcher.direct_runs -= self.ticket is None
        error = self.error
        write_outcome(
            self._dispatcher,
            self,
            API,
            error.code if error is not None else "ok",
            error.status if error is not None else 200,
            self.accepted_at,
            "",
            self.principal,
            self._dispatcher.pool.group_id(self.spec.model),
            self._node_id,
            self._provider_id,
            True,
            self._input_bytes,
            self.body_bytes_out,
            self._usage,
        )
        # They refer to us, and hold the input: nothing is left for the collector to find, which seldom looks.
        self.stream = None
        self._listener = _NOBODY


class _Nobody:
    """The listener of a run that is over."""

    writer: Writer | None = None

    def run_event(self, event: m.RunEvent) -> None: ...
    def run_ended(self, result: RunResult) -> None: ...


_NOBODY = _Nobody()
_DISORDER = "the node sent a run's events out of order"
_TERMINALS = frozenset({m.RunEventKind.COMPLETE, m.RunEventKind.ERROR, m.RunEventKind.CANCELLED})


def _error(failure: m.ExecutionFailure, provider_id: str) -> IopError:
    """What the listener is told. Unlike a client's request, a run is read by the node's adapter, which may find fault
    with it."""
    error = error_of(failure, provider_id)
    if failure.code is m.ErrorCode.INVALID_ARGUMENT:
        error = InvalidArgument(error.message)
    if failure.provider_status:
        error.status = failure.provider_status
        rest_s = rest_of(failure.retry_after, time.time()) if failure.retry_after else 0.0
        error.retry_after_s = math.ceil(rest_s) or None
    return error


def estimated_tokens(given: bytes) -> int:
    """The estimate of a run's input, as of a request's body (POOL-2)."""
    scanner = RequestScanner()
    try:
        scanner.feed(given)
    except ScanError:  # only an adapter can say what that is; it is measured by its size
        return len(given) // 3
    return scanner.estimated_tokens


def _provider(payload: m.NodeConfigPayload, adapter: str) -> m.ProviderConfig:
    """The provider that an adapter's name means: its id, or its kind if no other there is of that kind (EXEC-3)."""
    present = [p for p in payload.providers if p.enabled]
    found = [p for p in present if p.id == adapter] or [p for p in present if p.kind == adapter]
    if len(found) == 1:
        return found[0]
    names = ", ".join(p.id for p in found or present)
    if found:
        raise InvalidArgument(f"several providers there are of this kind; name one of {names}")
    raise UnknownProvider(f"no such adapter at this node; it has {names or 'none'}")
