"""Whose something is that is kept, as a part of its key."""

from typing import Any, Final

from trunkline.server.input.multi_round import named

__all__ = ["NOBODY", "owner_named", "owner_of"]

NOBODY: Final = "nobody"  # in particular; a principal has its type before its name, and so is never called that
_LONGEST: Final = 120  # characters; keys have a limit


def owner_of(principal: Any) -> str:
    """Who it is, in letters; each in others."""
    return owner_named(named(principal) or NOBODY)


def owner_named(name: str) -> str:
    """The same of one whose name is known."""
    return name if len(name) <= _LONGEST else f"digest {_digest(name)}"


def _digest(name: str) -> str:
    import hashlib  # which takes a while, and few have such names

    return hashlib.sha256(name.encode()).hexdigest()
