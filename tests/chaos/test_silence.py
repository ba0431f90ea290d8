"""WIRE-7, LIVE-3: a prefill that says nothing for longer than the 45 s after which a silent link is dead.

``make chaos-silence``. The clocks are the real ones, so it takes most of a minute; tests/integration/
test_link_heartbeat.py is the same with short ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from iop.wire.limits import TIMING
from tests.support.aio import run
from tests.support.silence import a_long_silence
from tests.support.stack import model, running_stack

KEEPALIVE_S = 5.0


@pytest.mark.req("WIRE-7", "LIVE-1", "LIVE-3", "API-7b")
def test_a_prefill_outlasts_every_clock_of_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IOP_TEST_TIMING", raising=False)
    beats = int(TIMING.response_wait_s / KEEPALIVE_S) + 1

    async def body() -> str:
        with running_stack(tmp_path, {"m": {}}, [model("m")], http={"stream_keepalive_sec": KEEPALIVE_S}) as stack:
            async with stack.scene() as scene:
                return await a_long_silence(scene, "m", beats, TIMING.response_wait_s)

    print("\n" + run(body(), timeout_s=120))
