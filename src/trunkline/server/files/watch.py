"""Watches files with subscribers, and folders whose files a client has listed.

Watching means polling, every `file_poll_interval`: the mtime, size and inode of a file, and the names in a folder. This
works on every file system and costs one `stat` per watched file and folder; without subscribers it costs nothing.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import UNSET

from trunkline.errors import ResourceAccessDenied, ResourceNotFound
from trunkline.rpc.connection import LoopResources
from trunkline.server.catalog import ServerCatalog
from trunkline.server.files.entries import DirectoryEntry, FileEntry, stat_file
from trunkline.server.files.folder import FolderSnapshot, scan_folder
from trunkline.server.files.polling import Poller
from trunkline.server.files.reader import FileReader

__all__ = ["FileWatcher"]


class FileWatcher:
    """Reports changed files, and folders whose files differ from the last list that a client received."""

    def __init__(
        self,
        catalog: ServerCatalog,
        get_shared: Callable[[], LoopResources],
        on_updated: Callable[[str], None],
        on_list_changed: Callable[[], None],
    ) -> None:
        self._catalog = catalog
        self._get_shared = get_shared
        self._on_updated = on_updated
        self._on_list_changed = on_list_changed
        self._poller = Poller(get_shared, catalog.settings.file_poll_interval)
        self._folders: set[Path] = set()
        self.reader = FileReader(catalog.settings.file_read_budget, lambda: get_shared().threads)

    async def watch(self, uri: str) -> None:
        """Watch the file of a URI from its current state; do nothing for other resources."""
        state = await self._get_shared().threads.run(partial(_state_of, self._catalog, uri))
        if state is not UNSET:
            self._poller.watch(uri, state, partial(_reread_state, self._catalog, uri), partial(self._on_updated, uri))

    def unwatch(self, uri: str) -> None:
        """Stop watching the file of a URI."""
        self._poller.unwatch(uri)

    def watch_folder(self, entry: DirectoryEntry, folder: FolderSnapshot) -> None:
        """Watch a folder that a client has listed, if the server sends `list_changed`."""
        if self._catalog.capability_flags.list_changed:
            self._folders.add(entry.folder)
            self._poller.watch(
                entry.folder, folder, partial(_rescan_folder, self._catalog, entry), self._on_list_changed
            )

    def unwatch_folders(self) -> None:
        """Stop watching folders, because no client is connected."""
        self._poller.unwatch(*self._folders)
        self._folders.clear()

    def close(self) -> None:
        """Stop watching."""
        self._poller.close()
        self._folders.clear()


# --- polling, on a thread ----------------------------------------------------------------------------


def _rescan_folder(catalog: ServerCatalog, entry: DirectoryEntry, previous: FolderSnapshot) -> Any:
    return scan_folder(entry.folder, previous) if catalog.templates.live.get(entry.key) is entry else UNSET


def _reread_state(catalog: ServerCatalog, uri: str, previous: Any) -> Any:
    try:
        state = _state_of(catalog, uri)
    except (ResourceAccessDenied, ResourceNotFound):  # a link now leads outside: treat the file as deleted
        return None
    return previous if state is UNSET else state


def _state_of(catalog: ServerCatalog, uri: str) -> Any:
    """Return the mtime, size and inode of the file of a URI; None if it does not exist, UNSET if the URI is not that of
    a file. Raises `ResourceAccessDenied` for a file outside of its folder."""
    found = _status_of(catalog, uri)
    return found if found is None or found is UNSET else (found.st_mtime_ns, found.st_size, found.st_ino)


def _status_of(catalog: ServerCatalog, uri: str) -> Any:
    entry = catalog.resolve_uri(uri)
    if isinstance(entry, FileEntry):
        return _stat(entry.path)
    if isinstance(entry, DirectoryEntry) and (path := entry.uris.path_of(uri)) is not None:
        return stat_file(entry.folder, path, uri)
    return UNSET


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (OSError, ValueError):
        return None
