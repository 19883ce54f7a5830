"""The pin store: tool pins in a file.

The file belongs to this user and has mode 0600. A write replaces it as a whole, under a lock that all processes share.
A file that is damaged, or that other users can change, is refused: with no pins to compare with, every tool would be
trusted as at first contact.
"""

import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

from msgspec import Struct

from trunkline.config import pins_file
from trunkline.errors import MisuseError, StoreError, StoreUnusable
from trunkline.errors.suggestions import with_suggestion
from trunkline.file_lock import try_lock
from trunkline.protocol.types import Tool
from trunkline.trust import pins
from trunkline.trust.pins import Examination, NewTools, ServerPins
from trunkline.wire import codec

__all__ = ["PinStore"]

T = TypeVar("T")

_LOCK_TIMEOUT: Final = 10.0  # seconds; a writer holds the lock for milliseconds
_LOCK_POLL: Final = 0.01
_FLAGS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class _PinFile(Struct, forbid_unknown_fields=True):
    servers: dict[str, ServerPins]
    format: Literal["trunkline pins 1"] = "trunkline pins 1"


_decode: Final = codec.json_decoder(_PinFile)


class PinStore:
    """Pins of the tools of servers, in a file. `ClientGroup(…, pins=PinStore(path))` blocks tools that have changed.

    Its methods block for as long as the file system does; use them on a thread where that matters. They raise
    `StoreError` if the file cannot be used, and change nothing then.
    """

    def __init__(self, path: "str | os.PathLike[str] | None" = None, *, new_tools: NewTools = "block") -> None:
        """`path` is the file, by default one of the user. `new_tools="trust"` pins tools that a known server adds,
        instead of blocking them."""
        if new_tools not in {"block", "trust"}:
            raise MisuseError(f'new_tools must be "block" or "trust", not {new_tools!r}')
        self.path = Path(pins_file() if path is None else path)
        self.new_tools: NewTools = new_tools

    def __repr__(self) -> str:
        return f"PinStore({str(self.path)!r})"

    def servers(self) -> Mapping[str, ServerPins]:
        """Return the pins of all servers, by their names."""
        return self._read()

    def examine(self, server: str, tools: Iterable[Tool]) -> Examination:
        """Compare the tools of a server with its pins. Pins them at first contact, and records definitions that wait
        for approval."""
        listed = [*tools]
        before = self._read().get(server)
        result = pins.examine(before, listed, self.new_tools)
        if result.record == before:
            return result

        def update(servers: dict[str, ServerPins]) -> Examination:
            latest = pins.examine(servers.get(server), listed, self.new_tools)
            if latest.record is not None:
                servers[server] = latest.record
            return latest

        return self._update(update)

    def approve(self, server: str, tool: str | None = None, *, digest: str | None = None) -> tuple[str, ...]:
        """Pin the definition of a tool that waits for approval, or those of all tools of the server; return the names.
        With `digest`, or its beginning, only that definition is approved. Raises `MisuseError` if none waits."""

        def update(servers: dict[str, ServerPins]) -> tuple[str, ...]:
            record = _find(servers, server)
            names = (*record.waiting,) if tool is None else (tool,)
            for name in names:
                record = pins.approve(record, name, digest)
            servers[server] = record
            return names

        return self._update(update)

    def remove(self, server: str, tool: str | None = None) -> None:
        """Remove the pin of a tool, which then needs approval; or everything about a server, whose next contact is then
        the first one. Raises `MisuseError` if there is none."""

        def update(servers: dict[str, ServerPins]) -> None:
            record = _find(servers, server)
            if tool is None:
                del servers[server]
            else:
                servers[server] = pins.remove(record, tool)

        self._update(update)

    # --- the file ------------------------------------------------------------------------------

    def _read(self) -> dict[str, ServerPins]:
        with self._explained():
            try:
                descriptor = os.open(self.path, os.O_RDONLY | _FLAGS)
            except FileNotFoundError:
                return {}
            with os.fdopen(descriptor, "rb") as file:
                self._require_private(os.fstat(descriptor))
                content = file.read()
        try:
            servers = _decode(content).servers
        except (codec.DecodeError, RecursionError) as error:
            raise self._damaged(str(error)) from None
        for server, record in servers.items():
            for name, pin in (*record.pins.items(), *record.waiting.items()):
                if pins.digest_definition(pin.definition) != pin.digest or pin.definition.get("name") != name:
                    raise self._damaged(f"the digest of tool {name!r} of {server!r} is not that of its definition")
        return servers

    def _update(self, change: Callable[[dict[str, ServerPins]], T]) -> T:
        """Read the file, change its content and replace it, exclusively among processes."""
        with self._explained():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                servers = self._read()
                outcome = change(servers)
                self._replace(codec.to_readable_json(_PinFile(servers)) + b"\n")
        return outcome

    def _replace(self, content: bytes) -> None:
        fresh = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}.new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
            fresh.replace(self.path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        with suppress(OSError):  # Windows cannot open folders
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @contextmanager
    def _locked(self) -> Generator[None]:
        lock = self.path.with_name(f"{self.path.name}.lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
        try:
            due = time.monotonic() + _LOCK_TIMEOUT
            while not try_lock(descriptor):
                if time.monotonic() >= due:
                    raise StoreError(f"another process has locked {lock} for {_LOCK_TIMEOUT:g} s; end it, or try again")
                time.sleep(_LOCK_POLL)
            yield
        finally:
            os.close(descriptor)  # releases the lock

    @contextmanager
    def _explained(self) -> Generator[None]:
        """Raise errors of the file system as `StoreError`."""
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            reason = error.strerror or str(error)
            raise StoreError(
                f"the pins in {self.path} cannot be used: {reason}; tools stay blocked until this user can read and "
                "write the file and its folder"
            ) from error

    def _require_private(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise StoreUnusable(f"{self.path} is not a regular file; choose another path for the pins")
        if sys.platform == "win32":
            return
        if status.st_uid != os.geteuid():
            raise StoreUnusable(
                f"{self.path} belongs to another user ({status.st_uid}); choose another path for the pins"
            )
        if status.st_mode & 0o077:
            raise StoreUnusable(
                f"other users can access {self.path} (mode {stat.S_IMODE(status.st_mode):o}), so its pins are not "
                "safe; if you trust them, chmod 600 the file"
            )

    def _damaged(self, why: str) -> StoreUnusable:
        return StoreUnusable(
            f"the pins in {self.path} are damaged: {why}; restore the file from a backup, or delete it if you trust "
            "all servers as they are now: they are then pinned anew"
        )


def _find(servers: Mapping[str, ServerPins], server: str) -> ServerPins:
    if server not in servers:
        raise MisuseError(with_suggestion(f"there are no pins of server {server!r}", server, servers))
    return servers[server]
