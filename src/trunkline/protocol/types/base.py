"""What every type of the specification stands on.

Wire names are camelCase and exist only in this package; in Python everything is snake_case.
Optional members default to `None` and are left out when they are. Objects are open: members that
a type does not know are ignored when read.

What the specification writes as a union without a tag is one type here, whose members are the union's: contents
of a resource (text or blob), an elicitation (form or URL), a string of a form (free or chosen from a list). So is
what completion refers to, since some peers name its kinds otherwise.
"""

from typing import Any

from msgspec import Struct, field

__all__ = ["Empty", "Item", "Number", "Params", "Result", "Wire"]

Number = int | float
"""A JSON number; a whole one stays whole when it is passed on."""


class Wire(Struct, rename="camel", omit_defaults=True, repr_omit_defaults=True):
    """A JSON object of the specification."""


class Item(Wire, kw_only=True):
    """An object with metadata of its own."""

    meta: dict[str, Any] | None = field(name="_meta", default=None)


class Params(Wire, kw_only=True):
    """Parameters of a request or notification."""

    meta: dict[str, Any] | None = field(name="_meta", default=None)


class Result(Wire, kw_only=True):
    """The result of a request."""

    meta: dict[str, Any] | None = field(name="_meta", default=None)


class Empty(Params):
    """Parameters of a method that takes none, and the result of one that gives none."""
