"""CONF-2 under load: the file changes several times a second, and nobody notices.

``make chaos-refresh`` runs it for five minutes; ``REFRESH_S=30`` makes it shorter, ``REFRESHES_PER_MINUTE`` faster.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.support.aio import run
from tests.support.refreshing import Rig

SECONDS = float(os.environ.get("REFRESH_S", "300"))
PER_MINUTE = float(os.environ.get("REFRESHES_PER_MINUTE", "200"))
CLIENTS = 24  # more than the capacity that there is on average: some always wait


@pytest.mark.req("CONF-2", "POOL-7")
def test_the_configuration_changes_200_times_a_minute_under_load(tmp_path: Path) -> None:
    async def body() -> None:
        with Rig(tmp_path) as rig:
            async with rig.load(CLIENTS) as load:
                loop = asyncio.get_running_loop()
                started = due_at = loop.time()
                while loop.time() < started + SECONDS:
                    await load.refresh()
                    due_at += 60 / PER_MINUTE
                    await asyncio.sleep(max(0.0, due_at - loop.time()))  # the pace is what is asked for
            text = await load.metrics()
        print("\n" + load.figures())
        assert load.faults == []
        assert "iop_edge_lease_returns_ignored_total 0.0" in text
        assert 'cause="capacity_exceeded"' not in text, (
            "a grant above the capacity, which the node's gate had to refuse"
        )
        assert load.outcomes["complete"] == sum(load.outcomes.values()) > SECONDS * 20
        assert sum(load.refreshes.values()) >= 0.9 * SECONDS * PER_MINUTE / 60

    run(body(), timeout_s=SECONDS + 120)
