"""Async tests without a plugin: a fresh uvloop loop per test, a bound on its time, and a leak check around it.

    @async_test()
    async def test_something(tmp_path): ...

pytest sees a plain function with the same fixtures. After the body, no task, file descriptor or child process may be
left that was not there before.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import uvloop

from tests.support.leaks import Leftovers

P = ParamSpec("P")
T = TypeVar("T")

TIMEOUT_S = 30.0


def async_test(
    *, timeout_s: float = TIMEOUT_S, leaks: bool = True
) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Makes a test of a coroutine function; see the module's text."""

    def decorate(body: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
        @functools.wraps(body)
        def test(*args: P.args, **kwargs: P.kwargs) -> None:
            run(body(*args, **kwargs), timeout_s=timeout_s, leaks=leaks)

        # pytest asks the wrapped function whether it is a coroutine function, and its signature for fixtures.
        test.__signature__ = inspect.signature(body)  # type: ignore[attr-defined]
        del test.__wrapped__
        return test

    return decorate


def run(body: Coroutine[Any, Any, T], *, timeout_s: float = TIMEOUT_S, leaks: bool = True) -> T:
    """Runs ``body`` on a fresh uvloop loop. Raises :class:`TimeoutError` after ``timeout_s``, and
    :class:`AssertionError` naming what the body left behind."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout_s):
            result = await body
        if leaks:
            await _no_tasks()
        return result

    _first_loop()
    before = Leftovers.now()
    gc.freeze()  # what there is by now is not walked below: late in a session that takes longer than most tests
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(bounded())
        if leaks:
            gc.collect()  # sockets in reference cycles close here, with the ResourceWarning that fails the test
            before.assert_nothing_new()
    finally:
        gc.unfreeze()
    return result


@functools.cache
def _first_loop() -> None:
    """The first uvloop of a process opens descriptors that it keeps for all later ones (fork and signal handling)."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))


async def _no_tasks() -> None:
    """A few rounds of the loop let what was cancelled or closed finish; whoever is still there then is a leak."""
    current = asyncio.current_task()
    tasks: set[asyncio.Task[Any]] = set()
    for _ in range(20):
        tasks = {task for task in asyncio.all_tasks() if task is not current}
        if not tasks:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"tasks left behind: {sorted(repr(task.get_coro()) for task in tasks)}")


async def until(condition: Callable[[], bool], *, timeout_s: float = 10.0, what: str = "") -> None:
    """Waits until ``condition()`` holds, asking every millisecond: for what offers no future to await. No test may
    depend on how often it is asked."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        if loop.time() > deadline:
            raise AssertionError(f"still not true after {timeout_s} s: {what or inspect.getsource(condition).strip()}")
        await asyncio.sleep(0.001)


async def until_seen(look: Callable[[], Awaitable[object]], expected: object, *, timeout_s: float = 10.0) -> None:
    """Waits until an awaited ``look()`` sees what is expected: for what another process shows only when it is asked. No
    test may depend on how often it is asked."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while (seen := await look()) != expected:
        assert loop.time() < deadline, f"still {seen} after {timeout_s} s, not {expected}"
        await asyncio.sleep(0.05)
