"""docs/configuration.md is what the models and the example files say (`make docs`)."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GENERATE = runpy.run_path(str(ROOT / "docs/generate.py"))


@pytest.mark.req("CONF-3")
def test_the_reference_is_up_to_date() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == GENERATE["document"](), "run `make docs`"


@pytest.mark.req("CONF-3")
def test_every_setting_has_a_meaning_and_every_meaning_a_setting() -> None:
    text = GENERATE["document"]()
    assert not re.findall(r"^\| .*\|  \|$", text, re.MULTILINE)
    rows = {
        path for title, part in re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
        for setting in re.findall(r"^\| `(\S+)` \|", part, re.MULTILINE)
        for path in (f"{title}.{setting}", setting)
    }  # fmt: skip
    assert GENERATE["MEANINGS"].keys() <= rows
