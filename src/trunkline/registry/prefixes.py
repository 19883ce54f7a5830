"""Prefixes of names and URIs: how the entries of a mounted server appear in its parent.

A name gets the prefix and two underscores: `forecast` becomes `weather__forecast`. In a URI the prefix is the first
segment after the scheme: `notes://today` becomes `notes://weather/today`, and `urn:isbn` becomes `urn:weather/isbn`.
Both are reversible: `strip_uri(add_to_uri(uri))` is `uri`.
"""

import re
from typing import Final

from msgspec import Struct

from trunkline.errors import RegistrationError
from trunkline.errors.options import describe_value

__all__ = ["SEPARATOR", "Prefix", "parse_prefix"]

SEPARATOR: Final = "__"
_PREFIX: Final = re.compile(r"[A-Za-z0-9.-]+(?:_[A-Za-z0-9.-]+)*")  # a single underscore cannot be the separator
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*+:(?://)?")


class Prefix(Struct, frozen=True):
    """A prefix; the empty one changes nothing."""

    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.text)

    def add_to_name(self, name: str) -> str:
        """Return the name of a tool or prompt with the prefix."""
        return f"{self.text}{SEPARATOR}{name}" if self.text else name

    def add_to_uri(self, uri: str) -> str:
        """Return a URI or a URI template with the prefix. Raise `RegistrationError` for one without a scheme."""
        if not self.text:
            return uri
        scheme = _SCHEME.match(uri)
        if scheme is None:
            why = "it does not begin with a scheme, such as notes://"
            raise RegistrationError(f"resource template {uri!r} cannot have the prefix {self.text!r}: {why}")
        return f"{scheme[0]}{self.text}/{uri[scheme.end() :]}"

    def strip_uri(self, uri: str) -> str | None:
        """Return a URI without the prefix; None if it does not have it."""
        if not self.text:
            return uri
        scheme = _SCHEME.match(uri)
        if scheme is None or not uri.startswith(self.text + "/", scheme.end()):
            return None
        return scheme[0] + uri[scheme.end() + len(self.text) + 1 :]


def parse_prefix(prefix: str | None) -> Prefix:
    """Return a prefix. Raise `RegistrationError` for one that names and URIs cannot have."""
    if prefix is None:
        return Prefix()
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):  # pyright: ignore[reportUnnecessaryIsInstance]
        allowed = "letters, digits, '.', '-' and single underscores between them"
        raise RegistrationError(f"prefix= consists of {allowed}, not {describe_value(prefix)}")
    return Prefix(prefix)
