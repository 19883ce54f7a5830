"""Where in a program our code was called from, for warnings that point there."""

import inspect
from typing import Final

__all__ = ["level_outside"]

_OWN: Final = __name__.partition(".")[0] + "."


def level_outside() -> int:
    """The `stacklevel` of the first frame outside of our own code, for a warning of whatever calls this."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OWN):
        frame, level = frame.f_back, level + 1
    return level
