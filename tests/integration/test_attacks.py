"""A short form of each flood of ``make attack`` (WIRE-10, API-8c)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.aio import async_test
from tests.support.attacks import ATTACKS, MIB, attack


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory in /proc")
@pytest.mark.req("WIRE-10", "API-8c", "REG-1")
@pytest.mark.parametrize("name", ATTACKS)
@async_test(timeout_s=60, leaks=False)
async def test_a_flood_keeps_turns_short_and_memory_bounded_and_lets_nodes_in(name: str, tmp_path: Path) -> None:
    (await attack(tmp_path, name, 4.0, 128 * MIB)).hold()
