"""Whose something is that is kept, as a part of its key."""

from typing import Any, Final

from trunkline.server.input.multi_round import principal_name

__all__ = ["ANONYMOUS_OWNER", "owner_from_name", "owner_of"]

ANONYMOUS_OWNER: Final = (
    "nobody"  # in particular; a principal has its type before its name, and so is never called that
)
_MAX_LENGTH: Final = 120  # characters; keys have a limit


def owner_of(principal: Any) -> str:
    """Who it is, in letters; each in others."""
    return owner_from_name(principal_name(principal) or ANONYMOUS_OWNER)


def owner_from_name(name: str) -> str:
    """The same of one whose name is known."""
    return name if len(name) <= _MAX_LENGTH else f"digest {_digest(name)}"


def _digest(name: str) -> str:
    import hashlib  # which takes a while, and few have such names

    return hashlib.sha256(name.encode()).hexdigest()
