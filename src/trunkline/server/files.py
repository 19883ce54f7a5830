"""Files and folders as resources: read on a thread, never from outside of their folder, and watched while wanted.

Watching is looking: while somebody is subscribed to a file, its time, size and identity are compared every so often
(`file_poll_interval`). That works on every file system, costs one `stat` per file that is watched, and nothing where
nobody is subscribed.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import UNSET, Struct

from trunkline.clock import Timer
from trunkline.conversation.threads import Job
from trunkline.errors import RegistrationError, ResourceAccessDenied, ResourceNotFound
from trunkline.protocol.types import ReadResourceResult, Resource, ResourceContents
from trunkline.registry.handlers import Handler
from trunkline.registry.resources import ResourceEntry, TemplateEntry, make_resource, make_template
from trunkline.registry.results import resource_contents
from trunkline.registry.templates import UriTemplate
from trunkline.server.connection import Shared
from trunkline.server.offer import Offer

__all__ = ["DirectoryEntry", "FileEntry", "FileWatch", "make_directory", "make_file", "mime_type_of"]

_TEXTUAL: Final = re.compile(r"text/.+|.+\+(json|xml)|application/(json|xml|javascript|toml|yaml|x-yaml|x-sh|sql)")
_PLACE: Final = "path"

Read = Callable[[Callable[..., Any]], Handler]
"""Reads the signature of a function that blocks."""


class _Found(Struct, frozen=True):
    """A file that was read."""

    path: Path
    data: bytes


class FileEntry(ResourceEntry, frozen=True, kw_only=True):
    """A file under a URI of its own."""

    path: Path

    def result(self, value: Any, uri: str) -> ReadResourceResult:
        """What the file holds, as the answer to a request."""
        return _result(value, uri, self)


class DirectoryEntry(TemplateEntry, frozen=True, kw_only=True):
    """The files of a folder, and of the folders in it."""

    folder: Path

    def result(self, value: Any, uri: str) -> ReadResourceResult:
        """What a file holds, as the answer to a request."""
        return _result(value, uri, self)


def mime_type_of(path: Path) -> str | None:
    """The MIME type that a file's name promises, if it does."""
    import mimetypes  # reads the tables of the system, so only where there are files

    kind, packed = mimetypes.guess_type(path.name)
    return kind if packed is None else f"application/{packed}"


def _result(found: _Found, uri: str, entry: FileEntry | DirectoryEntry) -> ReadResourceResult:
    mime_type = entry.definition.mime_type or mime_type_of(found.path)
    value: str | bytes = found.data
    if mime_type is None or _TEXTUAL.fullmatch(mime_type):
        try:
            value = found.data.decode()
        except UnicodeDecodeError:
            pass
        else:
            if mime_type is None and "\0" in value:
                value = found.data
    contents: list[ResourceContents] = resource_contents(value, uri, mime_type, entry.settings)
    return ReadResourceResult(contents)


# --- finding and reading, on a thread ----------------------------------------------------------------


def _inside(folder: Path, path: str, uri: str) -> Path:
    """The file that a path within a folder leads to, links followed. Raises for one that leads outside."""
    try:
        found = (folder / path).resolve()
    except ValueError:  # a null character
        raise ResourceAccessDenied(uri) from None
    except (OSError, RuntimeError):  # too long a name, links in a circle
        raise ResourceNotFound(uri) from None
    if not found.is_relative_to(folder.resolve()):
        raise ResourceAccessDenied(uri)
    return found


def _read(path: Path, uri: str) -> _Found:
    try:
        if not path.is_file():  # a pipe would be waited for, a folder cannot be read
            raise ResourceNotFound(uri)
        return _Found(path, path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise ResourceNotFound(uri) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ResourceNotFound(uri) from None
        raise


def _files_in(folder: Path) -> Iterator[Path]:
    """Every file, in a stable order; links to folders are not followed."""
    for where, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(where, name) for name in sorted(names))


def _list(folder: Path, template: UriTemplate, mime_type: str | None) -> list[Resource]:
    listed: list[Resource] = []
    root = folder.resolve()
    for file in _files_in(root):
        if file.is_file() and file.resolve().is_relative_to(root):
            name = file.relative_to(root).as_posix()
            kind = mime_type or mime_type_of(file)
            uri = template.expand({_PLACE: name})
            listed.append(Resource(uri=uri, name=name, mime_type=kind, size=file.stat().st_size))
    return listed


