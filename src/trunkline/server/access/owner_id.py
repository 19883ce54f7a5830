"""Names of principals, and the storage owner ids that are derived from them.

An owner id is the key prefix under which the tasks and idempotency entries of a principal are stored.
"""

from typing import Any, Final

__all__ = ["ANONYMOUS_OWNER", "owner_from_name", "owner_of", "principal_name"]

ANONYMOUS_OWNER: Final = "nobody"  # never equal to a principal's name: such a name begins with its type
_MAX_LENGTH: Final = 120  # characters; a store limits the length of keys


def principal_name(principal: Any) -> str:
    """Return a text that identifies a principal; different principals have different texts. None has an empty one."""
    return "" if principal is None else f"{type(principal).__qualname__} {principal!r}"


def owner_of(principal: Any) -> str:
    """Return the owner id of a principal."""
    return owner_from_name(principal_name(principal) or ANONYMOUS_OWNER)


def owner_from_name(name: str) -> str:
    """Return the owner id of the principal with this name; a long name becomes a digest."""
    return name if len(name) <= _MAX_LENGTH else f"digest {_digest(name)}"


def _digest(name: str) -> str:
    import hashlib  # imported here because the import is slow and long names are rare

    return hashlib.sha256(name.encode()).hexdigest()
