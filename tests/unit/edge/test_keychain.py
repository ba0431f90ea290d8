"""When the keys file is read, and which reading counts (API-11, CONF-2)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from iop.config import keysfile
from iop.config.edge import HttpSection
from iop.config.load import parse_edge
from iop.edge.keys import keyring as keychain_module
from iop.edge.keys.keyring import LOOK_S, READ_S, Keychain
from iop.errors import ConfigError
from iop.net.loop import Runtime
from iop.net.wheel import TICK_S
from tests.support.aio import async_test, until

pytestmark = pytest.mark.req("API-11", "CONF-2")


class Desk:
    """A keychain on a file; its clock goes when the test says so. ``reads`` counts readings that were begun."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = folder / "keys.json"
        self.runtime = Runtime(asyncio.get_running_loop())
        self.changes = self.reads = 0
        self.go = threading.Event()
        self.go.set()
        self.read = keysfile.read_text
        monkeypatch.setattr(keychain_module, "read_text", self.reading)
        self.write("one")
        self.chain = Keychain(self.runtime, self.http(), self.changed)
        self.chain.start()

    def reading(self, path: Path) -> keysfile.Text:
        self.reads += 1
        assert self.go.wait(10)
        return self.read(path)

    def http(self, *own: str) -> HttpSection:
        rows = [{"principal": "own", "key_sha256": hashlib.sha256(name.encode()).hexdigest()} for name in own]
        text = json.dumps({"http": {"keys_file": "keys.json", "api_keys": rows}})
        return parse_edge(text, base=self.file.parent).http

    def write(self, *names: str, **more: Any) -> None:
        rows = [{"principal": n, "key_sha256": hashlib.sha256(n.encode()).hexdigest(), **more} for n in names]
        self.text(json.dumps({"keys": rows}))

    def text(self, text: str) -> None:
        fresh = self.file.with_name("fresh")
        fresh.write_text(text)
        os.replace(fresh, self.file)

    def changed(self) -> None:
        self.changes += 1

    @property
    def names(self) -> set[str]:
        return {key.principal for key in self.chain.keys.values()}

    def pass_time(self, seconds: float) -> None:
        self.runtime.wheel.advance(self.runtime.wheel.now + seconds + 2 * TICK_S)

    async def look(self) -> None:
        """One look at the file, and the reading that it leads to, if any."""
        self.pass_time(LOOK_S)
        await until(lambda: self.chain._reading_at is None)


@asynccontextmanager
async def desk(folder: Path, monkeypatch: pytest.MonkeyPatch, *, settled_s: float = -1.0) -> AsyncIterator[Desk]:
    """With ``settled_s`` below 0 every file is an old one."""
    monkeypatch.setattr(keysfile, "SETTLED_S", settled_s)
    made = Desk(folder, monkeypatch)
    try:
        yield made
    finally:
        made.chain.close()
        made.go.set()
        await until(lambda: not any(t.name == "iop-keys" for t in threading.enumerate()))


@async_test()
async def test_a_file_is_read_when_it_looks_different_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch) as d:
        for _ in range(3):
            await d.look()
        assert (d.reads, d.changes, d.names) == (0, 0, {"one"})
        d.write("one", "two")
        await d.look()
        assert (d.reads, d.changes, d.names) == (1, 1, {"one", "two"})
        d.file.unlink()
        await d.look()
        await d.look()
        assert (d.reads, d.changes, d.names) == (2, 2, set())
        d.write("two")
        d.chain.close()
        await d.look()
        assert (d.reads, d.names) == (2, set())


@async_test()
async def test_a_file_that_is_new_is_read_again_until_a_change_would_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "iop.edge.keys.limits")
    async with desk(tmp_path, monkeypatch, settled_s=3600.0) as d:
        await d.look()
        await d.look()
        assert (d.reads, d.changes) == (2, 0)
        d.text("{")
        for _ in range(3):
            await d.look()
        monkeypatch.setattr(keysfile, "SETTLED_S", -1.0)
        d.write("one")
        await d.look()
        reads = d.reads
        await d.look()
        assert d.reads == reads
        # One line for each change, however often it was read; mending the file is a change.
        assert [record.message for record in caplog.records] == ["keys_refused", "keys_reloaded"]
        assert d.names == {"one"}


