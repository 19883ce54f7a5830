"""What was found at each hop of authorization."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

__all__ = ["Finding", "FindingVerdict", "first_failed", "strip_query"]

FindingVerdict = Literal["ok", "warning", "failed", "skipped"]


class Finding(Struct, frozen=True):
    """One thing that was looked at: at which hop, how it stands, and in words what was seen. What is not well names the
    rule that it breaks and how to mend it; `skipped` is what could not be tried, since something before it failed."""

    hop: str
    verdict: FindingVerdict
    seen: str
    clause: str = ""
    mend: str = ""


def first_failed(findings: Iterable[Finding]) -> Finding | None:
    """Where to begin: the first thing that failed; None if nothing did."""
    return next((finding for finding in findings if finding.verdict == "failed"), None)


def strip_query(url: str) -> str:
    """An address that can be shown to others: what is asked for there stays with whoever asked."""
    return url.partition("#")[0].partition("?")[0]
