"""Clocks."""

from __future__ import annotations

import pytest

from iop.clock import Clock, ManualClock, monotonic


def test_a_manual_clock_moves_when_told() -> None:
    clock = ManualClock(5.0)
    assert clock() == 5.0
    assert clock.advance(2.5) == 7.5
    assert clock() == 7.5
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-0.1)


def test_both_clocks_fit_where_a_clock_is_wanted() -> None:
    clocks: list[Clock] = [monotonic, ManualClock()]
    for clock in clocks:
        assert clock() <= clock()
