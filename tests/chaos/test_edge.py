"""E9, SUP-1: the edge is killed and terminated under load, again and again, and its node returns by itself.

``make chaos-edge RESTARTS=200``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.aio import run
from tests.support.outages import edge_restarts

RESTARTS = int(os.environ.get("RESTARTS", "30"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors and memory in /proc")
@pytest.mark.req("SUP-1", "SUP-5", "EXEC-3", "API-8b", "POOL-7")
def test_E9_the_edge_is_killed_and_terminated_under_load(tmp_path: Path) -> None:
    print("\n" + run(edge_restarts(tmp_path, RESTARTS), timeout_s=60 + 10 * RESTARTS))
