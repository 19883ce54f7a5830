"""What a folder holds: the names of its files, and how to tell without reading all of it that they are the same.

A folder's time changes when a name in it appears or vanishes, so while no time has changed nothing has to be read.
Times are coarse: one that is younger than a moment ago tells nothing, since more may happen within it.
"""

import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trunkline.server.files.safe_open import OutsideRoot, file_status, open_directory

__all__ = ["FolderSnapshot", "scan_folder"]

_TIMESTAMP_RESOLUTION: Final = 2_000_000_000  # nanoseconds: the coarsest file systems count by two seconds


@dataclass(frozen=True)
class FolderSnapshot:
    """What was seen of a folder; equal to what has the same names in it."""

    names: tuple[str, ...]  # of its files and those in the folders below, as paths, in a stable order
    sizes: tuple[int, ...] = field(compare=False)  # of each
    mtimes: Mapping[str, int | None] = field(compare=False)  # of each folder that was read; None where it tells nothing


def scan_folder(root: Path, previous: FolderSnapshot | None = None) -> FolderSnapshot:
    """What is in a folder; without reading it if nothing can have changed since `before`."""
    if previous is not None and all(
        when is not None and when == _mtime(path) for path, when in previous.mtimes.items()
    ):
        return previous
    times: dict[str, int | None] = {}
    found = list(_walk_files(root, times))
    return FolderSnapshot(tuple(name for name, _ in found), tuple(size for _, size in found), times)


def _walk_files(root: Path, mtimes: dict[str, int | None]) -> Iterator[tuple[str, int]]:
    """Every file that lies inside and its size, and the times of the folders that were read. Links to folders are not
    followed."""
    settled = time.time_ns() - _TIMESTAMP_RESOLUTION
    folders: list[tuple[str, ...]] = [()]
    while folders:
        above = folders.pop()
        path = str(root.joinpath(*above))
        mtimes[path] = None
        try:
            with open_directory(root, above) as folder:
                when = os.stat(folder).st_mtime_ns  # first: what changes while it is read shall be noticed
                mtimes[path] = when if when < settled else None
                with os.scandir(folder) as found:
                    entries = sorted(found, key=lambda entry: entry.name)
                sizes = [_file_size(entry, root, above) for entry in entries]
                inner = [(*above, entry.name) for entry in reversed(entries) if entry.is_dir(follow_symlinks=False)]
        except OSError:  # it is gone, or may not be read
            continue
        yield from (
            ("/".join((*above, entry.name)), size)
            for entry, size in zip(entries, sizes, strict=True)
            if size is not None
        )
        folders += inner


def _file_size(entry: "os.DirEntry[str]", root: Path, parents: tuple[str, ...]) -> int | None:
    """The size of a file that lies inside, perhaps at the end of a link; None for anything else."""
    try:
        if entry.is_file(follow_symlinks=False):
            return entry.stat(follow_symlinks=False).st_size
        if entry.is_symlink():
            found = file_status(root, "/".join((*parents, entry.name)))
            return found.st_size if stat.S_ISREG(found.st_mode) else None
    except (OSError, OutsideRoot):  # links in a circle, or to the outside
        pass
    return None


def _mtime(folder: str) -> int | None:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return None
