"""Methods outside the specification, which a server and its clients agree on by themselves.

They have no capability, exist in every revision, and follow the rules of the lifecycle for requests and notifications.
"""

from functools import lru_cache
from typing import Any, Final

from trunkline.errors.options import describe_value
from trunkline.protocol.methods import ALIASES, METHODS, Method, Side, find_method

__all__ = ["custom_method", "find_name_fault", "is_custom"]

_RESERVED: Final = "rpc."  # JSON-RPC 2.0, "Request object"
_NOTIFICATIONS: Final = "notifications/"
_FAMILIES: Final = frozenset(
    name.partition("/")[0] for row in METHODS if "/" in (name := row.name.removeprefix(_NOTIFICATIONS))
)  # "tools", "resources" and so on


def is_custom(name: str) -> bool:
    """Return whether no revision of the specification defines a method of this name."""
    return find_method(name) is None and name not in ALIASES


def find_name_fault(name: Any) -> str | None:
    """Return why a custom method cannot have this name; None if it can."""
    if not isinstance(name, str) or not name:
        return f"the name of a method is a text such as 'acme/ping', not {describe_value(name)}"
    family, slash, _ = name.removeprefix(_NOTIFICATIONS).partition("/")
    bare = not slash and name.startswith(_NOTIFICATIONS)
    if not is_custom(name) or (slash and family in _FAMILIES) or bare:
        return (
            f"{name!r} is not a name for a method of your own: it belongs to the specification, or a later revision "
            "may define it; use a prefix of yours, such as 'acme/ping'"
        )
    if name.startswith(_RESERVED):
        return f"{name!r} is reserved: JSON-RPC keeps names that begin with {_RESERVED!r} for itself"
    return None


@lru_cache(256)
def custom_method(name: str, *, request: bool) -> Method:
    """Return the row of a custom method."""
    return Method(name, Side.EITHER, "Empty", "Empty" if request else None, custom=True)
