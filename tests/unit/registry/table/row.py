"""A row of the table of types."""

from typing import Any, NamedTuple

__all__ = ["Row", "Schema", "loose"]

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


def loose(name: str) -> Schema:
    """The schema of a result that may have a format: the format is named, and any string will do."""
    return {"type": "string", "anyOf": [{"format": name}, {}]}
