"""Floods against one edge: ``make attack ATTACK_S=15``, each for so long."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.aio import run
from tests.support.attacks import ATTACKS, MIB, attack

ATTACK_S = float(os.environ.get("ATTACK_S", "15"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory in /proc")
@pytest.mark.req("WIRE-10", "API-8c", "REG-1")
@pytest.mark.parametrize("name", ATTACKS)
def test_floods(name: str, tmp_path: Path) -> None:
    figures = run(attack(tmp_path, name, ATTACK_S, 256 * MIB), timeout_s=60 + 2 * ATTACK_S, leaks=False)
    print(f"\n{figures}")
    figures.hold()
