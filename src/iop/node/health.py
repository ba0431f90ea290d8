"""All that one connection tells its edge about the health of providers: who is probed when, and in which order that was
seen (LIVE-5, LIVE-8, HEALTH-5, HEALTH-6).

Three things ask: a call that has stalled, the CAPABILITIES command, and a call that could not reach its provider or
lost it. The first two are answered with what their own probe says; for the third the node reports by itself, after the
call's terminal. Whoever asks about the same target in the same instant shares a probe, since a provider that dies takes
all its calls with it. Each observation has a number of its own, from one source: the edge believes the later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from iop.execution.failure import ProviderHealth
from iop.net.loop import Runtime
from iop.node.backends import Backends
from iop.node.probe import probe
from iop.node.provider import Provider
from iop.observability.metrics import NodeMetrics
from iop.wire import messages as m

__all__ = ["Health"]

REST_S = 1.0  # between two reports about one target
MOST_REPORTS = 64  # of targets at a time; a node with more dead ones than that says so of these first

_Key = tuple[Provider, str]
_Probe = asyncio.Task[ProviderHealth]


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
        self._latest: dict[_Key, tuple[float, _Probe]] = {}
        self._reporting: dict[_Key, bool] = {}  # whether there is a reason to look again
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

    def ask(self, provider: Provider, target: str, cause: str, heard: Callable[[ProviderHealth], None]) -> None:
        """Probes; ``heard`` is called later and once. ``cause``: ``stall``, ``command`` or ``failure``."""

        def done(task: _Probe) -> None:
            health = ProviderHealth.UNKNOWN if task.cancelled() else task.result()
            self._metrics.probes[cause, health.value].value += 1
            heard(health)

        self._probe(provider, target).add_done_callback(done)

    async def observe(self, provider: Provider, target: str) -> tuple[ProviderHealth, int]:
        """A numbered observation, for CAPABILITIES (HEALTH-5)."""
        heard: asyncio.Future[ProviderHealth] = self._runtime.loop.create_future()

        def tell(health: ProviderHealth) -> None:
            if not heard.done():  # whoever waited may have been cancelled
                heard.set_result(health)

        self.ask(provider, target, "command", tell)
        return await heard, self.number()

    def _probe(self, provider: Provider, target: str) -> _Probe:
        key, now = (provider, target), self._runtime.wheel.now
        begun_at, present = self._latest.get(key, (-1.0, None))
        if present is not None and begun_at == now:
            return present
        task = self._runtime.loop.create_task(probe(provider, target))
        self._latest[key] = now, task
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, key))
        if self._closed:
            task.cancel()
        return task

    def _ended(self, key: _Key, task: _Probe) -> None:
        self._tasks.discard(task)
        latest = self._latest.get(key)
        if latest is not None and latest[1] is task:
            del self._latest[key]

    # ---- what the node reports by itself -----------------------------------------------------------------------------

    def lost(self, provider: Provider, target: str) -> None:
        """A call could not reach its provider, or lost it: the edge is told how it is (HEALTH-6). One probe at a time
        for a target, with a rest behind it; what happens meanwhile is looked into after that."""
        key = provider, target
        if key in self._reporting:
            self._reporting[key] = True
        elif len(self._reporting) < MOST_REPORTS:
            self._look(key)

    def _look(self, key: _Key) -> None:
        provider, target = key
        if self._closed or self._backends.providers.get(provider.config.id) is not provider:
            return  # what was lost is configured no more
        self._reporting[key] = False
        self.ask(provider, target, "failure", partial(self._looked, key))

    def _looked(self, key: _Key, health: ProviderHealth) -> None:
        if self._closed:
            return
        config, target = key[0].config, key[1]
        word = m.ProviderHealth[health.name]
        self._report(m.HealthObservation(config.id, config.kind, target, word, self.number()))
        self._runtime.wheel.arm(REST_S, partial(self._rested, key))

    def _rested(self, key: _Key) -> None:
        if self._reporting.pop(key):
            self._look(key)
