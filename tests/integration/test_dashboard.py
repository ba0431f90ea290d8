"""deploy/grafana asks for nothing that the edge does not export: names, labels and closed label values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from iop.observability.metrics import EdgeMetrics, Histogram
from tests.support.deploy import DEPLOY

DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/iop-edge.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(f"{panel['title']}: {target['expr']}", target) for panel in PANELS for target in panel["targets"]]
EACH_TARGET = pytest.mark.parametrize("target", [t for _, t in TARGETS], ids=[name for name, _ in TARGETS])

#: What Prometheus itself adds to every series.
SCRAPED = {"job", "instance"}
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


class Series(NamedTuple):
    """What may be asked of one exported name. ``values`` are the closed sets of its labels; empty: an open one."""

    growing: bool
    values: dict[str, frozenset[str]]


def exported() -> dict[str, Series]:
    metrics = EdgeMetrics()
    found = {}
    for family in metrics.families:
        values = dict(zip(family.labels, family._allowed, strict=True))
        if isinstance(family, Histogram):
            for suffix in ("_bucket", "_sum", "_count"):
                le = {"le": frozenset[str]()} if suffix == "_bucket" else {}
                found[family.name + suffix] = Series(True, values | le)
        else:
            found[family.name] = Series(family.kind == "counter", values)
    text = metrics.render()[0].decode()
    for name, kind in re.findall(r"^# TYPE (process_\w+) (\w+)$", text, re.MULTILINE):
        found[name] = Series(kind == "counter", {})
    return found


EXPORTED = exported()


class Selector(NamedTuple):
    name: str
    matchers: list[tuple[str, str, str]]
    over_time: bool


def selectors(expression: str) -> Iterator[Selector]:
    for found in re.finditer(r"\b((?:iop|process)_\w+)(?:\{([^}]*)\})?(\[\$__rate_interval\])?", expression):
        name, matchers, window = found.groups()
        rest = MATCHER.sub("", matchers or "")
        assert set(rest) <= set(", "), f"{rest!r} is no matcher"
        yield Selector(name, MATCHER.findall(matchers or ""), window is not None)


def grouped_by(expression: str) -> set[str]:
    lists = re.findall(r"\bby \(([^)]*)\)", expression)
    return {label.strip() for one in lists for label in one.split(",")}


@EACH_TARGET
def test_what_a_panel_asks_for_is_exported(target: dict[str, Any]) -> None:
    asked = list(selectors(target["expr"]))
    assert asked
    growths = re.findall(r"\b(?:rate|increase)\(", target["expr"])
    assert len(growths) == sum(selector.over_time for selector in asked)
    for name, matchers, over_time in asked:
        assert name in EXPORTED
        series = EXPORTED[name]
        assert over_time is series.growing, f"{name}: rate() and increase() are for what only grows"
        for label, operator, value in matchers:
            assert label in series.values.keys() | SCRAPED, f"{name} has no label {label}"
            if label not in SCRAPED and operator in {"=", "!="} and series.values[label]:
                assert value in series.values[label], f"{name}: {label} is never {value}"
        assert grouped_by(target["expr"]) <= series.values.keys() | SCRAPED


@EACH_TARGET
def test_a_panel_obeys_the_choices_at_the_top(target: dict[str, Any]) -> None:
    assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for name, matchers, _ in selectors(target["expr"]):
        chosen = {"job", "instance", *({"model", "node", "provider"} & EXPORTED[name].values.keys())}
        assert {(label, "=~", f"${label}") for label in chosen} <= set(matchers), name
    shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert shown == grouped_by(target["expr"]) - {"le"}


@EACH_TARGET
def test_quantiles_are_taken_of_buckets(target: dict[str, Any]) -> None:
    names = {selector.name for selector in selectors(target["expr"])}
    takes = "histogram_quantile(" in target["expr"]
    assert takes == ("le" in grouped_by(target["expr"])) == any(name.endswith("_bucket") for name in names)


def test_choices_are_read_from_what_is_exported() -> None:
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "job", "instance", "model", "node", "provider"}
    for label in variables.keys() - {"datasource"}:
        found = re.fullmatch(r"label_values\((\w+)(?:\{[^}]*\})?, (\w+)\)", variables[label]["query"]["query"])
        assert found is not None
        assert found[1] in EXPORTED
        assert found[2] == label


def test_panels_have_their_own_id_and_place() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            assert cell not in taken, f"{panel['title']} lies over {taken[cell]}"
            taken[cell] = panel["title"]


def test_what_the_documents_call_worth_an_alert_is_shown() -> None:
    operations = (DEPLOY.parent / "docs/operations.md").read_text()
    (advice,) = re.findall(r"^Worth an alert:.*?\n\n", operations, re.MULTILINE | re.DOTALL)
    asked = {selector.name for _, target in TARGETS for selector in selectors(target["expr"])}
    assert set(re.findall(r"iop_edge_\w+", advice)) <= asked
