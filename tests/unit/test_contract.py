"""docs/contract.md as the report of unproven rules reads it."""

from __future__ import annotations

from tests.support.rules import contract_rules


def test_rules_are_found_and_none_stands_twice() -> None:
    rules = contract_rules()
    assert len(rules) == len(set(rules))
    assert {"WIRE-1", "REG-5", "POOL-12", "API-7c", "TUN-10", "OBS-4"} <= set(rules)
