"""Who may have an entry: what a peer's token must cover, and who is asked besides."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from trunkline.errors import RegistrationError

__all__ = ["Access", "is_scope", "parse_access"]

_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749, "Access Token Scope"; it goes into a header


def is_scope(text: object) -> bool:
    """Whether a text can be a scope."""
    return isinstance(text, str) and _SCOPE.fullmatch(text) is not None


class Access(Struct, frozen=True):
    """What is asked of whoever wants an entry. One that asks for nothing says so, which is more than to say nothing."""

    scopes: tuple[str, ...] = ()  # all of them are needed, in the order in which they were written
    allow: Callable[[Any], Any] | None = None  # a predicate of the context, plain or async

    @property
    def unrestricted(self) -> bool:
        """Whether everybody may have the entry."""
        return not self.scopes and self.allow is None

    def is_covered_by(self, scopes: frozenset[str] | None) -> bool:
        """Whether these scopes are enough; None stands for all that there are."""
        return scopes is None or scopes.issuperset(self.scopes)


def parse_access(what: str, scopes: Sequence[str] | None, allow: Callable[[Any], Any] | None) -> Access | None:
    """The access to an entry; None where nothing was said of it. Raises `RegistrationError` for what is no rule."""
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
