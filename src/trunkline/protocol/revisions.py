"""Revisions of the specification: their order, era and negotiation."""

from collections.abc import Iterable
from enum import Enum, StrEnum, auto
from typing import Final

__all__ = ["HANDSHAKE", "MODERN_REVISIONS", "NEWEST_HANDSHAKE", "SUPPORTED_VERSIONS", "Era", "Revision", "negotiate"]


class Era(Enum):
    """How a session is established."""

    HANDSHAKE = auto()  # initialize, then a session
    MODERN = auto()  # every request carries its own envelope


class Revision(StrEnum):
    """A published revision; the value is its wire name. Later ones are greater, since ISO dates sort as text."""

    V2024_11_05 = "2024-11-05"
    V2025_03_26 = "2025-03-26"
    V2025_06_18 = "2025-06-18"
    V2025_11_25 = "2025-11-25"
    V2026_07_28 = "2026-07-28"

    @property
    def era(self) -> Era:
        """The era of this revision."""
        return Era.MODERN if self >= Revision.V2026_07_28 else Era.HANDSHAKE


HANDSHAKE: Final = tuple(revision for revision in Revision if revision.era is Era.HANDSHAKE)
MODERN_REVISIONS: Final = tuple(revision for revision in Revision if revision.era is Era.MODERN)
SUPPORTED_VERSIONS: Final = tuple(revision.value for revision in sorted(Revision, reverse=True))
"""The wire names of all revisions, the newest first."""

NEWEST_HANDSHAKE: Final = HANDSHAKE[-1]  # the newest revision that a handshake can agree on


def negotiate(requested: str, supported: Iterable[Revision] = HANDSHAKE) -> Revision:
    """Return the revision to answer `initialize` with: the requested one, or else the newest supported one.

    lifecycle, "Version Negotiation": an unknown version is answered with another, never with an error. A revision
    without handshake cannot be negotiated.
    """
    offered = [revision for revision in supported if revision.era is Era.HANDSHAKE]
    return next((revision for revision in offered if revision.value == requested), max(offered))
