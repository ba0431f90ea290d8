"""E12, REG-5: the node is killed and frozen under load, again and again, and the ledger of all requests stays exact.

``make chaos-kill CYCLES=1000``. One cycle in twenty is a takeover: it takes the probe's two seconds.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.aio import run
from tests.support.outages import node_restarts

CYCLES = int(os.environ.get("CYCLES", "40"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors and memory in /proc")
@pytest.mark.req("REG-2", "REG-4", "REG-5", "REG-6", "API-8b", "POOL-7", "POOL-12", "EXEC-7")
def test_E12_the_node_is_killed_and_frozen_under_load(tmp_path: Path) -> None:
    takeovers = max(1, CYCLES // 20)
    print("\n" + run(node_restarts(tmp_path, CYCLES, takeovers=takeovers), timeout_s=60 + 10 * CYCLES))
