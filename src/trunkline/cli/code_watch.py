"""Changes of source files, found by comparing their modification times."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["changed_files", "snapshot_files"]

_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"})
_MAX_FILES: Final = 5000  # a folder with more is not a project

Snapshot = Mapping[str, tuple[int, int]]
"""Modification time in nanoseconds and size of each file."""


def snapshot_files(folders: Sequence[Path], suffixes: Sequence[str] = (".py", ".toml")) -> Snapshot:
    """Return the state of the source files in these folders, without hidden folders and installed packages."""
    found: dict[str, tuple[int, int]] = {}
    for folder in folders:
        for entry in _walk(folder):
            if len(found) >= _MAX_FILES:
                return found
            if entry.name.endswith(tuple(suffixes)):
                try:
                    status = entry.stat()
                except OSError:  # it has just vanished
                    continue
                found[entry.path] = (status.st_mtime_ns, status.st_size)
    return found


def _walk(folder: Path) -> "Iterator[os.DirEntry[str]]":
    pending = [str(folder)]
    while pending:
        try:
            entries = [*os.scandir(pending.pop())]
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _SKIPPED:
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            else:
                yield entry


def changed_files(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the files that were changed, added or removed."""
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
