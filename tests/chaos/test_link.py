"""WIRE-7, REG-5, SUP-1: the link between edge and node goes bad in every way, under load, and recovers each time.

``make chaos-link STEPS=100 SEED=1``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.aio import run
from tests.support.outages import link_faults

STEPS = int(os.environ.get("STEPS", "40"))
SEED = int(os.environ.get("SEED", "1"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors and memory in /proc")
@pytest.mark.req("WIRE-2", "WIRE-7", "REG-5", "SUP-1", "API-8b", "POOL-7")
def test_the_link_goes_bad_in_every_way_under_load(tmp_path: Path) -> None:
    print("\n" + run(link_faults(tmp_path, STEPS, hold_s=1.0, seed=SEED), timeout_s=120 + 10 * STEPS))
