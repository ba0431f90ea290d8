"""Any text at all is a configuration or a list of faults, nothing else."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from iop.config.load import parse_edge, parse_node
from iop.errors import ConfigError

WORDS = """edge http transport admin queue nodes models id providers kind listen token_env candidates node provider
aliases api_keys capacity base_url reconnect max_attempts"""
KEYS = st.sampled_from(WORDS.split())
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    _load(text)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    _load(data)


@given(st.dictionaries(KEYS, TREES, max_size=5))
def test_any_tree_of_known_keys(tree: Any) -> None:
    _load(yaml.safe_dump(tree))


def _load(text: str | bytes) -> None:
    for parse in (parse_edge, parse_node):
        faults = ["none"]
        try:
            parse(text, env={})
        except ConfigError as error:
            faults = error.faults
        assert faults
        assert all("\n" not in fault for fault in faults)
