"""The dashboard, the alerts and the queries of the manual name metrics and labels that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from trunkline.metrics.families import FAMILIES, Family

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/observability"
PANELS = json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]
PAGE = (ROOT / "docs/how-to/metrics.md").read_text()

_SERIES = re.compile(r"(trunkline_\w+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|on|group_left) \(([^)]*)\)")
_MATCHER = re.compile(r"(\w+)(?:=|!=|=~|!~)\"")
_TARGET_LABELS = {"job", "instance"}  # that Prometheus adds


def named(text: str) -> Iterator[tuple[Family, str]]:
    """Yield the families that a text names, and the matchers of their labels."""
    for name, matchers in _SERIES.findall(text):
        base = re.sub(r"_(?:bucket|count)$", "", name)
        family = FAMILIES.get(name) or FAMILIES.get(base)
        assert family is not None, f"there is no metric {name}"
        assert (family.kind == "histogram") is (base != name), name
        yield family, matchers


def labels(family: Family) -> set[str]:
    more = {"le"} if family.buckets else set[str]()
    return {*family.labels, *_TARGET_LABELS, *more, *(["worker"] if family.per_worker else [])}


def check(query: str) -> set[str]:
    """Check a query; return the names of its metrics."""
    found = list(named(query))
    assert found, query
    for family, matchers in found:
        assert set(_MATCHER.findall(matchers)) <= labels(family), query
    known = set[str]().union(*(labels(family) for family, _ in found))
    for group in _GROUPING.findall(query):
        assert {each.strip() for each in group.split(",")} <= known, query
    assert query.count("(") == query.count(")")
    return {family.name for family, _ in found}


def queries() -> list[tuple[str, str, str]]:
    """The title, the query and the legend of each line of the dashboard."""
    return [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in PANELS
        for target in panel.get("targets", ())
    ]


@pytest.mark.parametrize(("title", "query", "legend"), queries())
def test_dashboard_uses_metrics_and_labels_that_exist(title: str, query: str, legend: str) -> None:
    check(query)
    families = [family for family, _ in named(query)]
    shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
    assert shown <= set[str]().union(*map(labels, families)), title


def test_dashboard_shows_every_metric() -> None:
    assert set[str]().union(*(check(query) for _, query, _ in queries())) == set(FAMILIES)


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in PANELS]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_alerts_and_queries_of_the_manual_use_metrics_that_exist() -> None:
    alerts = re.findall(
        r"expr: (?:>-\n)?((?:(?! for:| annotations:).)+)", (FOLDER / "alerts.yml").read_text(), re.DOTALL
    )
    assert len(alerts) == 5
    asked = [line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| ") and "? | `" in line]
    assert len(asked) > 5
    for query in (*alerts, *(each.replace("\\|", "|") for each in asked)):
        check(query)
