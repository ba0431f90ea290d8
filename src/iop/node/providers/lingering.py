"""Slots whose calls have ended here and go on in their engine, until the engine is done with them (TUN-5d, POOL-12).

Some engines go on with a request whose client has left before the first token. Its call is closed, and said to be; its
slot stays taken, so that nobody is sent to an engine that has no room. The engine is asked every two seconds, once for
all of its slots: asked more often, such an engine does not notice that the client has left. A slot comes back when the
engine runs no more than the node has calls open there, when the engine cannot tell, and after two minutes in any case.
It does not depend on the connection to the edge: like the gate it outlives all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from iop.execution.gate import Slot
from iop.net.loop import Runtime
from iop.net.wheel import Timer
from iop.node.providers.engine_load import Engines
from iop.node.providers.provider import Provider

__all__ = ["ASK_S", "BOUND_S", "Lingering"]

log = logging.getLogger("iop.node.providers.lingering")

ASK_S = 2.0
BOUND_S = 120.0


@dataclass(slots=True)
class _Left:
    """A slot, the stream of its call, and when that was closed."""

    slot: Slot
    stream_id: int
    at: float


@dataclass(slots=True)
class _Watch:
    """The slots of one provider, oldest first, and what is to come: a question under way, or the timer of the next."""

    provider: Provider
    left: list[_Left] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    timer: Timer | None = None


class Lingering:
    """See the module. ``freed`` hears of a slot that came back: its provider and its stream. ``ended`` and ``expired``
    count the slots that came back because the engine was done, and because their time was over."""

    def __init__(self, runtime: Runtime, engines: Engines, freed: Callable[[str, int], None]) -> None:
        self._runtime = runtime
        self._engines = engines
        self._freed = freed
        self._watches: dict[Provider, _Watch] = {}
        self._closed = False
        self.ended = 0
        self.expired = 0

    def add(self, provider: Provider, slot: Slot, stream_id: int) -> None:
        """The call of this slot is closed, and its engine may go on with it. From here on the edge is owed the end."""
        if self._closed:
            slot.release()
            return
        if slot.leased:  # the edge counts no other
            slot.linger()
        watch = self._watches.setdefault(provider, _Watch(provider))
        watch.left.append(_Left(slot, stream_id, self._now))
        if watch.task is None and watch.timer is None:
            self._wait(watch)

    @property
    def held(self) -> int:
        """How many slots are in here."""
        return sum(len(watch.left) for watch in self._watches.values())

    def count(self, provider: Provider) -> int:
        """How many slots of a provider are in here, of its server alone."""
        at = provider.config.id, provider.origin
        return sum(len(w.left) for p, w in self._watches.items() if (p.config.id, p.origin) == at)

    def close(self) -> None:
        """The node ends: nobody is asked any more, and nobody counts the slots."""
        self._closed = True
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            if watch.timer is not None:
                watch.timer.cancel()
            if watch.task is not None:
                watch.task.cancel()
            for left in watch.left:
                left.slot.release()

    @property
    def _now(self) -> float:
        return self._runtime.wheel.now

    def _wait(self, watch: _Watch) -> None:
        watch.timer = self._runtime.wheel.arm(ASK_S, lambda: self._ask(watch))

    def _ask(self, watch: _Watch) -> None:
        watch.timer = None
        watch.task = self._runtime.loop.create_task(self._look(watch))
        watch.task.add_done_callback(lambda task: self._looked(watch, task))

    async def _look(self, watch: _Watch) -> None:
        reading = await self._engines.ask(watch.provider)
        if reading is None or reading.mute:
            done = len(watch.left)
        elif reading.figures is None:
            done = 0
        else:
            # An answer says nothing of a call that was closed after the question was put.
            done = sum(left.at < reading.asked_at for left in watch.left) - reading.surplus
        self.ended += self._free(watch, done)

    def _looked(self, watch: _Watch, task: asyncio.Task[None]) -> None:
        watch.task = None
        if self._closed or task.cancelled():
            return
        if (fault := task.exception()) is not None:
            log.error("lingering_broken", exc_info=fault)
        oldest_at = self._now - BOUND_S
        self.expired += self._free(watch, sum(left.at <= oldest_at for left in watch.left))
        if watch.left:
            self._wait(watch)
        else:
            del self._watches[watch.provider]

    def _free(self, watch: _Watch, count: int) -> int:
        """The oldest slots come back, so many of them; answers how many did."""
        done, watch.left = watch.left[: max(0, count)], watch.left[max(0, count) :]
        for left in done:
            if left.slot.release():
                self._freed(left.slot.provider_id, left.stream_id)
        return len(done)
