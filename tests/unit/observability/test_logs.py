"""Lines as a reader of the log sees them (OBS-2, SEC-4)."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iop.errors import QueueFull
from iop.observability import logs

LOG = logging.getLogger("iop.test")


class Reader:
    """The reading end of the sink's pipe."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        self._stream = os.fdopen(self.read_fd, "rb")

    def line(self) -> str:
        return self._stream.readline().decode()

    def json(self) -> dict[str, Any]:
        value = json.loads(self.line())
        assert isinstance(value, dict)
        return value

    def close(self) -> None:
        self._stream.close()


@pytest.fixture
def reader() -> Iterator[Reader]:
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    reader = Reader()
    yield reader
    reader.close()
    os.close(reader.write_fd)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raising


def outcome(**fields: Any) -> logs.RequestOutcome:
    base: dict[str, Any] = {
        "ts": 1.0,
        "request_id": "req_a",
        "api": "chat",
        "outcome": "ok",
        "status": 200,
        "duration_ms": 1.5,
    }
    return logs.RequestOutcome(**{**base, **fields})


@pytest.mark.req("OBS-2")
def test_a_request_is_one_line_with_its_id(reader: Reader) -> None:
    sink = logs.setup("json", fd=reader.write_fd)
    sink.outcome(outcome(model="m", provider="p", output_tokens=3))
    line = reader.json()
    sink.close()
    assert line.pop("ts") == 1.0
    assert line == {
        "request_id": "req_a",
        "api": "chat",
        "outcome": "ok",
        "status": 200,
        "duration_ms": 1.5,
        "model": "m",
        "provider": "p",
        "output_tokens": 3,
        "event": "request",
    }


@pytest.mark.req("OBS-2")
def test_messages_are_events_with_fields(reader: Reader) -> None:
    sink = logs.setup("json", fd=reader.write_fd)
    LOG.info("node_connected", extra={"fields": {"node": "gpu-1", "event": "cannot be replaced"}})

    async def start(host: str, port: int) -> int:
        return port or 8080

    assert asyncio.run(logs.listen(LOG, "http", "http.listen", ("::1", 0), start)) == 8080
    LOG.debug("too fine")
    LOG.warning("plain %s", "text")
    first, second, third = reader.json(), reader.json(), reader.json()
    sink.close()
    assert (first["event"], first["node"], first["level"], first["logger"]) == (
        "node_connected",
        "gpu-1",
        "info",
        "iop.test",
    )
    assert (second["event"], second["listener"], second["address"]) == ("listening", "http", "[::1]:8080")
    assert (third["event"], third["level"]) == ("plain text", "warning")


@pytest.mark.req("OBS-2")
def test_order_is_kept_between_requests_and_messages(reader: Reader) -> None:
    sink = logs.setup("json", fd=reader.write_fd)
    for index in range(50):
        sink.outcome(outcome(attempts=index + 1))
        LOG.info("message", extra={"fields": {"attempts": index + 1}})
    sink.close()
    assert [reader.json()["attempts"] for _ in range(100)] == [n for i in range(1, 51) for n in (i, i)]


@pytest.mark.req("SEC-4")
def test_foreign_exceptions_show_type_and_place_but_not_their_text(reader: Reader) -> None:
    sink = logs.setup("json", fd=reader.write_fd)
    for error in (ValueError("the prompt"), QueueFull(), FileNotFoundError(2, "No such file", "/secret/path")):
        try:
            raise error
        except Exception:
            LOG.exception("failed")
    foreign, ours, system = (reader.json()["error"] for _ in range(3))
    sink.close()
    assert foreign.startswith("ValueError at test_logs.py:")
    assert "prompt" not in foreign
    assert ours.startswith("queue_full: too many requests")
    assert system.startswith("FileNotFoundError: No such file at")
    assert "secret" not in system


@pytest.mark.req("OBS-2")
def test_console_lines_are_one_line_without_control_characters(reader: Reader) -> None:
    sink = logs.setup("console", fd=reader.write_fd)
    LOG.error("bad\x1b[2J\nthing", extra={"fields": {"node": "gpu-1"}})
    sink.outcome(outcome(model="m", first_token_ms=120.0, queue_ms=5.0, provider="p"))
    first, second = reader.line(), reader.line()
    sink.close()
    assert first[9:] == "error: bad\\x1b[2J\\nthing node=gpu-1\n"
    assert second[9:] == "request req_a chat m 200 ok 2 ms first token 120 ms queued 5 ms by p\n"


