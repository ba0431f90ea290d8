"""docs/configuration.md is what the models and the example files say (`make docs`)."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from iop.config.diff import LIVE, SWITCHES
from iop.config.edge import EdgeConfig

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


@pytest.mark.req("CONF-2", "CONF-3")
def test_what_needs_a_restart_is_marked() -> None:
    text = GENERATE["document"]().partition("## node.yaml")[0]
    meanings = {
        f"{title}.{setting}": meaning
        for title, part in re.findall(r"^### (\w+)\n(.*?)(?=^###|\Z)", text, re.MULTILINE | re.DOTALL)
        for setting, meaning in re.findall(r"^\| `(\w+)` .*\| (.*?) \|$", part, re.MULTILINE)
    }
    assert len(meanings) > 30
    for path, meaning in meanings.items():
        if "later versions" in meaning or path.split(".")[0] not in EdgeConfig.model_fields:
            continue
        expected = "[restart on/off]" if path in SWITCHES else "" if path in LIVE else "[restart]"
        assert re.findall(r"\[restart.*?\]", meaning) == ([expected] if expected else []), path
