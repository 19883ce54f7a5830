"""Findings of a diagnosis: what was checked, with which verdict, and what to do about it."""

from typing import Literal

from msgspec import Struct

__all__ = ["Finding", "Verdict"]

Verdict = Literal["ok", "warning", "failed", "skipped"]


class Finding(Struct, frozen=True):
    """One finding: the checked hop or part, its verdict, and what was observed.

    A warning or failure names a fix and, if there is one, the violated clause. `skipped` marks what was not tried
    because an earlier check failed.
    """

    hop: str
    verdict: Verdict
    seen: str
    clause: str = ""
    mend: str = ""
