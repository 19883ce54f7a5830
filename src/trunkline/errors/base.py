"""Base classes of all exceptions."""

from typing import ClassVar, TypeVar

from trunkline.errors.text import printable

__all__ = ["MisuseError", "TrunklineError", "again"]


class TrunklineError(Exception):
    """Base class of every exception that Trunkline raises on purpose.

    `str()` escapes control characters, since the text may come from a peer; attributes and `args` have the original.
    """

    lines: ClassVar[bool] = False  # whether `str()` may have several lines

    def __str__(self) -> str:
        return printable(super().__str__(), multiline=self.lines)


E = TypeVar("E", bound=TrunklineError)


class MisuseError(TrunklineError):
    """A mistake in the program that uses Trunkline. `kind` is a stable name."""

    lines = True

    def __init__(self, message: str, *, kind: str = "misuse") -> None:
        super().__init__(message)
        self.kind = kind


def again(error: E) -> E:
    """Return a copy of an error, so that each waiter raises its own: one raised twice collects two tracebacks."""
    copy = type(error).__new__(type(error), *error.args)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy
