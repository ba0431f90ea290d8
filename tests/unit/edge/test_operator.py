"""What an operator is shown of requests (OBS-4)."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from iop.edge.admin.actions import Operator
from iop.edge.requests.trace import Outline


def live(name: str, accepted_at: float) -> Any:
    outline = Outline(name, "chat", "running", "p", "m", "n1", "m", 1, accepted_at)
    return SimpleNamespace(outline=lambda: outline, ticket=None)


@pytest.mark.req("OBS-4")
def test_requests_are_listed_by_age_and_those_of_one_age_by_id() -> None:
    going_on = [live("b", 2.0), live("c", 2.0), live("d", 1.0), live("a", 2.0)]
    for order in itertools.permutations(going_on):
        runtime = SimpleNamespace(loop=SimpleNamespace(time=lambda: 3.0))
        pool = SimpleNamespace(positions=lambda tickets: {})
        operator = Operator(cast("Any", SimpleNamespace(runtime=runtime, pool=pool, live=order)))
        assert [row["id"] for row in operator.requests()["requests"]] == ["d", "a", "b", "c"]
