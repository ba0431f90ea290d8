"""The rules of docs/contract.md, and which of them no test carries."""

from __future__ import annotations

import re
from pathlib import Path

CONTRACT = Path(__file__).parents[2] / "docs" / "contract.md"

_RULE = re.compile(r"^- \*\*([A-Z]+-[0-9]+[a-z]?)\*\*", re.MULTILINE)


def contract_rules() -> list[str]:
    """The ids of all rules, in the order of the document."""
    return _RULE.findall(CONTRACT.read_text(encoding="utf-8"))
