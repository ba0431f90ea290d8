"""The arithmetic of the load test."""

from __future__ import annotations

import pytest

from benchmarks.load_client import percentiles
from benchmarks.tunnel_load import Settings, report


def test_percentiles_are_milliseconds_of_microseconds() -> None:
    found = percentiles([1000 * n for n in range(1000, 0, -1)])
    assert found == {"p50": 501.0, "p90": 901.0, "p99": 991.0, "p99.9": 1000.0, "max": 1000.0, "mean": 500.5}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_values_have_percentiles_too(count: int) -> None:
    found = percentiles([7000] * count)
    assert set(found.values()) == {7.0}


def test_nothing_measured_has_no_percentiles() -> None:
    assert percentiles([]) == {}


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        (Settings(streams=200, rate=50), 20),  # a step of 1 ms
        (Settings(streams=5, rate=50), 5),
        (Settings(streams=200, rate=5000), 1),
        (Settings(streams=200, rate=50, in_step=True), 1),
        (Settings(streams=200, rate=0, non_stream=True), 1),
    ],
)
def test_streams_are_spread_over_the_period(settings: Settings, slots: int) -> None:
    assert settings.slots == slots


def test_the_report_tells_what_failed() -> None:
    run = {
        "open": 3,
        "events_per_s": 90.0,
        "latency_ms": {"p50": 1.0},
        "first_event_ms": {},
        "cpu_us_per_event": {"edge": 10.0, "node": 12.0},
        "cpu_share": {"edge": 0.5, "node": 0.25},
        "provider": {"skipped": 2, "aborted": 0, "late_ms": 0.1},
    }
    result = {
        "settings": {"streams": 4, "rate": 25.0, "seconds": 1.0, "non_stream": False},
        "direct": {**run, "latency_ms": {"p50": 0.4}},
        "through": run,
        "added_ms": {"p50": 0.6},
        "memory_kb_per_stream": {"edge": 4.0, "node": 5.0},
        "idle_mb": {"edge": 30.0, "node": 31.0},
        "errors": {"through": {"order": 1}},
    }
    lines = [line.strip() for line in report(result)]
    assert "events per second of 100: 90 / 90" in lines
    assert "event's way, provider to client, p50: 0.400 / 1.000 ms, +0.600" in lines
    assert "open at the end: 3; events that found a full connection: 2" in lines
    assert lines[-1] == 'errors: {"through": {"order": 1}}'
