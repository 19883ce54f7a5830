"""Watches files that somebody is subscribed to, and folders that somebody has been shown the files of.

Watching is looking, every `file_poll_interval`. Of a file its time, size and identity are compared; of a folder, its
names. That works on every file system, costs one `stat` per file and folder that is watched, and nothing where nobody
is interested.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import UNSET

from trunkline.errors import ResourceAccessDenied, ResourceNotFound
from trunkline.server.catalog import ServerCatalog
from trunkline.server.connection import SharedServices
from trunkline.server.files.entries import DirectoryEntry, FileEntry, stat_file
from trunkline.server.files.folder import FolderSnapshot, scan_folder
from trunkline.server.files.polling import Poller
from trunkline.server.files.reader import FileReader

__all__ = ["FileWatcher"]


class FileWatcher:
    """Tells which files have changed, and that the files of a folder are no longer those that were shown."""

    def __init__(
        self,
        catalog: ServerCatalog,
        get_shared: Callable[[], SharedServices],
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
        """Watches the file behind a URI, if it is a file's, from the state that it is in now."""
        state = await self._get_shared().threads.run(partial(_state_of, self._catalog, uri))
        if state is not UNSET:
            self._poller.watch(uri, state, partial(_reread_state, self._catalog, uri), partial(self._on_updated, uri))

    def unwatch(self, uri: str) -> None:
        """Watches it no more."""
        self._poller.unwatch(uri)

    def watch_folder(self, entry: DirectoryEntry, folder: FolderSnapshot) -> None:
        """Watches a folder whose files somebody has been shown, if those who are shown lists are told of changes."""
        if self._catalog.capability_flags.list_changed:
            self._folders.add(entry.folder)
            self._poller.watch(
                entry.folder, folder, partial(_rescan_folder, self._catalog, entry), self._on_list_changed
            )

    def unwatch_folders(self) -> None:
        """Nobody is there to be told of lists."""
        self._poller.unwatch(*self._folders)
        self._folders.clear()

    def close(self) -> None:
        """Watches nothing any more."""
        self._poller.close()
        self._folders.clear()


# --- looking, on a thread ----------------------------------------------------------------------------


def _rescan_folder(catalog: ServerCatalog, entry: DirectoryEntry, previous: FolderSnapshot) -> Any:
    return scan_folder(entry.folder, previous) if catalog.templates.live.get(entry.key) is entry else UNSET


def _reread_state(catalog: ServerCatalog, uri: str, previous: Any) -> Any:
    try:
        state = _state_of(catalog, uri)
    except (ResourceAccessDenied, ResourceNotFound):  # a link was turned outside: for us there is no file any more
        return None
    return previous if state is UNSET else state


def _state_of(catalog: ServerCatalog, uri: str) -> Any:
    """When the file behind a URI was changed, its size and identity; None if there is none, UNSET if it is no file's.
    Raises for one outside of its folder."""
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
