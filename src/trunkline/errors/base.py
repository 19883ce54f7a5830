"""Where the tree of exceptions begins."""

from typing import TypeVar

__all__ = ["TrunklineError", "again"]


class TrunklineError(Exception):
    """Anything that Trunkline raises on purpose."""


E = TypeVar("E", bound=TrunklineError)


def again(error: E) -> E:
    """The same error for one more who asks: an exception that is raised twice gathers two tracebacks."""
    copy = type(error).__new__(type(error), *error.args)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy
