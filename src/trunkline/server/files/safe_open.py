"""Files below a directory, found without ever leaving it, whatever other processes do to it meanwhile.

A path is walked one component at a time. Each directory is opened relative to the one before it and never through a
link, so a directory that is exchanged for a link while it is being walked is an error and not a way out. Links are read
instead, and their targets are walked in the same way, from where the link is, or from the root: a link that stays below
the root works, and any other raises `Outside`.

Systems without descriptors of directories (Windows) have to resolve the whole path first and open it then, which leaves
a moment in which it can be exchanged.
"""

import errno
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["OutsideRoot", "file_status", "open_directory", "open_file", "open_regular"]

_BY_DESCRIPTOR: Final = {os.open, os.readlink, os.stat} <= os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY_FLAGS: Final[int] = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_TRAVERSE_FLAGS: Final[int] = (
    getattr(os, "O_PATH", os.O_RDONLY) | _DIRECTORY_FLAGS
)  # to be walked through, which needs no right to list
_READ_FLAGS: Final[int] = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)  # opening a pipe must not wait
)
_MAX_LINKS: Final = 40  # on the way to one file, as Linux has it


class OutsideRoot(Exception):
    """A path that leads out of its directory."""


def open_file(root: Path, path: str) -> tuple[int, str]:
    """Open a regular file below `root` for reading; return its descriptor and its name, after links.

    Raises `Outside` for a path that leads out, `ValueError` for one that no file can have, and `OSError`."""
    with _locate(root, path, by_descriptor=_BY_DESCRIPTOR) as (folder, name):
        return open_regular(name, folder=folder, flags=_NOFOLLOW), os.path.basename(name)


def file_status(root: Path, path: str) -> os.stat_result:
    """The status of a file below `root`, after links. Raises as `open_file` does."""
    with _locate(root, path, by_descriptor=_BY_DESCRIPTOR) as (folder, name):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)


def open_regular(path: str | Path, *, folder: int | None = None, flags: int = 0) -> int:
    """Open a regular file for reading. Raises `FileNotFoundError` for a directory, a pipe or a device."""
    before = os.stat(path, dir_fd=folder, follow_symlinks=not flags & _NOFOLLOW)  # opening a device may have effects
    if not stat.S_ISREG(before.st_mode):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    descriptor = os.open(path, _READ_FLAGS | flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return descriptor


@contextmanager
def open_directory(root: Path, names: Sequence[str], *, by_descriptor: bool = _BY_DESCRIPTOR) -> Generator[int | str]:
    """A directory below `root` by the names on the way to it, none of which may be a link: its descriptor, or its path
    where directories have none. Both can be given to `os.scandir` and `os.stat`."""
    if not by_descriptor:
        yield str(root.joinpath(*names))
        return
    folder = _descend(root, names[:-1])
    try:
        last = os.open(names[-1], os.O_RDONLY | _DIRECTORY_FLAGS | _NOFOLLOW, dir_fd=folder) if names else None
        if last is None:
            last = os.open(root, os.O_RDONLY | _DIRECTORY_FLAGS)
    finally:
        os.close(folder)
    try:
        yield last
    finally:
        os.close(last)


@contextmanager
def _locate(root: Path, path: str, *, by_descriptor: bool) -> Generator[tuple[int | None, str]]:
    """The directory that a file is in, and the file's name in it; without a descriptor, None and its whole path."""
    if os.path.isabs(path):
        raise OutsideRoot(path)
    if not by_descriptor:
        yield None, _resolve(root, path)
        return
    folder, name = _walk(root, path)
    try:
        yield folder, name
    finally:
        os.close(folder)


def _resolve(root: Path, path: str) -> str:
    try:
        found = (root / path).resolve()
    except RuntimeError:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
    if not found.is_relative_to(root.resolve()):
        raise OutsideRoot(path)
    return str(found)


def _walk(root: Path, path: str) -> tuple[int, str]:
    """The descriptor of the directory that a file is in, for the caller to close, and the name, which is no link."""
    ahead = _components(path)
    passed: list[str] = []  # directories between the root and `here`, none of them a link
    links = 0
    here = _descend(root, passed)
    try:
        while ahead:
            name = ahead.pop()
            if name == "..":
                if not passed:
                    raise OutsideRoot(path)
                passed.pop()
                here = _replace_descriptor(here, _descend(root, passed))
            elif (target := _link_target(name, here)) is not None:
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                if os.path.isabs(target):
                    target = _relative_to_root(root, target)
                    passed.clear()
                    here = _replace_descriptor(here, _descend(root, passed))
                ahead += _components(target)
            elif not ahead:
                return here, name
            else:
                here = _replace_descriptor(here, os.open(name, _TRAVERSE_FLAGS | _NOFOLLOW, dir_fd=here))
                passed.append(name)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except BaseException:
        os.close(here)
        raise


def _components(path: str) -> list[str]:
    """The components of a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in {"", "."}]


def _descend(root: Path, names: Sequence[str]) -> int:
    """The descriptor of a directory below `root` that is reached without links."""
    here = os.open(root, _TRAVERSE_FLAGS)
    try:
        for name in names:
            here = _replace_descriptor(here, os.open(name, _TRAVERSE_FLAGS | _NOFOLLOW, dir_fd=here))
    except BaseException:
        os.close(here)
        raise
    return here


def _replace_descriptor(before: int, opened: int) -> int:
    os.close(before)
    return opened


def _link_target(name: str, folder: int) -> str | None:
    """Where a link leads; None if it is no link."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def _relative_to_root(root: Path, target: str) -> str:
    """The target of an absolute link as a path from the root. It has to name the root as it was given, or as it is
    without links."""
    for spelling in (os.path.abspath(root), os.path.realpath(root)):
        if target == spelling or target.startswith(spelling.rstrip("/") + "/"):
            return target[len(spelling) :]
    raise OutsideRoot(target)