@async_test()
async def test_a_reading_that_does_not_end_is_told_and_no_other_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch) as d:
        d.write("two")
        d.go.clear()
        for _ in range(int(READ_S / LOOK_S) + 3):
            d.pass_time(LOOK_S)
        assert d.reads == 1
        assert "longer than 30 s" in d.chain.faults[0]
        assert d.names == {"one"}
        d.go.set()
        await until(lambda: d.names == {"two"})
        assert d.chain.faults == []


@async_test()
async def test_a_reading_that_hangs_does_not_keep_the_edge_from_following_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch) as d:
        d.write("two")
        d.go.clear()
        d.pass_time(LOOK_S)
        assert d.reads == 1
        other = tmp_path / "other"
        other.mkdir()
        d.file = other / "keys.json"
        d.write("three")
        http = d.http()
        d.chain.take(http, d.chain.prepare(http))
        d.write("four")
        d.pass_time(LOOK_S)
        await until(lambda: d.reads == 2, what="the other file is read")
        d.go.set()
        await until(lambda: d.names == {"four"})


@async_test()
async def test_a_reload_never_brings_back_what_the_file_has_taken_away_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch) as d:
        prepared = d.chain.prepare(d.http("own"))
        d.write("two")
        await d.look()
        d.chain.take(d.http("own"), prepared)
        assert d.names == {"two", "own"}
        # The other way round: what a reload has read is newer than what a thread still brings.
        d.write("three")
        d.go.clear()
        d.pass_time(LOOK_S)
        await until(lambda: d.reads == 2)
        d.read, stale = keysfile.read_text, keysfile.read_text(d.file)
        d.write("four")
        d.chain.take(d.http("own"), d.chain.prepare(d.http("own")))
        d.read = lambda path: stale
        d.go.set()
        await until(lambda: d.chain._reading_at is None)
        assert d.names == {"four", "own"}


@async_test()
async def test_what_is_refused_stays_told_while_the_rest_of_the_configuration_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch) as d:
        d.text("{")
        await d.look()
        assert len(d.chain.faults) == 1
        d.chain.take(d.http("own"), d.chain.found)
        assert (len(d.chain.faults), d.names) == (1, {"one", "own"})
        with pytest.raises(ConfigError):
            d.chain.prepare(d.http())
        d.write("own")
        await d.look()
        assert "the same key as http.api_keys[0]" in d.chain.faults[0]
        assert d.names == {"one", "own"}
        d.write("own", "two")
        d.chain.take(d.http(), d.chain.prepare(d.http()))
        assert (d.chain.faults, d.names) == ([], {"own", "two"})


@async_test()
async def test_a_key_that_stays_is_the_same_object_and_one_with_other_limits_keeps_its_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, monkeypatch) as d:
        d.write("one", "two", requests_per_minute=5)
        await d.look()
        one, two = (d.chain.keys[hashlib.sha256(name).digest()] for name in (b"one", b"two"))
        one.admit(0.0)
        d.write("one", "two", "three", requests_per_minute=5)
        await d.look()
        assert d.chain.keys[hashlib.sha256(b"two").digest()] is two
        d.write("one", "two", requests_per_minute=3, max_concurrent_requests=1)
        await d.look()
        again = d.chain.keys[hashlib.sha256(b"one").digest()]
        assert again is not one
        assert again.counters is one.counters
        assert b"remaining-requests: 2\r\n" in again.rate_fields(1.0)
        assert d.chain.principals({"one": 1, "nobody": 2}, 1.0)[:2] == [
            {"principal": "nobody", "in_flight": 2, "requests_last_minute": None, "tokens_last_minute": None},
            {"principal": "one", "in_flight": 1, "requests_last_minute": 1, "tokens_last_minute": None},
        ]


@async_test()
async def test_who_is_busy_is_a_bounded_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(tmp_path, monkeypatch) as d:
        rows = d.chain.principals({f"p{i}": i for i in range(1000)}, 0.0)
        assert len(rows) == 100
        assert rows[0]["principal"] == "p999"
