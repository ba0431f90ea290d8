"""Bounds and times of the wire."""

from __future__ import annotations

import pytest

from iop.wire import limits


@pytest.mark.req("WIRE-5", "WIRE-6", "WIRE-9")
def test_bounds() -> None:
    assert limits.MAX_FRAME_BYTES == 4 << 20
    assert limits.MAX_CONTROL_FRAME_BYTES == 1 << 20
    assert limits.MAX_UNREGISTERED_FRAME_BYTES == 16 << 10
    assert limits.MAX_DATA_BYTES == 64 << 10
    assert (limits.STREAM_WINDOW_BYTES, limits.SMALL_WINDOW_BYTES) == (256 << 10, 32 << 10)
    assert limits.LINK_SEND_HIGH_BYTES == 128 << 10
