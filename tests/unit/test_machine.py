"""State machines by their tables: what a table refuses, and that the document shows what the programs run by."""

from __future__ import annotations

import runpy
from enum import StrEnum
from pathlib import Path

import pytest

from iop.errors import InvalidTransition
from iop.machine import Transitions

ROOT = Path(__file__).resolve().parents[2]
GENERATE = runpy.run_path(str(ROOT / "docs/generate.py"))


class Door(StrEnum):
    OPEN = "open"
    SHUT = "shut"
    LOCKED = "locked"


ROWS = {(Door.OPEN, "push"): Door.SHUT, (Door.SHUT, "turn"): Door.LOCKED, (Door.LOCKED, "turn"): Door.SHUT}
TABLE = Transitions("door", (Door.OPEN,), ROWS)


def test_an_event_without_a_row_is_refused_by_both_names() -> None:
    assert TABLE[Door.OPEN, "push"] is Door.SHUT
    with pytest.raises(InvalidTransition, match="door: no transition for 'turn' in state 'open'"):
        TABLE[Door.OPEN, "turn"]
    with pytest.raises(InvalidTransition, match=r"door 7: .*'push' in state 'shut' \(before: push > turn\)"):
        TABLE.after(Door.SHUT, "push", "7", ("push", "turn"))
    assert (Door.OPEN, "turn") not in TABLE, "asking does not make a row"
    turn = TABLE.step("turn")
    assert turn[Door.LOCKED] is Door.SHUT
    with pytest.raises(InvalidTransition, match="door: no transition for 'turn' in state 'open'"):
        turn[Door.OPEN]


def test_a_state_to_which_no_way_leads_is_a_fault_of_the_table() -> None:
    with pytest.raises(ValueError, match="no way leads to locked"):
        Transitions("door", (Door.OPEN,), {(Door.OPEN, "push"): Door.SHUT})


def test_a_diagram_has_the_ends_and_all_arrows() -> None:
    assert TABLE.diagram().splitlines() == [
        "stateDiagram-v2", "    [*] --> open", "    open --> shut: push", "    shut --> locked: turn",
        "    locked --> shut: turn",
    ]  # fmt: skip
    assert (
        "    shut --> [*]" in Transitions("two", (Door.OPEN, Door.LOCKED), {(Door.OPEN, "push"): Door.SHUT}).diagram()
    )


def test_the_document_shows_the_tables() -> None:
    assert (ROOT / "docs/states.md").read_text() == GENERATE["states"](), "run `make docs`"


def test_every_table_is_in_the_document() -> None:
    found = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in (ROOT / "src/iop").rglob("*.py")
        if "= Transitions(" in path.read_text()
    }
    assert found == GENERATE["MACHINES"].keys()
