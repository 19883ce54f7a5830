"""Token stores.

On disk each token is a file in a private folder. A file or folder that other users can access is refused, not repaired,
since it may have been read already. A write creates a temporary file and renames it, so readers see a whole file or
none.
"""

import asyncio
import hashlib
import hmac
import os
import secrets
import stat
import sys
import warnings
from asyncio import Lock
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from os import PathLike
from typing import Final, Protocol, TypeVar

from trunkline.config import tokens_folder
from trunkline.errors import StoreError
from trunkline.file_lock import try_lock

__all__ = ["FileTokens", "MemoryTokens", "TokenStore"]

T = TypeVar("T")

_GROUP_AND_OTHERS: Final = 0o077  # permission bits of group and others
_FILE_HEADER: Final = b"trunkline-token 1 "
_MAX_FILE_BYTES: Final = 1 << 20
_MIN_LOCK_POLL, _MAX_LOCK_POLL = 0.005, 0.1  # seconds between attempts to take a lock
_CREATE_FLAGS: Final = (
    os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)


class TokenStore(Protocol):
    """Stores small values by key. Raises `StoreError`."""

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None."""
        ...

    async def put(self, key: str, value: bytes | None) -> None:
        """Store a value; None deletes it."""
        ...

    def locked(self, key: str) -> AbstractAsyncContextManager[None]:
        """Hold the lock of a key, exclusive among all tasks and processes that share the store."""
        ...


class MemoryTokens:
    """Token store in memory."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)

    def __repr__(self) -> str:
        return f"MemoryTokens({len(self._values)})"

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None."""
        return self._values.get(key)

    async def put(self, key: str, value: bytes | None) -> None:
        """Store a value; None deletes it."""
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value

    @asynccontextmanager
    async def locked(self, key: str) -> AsyncGenerator[None]:
        """Hold the lock of a key, exclusive among tasks."""
        async with self._locks[key]:
            yield


class FileTokens:
    """Token store in private files, by default in a folder of the user."""

    def __init__(self, folder: str | PathLike[str] | None = None, *, patience: float = 60.0) -> None:
        """`patience` is the time limit for taking a lock, in seconds."""
        self._folder = os.fspath(folder) if folder is not None else tokens_folder()
        self._patience = patience

    def __repr__(self) -> str:
        return f"FileTokens({self._folder!r})"

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key. A damaged file counts as none, with a warning."""
        return await _run_to_completion(lambda: self._read(key))

    async def put(self, key: str, value: bytes | None) -> None:
        """Store a value; None deletes it."""
        await _run_to_completion(lambda: self._delete(key) if value is None else self._write(key, value))

    @asynccontextmanager
    async def locked(self, key: str) -> AsyncGenerator[None]:
        """Hold the lock of a key, exclusive among tasks and processes. The lock of a dead process is free. Raises
        `StoreError` on timeout."""
        with self._open_folder() as folder:
            descriptor = folder.open(f"{_file_name(key)}.lock", os.O_RDWR)
        try:
            await self._acquire_lock(descriptor)
            yield
        finally:
            os.close(descriptor)  # releases the lock

    async def _acquire_lock(self, descriptor: int) -> None:
        pause = _MIN_LOCK_POLL
        try:
            async with asyncio.timeout(self._patience):
                while not try_lock(descriptor):
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _MAX_LOCK_POLL)
        except TimeoutError:
            why = f"another process has locked these tokens in {self._folder} for {self._patience:g} s"
            raise StoreError(why) from None

    def _read(self, key: str) -> bytes | None:
        name = f"{_file_name(key)}.token"
        with self._open_folder() as folder:
            try:
                descriptor = folder.open(name, os.O_RDONLY, create=False)
            except FileNotFoundError:
                return None
            with os.fdopen(descriptor, "rb") as file:
                content = file.read(_MAX_FILE_BYTES + 1)
        value = _decode_file(key, content)
        if value is None:
            message = f"{folder.path(name)} is damaged and is ignored; log in again"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        return value

    def _write(self, key: str, value: bytes) -> None:
        content = _encode_file(key, value)
        if len(content) > _MAX_FILE_BYTES:
            raise StoreError(f"{len(value)} bytes are too large for a token file")
        with self._open_folder() as folder:
            folder.replace(f"{_file_name(key)}.token", content)

    def _delete(self, key: str) -> None:
        with self._open_folder() as folder, suppress(FileNotFoundError):
            folder.remove(f"{_file_name(key)}.token")

    @contextmanager
    def _open_folder(self) -> "Generator[_Folder]":
        try:
            with _open_private_folder(self._folder) as folder:
                yield folder
        except OSError as error:
            raise StoreError(f"tokens cannot be stored in {self._folder}: {error.strerror or error}") from error


