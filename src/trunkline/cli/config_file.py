"""Configuration files of other programs: read them, and replace them without losing anything.

A file is replaced as a whole or not at all, keeps its mode and owner, and stays a symbolic link if it is one. Its
content before the change stays beside it as a backup. A file that has changed since it was read is not replaced.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

from trunkline.errors import ConfigError

__all__ = ["BACKUP_SUFFIX", "ConfigFile", "InvalidDocument"]

BACKUP_SUFFIX: Final = ".trunkline-backup"
_NEW_FILE_MODE: Final = 0o600  # an entry may have secrets


class InvalidDocument(ConfigError):
    """A document that cannot be edited, with the position of the fault if it is known."""

    def __init__(self, reason: str, text: str = "", at: int | None = None) -> None:
        line = column = None
        if at is not None:
            line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        super().__init__(reason if line is None else f"line {line}, column {column}: {reason}")
        self.line = line
        self.column = column


class ConfigFile:
    """A configuration file as it was read. A file that does not exist has an empty text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._target = path.resolve()  # of a symbolic link
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
        self._data = _read(self._target)
        self.text = "" if self._data is None else _decode(path, self._data)

    @property
    def exists(self) -> bool:
        """Whether there was a file."""
        return self._data is not None

    @property
    def backup_path(self) -> Path:
        """The file with the content before the last change."""
        return self.path.with_name(f"{self.path.name}{BACKUP_SUFFIX}")

    def read_backup(self) -> str | None:
        """Return the text before the last change; None if there is no backup."""
        data = _read(self.backup_path)
        return None if data is None else _decode(self.backup_path, data)

    def replace(self, text: str) -> None:
        """Write a backup, then replace the content. Raises `ConfigError` if the file has changed since it was read, or
        cannot be written; it is then as it was."""
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            status = None if self._data is None else self._target.stat()
            if status is not None and not os.access(self._target, os.W_OK):
                raise ConfigError(f"{self.path} is read-only; nothing was changed")
            self._check_unchanged()
            if self._data is not None:
                with _written(self.backup_path, self._data, status) as temporary:
                    temporary.replace(self.backup_path)
            with _written(self._target, text.encode(), status) as temporary:
                self._check_unchanged()
                temporary.replace(self._target)
            _sync_folder(self._target.parent)
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror}; nothing was changed") from error

    def _check_unchanged(self) -> None:
        if _read(self._target) != self._data:
            raise ConfigError(f"{self.path} has changed since it was read; nothing was changed, run the command again")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def _decode(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: byte {error.start} is invalid; nothing was changed") from error


@contextlib.contextmanager
def _written(path: Path, data: bytes, like: os.stat_result | None) -> Generator[Path]:
    """Write data to a temporary file beside a path, with the mode and owner of `like`. It is deleted unless
    the block renames it."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(_NEW_FILE_MODE if like is None else stat.S_IMODE(like.st_mode))
        if like is not None and hasattr(os, "chown"):
            with contextlib.suppress(OSError):  # only root may give a file away
                os.chown(temporary, like.st_uid, like.st_gid)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable. Windows has no such call."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
