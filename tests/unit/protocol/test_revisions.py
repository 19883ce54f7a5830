"""The revisions, their order, and their negotiation."""

import pytest

from trunkline.protocol.revisions import HANDSHAKE, NEWEST_HANDSHAKE, Era, Revision, negotiate


@pytest.mark.row("X01")
def test_revisions_are_ordered_by_date() -> None:
    assert [revision.value for revision in sorted(Revision)] == [
        "2024-11-05",
        "2025-03-26",
        "2025-06-18",
        "2025-11-25",
        "2026-07-28",
    ]


@pytest.mark.row("X01")
def test_only_last_revision_has_no_handshake() -> None:
    assert [revision.era for revision in Revision] == [*[Era.HANDSHAKE] * 4, Era.MODERN]
    assert NEWEST_HANDSHAKE is HANDSHAKE[-1] is Revision.V2025_11_25


@pytest.mark.row("X01")
@pytest.mark.parametrize("revision", HANDSHAKE)
def test_supported_revision_is_accepted(revision: Revision) -> None:
    assert negotiate(revision.value) is revision


@pytest.mark.row("X01")
@pytest.mark.parametrize("requested", ["2026-07-28", "1999-01-01", "3000-01-01", "", "2025-11-25 "])
def test_unknown_revision_is_answered_with_the_newest(requested: str) -> None:
    assert negotiate(requested) is Revision.V2025_11_25


@pytest.mark.row("X01")
def test_newest_is_chosen_among_the_supported() -> None:
    supported = [Revision.V2026_07_28, Revision.V2025_03_26, Revision.V2024_11_05]
    assert negotiate("2025-11-25", supported) is Revision.V2025_03_26
    assert negotiate("2026-07-28", supported) is Revision.V2025_03_26
