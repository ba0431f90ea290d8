"""What nodes report becomes configuration: bursts together, nothing lost, and nothing that was not asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from iop.config.auto import Found, Server, fill_in
from iop.config.diff import Change
from iop.config.edge import EdgeConfig
from iop.config.load import parse_edge
from iop.edge.app import Edge
from iop.edge.settings import discovery as discovery_module
from iop.edge.settings.discovery import Discovery
from iop.edge.settings.reload import Prepared, Reloaded
from iop.errors import ConfigError
from iop.net.loop import Runtime
from iop.wire import messages as m
from tests.support.aio import async_test, until
from tests.support.edge import Kept

NODE = "nodes: [{{id: n{n}, token_sha256: '{n}{zeros}', providers: auto}}, {{id: x, token_sha256: 'a{zeros}'}}]\n"
FILE = parse_edge(NODE.format(n=1, zeros="0" * 63) + "models: auto\n")
CLOSED = parse_edge(NODE.format(n=1, zeros="0" * 63).replace("providers: auto", "providers: []"))


def listing(*names: str) -> m.Inventory:
    server = m.DetectedServer("ollama", "ollama", 11434, 4, [name.encode() for name in names])
    return m.Inventory([], [server])


class Desk:
    """A discovery whose work takes as long as the test says. ``seen`` is what each piece of work was made of."""

    def __init__(self, runtime: Runtime) -> None:
        self.discovery = Discovery(runtime, self.prepare, self.take)
        self.discovery.configure(FILE)
        self.working: list[threading.Event] = []
        self.seen: list[Mapping[str, Found]] = []
        self.refuse = False

    def prepare(self) -> Prepared:
        go = threading.Event()
        self.seen.append(self.discovery.found)
        self.working.append(go)
        assert go.wait(10)
        return Prepared(FILE, FILE, Change(FILE, ("models[x] added",), ()), 0, {}, {}, [])

    def take(self, prepared: Prepared) -> Reloaded:
        if self.refuse:
            raise ConfigError(["too large"])
        return Reloaded(2, prepared.change)

    async def work(self, number: int) -> None:
        """Waits until this piece of work has begun, and lets it end."""
        await until(lambda: len(self.working) == number, what=f"work {number}")
        self.working[number - 1].set()


@asynccontextmanager
async def working() -> AsyncIterator[Desk]:
    runtime = Runtime(asyncio.get_running_loop())
    runtime.start()
    desk = Desk(runtime)
    try:
        yield desk
    finally:
        desk.discovery.close()
        for go in desk.working:
            go.set()
        runtime.close()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery_module, "PAUSE_S", 0.0)


@pytest.mark.req("CONF-2")
@async_test()
async def test_what_is_reported_while_another_report_is_worked_out_is_not_lost() -> None:
    async with working() as desk:
        desk.discovery.reported("n1", listing("a"))
        await until(lambda: len(desk.working) == 1, what="the first work")
        for names in (("b",), ("b", "c")):
            desk.discovery.reported("n1", listing(*names))
        await desk.work(1)
        await desk.work(2)
        assert [found["n1"].servers[0].models for found in desk.seen] == [("a",), ("b", "c")]
        desk.discovery.reported("n1", listing("b", "c"))  # nothing new
        desk.discovery.reported("n1", listing("d"))
        await desk.work(3)
        assert desk.seen[2]["n1"].servers[0].models == ("d",)


@pytest.mark.req("CONF-2")
@async_test()
async def test_a_configuration_that_cannot_be_taken_over_does_not_end_the_work() -> None:
    async with working() as desk:
        desk.refuse = True
        desk.discovery.reported("n1", listing("a"))
        await desk.work(1)
        desk.discovery.reported("n1", listing("b"))
        await desk.work(2)


def refuse_to_read(http: object) -> Found:
    raise AssertionError("the keys file is read on the loop")


@pytest.mark.req("CONF-2")
@async_test()
async def test_what_was_prepared_for_an_older_configuration_is_made_anew_of_what_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = Runtime(asyncio.get_running_loop())
    runtime.start()
    edge = Edge(FILE, runtime, Kept())
    try:
        prepared = edge.prepare(parse_edge("queue: {timeout_ms: 7000}"))
        edge.reload(parse_edge("queue: {timeout_ms: 8000}"))
        monkeypatch.setattr(edge.keychain, "prepare", refuse_to_read)
        assert edge.take(prepared).revision == 3
        assert edge.config.queue.timeout_ms == 7000
    finally:
        edge.close()
        runtime.close()


@pytest.mark.req("CONF-2")
@async_test()
async def test_a_file_that_is_read_while_a_report_is_worked_out_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(asyncio.get_running_loop())
    runtime.start()
    edge = Edge(FILE, runtime, Kept())
    prepare, worked, go = edge.prepare, threading.Event(), threading.Event()

    def slowly() -> Prepared:
        prepared = prepare(edge.file, edge.keychain.found)
        worked.set()
        assert go.wait(10)
        return prepared

    monkeypatch.setattr(edge.discovery, "_prepare", slowly)
    try:
        edge.discovery.reported("n1", listing("a"))
        await until(worked.is_set, what="the report is worked out")
        newer = parse_edge(NODE.format(n=1, zeros="0" * 63) + "models: auto\nqueue: {timeout_ms: 7000}\n")
        edge.reload(newer)
        go.set()
        await until(lambda: not edge.discovery._working, what="the report counts")
        assert edge.file is newer
        assert edge.config.queue.timeout_ms == 7000
        assert [model.id for model in edge.config.models] == ["a"]
    finally:
        go.set()
        edge.close()
        runtime.close()


@pytest.mark.req("CONF-1", "SEC-4")
@async_test()
async def test_a_node_cannot_bring_in_what_it_was_not_asked_for() -> None:
    async with working() as desk:
        desk.discovery.reported("nobody", listing("a"))
        assert desk.discovery.found == {}
        desk.discovery.reported("x", listing("a"))
        assert desk.discovery.found["x"] == Found()  # its models are asked for, its servers are not
        desk.discovery.reported("n1", listing("good", "", "bad\n", " bad", "\x1b[2J"))
        assert desk.discovery.found["n1"].servers[0].models == ("good",)
        desk.discovery.configure(CLOSED)
        desk.discovery.reported("x", m.Inventory([m.ProviderModels("p", [b"a"])]))
        assert desk.discovery.found["x"] == Found()
        await desk.work(1)


@pytest.mark.req("CONF-1")
@async_test()
async def test_a_kind_that_this_edge_does_not_know_is_left_out_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    newer = m.DetectedServer("tgi", "tgi", 3000, 4, [b"a"])
    async with working() as desk:
        for names in (["b"], ["b", "c"]):
            report = listing(*names)
            desk.discovery.reported("n1", m.Inventory([], [newer, *report.servers]))
            assert [s.kind for s in desk.discovery.found["n1"].servers] == ["ollama"]
        told = [record.__dict__["fields"] for record in caplog.records if record.message == "kinds_unknown"]
        assert told == [{"node": "n1", "kinds": ["tgi"]}]
        await desk.work(1)


@pytest.mark.req("CONF-1", "CONF-2")
@async_test()
async def test_a_report_that_breaks_the_work_is_left_out_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def picky(file: EdgeConfig, found: Mapping[str, Found]) -> EdgeConfig:
        if "bad" in (name for report in found.values() for s in report.servers for name in s.models):
            raise ValueError("a fault of the edge itself")
        return fill_in(file, found)

    monkeypatch.setattr(discovery_module, "fill_in", picky)
    async with working() as desk:
        desk.discovery.found = {
            "x": Found((), {"n1-ollama": ("ok",)}),
            "n1": Found((_server("good"),)),
            "n2": Found((_server("bad"),)),
        }
        filled = desk.discovery.fill_in(FILE)
    assert [entry.id for entry in filled.models] == ["good"]
    left_out = [record.__dict__["fields"] for record in caplog.records if record.message == "report_left_out"]
    assert left_out == [{"node": "n2"}]


def _server(model: str) -> Server:
    return Server("ollama", "ollama", 11434, 4, (model,))


@pytest.mark.req("API-5")
@async_test()
async def test_a_model_may_come_until_all_nodes_have_reported() -> None:
    async with working() as desk:
        assert desk.discovery.may_come("anything")
        desk.discovery.reported("n1", listing("a"))
        assert desk.discovery.may_come("anything")
        desk.discovery.reported("x", m.Inventory())
        assert not desk.discovery.may_come("anything")
        await desk.work(1)
        desk.discovery.configure(CLOSED)
        assert not desk.discovery.may_come("anything")
