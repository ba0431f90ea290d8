"""Whether a request is sent again: each reason that speaks against it has its name, and they are looked at in order."""

from __future__ import annotations

from typing import Any

import pytest

from iop.edge.requests.retry import Decision, Limits, decide
from iop.observability.metrics import DECISIONS

FINE: dict[str, Any] = {
    "side_effects": False,
    "held_bytes": 100,
    "readmissions": 1,
    "limits": Limits(2, 100),
    "left_s": 0.1,
    "retryable": True,
}
AGAINST: list[tuple[str, Any, Decision]] = [
    ("side_effects", True, Decision.SIDE_EFFECTS),
    ("held_bytes", None, Decision.NO_SNAPSHOT),
    ("readmissions", 2, Decision.BUDGET),
    ("left_s", 0.0, Decision.DEADLINE),
    ("retryable", False, Decision.NOT_RETRYABLE),
]


@pytest.mark.req("API-8")
def test_nothing_speaks_against_it() -> None:
    assert decide(**FINE) is Decision.ELIGIBLE


@pytest.mark.req("API-8")
@pytest.mark.parametrize("place", range(len(AGAINST)))
def test_the_first_reason_is_the_one_that_is_told(place: int) -> None:
    later = {name: value for name, value, _ in AGAINST[place:]}
    assert decide(**{**FINE, **later}) is AGAINST[place][2]


@pytest.mark.req("API-8")
def test_a_body_above_the_limit_was_not_kept() -> None:
    assert decide(**{**FINE, "held_bytes": 101}) is Decision.NO_SNAPSHOT
    assert decide(**{**FINE, "limits": Limits(0, 100), "readmissions": 0}) is Decision.BUDGET


@pytest.mark.req("OBS-1b")
def test_the_metric_knows_all_decisions() -> None:
    assert set(DECISIONS) == set(Decision)
