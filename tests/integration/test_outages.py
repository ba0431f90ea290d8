"""Short runs of tests/chaos: nodes and edges that are killed, frozen and terminated under load, and a bad link."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import pytest

from tests.support.aio import run
from tests.support.draining import terminated_under_streams
from tests.support.outages import edge_restarts, link_faults, node_restarts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors and memory in /proc")


@pytest.mark.req("REG-2", "REG-4", "REG-5", "REG-6", "API-8b", "POOL-7", "POOL-12", "EXEC-7")
def test_E12_a_node_is_killed_and_frozen_under_load(tmp_path: Path) -> None:
    print("\n" + run(node_restarts(tmp_path, 3, takeovers=1), timeout_s=120))


@pytest.mark.req("SUP-1", "SUP-5", "EXEC-3", "API-8b", "POOL-7")
def test_E9_an_edge_is_killed_and_terminated_under_load(tmp_path: Path) -> None:
    print("\n" + run(edge_restarts(tmp_path, 3), timeout_s=120))


@pytest.mark.req("WIRE-2", "WIRE-7", "REG-5", "SUP-1", "API-8b", "POOL-7")
def test_a_link_goes_bad_under_load(tmp_path: Path) -> None:
    faults = ("latency", "slicing", "cut", "reset", "half-open", "refusing")
    print("\n" + run(link_faults(tmp_path, 0, hold_s=0.05, faults=faults, measured=False), timeout_s=120))


@pytest.mark.req("SUP-1", "SUP-4", "SUP-5", "REG-5")
@pytest.mark.parametrize("whom", ["edge", "node"])
def test_SIGTERM_under_live_streams(tmp_path: Path, whom: Literal["edge", "node"]) -> None:
    print("\n" + run(terminated_under_streams(tmp_path, whom, 20, endless=5, drain_s=0.5), timeout_s=60))
