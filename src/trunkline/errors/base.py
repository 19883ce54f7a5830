"""Where the tree of exceptions begins."""

from typing import ClassVar, TypeVar

from trunkline.errors.text import printable

__all__ = ["MisuseError", "TrunklineError", "again"]


class TrunklineError(Exception):
    """Anything that Trunkline raises on purpose.

    Its text may hold what a peer said, so it is made fit for logs and terminals; attributes and `args` have it as it
    was."""

    lines: ClassVar[bool] = False  # whether its text may have several lines

    def __str__(self) -> str:
        return printable(super().__str__(), multiline=self.lines)


E = TypeVar("E", bound=TrunklineError)


class MisuseError(TrunklineError):
    """A mistake in the program that uses Trunkline. Its `kind` is a stable name."""

    lines = True

    def __init__(self, message: str, *, kind: str = "misuse") -> None:
        super().__init__(message)
        self.kind = kind


def again(error: E) -> E:
    """The same error for one more who asks: an exception that is raised twice gathers two tracebacks."""
    copy = type(error).__new__(type(error), *error.args)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy
