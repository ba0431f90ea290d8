"""The mutants as mutants.toml has them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Mutant", "read_mutants"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug: ``old`` becomes ``new`` in ``file``. ``tests`` must notice if the simulation does not."""

    name: str
    bug: str
    file: str
    old: str
    new: str
    tests: list[str]

    def applied(self, text: str) -> str:
        """The text with the bug. Raises ValueError unless ``old`` is there exactly once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.file} has what it replaces {count} times instead of once")
        return text.replace(self.old, self.new)


def read_mutants() -> list[Mutant]:
    data = tomllib.loads((ROOT / "tests/mutants/mutants.toml").read_text(encoding="utf-8"))
    return [Mutant(**entry) for entry in data["mutant"]]
