"""Access rules of entries: required scopes, and an optional predicate."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from trunkline.errors import RegistrationError

__all__ = ["Access", "is_scope", "parse_access"]

_SCOPE: Final = r"[\x21\x23-\x5b\x5d-\x7e]+"  # RFC 6749, "Access Token Scope"; scopes are sent in a header


def is_scope(text: object) -> bool:
    """Return whether a value is a valid scope."""
    return isinstance(text, str) and re.fullmatch(_SCOPE, text) is not None


class Access(Struct, frozen=True):
    """The access rule of an entry. A rule without requirements is explicit: it differs from having no rule."""

    scopes: tuple[str, ...] = ()  # all are required, in the order of registration
    allow: Callable[[Any], Any] | None = None  # a predicate of the context, sync or async

    @property
    def unrestricted(self) -> bool:
        """Whether every caller may use the entry."""
        return not self.scopes and self.allow is None

    def is_covered_by(self, scopes: frozenset[str] | None) -> bool:
        """Return whether these scopes suffice; None stands for all scopes."""
        return scopes is None or scopes.issuperset(self.scopes)


def parse_access(what: str, scopes: Sequence[str] | None, allow: Callable[[Any], Any] | None) -> Access | None:
    """Build an access rule from options; None if there are none. Raise `RegistrationError` for invalid options."""
    if allow is not None and not callable(allow):
        raise RegistrationError(f"{what}: allow is a function of the context, not {allow!r}")
    if isinstance(scopes, str):
        raise RegistrationError(f"{what}: scopes is a list of scopes; write scopes=[{scopes!r}]")
    for scope in scopes or ():
        if not is_scope(scope):
            raise RegistrationError(f"{what}: {scope!r} is no scope, which is a text without spaces and quotes")
    if scopes is allow is None:
        return None
    return Access(tuple(dict.fromkeys(scopes or ())), allow)
