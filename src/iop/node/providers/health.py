"""All that one connection tells its edge about the health of providers: who is probed when, and in which order that was
seen (LIVE-5, LIVE-8, HEALTH-5 … HEALTH-8, HEALTH-10).

Four things ask: a call that has stalled, or may have; the CAPABILITIES command; a call that could not reach its
provider or lost it; and a call that its provider answered with 404. The first two are answered with what their own
probe says; for the others the node reports by itself, after the call's terminal. Whoever asks the same about the same
target in the same instant shares a probe, since a provider that dies takes all its calls with it. Each observation has
a number of its own, from one source: the edge believes the later one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from iop.execution.failure import HealthReason, ProviderHealth
from iop.net.loop import Runtime
from iop.node.providers.engine_load import Reading
from iop.node.providers.probe import BOUND_S, Finding, Look, look, probe
from iop.node.providers.provider import Provider
from iop.node.providers.registry import Backends
from iop.observability.metrics import NodeMetrics
from iop.wire import messages as m

__all__ = ["MISSING_REST_S", "MOST_REPORTS", "REST_S", "Health"]

log = logging.getLogger("iop.node.providers.health")

REST_S = 1.0  # between two reports about one target
MISSING_REST_S = 10.0  # between two looks at one target that a provider answered 404 for (HEALTH-7)
MOST_REPORTS = 64  # of targets at a time; a node with more dead ones than that says so of these first

_Key = tuple[Provider, str]
_Probe = asyncio.Task[Finding]
_UNKNOWN = Finding(ProviderHealth.UNKNOWN)


class Health:
    """See the module. ``report`` sends an observation; it is dropped where there is no ready session. ``close`` ends
    all probes: those who wait hear that nothing is known."""

    def __init__(
        self, runtime: Runtime, backends: Backends, metrics: NodeMetrics, report: Callable[[m.HealthObservation], None]
    ) -> None:
        self._runtime = runtime
        self._backends = backends
        self._metrics = metrics
        self._report = report
        self._seq = 0
        self._tasks: set[_Probe] = set()
        self._latest: dict[tuple[Any, ...], tuple[float, _Probe]] = {}
        self._reporting: dict[_Key, bool] = {}  # whether there is a reason to look again
        self._missing: set[_Key] = set()  # looked at for a 404 a short while ago
        self._down: set[tuple[str, str]] = set()  # providers and targets, "" for all, that were last found dead
        self._closed = False

    def number(self) -> int:
        """The next observation's: the first is 1 (LIVE-8)."""
        self._seq += 1
        return self._seq

    def close(self) -> None:
        """The session is over."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()

    # ---- asking ------------------------------------------------------------------------------------------------------

    def ask(
        self,
        provider: Provider,
        target: str,
        cause: str,
        heard: Callable[[Finding], None],
        reason: HealthReason | None = None,
        *,
        since: float = 0.0,
    ) -> None:
        """Probe. ``heard`` is called later and once. ``cause``: ``stall``, whose finding the caller announces if it
        counts, ``command`` or ``failure``. ``reason``: why the edge has lowered what is asked about. ``since``, of a
        stall: figures of the engine from before that say nothing of the call."""
        stall = cause == "stall"

        def done(task: _Probe) -> None:
            found = _UNKNOWN if task.cancelled() else task.result()
            self._metrics.probes[cause, found.health.value].value += 1
            if not stall:
                self.announce(provider, target, found)
            heard(found)

        key = provider, target, reason, stall
        if stall:
            ask = self._ask_of_stall(provider, target, since)
        else:
            ask = probe(provider, target, self._backends.engines, reason=reason)
        self._probe(key, ask).add_done_callback(done)

    async def observe(
        self, provider: Provider, target: str, reason: HealthReason | None = None
    ) -> tuple[ProviderHealth, int]:
        """A numbered observation, for CAPABILITIES (HEALTH-5)."""
        heard: asyncio.Future[Finding] = self._runtime.loop.create_future()

        def tell(found: Finding) -> None:
            if not heard.done():  # who waited may have been cancelled
                heard.set_result(found)

        self.ask(provider, target, "command", tell, reason)
        return (await heard).health, self.number()

    async def look(self, provider: Provider, targets: Sequence[str]) -> Look:
        """One look at a provider for all of its targets; what is dead is reported as if a call had found it
        (HEALTH-10)."""
        found = await look(provider, targets, self._backends.engines)
        self._metrics.probes["command", found.finding.health.value].value += 1
        self.announce(provider, targets[0], found.finding)
        if found.finding.health is ProviderHealth.UNAVAILABLE:
            self.tell(provider, targets[0], found.finding)
        return found

    def announce(self, provider: Provider, target: str, found: Finding, *, stalled: bool = False) -> None:
        """Name a provider that was found dead, or alive again, in the log (OBS-1c)."""
        where = provider.config.id, target if found.target_only else ""
        fields = {"provider": where[0]} | ({"target": where[1]} if where[1] else {})
        if found.health is ProviderHealth.UNAVAILABLE and where not in self._down:
            self._down.add(where)
            reason = "stalled" if stalled else found.reason.value if found.reason is not None else "failing"
            log.warning("provider_lowered", extra={"fields": {**fields, "reason": reason}})
        elif found.health is ProviderHealth.AVAILABLE:
            for down in self._down & {(where[0], ""), (where[0], target)}:
                self._down.discard(down)
                said = {"provider": down[0]} | ({"target": down[1]} if down[1] else {})
                log.info("provider_restored", extra={"fields": said})

    async def _ask_of_stall(self, provider: Provider, target: str, since: float) -> Finding:
        """The probe and the engine's figures of a call that has stalled, or may have: within one bound."""
        clock = self._runtime.loop.time
        due_at = clock() + BOUND_S
        found = await probe(provider, target, self._backends.engines, bound_s=BOUND_S)
        if found.target_only:
            # What is lowered for that is the target, and a stall would lower the provider (HEALTH-7).
            self.tell(provider, target, found)
            found = _UNKNOWN
        if found.health is ProviderHealth.UNAVAILABLE:
            return found
        reading = await self._reading(provider, due_at, since)
        if reading is None or reading.figures is None:
            return found
        # A reading may be older than the end of the call that has stalled, which such an engine goes on with.
        open_calls = min(reading.open_calls, self._backends.open_calls(provider))
        running = reading.figures.running
        return found._replace(busy=running > open_calls, idle=running == 0)

    async def _reading(self, provider: Provider, due_at: float, since: float) -> Reading | None:
        """What the engine says of its requests, if it counts them and answers in time."""
        engine = provider.adapter.engine
        if engine is None or not engine.counts_requests:
            return None
        try:
            async with asyncio.timeout_at(due_at):
                return await self._backends.engines.ask(provider, since)
        except TimeoutError:
            return None

    def _probe(self, key: tuple[Any, ...], ask: Coroutine[Any, Any, Finding]) -> _Probe:
        now = self._runtime.wheel.now
        begun_at, present = self._latest.get(key, (-1.0, None))
        if present is not None and begun_at == now:
            ask.close()
            return present
        task = self._runtime.loop.create_task(ask)
        self._latest[key] = now, task
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, key))
        if self._closed:
            task.cancel()
        return task

    def _ended(self, key: tuple[Any, ...], task: _Probe) -> None:
        self._tasks.discard(task)
        latest = self._latest.get(key)
        if latest is not None and latest[1] is task:
            del self._latest[key]

    # ---- what the node reports by itself -----------------------------------------------------------------------------

    def tell(self, provider: Provider, target: str, found: Finding) -> None:
        """Reports what was found."""
        if self._closed:
            return
        config, reason = provider.config, found.reason
        self._report(
            m.HealthObservation(
                config.id,
                config.kind,
                target,
                m.ProviderHealth[found.health.name],
                self.number(),
                m.HealthReason[reason.name] if reason is not None else m.HealthReason.UNSPECIFIED,
                m.HealthScope.TARGET if found.target_only else m.HealthScope.UNSPECIFIED,
            )
        )

    def lost(self, provider: Provider, target: str) -> None:
        """A call could not reach its provider, or lost it: the edge is told how it is (HEALTH-6). One probe at a time
        for a target, with a rest behind it; what happens meanwhile is looked into after that."""
        key = provider, target
        if key in self._reporting:
            self._reporting[key] = True
        elif len(self._reporting) < MOST_REPORTS:
            self._look(key)

    def missing(self, provider: Provider, target: str) -> None:
        """A provider answered 404 where it should have the target: looks, once in a while (HEALTH-7)."""
        key = provider, target
        if key not in self._missing and len(self._missing) < MOST_REPORTS:
            self._missing.add(key)
            self._runtime.wheel.arm(MISSING_REST_S, partial(self._missing.discard, key))
            self.lost(provider, target)

    def _look(self, key: _Key) -> None:
        provider, target = key
        if self._closed or self._backends.providers.get(provider.config.id) is not provider:
            return  # what was lost is configured no more
        self._reporting[key] = False
        self.ask(provider, target, "failure", partial(self._looked, key))

    def _looked(self, key: _Key, found: Finding) -> None:
        if self._closed:
            return
        self.tell(*key, found)
        self._runtime.wheel.arm(REST_S, partial(self._rested, key))

    def _rested(self, key: _Key) -> None:
        if self._reporting.pop(key):
            self._look(key)
