"""SUP-4, SUP-5: SIGTERM of the edge and of the node under 200 live streams; ``make chaos-sigterm STREAMS=200``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

import pytest

from tests.support.aio import run
from tests.support.draining import terminated_under_streams

STREAMS = int(os.environ.get("STREAMS", "200"))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.req("SUP-1", "SUP-4", "SUP-5", "REG-5")
@pytest.mark.parametrize("whom", ["edge", "node"])
@pytest.mark.parametrize("endless", [0, STREAMS // 4])
def test_SIGTERM_under_many_streams(tmp_path: Path, whom: Literal["edge", "node"], endless: int) -> None:
    drain_s = 3.0 if endless else 30.0
    told = terminated_under_streams(tmp_path, whom, STREAMS, endless=endless, drain_s=drain_s)
    print("\n" + run(told, timeout_s=120))
