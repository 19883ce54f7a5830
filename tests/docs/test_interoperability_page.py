"""The page on interoperability: its matrix has every method in every revision that defines it."""

import re
from pathlib import Path

import pytest
from tests.interop.matrix import EMPTY, MODERN
from tests.interop.test_client import CELLS as WITH_SERVERS
from tests.interop.test_mcp_client import CELLS as WITH_CLIENTS

from trunkline.protocol.methods import METHODS, Side
from trunkline.protocol.revisions import Revision

PAGE = Path(__file__).parents[2] / "docs/reference/interoperability.md"
TRANSPORTS = re.compile(r"(\w+) (\d+)")


def matrix(part: str) -> dict[tuple[str, str, str], int]:
    """The number of SDKs for each method, transport and revision that the page shows."""
    section = PAGE.read_text("utf-8").partition(f"<!-- generated: {part} -->")[2].partition("<!-- end -->")[0]
    head, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.strip().splitlines()]
    return {
        (name.strip("`"), transport, revision): int(count)
        for name, *shown in lines
        for revision, cell in zip(head[1:], shown, strict=True)
        for transport, count in TRANSPORTS.findall(cell)
    }


PARTS = [("interoperability-server", WITH_CLIENTS), ("interoperability-client", WITH_SERVERS)]


@pytest.mark.row("Z11", "PH61", "PH62")
@pytest.mark.parametrize(("part", "cells"), PARTS, ids=[part for part, _ in PARTS])
def test_matrix_is_what_the_tests_run(part: str, cells) -> None:
    shown = matrix(part)
    assert sum(shown.values()) == len(cells) > 800
    assert shown.keys() == {(cell, transport, revision.value) for _, transport, revision, cell in cells}


@pytest.mark.row("Z11", "PH61", "PH62")
@pytest.mark.parametrize("revision", list(Revision), ids=str)
@pytest.mark.parametrize("part", [part for part, _ in PARTS])
def test_matrix_has_every_method_of_a_revision(part: str, revision: Revision) -> None:
    shown = {(cell, transport) for cell, transport, named in matrix(part) if named == revision.value}
    expected = {
        f"{row.name} to {side.name.lower()}"
        for row in METHODS
        for side in (Side.SERVER, Side.CLIENT)
        if row.exists_in(revision) and row.is_received_by(side) and "tasks" not in (row.capability or row.name)
    } - (EMPTY.keys() if revision is MODERN else set())
    assert len(expected) > 15
    for transport in ("stdio", "http"):
        assert {(cell, transport) for cell in expected} <= shown
