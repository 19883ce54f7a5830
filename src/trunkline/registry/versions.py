"""Versions of an entry: several entries of one name, of which the highest version is the one that is listed.

Each version can also be called by a name of its own, `forecast.v1`, which is not listed. Versions are compared piece by
piece, numbers as numbers: 1.10 is higher than 1.9, and 2.0 is higher than 2.0-rc1.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["highest_version", "version_order"]

_PIECE: Final = re.compile(r"\d+|[A-Za-z]+")
_TEXT, _END, _NUMBER = 0, 1, 2  # in ascending order: a text after a number marks what comes before a release


def version_order(version: str) -> list[tuple[int, int, str]]:
    """Return a value that sorts versions."""
    pieces = _PIECE.findall(version)
    return [(_NUMBER, int(piece), "") if piece.isdigit() else (_TEXT, 0, piece) for piece in pieces] + [(_END, 0, "")]


def highest_version(versions: Mapping[str, Any]) -> Any:
    """Return the entry of the highest version."""
    return versions[max(versions, key=version_order)]