# --- entries -----------------------------------------------------------------------------------------


def make_file(uri: str, path: str | os.PathLike[str], offer: Offer, read: Read, **options: Any) -> FileEntry:
    """A resource that is a file. It need not be there yet."""
    file = Path(path)
    if file.is_dir():
        raise RegistrationError(f"resource {uri!r}: {file} is a folder; use add_directory")
    options["mime_type"] = options.get("mime_type") or mime_type_of(file)
    options["name"] = options.get("name") or file.name
    made = make_resource(uri, read(lambda: _read(file, uri)), offer.settings, **options)
    return FileEntry(**_members(made), path=file)


def make_directory(
    pattern: str, folder: str | os.PathLike[str], offer: Offer, read: Read, *, listed: bool, **options: Any
) -> DirectoryEntry:
    """A template of the files in a folder, which must be there."""
    root, template = Path(folder), UriTemplate(pattern)
    if list(template.variables) != [_PLACE]:
        raise RegistrationError(f"resource template {pattern!r}: a folder needs one place for the file, {{+path}}")
    if not root.is_dir():
        raise RegistrationError(f"resource template {pattern!r}: {root} is not a folder")

    def file(path: str) -> _Found:
        uri = template.expand({_PLACE: path})
        return _read(_inside(root, path, uri), uri)

    options["name"] = options.get("name") or root.resolve().name
    lister = read(partial(_list, root, template, options.get("mime_type"))) if listed else None
    made = make_template(pattern, read(file), offer.settings, lister=lister, **options)
    return DirectoryEntry(**_members(made), folder=root)


def _members(entry: ResourceEntry | TemplateEntry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__struct_fields__}


# --- watching ----------------------------------------------------------------------------------------

_State = tuple[int, int, int] | None
"""When a file was changed, its size and its identity; None where there is no file."""


def _state_of(offer: Offer, uri: str) -> Any:
    """The state of the file behind a URI; UNSET if it is no file's. Raises for one outside of its folder."""
    path = _path_of(offer, uri)
    if path is None:
        return UNSET
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _path_of(offer: Offer, uri: str) -> Path | None:
    entry = offer.resources.live.get(uri)
    if entry is not None:
        return entry.path if isinstance(entry, FileEntry) else None
    for template in offer.templates:
        values = template.template.match(uri)
        if values is not None:  # the first one is who reads it, too
            return _inside(template.folder, str(values[_PLACE]), uri) if isinstance(template, DirectoryEntry) else None
    return None


def _states_of(offer: Offer, uris: list[str]) -> dict[str, Any]:
    states: dict[str, Any] = {}
    for uri in uris:
        try:
            states[uri] = _state_of(offer, uri)
        except (ResourceAccessDenied, ResourceNotFound):  # a link was turned outside: for us there is no file any more
            states[uri] = None
    return states


class FileWatch:
    """Looks after the files that somebody is subscribed to. All of it happens on the loop, but for the looking."""

    def __init__(self, offer: Offer, serving: Callable[[], Shared], notify: Callable[[str], None]) -> None:
        self._offer = offer
        self._serving = serving
        self._notify = notify
        self._seen: dict[str, _State] = {}
        self._timer: Timer | None = None
        self._looking = False

    async def begin(self, uri: str) -> None:
        """Watches the file behind a URI, if it is a file's, from the state that it is in now."""
        state = await self._serving().threads.run(partial(_state_of, self._offer, uri))
        if state is not UNSET:
            self._seen[uri] = state
            self._wait()

    def end(self, uri: str) -> None:
        """Watches it no more."""
        self._seen.pop(uri, None)
        if not self._seen:
            self.close()

    def close(self) -> None:
        """Watches nothing any more."""
        self._seen.clear()
        self._looking = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        if self._seen and self._timer is None and not self._looking:
            clock = self._serving().clock
            self._timer = clock.call_at(clock.now() + self._offer.settings.file_poll_interval, self._look)

    def _look(self) -> None:
        self._timer, self._looking = None, True
        self._serving().threads.submit(Job(partial(_states_of, self._offer, list(self._seen)), self._looked))

    def _looked(self, states: Any, error: BaseException | None) -> None:
        self._looking = False
        if error is None:
            for uri, state in states.items():
                if uri in self._seen and state is not UNSET and state != self._seen[uri]:
                    self._seen[uri] = state
                    self._notify(uri)
        self._wait()
