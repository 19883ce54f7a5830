"""Files and folders as resources: read on a thread, and never from outside of their folder."""

import errno
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Unpack, cast

from msgspec import Struct

from trunkline.config import Settings
from trunkline.errors import InvalidUri, RegistrationError, ResourceAccessDenied, ResourceNotFound, TemplateError
from trunkline.protocol.types import ReadResourceResult, Resource, ResourceContents
from trunkline.registry import options as registry_options
from trunkline.registry.access import access_of
from trunkline.registry.handlers import Handler
from trunkline.registry.resources import ResourceEntry, TemplateEntry, check_uri, make_resource, make_template
from trunkline.registry.results import resource_contents
from trunkline.registry.templates import UriTemplate
from trunkline.server.folders import Folder, look
from trunkline.server.offer import Offer
from trunkline.server.options import DirectoryOptions, FileOptions, only

__all__ = ["DirectoryEntry", "FileEntry", "inside", "make_directory", "make_file", "mime_type_of"]

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


class DirectoryEntry(TemplateEntry, frozen=True, kw_only=True):
    """The files of a folder, and of the folders in it."""

    folder: Path
    on_listed: Callable[["DirectoryEntry", Folder], None]

    def listed(self, value: Any, _: Any) -> list[Resource]:
        """What was listed; whoever watches the folder learns what has been shown."""
        seen, resources = cast("tuple[Folder, list[Resource]]", value)
        self.on_listed(self, seen)
        return resources


def mime_type_of(path: Path) -> str | None:
    """The MIME type that a file's name promises, if it does."""
    import mimetypes  # reads the tables of the system, so only where there are files

    kind, packed = mimetypes.guess_type(path.name)
    return kind if packed is None else f"application/{packed}"


def _result(given_type: str | None, settings: Settings, found: _Found, uri: str) -> ReadResourceResult:
    """What a file holds, as the answer to a request."""
    mime_type = given_type or mime_type_of(found.path)
    value: str | bytes = found.data
    if mime_type is None or _TEXTUAL.fullmatch(mime_type):
        try:
            value = found.data.decode()
        except UnicodeDecodeError:
            pass
        else:
            if mime_type is None and "\0" in value:
                value = found.data
    contents: list[ResourceContents] = resource_contents(value, uri, mime_type, settings)
    return ReadResourceResult(contents)


# --- finding and reading, on a thread ----------------------------------------------------------------


def inside(folder: Path, path: str, uri: str) -> Path:
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


def _list(folder: Path, template: UriTemplate, mime_type: str | None, settings: Settings) -> Any:
    """The files of a folder as they are now. What no URI can name is left out, and so is what goes meanwhile."""
    seen = look(folder)
    listed: list[Resource] = []
    for name in seen.names:
        file = folder / name
        try:
            uri, size = check_uri(template.expand({_PLACE: name}), settings), file.stat().st_size
        except (OSError, InvalidUri, TemplateError):
            continue
        listed.append(Resource(uri=uri, name=name, mime_type=mime_type or mime_type_of(file), size=size))
    return seen, listed


# --- entries -----------------------------------------------------------------------------------------


def make_file(
    uri: str, path: str | os.PathLike[str], offer: Offer, read: Read, **options: Unpack[FileOptions]
) -> FileEntry:
    """A resource that is a file. It need not be there yet."""
    file = Path(path)
    if file.is_dir():
        raise RegistrationError(f"resource {uri!r}: {file} is a folder; use add_directory")
    options["mime_type"] = options.get("mime_type") or mime_type_of(file)
    options["name"] = options.get("name") or file.name
    finish = partial(_result, options["mime_type"], offer.settings)
    access = access_of(f"resource {uri!r}", options.get("scopes"), options.get("allow"))
    described = only(registry_options.ResourceOptions, options)
    made = make_resource(uri, read(lambda: _read(file, uri)), offer.settings, finish=finish, access=access, **described)
    return FileEntry(**_members(made), path=file)


def make_directory(
    pattern: str,
    folder: str | os.PathLike[str],
    offer: Offer,
    read: Read,
    on_listed: Callable[[DirectoryEntry, Folder], None],
    **options: Unpack[DirectoryOptions],
) -> DirectoryEntry:
    """A template of the files in a folder, which must be there."""
    root, template, settings = Path(folder), UriTemplate(pattern), offer.settings
    if list(template.variables) != [_PLACE]:
        raise RegistrationError(f"resource template {pattern!r}: a folder needs one place for the file, {{+path}}")
    if not root.is_dir():
        raise RegistrationError(f"resource template {pattern!r}: {root} is not a folder")

    def file(path: str) -> _Found:
        uri = template.expand({_PLACE: path})
        return _read(inside(root, path, uri), uri)

    access = access_of(f"resource {pattern!r}", options.get("scopes"), options.get("allow"))
    described = only(registry_options.TemplateOptions, options)
    described["name"] = options.get("name") or root.resolve().name
    walk = partial(_list, root, template, options.get("mime_type"), settings)
    lister = read(walk) if options.get("listed", True) else None
    finish = partial(_result, options.get("mime_type"), settings)
    made = make_template(pattern, read(file), settings, lister=lister, finish=finish, access=access, **described)
    return DirectoryEntry(**_members(made), folder=root, on_listed=on_listed)


def _members(entry: ResourceEntry | TemplateEntry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__struct_fields__}
