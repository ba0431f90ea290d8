"""A virtual clock, and event loops that run on it: as many as there are programs, all in one thread and one order.

A program's loop is a facade over the one kernel. When a program is killed its loop is dead, and nothing of it runs any
more, as with a process. Callbacks of one instant run in the order in which they were asked for, as in asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any

__all__ = ["Handle", "Kernel", "Loop"]


class Handle:
    """One callback to come. ``cancel`` is idempotent."""

    __slots__ = ("args", "at", "callback", "loop")

    def __init__(self, loop: Loop, callback: Callable[..., Any], args: tuple[Any, ...], at: float) -> None:
        self.loop = loop
        self.callback: Callable[..., Any] | None = callback
        self.args = args
        self.at = at

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.at


class Kernel:
    """Time, and what is to happen. ``after(loop)`` is called behind every callback that ran."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.steps = 0
        self.after: Callable[[Loop], None] = lambda loop: None
        self.failed: Callable[[Loop, BaseException | str], None] = self._raise
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._count = 0

    @staticmethod
    def _raise(loop: Loop, error: BaseException | str) -> None:
        raise error if isinstance(error, BaseException) else RuntimeError(error)

    def soon(self, handle: Handle) -> Handle:
        self._ready.append(handle)
        return handle

    def at(self, handle: Handle) -> Handle:
        self._count = count = self._count + 1
        heappush(self._timers, (handle.at, count, handle))
        return handle

    def step(self) -> bool:
        """Runs the next callback, moving time if need be. False if there is nothing to come."""
        if self._ready:
            handle = self._ready.popleft()
        elif self._timers:
            at, _, handle = heappop(self._timers)
            if at > self.now:
                self.now = at
        else:
            return False
        callback, loop = handle.callback, handle.loop
        if callback is None or loop.dead:
            return True
        handle.callback = None
        self.steps += 1
        events._set_running_loop(loop)
        try:
            callback(*handle.args)
        except Exception as exc:
            self.failed(loop, exc)
        finally:
            events._set_running_loop(None)
        self.after(loop)
        return True

    def run_until(self, at: float) -> None:
        """Runs everything up to that instant."""
        timers = self._timers
        while self._ready or (timers and timers[0][0] <= at):
            self.step()
        self.now = max(self.now, at)


class Loop(asyncio.AbstractEventLoop):
    """What a program takes for its event loop. ``network`` gives it connections."""

    def __init__(self, kernel: Kernel, name: str, network: Any = None) -> None:
        self.kernel = kernel
        self.name = name
        self.dead = False
        self.program: Any = None  # whose loop it is; its check() runs behind each of its callbacks
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._network = network
        if network is not None:
            network.loops.append(self)

    def __repr__(self) -> str:
        return f"<Loop {self.name}>"

    def time(self) -> float:
        return self.kernel.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        return self.kernel.soon(Handle(self, callback, args, self.kernel.now))

    def call_later(self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        return self.kernel.at(Handle(self, callback, args, self.kernel.now + delay))

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        return self.kernel.at(Handle(self, callback, args, when))

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task = asyncio.Task(coro, loop=self)
        self.tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        del self.tasks[task]

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            self.kernel.failed(self, context.get("exception") or context.get("message", "?"))

    def create_connection(self, factory: Any, host: str, port: int, **options: Any) -> Any:  # type: ignore[override]
        return _Dial(self._network, self, factory, port)

    def end(self) -> None:
        """The world is over. Tasks of programs that were killed have stopped somewhere; they are closed there."""
        self.dead = True
        for task in list(self.tasks):
            with contextlib.suppress(RuntimeError):
                task.get_coro().close()  # type: ignore[union-attr]

    async def create_server(self, factory: Any, host: str, port: int, **options: Any) -> Any:  # type: ignore[override]
        return self._network.listen(self, factory, port)


class _Dial:
    """A connect to come. Not a coroutine, which would complain when its program is killed before it gets to it."""

    def __init__(self, network: Any, loop: Loop, factory: Any, port: int) -> None:
        self._what = network, loop, factory, port

    def __await__(self) -> Any:
        network, loop, factory, port = self._what
        return network.dial(loop, factory, port).__await__()
