"""Folders that only one user can open, for sockets."""

import contextlib
import os
import stat
from pathlib import Path

__all__ = ["make_private_folder"]


def make_private_folder(folder: Path) -> bool:
    """Create a folder with mode 0700, unless it exists. Return whether it is a folder that only this user can open; a
    folder that is removed meanwhile counts as one."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
