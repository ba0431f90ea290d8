"""What a key's list of models costs a request, and a listing (API-11): lines of Python, the same on any machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iop.edge.keys.limits import DECIDED, Key, KeySpec
from tests.support.lines import lines_of

KINDS: dict[str, Callable[[int], str]] = {
    "name": lambda i: f"team{i}",
    "start": lambda i: f"team{i}-*",
    "end": lambda i: f"*-team{i}",
    "inner": lambda i: f"*team{i}*",
    "both": lambda i: f"team{i}-*-instruct",
}


def key(kind: str, patterns: int) -> Key:
    made = Key(KeySpec("a", tuple(map(KINDS[kind], range(patterns)))))
    made.may_use("", "")  # splits them
    return made


@pytest.mark.req("API-11", "API-8c")
@pytest.mark.parametrize("kind", KINDS)
def test_a_listing_costs_a_model_the_same_with_few_patterns_and_with_many(kind: str) -> None:
    names = [f"org/model-{i}-instruct" for i in range(2000)]

    def listing(patterns: int) -> int:
        at = key(kind, patterns)
        return lines_of(lambda: [at.may_use(name, f"group of {name}") for name in names])

    few, many = listing(3), listing(256)
    assert many <= 1.5 * few, (few, many)


@pytest.mark.req("API-11", "API-8c")
def test_a_model_that_was_asked_for_is_decided_once_and_little_is_remembered() -> None:
    at = key("both", 256)
    first = lines_of(lambda: at.may_use("team7-coder-instruct", "g"))
    again = lines_of(lambda: [at.may_use("team7-coder-instruct", "g") for _ in range(10)])
    assert again < 10 * first / 2
    at = key("both", DECIDED)
    for i in range(3 * DECIDED):
        asked_twice = [at.may_use(f"team{i}-x-instruct", "g") for _ in range(2)]
        assert asked_twice == 2 * [i < DECIDED], "what is remembered is what was decided"
    assert len(at._decided) <= DECIDED
