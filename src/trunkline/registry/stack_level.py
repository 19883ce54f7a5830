"""Stack levels for warnings that point at the caller's code."""

import inspect
from typing import Final

__all__ = ["level_outside"]

_OWN: Final = __name__.partition(".")[0] + "."


def level_outside() -> int:
    """Return the `stacklevel` of the first frame outside of this package, for a warning in the calling function."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OWN):
        frame, level = frame.f_back, level + 1
    return level
