"""Findings of the authorization doctor."""

from collections.abc import Iterable

from trunkline.findings import Finding

__all__ = ["first_failed", "strip_query"]


def first_failed(findings: Iterable[Finding]) -> Finding | None:
    """Return the first failed finding, or None."""
    return next((finding for finding in findings if finding.verdict == "failed"), None)


def strip_query(url: str) -> str:
    """Return the URL without query and fragment, which may be confidential."""
    return url.partition("#")[0].partition("?")[0]
