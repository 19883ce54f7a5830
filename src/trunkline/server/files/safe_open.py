"""Safe opening of files below a root directory, also while other processes modify the directory.

The walk opens one path component at a time, relative to the directory before and never through a link. A directory that
is replaced by a link during the walk is therefore an error, not an escape. Links are read, and their targets are walked
in the same way, from the directory of the link or from the root: a link that stays below the root works, any other
raises `OutsideRoot`.

Systems without descriptors of directories (Windows) resolve the whole path first and open it afterwards. Between the
two steps the path can be replaced.
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
)  # traversal does not need the permission to list
_READ_FLAGS: Final[int] = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)  # opening a pipe must not block
)
_MAX_LINKS: Final = 40  # per path, as in Linux


class OutsideRoot(Exception):
    """A path leads outside of the root directory."""


def open_file(root: Path, path: str) -> tuple[int, str]:
    """Open a regular file below `root` for reading; return its descriptor and its name after links.

    Raises `OutsideRoot` for a path that leads outside, `ValueError` for an impossible path, and `OSError`."""
    with _locate(root, path, by_descriptor=_BY_DESCRIPTOR) as (folder, name):
        return open_regular(name, folder=folder, flags=_NOFOLLOW), os.path.basename(name)


def file_status(root: Path, path: str) -> os.stat_result:
    """Return the status of a file below `root`, after links. Raises as `open_file` does."""
    with _locate(root, path, by_descriptor=_BY_DESCRIPTOR) as (folder, name):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)


def open_regular(path: str | Path, *, folder: int | None = None, flags: int = 0) -> int:
    """Open a regular file for reading. Raises `FileNotFoundError` for a directory, a pipe or a device."""
    before = os.stat(
        path, dir_fd=folder, follow_symlinks=not flags & _NOFOLLOW
    )  # before the open, which has side effects on a device
    if not stat.S_ISREG(before.st_mode):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    descriptor = os.open(path, _READ_FLAGS | flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    return descriptor


@contextmanager
def open_directory(root: Path, names: Sequence[str], *, by_descriptor: bool = _BY_DESCRIPTOR) -> Generator[int | str]:
    """Open a directory below `root`, by the path components that lead to it; none of them may be a link. Yield its
    descriptor, or its path on systems without descriptors of directories. `os.scandir` and `os.stat` accept both."""
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
    """Yield the descriptor of a file's directory and the file's name in it; without descriptors, None and its path."""
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
    """Return the descriptor of a file's directory, which the caller closes, and the file's name, which is no link."""
    remaining = _components(path)
    passed: list[str] = []  # directories between the root and `here`, none of them a link
    links = 0
    here = _descend(root, passed)
    try:
        while remaining:
            name = remaining.pop()
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
                remaining += _components(target)
            elif not remaining:
                return here, name
            else:
                here = _replace_descriptor(here, os.open(name, _TRAVERSE_FLAGS | _NOFOLLOW, dir_fd=here))
                passed.append(name)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except BaseException:
        os.close(here)
        raise


def _components(path: str) -> list[str]:
    """Return the components of a path in reverse order."""
    return [name for name in reversed(path.split("/")) if name not in {"", "."}]


def _descend(root: Path, names: Sequence[str]) -> int:
    """Return the descriptor of a directory below `root`; none of the names may be a link."""
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
    """Return the target of a link; None if the name is not a link."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def _relative_to_root(root: Path, target: str) -> str:
    """Return the target of an absolute link relative to the root. The target must begin with the root, as configured or
    with its links resolved. Raises `OutsideRoot` otherwise."""
    for spelling in (os.path.abspath(root), os.path.realpath(root)):
        if target == spelling or target.startswith(spelling.rstrip("/") + "/"):
            return target[len(spelling) :]
    raise OutsideRoot(target)
