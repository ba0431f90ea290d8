"""Lines that anybody can cause are few, and their number is told (OBS-2)."""

from __future__ import annotations

import pytest

from iop.observability.repeats import KINDS, PERIOD_S, SAID, Repeats


@pytest.mark.req("OBS-2")
def test_the_first_ones_are_said_and_the_others_are_counted_once_a_period() -> None:
    repeats = Repeats()
    now, said, told = 0.0, 0, []
    for number in range(100_000):
        now = number / 1000
        said += repeats.say("a", now)
        told += repeats.due(now)
    told += repeats.due(now + PERIOD_S)
    periods = 100 / PERIOD_S
    assert said <= SAID * (periods + 1)
    assert len(told) <= periods + 1
    assert said + sum(count for _, count in told) == 100_000
    assert {kind for kind, _ in told} == {"a"}


@pytest.mark.req("OBS-2")
def test_few_lines_are_all_said_and_nothing_is_told_of_them() -> None:
    repeats = Repeats()
    for period in range(5):
        for number in range(SAID):
            assert repeats.say("a", period * PERIOD_S + number / 100)
            assert repeats.say("b", period * PERIOD_S + number / 100)
        assert repeats.due((period + 1) * PERIOD_S - 0.01) == []
        assert repeats.due((period + 1) * PERIOD_S) == []


@pytest.mark.req("OBS-2")
def test_kinds_have_a_bound() -> None:
    repeats = Repeats()
    said = sum(repeats.say(str(kind), 0.0) for kind in range(10_000))
    assert said == KINDS + SAID
    assert sum(count for _, count in repeats.due(PERIOD_S)) == 10_000 - said
