"""That each mutant still is what it says; ``make mutants`` runs them."""

from __future__ import annotations

import pytest

from tests.mutants.catalog import ROOT, Mutant, read_mutants

MUTANTS = read_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_is_python(mutant: Mutant) -> None:
    changed = mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
    if not mutant.native:
        compile(changed, mutant.file, "exec")
    assert mutant.bug.endswith(".")
    assert [test for test in mutant.tests if not (ROOT / test.partition("::")[0]).exists()] == []


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
