"""Hostile requests from the first byte of a head to the model of a body (API-6, API-8c)."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzzer import fuzz
from tests.fuzz.pipeline import SEEDS, TOKENS, requests


@pytest.mark.req("API-6", "API-8c")
def test_requests() -> None:
    fuzz(requests, SEEDS, TOKENS)
    ends = {str(story[-1]) for story in (requests([seed]) for seed in SEEDS[:11]) if isinstance(story, list)}
    assert all("unfinished" in end and "0" in end for end in ends), "a seed is no whole request"
