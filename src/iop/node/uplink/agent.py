"""The work of one connection to the edge: registration, configuration, tunnels, until it ends (REG-1, REG-3, EXEC-7).

What outlives a connection (the gate, the providers and their kept connections) is the :class:`Backends`' and is handed
in; what does not (tunnels) ends with it, at once and without a word on any later connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from iop import __version__
from iop._fast.relay import ProviderStream
from iop._fast.runs import RunSource
from iop.errors import (
    IopError,
    NodeDraining,
    NodeExhausted,
    ProtocolError,
    ProviderConnectionLost,
    ProviderUnreachable,
    RequestCancelled,
    UnknownProvider,
)
from iop.execution.failure import ExecutionFailure, capacity_exceeded, failure_of
from iop.net.link import Link
from iop.net.loop import Runtime
from iop.node.calls.call import ProviderCall
from iop.node.calls.normalized_run import NormalizedRun
from iop.node.calls.on_wire import on_wire
from iop.node.calls.tunnel import Tunnel
from iop.node.calls.watchdog import Watchdog
from iop.node.commands.runner import Commands
from iop.node.providers.discovery import Inventory
from iop.node.providers.health import Health
from iop.node.providers.kinds import ADAPTERS
from iop.node.providers.registry import Backends
from iop.node.uplink.reconnect import Ended
from iop.node.uplink.trust import Trust
from iop.observability.metrics import NodeMetrics
from iop.store.runs import Kind, Run, RunStore, Status
from iop.wire import codec, limits
from iop.wire import messages as m
from iop.wire.session import NodeSession, State

__all__ = ["Agent"]

log = logging.getLogger("iop.node.uplink.agent")

WATCH_TICK_S = 0.25
EXHAUSTED_LOG_S = 10.0
SUSPENDED_S = 1.0  # from one tick to the next: this loop did not run, and the clocks say nothing of anybody else
_GONE = frozenset({ProviderUnreachable.code, ProviderConnectionLost.code})  # after which a provider is looked at

#: Hears what was rejected of a configuration; None if none of it was taken over, for a fault of the node itself.
_Then = Callable[[m.NodeConfigPayload, "list[m.Rejected] | None"], None]
CONFIG_REJECTED = "config_rejected"

_REJECTED: dict[m.RejectReason, Ended] = {
    m.RejectReason.UNKNOWN_TOKEN: Ended.UNKNOWN_TOKEN,
    m.RejectReason.DUPLICATE_CONNECTION: Ended.DUPLICATE_CONNECTION,
    m.RejectReason.CONFIG_BUILD_FAILED: Ended.CONFIG_BUILD_FAILED,
    m.RejectReason.PROTOCOL_MISMATCH: Ended.PROTOCOL_MISMATCH,
    m.RejectReason.IDENTITY_MISMATCH: Ended.IDENTITY_MISMATCH,
    m.RejectReason.STALE_CONNECTION: Ended.STALE_CONNECTION,
    m.RejectReason.SHUTTING_DOWN: Ended.EDGE_SHUTTING_DOWN,
}
_TIMEOUTS: dict[str, Ended] = {
    "heartbeat_timeout": Ended.HEARTBEAT_TIMEOUT,
    "write_stalled": Ended.HEARTBEAT_TIMEOUT,
    "ready_timeout": Ended.READY_TIMEOUT,
    "register_timeout": Ended.READY_TIMEOUT,
}


class Agent:
    """One connection. ``done`` is resolved once, with how it ended and a detail, when the transport is gone."""

    def __init__(
        self,
        runtime: Runtime,
        backends: Backends,
        metrics: NodeMetrics,
        token: str,
        on_ready: Callable[[], None],
        *,
        timing: limits.Timing = limits.TIMING,
        runs: RunStore | None = None,
        trust: Trust | None = None,
    ) -> None:
        self.runtime = runtime
        self.backends = backends
        self.metrics = metrics
        self.session = NodeSession(runtime.hub, self, self.now, timing=timing)
        self.link = Link(self.session, self)
        self.done: asyncio.Future[tuple[Ended, str]] = runtime.loop.create_future()
        self.calls: dict[int, ProviderCall] = {}
        self.runs = runs or RunStore(None)
        self._rows: dict[int, Run | None] = {}  # by stream, what the store keeps of the tunnels that run
        self.health = Health(runtime, backends, metrics, self._report_health)
        self.commands = Commands(runtime, backends, self.health, self.answer_command)
        self.inventory = Inventory(runtime, backends, self._report_inventory)
        self.draining = False
        self._token = token
        self._trust = trust or Trust()
        self._on_ready = on_ready
        self._outcome: tuple[Ended, str] | None = None
        self._applying: asyncio.Task[None] | None = None
        self._next: tuple[m.NodeConfigPayload, _Then] | None = None
        self._in_force: m.NodeConfigPayload | None = None
        self._owed: list[m.CallClosed] = []  # ends of slots that were reported as held, until the edge is ready
        self._ticking = True
        self._ticked_at = 0.0
        self._exhausted_at = -EXHAUSTED_LOG_S

    @property
    def now(self) -> float:
        return self.runtime.wheel.now

    # ---- link and session --------------------------------------------------------------------------------------------

    def link_made(self, link: Link) -> None:
        fault = self._trust.fault(link.transport)
        if fault:
            self._finish(Ended.EDGE_UNTRUSTED, fault)
            link.abort("edge_untrusted")
            return
        self.session.register(self._token, __version__, sorted(ADAPTERS))
        self._tick()

    def link_lost(self, link: Link, reason: str) -> None:
        self._ticking = False
        if self.backends.owed_to == self.call_closed:
            self.backends.owed_to = None
        if self._applying is not None:
            self._applying.cancel()
        self.session.close()
        for call in list(self.calls.values()):
            call.cancel()
        self.commands.close()
        self.health.close()
        self.inventory.close()
        if not self.done.done():
            silent = self._trust.silence() if self.session.mux.bytes_in == 0 else ""
            self.done.set_result(self._outcome or (Ended.CONNECTION_LOST, reason + silent))

    def ended(self, reason: str, detail: str) -> None:
        outcome = _TIMEOUTS.get(reason)
        if outcome is None:
            self.metrics.protocol_errors[reason].value += 1
        self._finish(outcome or Ended.PROTOCOL_ERROR, f"{reason}: {detail}")
        self.link.abort(reason)

    def _finish(self, outcome: Ended, detail: str) -> None:
        if self._outcome is None:
            self._outcome = (outcome, detail)

    def _tick(self) -> None:
        if not self._ticking:
            return
        now, before, self._ticked_at = self.now, self._ticked_at, self.now
        self.runtime.wheel.arm(WATCH_TICK_S, self._tick)
        if before and now - before > SUSPENDED_S:
            # Stopped, or starved of its processor: what came meanwhile is read before anybody is called silent.
            for call in list(self.calls.values()):
                call.slept(now - before - WATCH_TICK_S)
            return
        self.session.tick(now)
        for call in list(self.calls.values()):
            call.tick(now)

    def received(self, message: m.Message) -> None:
        handler = self._HANDLERS.get(type(message))
        if handler is not None:
            handler(self, message)

    # ---- registration ------------------------------------------------------------------------------------------------

    def _registered(self, response: m.RegisterResponse) -> None:
        if not response.accepted:
            self._finish(_REJECTED.get(response.reason, Ended.CONNECTION_LOST), response.message)
            self.link.close("rejected")
            return
        assert response.config is not None  # decode checks it
        self._apply(response.config, self._say_ready)

    def _refresh(self, request: m.ConfigRefreshRequest) -> None:
        self._apply(request.config, self._say_refreshed)

    def _apply(self, payload: m.NodeConfigPayload, then: _Then) -> None:
        """Takes over a configuration and says how that went. One at a time; of those that come meanwhile the last one
        alone is of interest (CONF-2)."""
        self._next = payload, then
        if self._applying is None or self._applying.done():
            self._applying = self.runtime.loop.create_task(self._apply_next())

    async def _apply_next(self) -> None:
        while self._next is not None:
            (payload, then), self._next = self._next, None
            rejected: list[m.Rejected] | None = None
            try:
                rejected = await self.backends.apply(payload)
            except Exception as exc:
                log.error("config_broken", exc_info=exc)
            for one in rejected or ():
                fields = {"provider": one.provider_id, "reason": one.code, "detail": one.detail}
                log.error("provider_rejected", extra={"fields": fields})
            if self.session.state is not State.CLOSED:
                then(payload, rejected)

    def _say_ready(self, payload: m.NodeConfigPayload, rejected: list[m.Rejected] | None) -> None:
        if rejected is None:
            self._finish(Ended.CONFIG_REJECTED, "a fault of the node itself; see the line before")
            self.session.goodbye(m.GoodbyeReason.CONFIG_REJECTED, code=CONFIG_REJECTED, ref="?")
            self.link.close(CONFIG_REJECTED)
            return
        self._in_force = payload
        self.backends.owed_to = self.call_closed
        held = [m.HeldSlots(provider_id, n) for provider_id, n in self.backends.gate.carry_over().items()]
        self.session.ready(m.NodeReadyRequest(payload.node_id, payload.revision, held, rejected), self.now)

    def _say_refreshed(self, payload: m.NodeConfigPayload, rejected: list[m.Rejected] | None) -> None:
        if rejected is None:
            log.warning("config_refused", extra={"fields": {"revision": payload.revision}})
            self.session.send(m.ConfigRefreshResponse(payload.revision, False, CONFIG_REJECTED, "?"))
            return
        log.info("config_applied", extra={"fields": {"revision": payload.revision}})
        self._in_force = payload
        self.session.send(m.ConfigRefreshResponse(payload.revision, True, rejected=rejected))
        if self.session.state is State.READY:
            self.inventory.configure(payload)

    def _ready(self, response: m.NodeReadyResponse) -> None:
        if response.ready:
            self._on_ready()
            owed, self._owed = self._owed, []
            for closed in owed:
                self.session.send(m.EdgeNodeEvent(call_closed=closed))
            if self._in_force is not None:
                self.inventory.configure(self._in_force)
        else:
            self._finish(_REJECTED.get(response.reason, Ended.STALE_CONNECTION), "the edge refused the ready node")
            self.link.close("refused")

    def _goodbye(self, message: m.Goodbye) -> None:
        self._finish(Ended.GOODBYE, message.code or message.reason.name.lower())
        self.link.close("goodbye")

    # ---- work --------------------------------------------------------------------------------------------------------

    def _open(self, request: m.ProviderTunnelRequest | m.RunRequest) -> None:
        """Opens a tunnel or a normalized run, or refuses it with exactly one terminal (TUN-1, EXEC-1)."""
        head = b""
        try:
            if self.draining:
                raise NodeDraining
            provider = self.backends.providers.get(request.provider_id)
            if provider is None or provider.config.kind != request.adapter:
                raise UnknownProvider
            if isinstance(request, m.ProviderTunnelRequest):
                head = provider.request_head(request)
            leased = request.lease.lease_id != 0
            slot = self.backends.gate.try_acquire(request.provider_id, leased=leased, backend=provider.origin)
        except IopError as exc:
            return self._refuse(request, failure_of(exc))
        if slot is None:
            self.metrics.capacity_refusals.add()
            # What a direct run is told changes nothing in the edge's books, so nothing is owed for it.
            gate = self.backends.gate
            held = gate.report_full(request.provider_id) if leased else gate.held(request.provider_id)
            return self._refuse(request, capacity_exceeded(held))
        call: ProviderCall
        background = False
        if isinstance(request, m.ProviderTunnelRequest):
            call = Tunnel(self, request, provider, slot, head)
        else:
            call = NormalizedRun(self, request, provider, slot)
            background = request.background
        try:
            self.session.mux.adopt(call.stream, request.stream_id, limits.STREAM_WINDOW_BYTES, request.window_bytes)
        except ProtocolError:
            slot.release()
            raise
        self.calls[request.stream_id] = call
        self._rows[request.stream_id] = self.runs.started(
            request.run_id, request.lease.attempt, call.kind, adapter=request.adapter, provider=request.provider_id,
            target=request.target, session_id=request.session_id, background=background,
        )  # fmt: skip
        return call.open()

    def _refuse(self, request: m.ProviderTunnelRequest | m.RunRequest, failure: ExecutionFailure) -> None:
        said = on_wire(failure)
        if isinstance(request, m.RunRequest):
            source = RunSource(_NOBODY)
            self.session.mux.adopt(source, request.stream_id, limits.STREAM_WINDOW_BYTES, request.window_bytes)
            event = m.RunEvent(m.RunEventKind.ERROR, failure=said, session_id=request.session_id)
            source.event(event.kind, codec.run_event(request.stream_id, 0, event))
            self.metrics.runs[failure.code, self._known(request.provider_id)].value += 1
        else:
            stream = ProviderStream(_NOBODY)
            self.session.mux.adopt(stream, request.stream_id, limits.STREAM_WINDOW_BYTES, request.window_bytes)
            stream.send_terminal(codec.tunnel_error(request.stream_id, 0, said))
            self.metrics.tunnels[failure.code, self._known(request.provider_id)].value += 1

    def _known(self, provider_id: str) -> str:
        """The value of the label ``provider``: only ids that this node has."""
        return provider_id if provider_id in self.backends.providers else "other"

    def _cancel(self, request: m.CancelRequest) -> None:
        call = self.calls.get(request.stream_id)
        if call is not None:
            call.cancel()

    def finished(self, call: ProviderCall, error: IopError | None, *, owed: bool) -> None:
        """A provider's call has really ended."""
        stream_id, provider_id = call.stream.stream_id, call.slot.provider_id
        self.calls.pop(stream_id, None)
        code = error.code if error is not None else None
        counter = self.metrics.tunnels if call.kind == "tunnel" else self.metrics.runs
        counter[code or "ok", self._known(provider_id)].value += 1
        status: Status = "complete" if code is None else "cancelled" if code == RequestCancelled.code else "error"
        self.runs.ended(self._rows.pop(stream_id, None), status, code)
        if owed:
            self.backends.call_closed(provider_id, stream_id)
        if code is None:
            return
        if code == NodeExhausted.code:
            self._log_exhausted()
        if call.dropped_bytes:
            self.metrics.late_bytes[call.kind].value += call.dropped_bytes
        if code in _GONE:
            self.health.lost(call.provider, call.target)

    def _log_exhausted(self) -> None:
        """Say that this machine can open no connection, at most once in ``EXHAUSTED_LOG_S``."""
        if self.now - self._exhausted_at >= EXHAUSTED_LOG_S:
            self._exhausted_at = self.now
            log.error("node_exhausted", extra={"fields": {"detail": NodeExhausted.text, "calls": len(self.calls)}})

    def stalled(self, kind: Kind, watchdog: Watchdog) -> None:
        """A stall is about to be reported."""
        failure = watchdog.failure()
        health, liveness = failure.provider_health, failure.liveness_classification
        assert health is not None
        assert liveness is not None
        close = "confirmed" if failure.close_confirmed else "unconfirmed"
        self.metrics.stalls[kind, health.value, close].value += 1
        self.metrics.stall_seconds[()].observe(watchdog.idle_s)
        fields = {
            "kind": kind,
            "provider_health": health.value,
            "liveness_classification": liveness.value,
            "close": close,
            "retryable": failure.retryable,
        }
        log.warning("node_response_stall_observation", extra={"fields": fields})

    def call_closed(self, provider_id: str, stream_id: int) -> None:
        """The end of a unit that the edge counts as lingering (POOL-12), or will when it is ready."""
        closed = m.CallClosed(provider_id, stream_id)
        if self.session.state is State.READY:
            self.session.send(m.EdgeNodeEvent(call_closed=closed))
        elif self.session.state is State.PENDING:
            self._owed.append(closed)

    def _command(self, request: m.NodeCommandRequest) -> None:
        self.commands.received(request)

    def answer_command(self, response: m.NodeCommandResponse) -> None:
        """The one answer to a command, unless the session is over."""
        if self.session.state is State.READY:
            self.session.send(response)

    def _report_health(self, seen: m.HealthObservation) -> None:
        if self.session.state is State.READY:
            self.session.send(m.EdgeNodeEvent(health_observation=seen))

    def _report_inventory(self, found: m.Inventory) -> None:
        if self.session.state is State.READY:
            self.session.send(m.EdgeNodeEvent(inventory=found))

    # ---- the end -----------------------------------------------------------------------------------------------------

    def drain(self, grace_s: float) -> None:
        """No new work; what runs may finish (SUP-5)."""
        self.draining = True
        if self.session.state is State.READY:
            self.session.send(m.EdgeNodeEvent(draining=m.Draining(int(grace_s * 1000))))

    def give_up(self) -> None:
        """Cancel what runs, calls and commands, and begin nothing any more."""
        self.draining = True
        for call in list(self.calls.values()):
            call.cancel()
        self.commands.stop()
        self.health.close()
        self.inventory.close()

    @property
    def idle(self) -> bool:
        """Whether no call and no command runs."""
        return not self.calls and not self.commands.running

    def leave(self) -> None:
        """Says goodbye and closes."""
        self._finish(Ended.GOODBYE, "local shutdown")
        self.session.goodbye(m.GoodbyeReason.SHUTDOWN)
        self.link.close("shutdown")

    _HANDLERS: Mapping[type[Any], Callable[[Agent, Any], None]] = {
        m.RegisterResponse: _registered,
        m.NodeReadyResponse: _ready,
        m.ConfigRefreshRequest: _refresh,
        m.ProviderTunnelRequest: _open,
        m.RunRequest: _open,
        m.CancelRequest: _cancel,
        m.NodeCommandRequest: _command,
        m.Goodbye: _goodbye,
    }


class _Nobody:
    """Owner of a stream that was refused: its body is dropped."""

    def on_request_body(self, data: bytes, last: bool) -> None: ...
    def on_body_end(self, extra_bytes: int) -> None: ...
    def on_body_error(self, error: IopError | None) -> None: ...
    def pause_source(self) -> None: ...
    def resume_source(self) -> None: ...
    def on_broken(self, exc: Exception) -> None: ...


_NOBODY = _Nobody()
