"""A row of the table of types."""

from typing import Any, NamedTuple

__all__ = ["Row", "Schema"]

Schema = dict[str, Any]


class Row(NamedTuple):
    """A type: its schema where it stands inside of another, a value, and three that do not fit.

    What is said of those begins with `$`, for where the value stands, or with `@` where no schema can tell.
    """

    kind: Any
    schema: Schema
    value: Any  # in JSON
    python: Any  # the same in Python
    wrong: tuple[tuple[Any, ...], ...]  # values, and what is said of each
    definitions: tuple[str, ...] = ()  # the names of those that it needs
    result: Schema | None = None  # its schema as a result, if that is another
