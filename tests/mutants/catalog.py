"""The mutants as mutants.toml has them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ROOT", "Mutant", "read_mutants"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug: ``old`` becomes ``new`` in ``file``, and so do the pairs in ``more``. ``tests`` must notice if the
    simulation does not.

    ``simulated``: false for a bug that the simulation cannot reach; only ``tests`` are run. ``slow``: true for a mutant
    that is run by name or with ``--all`` only.
    """

    name: str
    bug: str
    file: str
    old: str
    new: str
    tests: list[str]
    more: list[list[str]] = field(default_factory=list)
    simulated: bool = True
    slow: bool = False

    @property
    def native(self) -> bool:
        """Whether the kernels have to be rebuilt for it."""
        return self.file.endswith((".pyx", ".pxd"))

    def applied(self, text: str) -> str:
        """The text with the bug. Raises ValueError unless each ``old`` is there exactly once."""
        for old, new in ([self.old, self.new], *self.more):
            count = text.count(old)
            if count != 1:
                raise ValueError(f"{self.file} has what it replaces {count} times instead of once")
            text = text.replace(old, new)
        return text


def read_mutants() -> list[Mutant]:
    data = tomllib.loads((ROOT / "tests/mutants/mutants.toml").read_text(encoding="utf-8"))
    return [Mutant(**entry) for entry in data["mutant"]]
