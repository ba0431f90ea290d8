"""What the engines behind the providers say that they are doing, asked once for all callers (POOL-13, TUN-5d).

An engine has one question under way at a time, and one that must not be asked often is asked no more than its adapter
allows: until then every caller gets the last answer. The probes of such an engine that ask the same path take their
answer from here, too. A question has a connection of its own, and takes no slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from iop.errors import IopError, ProviderUnreachable
from iop.net.http.fetch import AnswerTooLarge
from iop.net.loop import Runtime
from iop.net.wheel import TICK_S
from iop.node.providers.kind import Figures
from iop.node.providers.provider import Provider
from iop.node.providers.questions import ABSENT

__all__ = ["ENGINE_S", "Engines", "Reading"]

ENGINE_S = 2.0  # for one engine, so that one that hangs hides no figure of the others
ENGINES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer, or None for ``figures`` without one. ``asked_at`` is in the wheel's time. ``open_calls`` is how many
    calls the node had open at this provider while it was asked: the lower one of before and after. ``status`` is that
    of the answer; without one ``fault`` says why, or the time was over."""

    asked_at: float
    open_calls: int
    figures: Figures | None
    status: int = 0
    fault: type[IopError] | None = None

    @property
    def mute(self) -> bool:
        """Whether the server is not there, or has no such endpoint, so that it will not tell."""
        return self.status in ABSENT or self.fault is ProviderUnreachable

    @property
    def surplus(self) -> int:
        """Requests that the engine runs beyond the node's open calls; 0 where it does not tell."""
        return max(0, self.figures.running - self.open_calls) if self.figures is not None else 0


class Engines:
    """See the module. ``open_calls`` tells how many calls of the node are open at a provider."""

    def __init__(self, runtime: Runtime, open_calls: Callable[[Provider], int]) -> None:
        self._runtime = runtime
        self._open_calls = open_calls
        self._at_once = asyncio.Semaphore(ENGINES_AT_ONCE)
        self._asking: dict[Provider, asyncio.Task[Reading]] = {}
        self._last: dict[str, tuple[Provider, Reading]] = {}  # of those that must not be asked often, by id
        self._closed = False

    async def ask(self, provider: Provider, since: float = 0.0) -> Reading | None:
        """What the engine says, in answer to a question that was put behind ``since``, in the wheel's time; None for a
        kind of provider that cannot be asked. It waits until the engine may be asked again, if need be."""
        engine = provider.adapter.engine
        if engine is None:
            return None
        while True:
            task = self._asking.get(provider)
            if task is None:
                known, last = self._last.get(provider.config.id, (None, None))
                wait_s = last.asked_at + engine.rest_s - self._now if known is provider and last is not None else 0.0
                if last is not None and wait_s > 0:
                    if last.asked_at > since:
                        return last
                    await asyncio.sleep(wait_s + TICK_S)  # the wheel's time may lag by a tick
                    continue
                task = self._asking[provider] = self._runtime.loop.create_task(self._ask(provider))
                task.add_done_callback(partial(self._asked, provider))
                if self._closed:
                    task.cancel()
            reading = await asyncio.shield(task)  # one caller may be cancelled, and the others wait on
            if reading.asked_at > since:
                return reading

    def rests(self, provider: Provider, path: bytes) -> bool:
        """Whether ``path`` is where this provider's engine is asked, and must not be asked often."""
        engine = provider.adapter.engine
        return engine is not None and engine.rest_s > 0 and path == provider.engine_path

    async def status(self, provider: Provider) -> int:
        """The status of the engine's last answer as long as it rests, else of the answer to a question now.

        Raises what that question raised: an IopError, or TimeoutError.
        """
        reading = await self.ask(provider)
        if reading is None or not reading.status:
            raise reading.fault if reading is not None and reading.fault is not None else TimeoutError
        return reading.status

    def close(self) -> None:
        """No engine is asked any more; who waits is cancelled."""
        self._closed = True
        for task in list(self._asking.values()):
            task.cancel()

    def forget(self, provider_ids: frozenset[str]) -> None:
        """Only these are configured."""
        self._last = {i: entry for i, entry in self._last.items() if i in provider_ids}

    @property
    def _now(self) -> float:
        return self._runtime.wheel.now

    def _asked(self, provider: Provider, task: asyncio.Task[Reading]) -> None:
        del self._asking[provider]
        engine = provider.adapter.engine
        if engine is not None and engine.rest_s and not task.cancelled():
            self._last[provider.config.id] = provider, task.result()

    async def _ask(self, provider: Provider) -> Reading:
        engine = provider.adapter.engine
        assert engine is not None
        figures: Figures | None = None
        fault: type[IopError] | None = None
        status = 0
        async with self._at_once:
            asked_at, before = self._now, self._open_calls(provider)
            try:
                async with asyncio.timeout(ENGINE_S):
                    status, body = await provider.ask(b"GET", provider.engine_path, max_bytes=engine.max_bytes)
                figures = engine.read(body) if status == 200 else None
            except TimeoutError:
                pass
            except AnswerTooLarge as exc:
                status = exc.provider_status
            except IopError as exc:
                fault = type(exc)
        return Reading(asked_at, min(before, self._open_calls(provider)), figures, status, fault)