@pytest.mark.req("OBS-2")
def test_a_reader_that_stopped_costs_lines_and_no_time_or_memory(reader: Reader) -> None:
    sink = logs.setup("json", fd=reader.write_fd)
    taken = 20_000
    for _ in range(taken):  # with the pipe full, a blocking write would end this test by its timeout
        sink.outcome(outcome())
    assert sink.dropped > 0
    assert (taken - sink.dropped) * logs.OUTCOME_BYTES <= 2 * logs.BACKLOG_BYTES
    # The reader comes back: everything kept is delivered whole, and what is missing is told.
    lines: list[str] = []
    drain = threading.Thread(target=lambda: lines.extend(iter(reader.line, "")))
    drain.start()
    sink.close()
    os.close(reader.write_fd)
    drain.join(10)
    reader.write_fd = os.open(os.devnull, os.O_WRONLY)
    assert not drain.is_alive()
    said = [json.loads(line) for line in lines]
    assert sum(line["lines"] for line in said if line["event"] == "log_lines_dropped") == sink.dropped
    kept = [line["request_id"] for line in said if line["event"] == "request"]
    assert kept == ["req_a"] * (taken - sink.dropped)


def test_a_reader_that_has_gone_costs_lines_and_nothing_else() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    sink = logs.Sink(write_fd, "json")
    sink.outcome(outcome())
    sink.close()
    sink.outcome(outcome())
    assert sink.dropped == 2
    os.close(write_fd)


def lost(sink: logs.Sink, lines: int) -> None:
    """Waits until the writing thread has given up so many lines."""
    deadline_at = time.monotonic() + 10
    while sink.dropped < lines:
        assert time.monotonic() < deadline_at, f"{sink.dropped} lines instead of {lines}"
        os.sched_yield()


@pytest.mark.req("OBS-2")
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_logging_goes_on_after_a_full_disk(tmp_path: Path, reader: Reader) -> None:
    full, disk = os.open("/dev/full", os.O_WRONLY), os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    sink = logs.setup("json", fd=full)
    LOG.warning("lost")
    lost(sink, 1)
    LOG.warning("lost, too")
    lost(sink, 2)
    os.dup2(disk, full)  # there is room again
    LOG.warning("after")
    sink.close()
    os.close(full)
    os.close(disk)
    said = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["event"] for line in said] == ["log_lines_dropped", "after"]
    assert said[0]["lines"] == 2


def test_a_line_that_was_cut_off_is_ended_before_the_next(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = logs.Sink(reader.write_fd, "console")
    write = os.write
    taken = iter([10])

    def half(fd: int, data: memoryview) -> int:
        size = next(taken, None)
        if size is None:
            raise OSError(28, "no space left on device")
        return write(fd, data[:size])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        sink.outcome(outcome())
        lost(sink, 1)
    sink.outcome(outcome())
    sink.close()
    cut, gap, whole = reader.line(), reader.line(), reader.line()
    assert len(cut) == 11
    assert gap.endswith("warning: log_lines_dropped lines=1\n")
    assert whole[9:].startswith("request req_a ")


@pytest.mark.req("OBS-2")
def test_a_non_blocking_descriptor_that_is_full_costs_no_line(reader: Reader) -> None:
    """Another program that shares the terminal may have made it non-blocking: EAGAIN is no fault."""
    os.set_blocking(reader.write_fd, False)
    sink = logs.setup("json", fd=reader.write_fd)
    count = 1000  # more than the pipe holds
    for index in range(count):
        LOG.warning("line %d of many, with some text behind it so that the pipe fills up", index)
    got = [reader.json()["event"].split()[1] for _ in range(count)]
    sink.close()
    assert got == [str(index) for index in range(count)]
    assert sink.dropped == 0


def test_close_writes_what_is_left_and_drops_what_comes_later(reader: Reader) -> None:
    sink = logs.Sink(reader.write_fd, "json")
    sink.outcome(outcome(api="chat"))
    sink.close()
    sink.outcome(outcome(api="late"))
    assert reader.json()["api"] == "chat"
    assert sink.dropped == 1
