"""Whose something is that is kept, as a part of its key."""

import hashlib
from typing import Any, Final

from trunkline.server.rounds import named

__all__ = ["owner_of"]

_NOBODY: Final = "nobody"  # in particular; a principal has its type before its name, and so is never called that
_LONGEST: Final = 120  # characters; keys have a limit


def owner_of(principal: Any) -> str:
    """Who it is, in letters; each in others."""
    name = named(principal) or _NOBODY
    return name if len(name) <= _LONGEST else f"digest {hashlib.sha256(name.encode()).hexdigest()}"
