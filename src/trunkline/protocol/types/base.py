"""Base classes of all types of the specification.

Wire names are camelCase and exist only in this package; in Python everything is snake_case. Optional members default to
`None` and are omitted then. Objects are open: decoding ignores unknown members.

An untagged union of the specification is one type here, with the members of all options: contents of a resource (text
or blob), an elicitation (form or URL), a string of a form (free or chosen from a list). So is a completion reference,
since some peers use other names for its types.
"""

from typing import Any

from msgspec import Struct, field

__all__ = ["Empty", "Item", "Number", "Params", "Result", "TaskAugmentedParams", "TaskMetadata", "Wire"]

Number = int | float
"""A JSON number; an integer stays an integer when it is forwarded."""


class Wire(Struct, rename="camel", omit_defaults=True, repr_omit_defaults=True, gc=False):
    """A JSON object of the specification. JSON has no cycles, so the garbage collector need not track it."""


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
    """Params of a method without params, and the result of a method without a result."""


class TaskMetadata(Wire):
    """The request to run as a task."""

    ttl: int | None = None  # lifetime of the result in ms


class TaskAugmentedParams(Params, kw_only=True):
    """Params of a request that may run as a task."""

    task: TaskMetadata | None = None
