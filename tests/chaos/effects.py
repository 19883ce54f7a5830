"""What the tools of a campaign have done, on disk and without the help of Trunkline: the checker compares everything
else with it.

Each effect is an empty file whose name is the effect. Creating a file is atomic, outlives the process that is killed
afterwards, and needs no byte in any file. So it also succeeds in a process that may not write to files, as on a full
disk.
"""

import os
import time
from itertools import count
from pathlib import Path

from msgspec import Struct

__all__ = ["Boards", "Effect", "EffectsLog", "read_effects"]

_NANOSECONDS = 1e9


class Effect(Struct, frozen=True):
    """One effect of a tool: its name, the operation, a number, the run, and the principal. For a number on a board,
    the board precedes the operation.
    """

    what: str
    operation: str
    number: int
    run: str
    who: str
    at: float = 0.0  # on the monotonic clock, which all processes share


class EffectsLog:
    """The folder of effects."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder

    def write(self, who: str, what: str, operation: str, number: int = 0, run: str = "-") -> None:
        """Record an effect."""
        _create(self._folder / f"{time.monotonic_ns():020} {what} {operation} {number} {run} {who}")


def read_effects(folder: Path) -> tuple[Effect, ...]:
    """Read all effects, in their order."""
    found: list[Effect] = []
    for name in sorted(os.listdir(folder)):
        at, what, operation, number, run, who = name.split()
        found.append(Effect(what, operation, int(number), run, who, int(at) / _NANOSECONDS))
    return tuple(found)


class Boards:
    """A folder for each board, with an empty file for each number that was written on it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: dict[str, int] = {}  # by board, a number that exists

    def read(self, name: str) -> int:
        """The number that was written last."""
        folder, last = self._folder / name, self._last.get(name, 0)
        while (folder / str(last + 1)).exists():
            last += 1
        self._last[name] = last
        return last

    def write(self, name: str) -> int:
        """Write the next number. No two processes write the same one."""
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        for number in count(self.read(name) + 1):
            try:
                _create(folder / str(number))
            except FileExistsError:
                continue
            return number
        raise AssertionError


def _create(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
