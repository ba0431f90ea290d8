"""Hostile event streams never raise, and every cut tells the same story (TUN-10)."""

from __future__ import annotations

import pytest

from iop._fast.sse import CHAT, MESSAGES, OTHER, RESPONSES, EventSplitter
from tests.fuzz import corpus
from tests.fuzz.fuzzer import fuzz


@pytest.mark.req("TUN-10", "LIVE-2")
@pytest.mark.parametrize("dialect", [OTHER, CHAT, RESPONSES, MESSAGES])
def test_event_streams(dialect: int) -> None:
    def watch(parts: list[bytes]) -> object:
        splitter, flags = EventSplitter(dialect), 0
        for part in parts:
            flags |= splitter.feed(part)
        return (
            flags,
            splitter.events,
            splitter.progress_events,
            splitter.at_boundary,
            splitter.finished,
            splitter.usage(),
            splitter.usage_start(),
        )

    fuzz(watch, corpus.STREAMS, corpus.STREAM_TOKENS, seed=dialect)
