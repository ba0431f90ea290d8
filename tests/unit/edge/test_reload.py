"""When the file is read: one reading at a time, storms taken together, and nothing that never comes back."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from iop.config.diff import Change
from iop.config.edge import EdgeConfig
from iop.config.load import parse_edge
from iop.edge.settings import reload as reload_module
from iop.edge.settings.reload import MAX_ASKERS, Prepared, Reloaded, Reloader
from iop.errors import ConfigError, InternalError, IopError, Overloaded, ShuttingDown
from iop.net.loop import Runtime
from iop.observability.metrics import EdgeMetrics
from tests.support.aio import async_test, until

CONFIG = parse_edge("")


class Desk:
    """A reloader whose file is read when the test says so."""

    def __init__(self, runtime: Runtime) -> None:
        self.metrics = EdgeMetrics()
        self.reading: list[threading.Event] = []
        self.found: EdgeConfig | Exception = CONFIG
        self.taken = 0
        self.answers: list[Reloaded | IopError] = []
        self.reloader = Reloader(runtime, self.metrics, self.load, self.prepare, self.take)

    def load(self) -> EdgeConfig:
        go = threading.Event()
        self.reading.append(go)
        assert go.wait(10)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def prepare(self, config: EdgeConfig) -> Prepared:
        return Prepared(CONFIG, config, Change(config, ("queue.timeout_ms",), ()), 0, {}, {}, [])

    def take(self, prepared: Prepared) -> Reloaded:
        self.taken += 1
        return Reloaded(self.taken, prepared.change)

    def ask(self) -> None:
        self.reloader.ask(self.answers.append)

    def results(self) -> dict[str, int]:
        return {labels[0]: int(n) for labels, n in self.metrics.config_reloads.read() if n}


@asynccontextmanager
async def desk() -> AsyncIterator[Desk]:
    runtime = Runtime(asyncio.get_running_loop())
    runtime.start()
    made = Desk(runtime)
    try:
        yield made
    finally:
        made.reloader.close()
        for go in made.reading:
            go.set()
        await until(lambda: not any(t.name == "iop-reload" for t in threading.enumerate()))
        runtime.close()


@pytest.mark.req("CONF-2")
@async_test()
async def test_a_storm_of_reloads_costs_two_readings() -> None:
    async with desk() as d:
        d.ask()
        await until(lambda: len(d.reading) == 1)
        for _ in range(100):
            d.ask()
        d.reloader.ask()  # as SIGHUP does, which waits for no answer
        assert d.answers == []
        d.reading[0].set()
        await until(lambda: len(d.answers) == 1)
        await until(lambda: len(d.reading) == 2)
        d.reading[1].set()
        await until(lambda: len(d.answers) == 101)
        # What was asked for after a reading began is not answered by it: the file may have changed since.
        assert [a.revision for a in d.answers if isinstance(a, Reloaded)] == [1] + [2] * 100
        assert (len(d.reading), d.taken, d.results()) == (2, 2, {"applied": 2})


@pytest.mark.req("CONF-2")
@async_test()
async def test_a_refusal_is_kept_until_a_reload_succeeds() -> None:
    async with desk() as d:
        d.found = ConfigError(["edge.yaml:1: a", "edge.yaml:2: b"])
        d.ask()
        await until(lambda: len(d.reading) == 1)
        d.reading[0].set()
        await until(lambda: len(d.answers) == 1)
        assert d.answers == [d.found]
        assert d.reloader.faults == ["edge.yaml:1: a", "edge.yaml:2: b"]
        assert (d.taken, d.results()) == (0, {"refused": 1})
        d.found = CONFIG
        d.ask()
        await until(lambda: len(d.reading) == 2)
        d.reading[1].set()
        await until(lambda: len(d.answers) == 2)
        assert d.reloader.faults == []


@pytest.mark.req("CONF-2")
def test_a_file_that_never_answers_is_given_up_and_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload_module, "READ_S", 0.1)

    @async_test()
    async def body() -> None:
        async with desk() as d:
            d.ask()
            await until(lambda: len(d.answers) == 1)
            assert "took longer than" in str(d.answers[0])
            d.ask()
            assert "still reads" in str(d.answers[1])
            assert len(d.reading) == 1, "one thread at most hangs"
            d.reading[0].set()  # it comes back after all, too late to count
            await until(lambda: not any(t.name == "iop-reload" for t in threading.enumerate()))
            await asyncio.sleep(0)
            assert d.taken == 0
            d.ask()
            await until(lambda: len(d.reading) == 2)
            d.reading[1].set()
            await until(lambda: len(d.answers) == 3)
            assert isinstance(d.answers[2], Reloaded)

    body()


@pytest.mark.req("CONF-2", "SEC-4")
def test_a_fault_of_ours_while_reading_is_told_and_leaves_the_rest_alone(caplog: pytest.LogCaptureFixture) -> None:
    @async_test()
    async def body() -> None:
        async with desk() as d:
            d.found = RuntimeError("a secret")
            with caplog.at_level(logging.ERROR):
                d.ask()
                await until(lambda: len(d.reading) == 1)
                d.reading[0].set()
                await until(lambda: len(d.answers) == 1)
            assert isinstance(d.answers[0], InternalError)
            assert "secret" not in d.answers[0].message
            assert {record.getMessage() for record in caplog.records} == {"reload_broken", "config_refused"}

    body()


@pytest.mark.req("CONF-2")
@async_test()
async def test_who_waits_is_bounded_and_told_when_the_edge_leaves() -> None:
    async with desk() as d:
        d.ask()
        await until(lambda: len(d.reading) == 1)
        for _ in range(MAX_ASKERS):
            d.ask()
        with pytest.raises(Overloaded):
            d.ask()
        d.reloader.close()
        assert len(d.answers) == MAX_ASKERS + 1
        assert all(isinstance(answer, ShuttingDown) for answer in d.answers)
        with pytest.raises(ShuttingDown):
            d.ask()
        d.reading[0].set()
    assert d.taken == 0, "what is read after the end changes nothing"


@pytest.mark.req("CONF-2")
@async_test()
async def test_without_a_file_there_is_nothing_to_reload() -> None:
    runtime = Runtime(asyncio.get_running_loop())
    never: Callable[[Any], Any] = pytest.fail
    answers: list[Reloaded | IopError] = []
    Reloader(runtime, EdgeMetrics(), None, never, never).ask(answers.append)
    assert "without a file" in str(answers[0])
