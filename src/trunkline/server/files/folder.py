"""Snapshots of folders: the names of all files, and whether they can have changed since an earlier snapshot.

The mtime of a folder changes when a name in it appears or disappears, so a folder tree whose mtimes are unchanged need
not be read again. File systems store coarse times: a recent mtime proves nothing, since another change may follow
within its resolution.
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

_TIMESTAMP_RESOLUTION: Final = 2_000_000_000  # nanoseconds: FAT, the coarsest, has 2 seconds


@dataclass(frozen=True)
class FolderSnapshot:
    """The files of a folder at one time; equal to a snapshot with the same names."""

    names: tuple[str, ...]  # paths of all files, including subfolders, in a stable order
    sizes: tuple[int, ...] = field(compare=False)  # of the files, in the same order
    mtimes: Mapping[str, int | None] = field(compare=False)  # by folder; None if too recent


def scan_folder(root: Path, previous: FolderSnapshot | None = None) -> FolderSnapshot:
    """Return a snapshot of a folder; `previous` itself, without a scan, if nothing can have changed since."""
    if previous is not None and all(
        when is not None and when == _mtime(path) for path, when in previous.mtimes.items()
    ):
        return previous
    times: dict[str, int | None] = {}
    found = list(_walk_files(root, times))
    return FolderSnapshot(tuple(name for name, _ in found), tuple(size for _, size in found), times)


def _walk_files(root: Path, mtimes: dict[str, int | None]) -> Iterator[tuple[str, int]]:
    """Yield every file inside and its size, and fill in the mtimes of folders. Links to folders are not followed."""
    settled = time.time_ns() - _TIMESTAMP_RESOLUTION
    folders: list[tuple[str, ...]] = [()]
    while folders:
        above = folders.pop()
        path = str(root.joinpath(*above))
        mtimes[path] = None
        try:
            with open_directory(root, above) as folder:
                when = os.stat(folder).st_mtime_ns  # before the scan: later changes must be noticed
                mtimes[path] = when if when < settled else None
                with os.scandir(folder) as found:
                    entries = sorted(found, key=lambda entry: entry.name)
                sizes = [_file_size(entry, root, above) for entry in entries]
                inner = [(*above, entry.name) for entry in reversed(entries) if entry.is_dir(follow_symlinks=False)]
        except OSError:  # deleted, or without permission to read
            continue
        yield from (
            ("/".join((*above, entry.name)), size)
            for entry, size in zip(entries, sizes, strict=True)
            if size is not None
        )
        folders += inner


def _file_size(entry: "os.DirEntry[str]", root: Path, parents: tuple[str, ...]) -> int | None:
    """Return the size of a file inside the root, or of a link to one; None for anything else."""
    try:
        if entry.is_file(follow_symlinks=False):
            return entry.stat(follow_symlinks=False).st_size
        if entry.is_symlink():
            found = file_status(root, "/".join((*parents, entry.name)))
            return found.st_size if stat.S_ISREG(found.st_mode) else None
    except (OSError, OutsideRoot):  # a loop of links, or a link that leads outside
        pass
    return None


def _mtime(folder: str) -> int | None:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return None
