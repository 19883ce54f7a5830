"""Findings of the authorization doctor."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

__all__ = ["Finding", "FindingVerdict", "first_failed", "strip_query"]

FindingVerdict = Literal["ok", "warning", "failed", "skipped"]


class Finding(Struct, frozen=True):
    """One finding: the hop, its verdict, and what was observed.

    A warning or failure names the violated clause and a fix. `skipped` marks a hop that was not tried because an
    earlier one failed.
    """

    hop: str
    verdict: FindingVerdict
    seen: str
    clause: str = ""
    mend: str = ""


def first_failed(findings: Iterable[Finding]) -> Finding | None:
    """Return the first failed finding, or None."""
    return next((finding for finding in findings if finding.verdict == "failed"), None)


def strip_query(url: str) -> str:
    """Return the URL without query and fragment, which may be confidential."""
    return url.partition("#")[0].partition("?")[0]