class _Folder:
    """An open folder, addressed by descriptor so that it cannot be replaced after its check."""

    def __init__(self, folder: str, descriptor: int | None) -> None:
        self._folder = folder
        self._descriptor = descriptor

    def path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def open(self, name: str, flags: int, *, create: bool = True) -> int:
        """Open a file in the folder and check that it is private."""
        flags |= _CREATE_FLAGS if create else _CREATE_FLAGS & ~os.O_CREAT
        descriptor = os.open(self._at(name), flags, 0o600, dir_fd=self._descriptor)
        try:
            _require_private(self.path(name), os.fstat(descriptor), stat.S_ISREG)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def replace(self, name: str, content: bytes) -> None:
        """Replace or create a file atomically."""
        fresh = f"{name}.{secrets.token_hex(8)}.new"
        descriptor = self.open(fresh, os.O_WRONLY | os.O_EXCL)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._at(fresh), self._at(name), src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            with suppress(OSError):
                self.remove(fresh)
            raise
        if self._descriptor is not None:
            os.fsync(self._descriptor)

    def remove(self, name: str) -> None:
        os.unlink(self._at(name), dir_fd=self._descriptor)

    def _at(self, name: str) -> str:
        return self.path(name) if self._descriptor is None else name


@contextmanager
def _open_private_folder(path: str) -> Generator[_Folder]:
    """Open a private folder; create it if necessary."""
    _make_folders(path)
    if sys.platform == "win32":  # user folders are private there, and modes have no meaning
        yield _Folder(path, None)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _require_private(path, os.fstat(descriptor), stat.S_ISDIR)
        yield _Folder(path, descriptor)
    finally:
        os.close(descriptor)


def _make_folders(path: str) -> None:
    """Create a folder and its missing parents, private to this user."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(os.path.abspath(path))
    if above != path:
        _make_folders(above)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)


def _require_private(path: str, seen: os.stat_result, expected: Callable[[int], bool]) -> None:
    """Raise `StoreError` if the path has the wrong type or other users can access it."""
    if not expected(seen.st_mode):
        raise StoreError(f"{path} has the wrong type: tokens need a private folder with regular files")
    if sys.platform == "win32":
        return
    if seen.st_uid != os.geteuid():
        raise StoreError(f"{path} belongs to another user ({seen.st_uid}); choose another folder for tokens")
    if seen.st_mode & _GROUP_AND_OTHERS:
        mode = "700" if stat.S_ISDIR(seen.st_mode) else "600"
        raise StoreError(
            f"other users can access {path} (mode {stat.S_IMODE(seen.st_mode):o}), so tokens there are not safe; "
            f"if you trust what is in it, chmod {mode} it"
        )


def _file_name(key: str) -> str:
    """Return the file name of a key: a digest, so that no key can leave the folder or be too long."""
    return hashlib.sha256(key.encode()).hexdigest()


def _encode_file(key: str, value: bytes) -> bytes:
    return _FILE_HEADER + _digest(key, value) + b"\n" + value


def _decode_file(key: str, content: bytes) -> bytes | None:
    """Return the value of a file, or None if the file is damaged."""
    head, _, value = content.partition(b"\n")
    whole = hmac.compare_digest(head, _FILE_HEADER + _digest(key, value))
    return value if whole and len(content) <= _MAX_FILE_BYTES else None


def _digest(key: str, value: bytes) -> bytes:
    """Return a checksum that detects damage and mixed-up keys. It does not protect against deliberate changes."""
    return hashlib.sha256(f"{_file_name(key)} ".encode() + value).hexdigest().encode()


async def _run_to_completion(work: Callable[[], T]) -> T:
    """Run work on a thread to its end, also if the caller is cancelled, so that a lock is released only afterwards."""
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait([doing])
        raise
