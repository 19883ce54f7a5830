"""The benchmark's figures as a drawing and as a table."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from bench import run as bench_run
from bench.driver import Sample
from bench.environments import ROOT
from bench.plot import duration, svg
from bench.report import Figures, Origin, document_of
from bench.tables import BEGIN, END, markdown, replaced
from bench.workloads import Bar, Row

SVG = "{http://www.w3.org/2000/svg}"
ORIGIN = Origin("3.13.0", "abc1234", "5 rounds of 10 batches")
ECHO = Row(
    "echo <1>", None, ("trunkline", "bare", "mcp", "chuk"), (Bar("cheaper", 10, "mcp"), Bar("at most", 1, "chuk"))
)
RATES = [
    {"name": "decode", "per_second": 1_200_000.0, "wanted": 1_000_000, "gate": True},
    {"name": "track", "per_second": 5.0, "wanted": 10, "gate": True},
]


def figures(missing: dict[str, str] | None = None, **costs: list[float]) -> Figures:
    return Figures({name: [Sample(cost, 1) for cost in found] for name, found in costs.items()}, missing or {})


@pytest.fixture
def document() -> dict[str, Any]:
    """A run of one row with a missing peer, and of rows that are not drawn."""
    return document_of(
        ORIGIN,
        [
            (ECHO, figures({"chuk": "no wheel\nfor this Python"}, mcp=[1000.0], bare=[10.0], trunkline=[100.0, 120.0])),
            (Row("memory", None, ("trunkline", "chuk"), unit="KB"), figures(trunkline=[1.5], chuk=[2.0])),
            (Row("store", None, ("trunkline", "trunkline, SQLite")), figures(trunkline=[90.0])),
        ],
        RATES,
    )


def texts(drawing: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(drawing).iter(f"{SVG}text")]


def bars(drawing: str) -> dict[str, float]:
    """The width of each bar, by the kind of its target; without the legend, where all are alike."""
    found = [(bar.get("class"), float(bar.get("width", "0"))) for bar in ET.fromstring(drawing).iter(f"{SVG}rect")]
    return dict(found[4:])


def test_bars_are_on_a_logarithmic_scale(document: dict[str, Any]) -> None:
    widths = bars(svg(document))

    assert widths["peer"] - widths["ours"] == pytest.approx(widths["ours"] - widths["yardstick"], abs=0.2)
    assert widths["yardstick"] > 0


def test_drawing_names_rows_targets_costs_and_origin(document: dict[str, Any]) -> None:
    found = texts(svg(document))

    assert {"echo <1>", "trunkline", "bare", "mcp", "10 µs", "100 µs", "1 ms"} <= set(found)
    assert any("CPython 3.13.0, commit abc1234, 5 rounds" in text for text in found)


def test_drawing_shows_unmeasured_targets(document: dict[str, Any]) -> None:
    found = texts(svg(document))

    assert found[found.index("chuk") + 1] == "not measured"


def test_rows_without_peers_or_of_other_units_are_not_drawn(document: dict[str, Any]) -> None:
    assert not {"memory", "store"} & set(texts(svg(document)))


def test_drawing_has_colours_for_light_and_dark_mode(document: dict[str, Any]) -> None:
    light, _, dark = svg(document).partition("prefers-color-scheme: dark")

    for kind in (".page", "text", ".quiet", ".grid", ".ours", ".yardstick", ".peer"):
        assert re.search(rf"^.*{re.escape(kind)} {{", light, re.MULTILINE)
        assert re.search(rf"^.*{re.escape(kind)} {{", dark, re.MULTILINE)


def test_everything_is_within_the_drawing(document: dict[str, Any]) -> None:
    root = ET.fromstring(svg(document))
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))

    for text in root.iter(f"{SVG}text"):
        assert 0 < float(text.get("x", "0")) < width
        assert 0 < float(text.get("y", "0")) < height


def test_run_without_figures_is_drawn() -> None:
    assert "CPU time per call" in texts(svg(document_of(ORIGIN, [])))


@pytest.mark.parametrize(
    ("us", "said"), [(0.5, "0.5 µs"), (7.24, "7.24 µs"), (999.7, "1 ms"), (1290, "1.29 ms"), (2_000_000, "2 s")]
)
def test_durations_have_a_suitable_unit(us: float, said: str) -> None:
    assert duration(us) == said


def test_table_has_figures_and_verdicts(document: dict[str, Any]) -> None:
    found = markdown(document)

    assert "CPython 3.13.0, commit abc1234, 5 rounds of 10 batches." in found
    assert (
        "| echo <1> | 100 | bare 10.0; mcp 1,000; chuk not measured "
        "| 10 times cheaper than mcp: 10.00, met; at most 1 times chuk: not measured |" in found
    )
    assert "| memory (KB) | 1.5 | chuk 2.0 | - |" in found
    assert "| decode | 1,200,000 | 1,000,000: met |" in found
    assert "| track | 5 | 10: **missed** |" in found


def test_median_bar_compares_medians() -> None:
    bar = Bar("at most", 1, "mcp", by="median")
    row = Row("a row", None, ("trunkline", "mcp"), (bar,))

    assert str(bar) == "at most 1 times mcp, by the median"
    assert bench_run.fails(row, figures(trunkline=[1.0, 3.0, 3.0], mcp=[2.0, 2.0, 2.0]))
    assert not bench_run.fails(row, figures(trunkline=[3.0, 1.0, 1.0], mcp=[0.5, 2.0, 2.0]))


def test_table_replaces_the_one_of_the_page() -> None:
    assert replaced(f"before\n{BEGIN}old\n{END}after\n", "new\n") == f"before\n{BEGIN}new\n{END}after\n"
    with pytest.raises(ValueError, match="has 0"):
        replaced("a page without a place\n", "new\n")


def test_run_writes_all_forms(document: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}")
    options = bench_run._options(["--json", str(tmp_path / "out" / "figures.json"), "--markdown", str(page)])

    bench_run.write(document, options)

    assert json.loads((tmp_path / "out" / "figures.json").read_text("utf-8")) == document
    assert (tmp_path / "out" / "figures.svg").read_text("utf-8") == svg(document)
    assert page.read_text("utf-8") == f"{BEGIN}{markdown(document)}{END}"


def test_page_has_a_place_for_the_table_and_the_drawing() -> None:
    page = (ROOT / "docs" / "design" / "performance.md").read_text("utf-8")

    assert "| a |" in replaced(page, "| a |\n")
    assert "(performance.svg)" in page
    ET.parse(ROOT / "docs" / "design" / "performance.svg")
