"""Diagrams: the pages of the design have those that the founding documents show."""

import re
from pathlib import Path

import pytest

from trunkline.errors import REFUSALS, Interrupted
from trunkline.protocol.error_codes import CODES
from trunkline.protocol.error_kinds import KINDS

SOURCE = Path(__file__).parents[2] / "src/trunkline"
PAGE = Path(__file__).parents[2] / "docs/design/diagrams.md"
SECTION = re.compile(r"^## (?P<title>.+)\n(?P<text>(?:(?!## ).*\n)*)", re.MULTILINE)
DIAGRAMS = ("C4Container", "C4Context", "flowchart", "sequenceDiagram")


@pytest.mark.parametrize(
    "title",
    [
        pytest.param("Context", marks=pytest.mark.row("B01")),
        pytest.param("Containers", marks=pytest.mark.row("B02")),
        pytest.param("Components of a server process", marks=pytest.mark.row("B03")),
        pytest.param("Request flow", marks=pytest.mark.row("B04")),
        pytest.param("Message flow", marks=pytest.mark.row("B12")),
        pytest.param("Capability negotiation", marks=pytest.mark.row("B05")),
        pytest.param("Error handling", marks=pytest.mark.row("B06")),
    ],
)
def test_section_has_a_diagram(title: str) -> None:
    sections = {section["title"]: section["text"] for section in SECTION.finditer(PAGE.read_text("utf-8"))}
    drawn = re.findall(r"```mermaid\n(\S+)", sections[title])
    assert [kind for kind in drawn if kind not in DIAGRAMS] == []
    assert drawn


def test_diagrams_name_existing_modules() -> None:
    text = PAGE.read_text("utf-8")
    named = set(re.findall(r"\b((?:wire|protocol|registry|rpc|server|transports)/[\w/]+)", text))
    named |= {
        f"{package}/{module}"
        for package, modules in re.findall(r'\["([\w/]+): ([^"]+)"\]', text)
        for module in re.findall(r"\w+", modules)
    }
    assert len(named) > 15
    assert {name for name in named if not (SOURCE / name).exists() and not (SOURCE / f"{name}.py").exists()} == set()


def test_diagrams_name_existing_error_kinds() -> None:
    known = {kind.name for kind in KINDS} | CODES.keys() | {info.name for info in REFUSALS.values()}
    known.add(Interrupted.kind)
    text = PAGE.read_text("utf-8").partition("## Capability negotiation")[2]
    named = {word for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text) if not (SOURCE / f"rpc/{word}.py").exists()}
    assert len(named) > 8
    assert named - known == set()
