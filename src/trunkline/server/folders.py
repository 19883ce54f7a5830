"""What a folder holds: the names of its files, and how to tell without reading all of it that they are the same.

A folder's time changes when a name in it appears or vanishes, so while no time has changed nothing has to be read.
Times are coarse: one that is younger than a moment ago tells nothing, since more may happen within it.
"""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["Folder", "look"]

_COARSE: Final = 2_000_000_000  # nanoseconds: the coarsest file systems count by two seconds


@dataclass(frozen=True)
class Folder:
    """What was seen of a folder; equal to what has the same names in it."""

    names: tuple[str, ...]  # of its files and those in the folders below, as paths, in a stable order
    times: Mapping[str, int | None] = field(compare=False)  # of each folder that was read; None where it tells nothing


def look(root: Path, before: Folder | None = None) -> Folder:
    """What is in a folder; without reading it if nothing can have changed since `before`."""
    if before is not None and all(when is not None and when == _time(path) for path, when in before.times.items()):
        return before
    times: dict[str, int | None] = {}
    return Folder(tuple(_names(root.resolve(), times)), times)


def _names(root: Path, times: dict[str, int | None]) -> Iterator[str]:
    """Every file that lies inside, and the times of the folders that were read. Links to folders are not followed."""
    settled = time.time_ns() - _COARSE
    folders = [str(root)]
    while folders:
        folder = folders.pop()
        when = _time(folder)  # first: what changes while it is read shall be noticed
        times[folder] = when if when is not None and when < settled else None
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:  # it is gone, or nobody may read it
            continue
        yield from (os.path.relpath(entry.path, root) for entry in entries if _is_file(entry, root))
        folders += [entry.path for entry in reversed(entries) if entry.is_dir(follow_symlinks=False)]


def _is_file(entry: "os.DirEntry[str]", root: Path) -> bool:
    try:
        return entry.is_file() and (not entry.is_symlink() or Path(entry.path).resolve().is_relative_to(root))
    except (OSError, RuntimeError):  # links in a circle
        return False


def _time(folder: str) -> int | None:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return None
