"""Bounds and times of the wire."""

from __future__ import annotations

import pytest

from iop.wire import limits


@pytest.mark.req("WIRE-7")
def test_the_clocks_are_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IOP_TEST_TIMING", raising=False)
    timing = limits.timing_from_environment()
    assert (timing.heartbeat_interval_s, timing.response_wait_s) == (30, 45)
    assert (timing.write_stall_s, timing.register_s, timing.ready_s) == (45, 10, 60)


def test_end_to_end_tests_may_shorten_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOP_TEST_TIMING", "0.3,1.0")
    timing = limits.timing_from_environment()
    assert (timing.heartbeat_interval_s, timing.response_wait_s, timing.write_stall_s) == (0.3, 1.0, 1.0)
    assert timing.register_s == 10


@pytest.mark.req("WIRE-5", "WIRE-6", "WIRE-9")
def test_bounds() -> None:
    assert limits.MAX_FRAME_BYTES == 4 << 20
    assert limits.MAX_CONTROL_FRAME_BYTES == 1 << 20
    assert limits.MAX_UNREGISTERED_FRAME_BYTES == 16 << 10
    assert limits.MAX_DATA_BYTES == 64 << 10
    assert (limits.STREAM_WINDOW_BYTES, limits.SMALL_WINDOW_BYTES) == (256 << 10, 32 << 10)
    assert limits.LINK_SEND_HIGH_BYTES == 128 << 10
