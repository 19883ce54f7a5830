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
from trunkline.server.catalog import Offer
from trunkline.server.connection import Shared
from trunkline.server.files.entries import DirectoryEntry, FileEntry, status
from trunkline.server.files.folder import Folder, look
from trunkline.server.files.polling import Poll
from trunkline.server.files.reader import FileReader

__all__ = ["FileWatch"]


class FileWatch:
    """Tells which files have changed, and that the files of a folder are no longer those that were shown."""

    def __init__(
        self,
        offer: Offer,
        serving: Callable[[], Shared],
        updated: Callable[[str], None],
        list_changed: Callable[[], None],
    ) -> None:
        self._offer = offer
        self._serving = serving
        self._updated = updated
        self._list_changed = list_changed
        self._poll = Poll(serving, offer.settings.file_poll_interval)
        self._folders: set[Path] = set()
        self.reader = FileReader(offer.settings.file_read_budget, lambda: serving().threads)

    async def begin(self, uri: str) -> None:
        """Watches the file behind a URI, if it is a file's, from the state that it is in now."""
        state = await self._serving().threads.run(partial(_state_of, self._offer, uri))
        if state is not UNSET:
            self._poll.saw(uri, state, partial(_looked, self._offer, uri), partial(self._updated, uri))

    def end(self, uri: str) -> None:
        """Watches it no more."""
        self._poll.end(uri)

    def shown(self, entry: DirectoryEntry, folder: Folder) -> None:
        """Watches a folder whose files somebody has been shown, if those who are shown lists are told of changes."""
        if self._offer.switches.list_changed:
            self._folders.add(entry.folder)
            self._poll.saw(entry.folder, folder, partial(_walked, self._offer, entry), self._list_changed)

    def unheard(self) -> None:
        """Nobody is there to be told of lists."""
        self._poll.end(*self._folders)
        self._folders.clear()

    def close(self) -> None:
        """Watches nothing any more."""
        self._poll.close()
        self._folders.clear()


# --- looking, on a thread ----------------------------------------------------------------------------


def _walked(offer: Offer, entry: DirectoryEntry, before: Folder) -> Any:
    return look(entry.folder, before) if offer.templates.live.get(entry.key) is entry else UNSET


def _looked(offer: Offer, uri: str, before: Any) -> Any:
    try:
        state = _state_of(offer, uri)
    except (ResourceAccessDenied, ResourceNotFound):  # a link was turned outside: for us there is no file any more
        return None
    return before if state is UNSET else state


def _state_of(offer: Offer, uri: str) -> Any:
    """When the file behind a URI was changed, its size and identity; None if there is none, UNSET if it is no file's.
    Raises for one outside of its folder."""
    found = _status_of(offer, uri)
    return found if found is None or found is UNSET else (found.st_mtime_ns, found.st_size, found.st_ino)


def _status_of(offer: Offer, uri: str) -> Any:
    entry = offer.reader(uri)
    if isinstance(entry, FileEntry):
        return _status_at(entry.path)
    if isinstance(entry, DirectoryEntry) and (path := entry.uris.path_of(uri)) is not None:
        return status(entry.folder, path, uri)
    return UNSET


def _status_at(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (OSError, ValueError):
        return None
