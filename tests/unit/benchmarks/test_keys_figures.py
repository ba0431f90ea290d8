"""The arithmetic of the load test of keys: it would notice a limit that does not hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.keys_load import KEYS, Seen, most_in_a_minute, report

RATE = KEYS["paced"]["requests_per_minute"]
TOKENS = KEYS["tokens"]["tokens_per_minute"]


def seen() -> dict[str, Seen]:
    """Two minutes in which everybody got just what there is."""
    found = {name: Seen() for name in KEYS}
    for name, limits in KEYS.items():
        rate = limits.get("requests_per_minute", 0)
        found[name].accepted_at = [i * 60 / rate for i in range(2 * rate)]
    found["tokens"].tokens = [(1.0, TOKENS), (61.0, TOKENS)]
    return found


def wrong(found: dict[str, Seen], most: int = 4) -> list[str]:
    edge: Any = SimpleNamespace(seen=found)
    return report(edge, 0.0, 125.0, most)[1]


def test_the_greatest_number_in_any_minute() -> None:
    assert most_in_a_minute([]) == 0
    assert most_in_a_minute([0.0, 30.0, 59.9]) == 3
    assert most_in_a_minute([0.0, 30.0, 60.0, 89.9]) == 3


def test_nothing_is_wrong_when_all_is_right() -> None:
    assert wrong(seen()) == []


@pytest.mark.parametrize(
    ("name", "times", "said"),
    [
        ("paced", [i * 60 / (RATE * 1.02) for i in range(2 * RATE)], "requests in a minute, limit"),
        ("paced", [i * 60 / (RATE * 0.98) for i in range(int(2 * RATE * 0.98))], "of its limit"),
    ],
)
def test_a_rate_that_is_off_by_two_percent_is_told(name: str, times: list[float], said: str) -> None:
    found = seen()
    found[name].accepted_at = times
    assert [said in line for line in wrong(found)] == [True]


def test_other_faults_are_told() -> None:
    assert "at once" in wrong(seen(), most=5)[0]
    found = seen()
    found["free"].told[503] = 1
    assert "other answers" in wrong(found)[0]
    found = seen()
    found["tokens"].tokens.append((62.0, TOKENS // 20))
    assert "used 102.50%" in wrong(found)[0]
    found = seen()
    found["patient"].untrue = 1
    assert "after waiting as told" in wrong(found)[0]
