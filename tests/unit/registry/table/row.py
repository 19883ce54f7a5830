"""A row of the table of types."""

from typing import Any, NamedTuple

__all__ = ["Row", "Schema", "loose"]

Schema = dict[str, Any]


class Row(NamedTuple):
    """A type: its schema within another one, a value, and three invalid values.

    The errors of those begin with `$`, for the path of the value, or with `@` where no schema can express it.
    """

    kind: Any
    schema: Schema
    value: Any  # in JSON
    python: Any  # the same in Python
    wrong: tuple[tuple[Any, ...], ...]  # values, and the error for each
    definitions: tuple[str, ...] = ()  # the names of the definitions that it needs
    result: Schema | None = None  # its schema as a result, if different


def loose(name: str) -> Schema:
    """The schema of a result that may have a format: it names the format, and accepts any string."""
    return {"type": "string", "anyOf": [{"format": name}, {}]}
