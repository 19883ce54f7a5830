"""Registry entries for files and folders: resources that are read on a thread, and never from outside their folder."""

import errno
import os
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Unpack, cast

from msgspec import UNSET
from msgspec.structs import replace

from trunkline.config import MIB, Settings
from trunkline.errors import (
    ContentTooLarge,
    InvalidUri,
    RegistrationError,
    ResourceAccessDenied,
    ResourceNotFound,
    TemplateError,
)
from trunkline.protocol.types import ReadResourceResult, Resource, ResourceContents
from trunkline.registry import options as registry_options
from trunkline.registry.access import parse_access
from trunkline.registry.handlers import Handler
from trunkline.registry.resources import ResourceEntry, TemplateEntry, check_uri, make_resource, make_template
from trunkline.registry.results import resource_contents
from trunkline.server.catalog import ServerCatalog
from trunkline.server.files.folder import FolderSnapshot, scan_folder
from trunkline.server.files.reader import FileReader, OpenFile
from trunkline.server.files.safe_open import OutsideRoot, file_status, open_file, open_regular
from trunkline.server.files.uris import FileUris
from trunkline.server.options import DirectoryOptions, FileOptions, select_options
from trunkline.wire.media_types import essence

__all__ = ["DirectoryEntry", "FileEntry", "make_directory", "make_file", "mime_type_of", "stat_file"]

_TEXT_TYPES: Final = re.compile(r"text/.+|.+\+(json|xml)|application/(json|xml|javascript|toml|yaml|x-yaml|x-sh|sql)")
_MAX_UNSIZED: Final = 1 * MIB  # bytes of a file that reports the size 0, as in /proc
_MAX_CHARACTER_BYTES: Final = 4  # in UTF-8
_NOT_FOUND_ERRNOS: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG})

ReadSignature = Callable[[Callable[..., Any]], Handler]
"""Makes a handler of a blocking function, from its signature."""


class FileEntry(ResourceEntry, frozen=True, kw_only=True):
    """A resource that is one file."""

    path: Path


class DirectoryEntry(TemplateEntry, frozen=True, kw_only=True):
    """A resource template for the files of a folder and its subfolders."""

    folder: Path
    uris: FileUris
    on_listed: Callable[["DirectoryEntry", FolderSnapshot], None]

    def arguments(self, uri: str) -> Any:
        """Return the arguments of the reader for a URI; UNSET if the URI does not match the template."""
        path = self.uris.path_of(uri)
        if path is None:
            return UNSET
        if not self.absolute:
            check_uri(uri, self.settings)
        return self.convert({"path": path})

    def make_resources(self, value: Any, _: Any) -> list[Resource]:
        """Return the listed resources, and report the snapshot that they come from."""
        snapshot, resources = cast("tuple[FolderSnapshot, list[Resource]]", value)
        self.on_listed(self, snapshot)
        return resources


def mime_type_of(path: Path) -> str | None:
    """Guess the MIME type of a file from its name."""
    import mimetypes  # reads the tables of the system: import it only if there are files

    kind, encoding = mimetypes.guess_type(f"./{path.name}")  # "./": a name such as data:,x is not a URL
    return kind if encoding is None else f"application/{encoding}"


# --- listing and reading, on a thread ----------------------------------------------------------------


class _FileLoader:
    """Opens the files of one resource or template, checks their sizes and converts their contents."""

    def __init__(self, mime_type: str | None, settings: Settings, reader: FileReader) -> None:
        self._mime_type = mime_type
        self._settings = settings
        self._read = reader.read

    def read(self, open_: Callable[[], tuple[int, str]], uri: str) -> Any:
        """Return the contents of the file that `open_` opens and names, or an awaitable of them."""
        return self._read(partial(self._open, open_, uri))

    def _open(self, open_: Callable[[], tuple[int, str]], uri: str) -> OpenFile:
        with _translate_os_errors(uri):
            descriptor, name = open_()
        try:
            size = os.fstat(descriptor).st_size
            mime_type = self._mime_type or mime_type_of(Path(name))
            self._check_size(size, mime_type)
        except BaseException:
            os.close(descriptor)
            raise
        if size:
            return OpenFile(descriptor, size, partial(self._contents, uri, mime_type))
        # The file is empty, or the system generates it during the read, as in /proc.
        return OpenFile(descriptor, _MAX_UNSIZED + 1, partial(self._unsized_contents, uri, mime_type))

    def _check_size(self, size: int, mime_type: str | None) -> None:
        """Raise `ContentTooLarge` if the size alone exceeds a limit. The contents are measured after the read."""
        settings = self._settings
        if settings.max_file is not None and size > settings.max_file:
            raise ContentTooLarge(size, settings.max_file, setting="max_file")
        textual = mime_type is not None and _may_be_text(mime_type)
        if textual and settings.max_text is not None and size > settings.max_text * _MAX_CHARACTER_BYTES:
            raise ContentTooLarge(size, settings.max_text, setting="max_text", kind="text_too_long")
        if not _may_be_text(mime_type) and settings.max_binary is not None and size > settings.max_binary:
            raise ContentTooLarge(size, settings.max_binary, setting="max_binary", kind="binary_data_too_large")

    def _unsized_contents(self, uri: str, mime_type: str | None, data: bytearray) -> ResourceContents:
        limit = min(_MAX_UNSIZED, self._settings.max_file or _MAX_UNSIZED)
        if len(data) > limit:
            raise ContentTooLarge(len(data), limit, setting="for a file without a size")
        return self._contents(uri, mime_type, data)

    def _contents(self, uri: str, mime_type: str | None, data: bytearray) -> ResourceContents:
        value: str | bytearray = data
        if _may_be_text(mime_type):
            try:
                text = data.decode()
            except UnicodeDecodeError:
                pass
            else:
                value = data if mime_type is None and "\0" in text else text
        return resource_contents(value, uri, mime_type, self._settings)[0]


def _to_result(contents: ResourceContents, uri: str) -> ReadResourceResult:
    """Return the result of a read, with the URI of the request."""
    return ReadResourceResult([replace(contents, uri=uri)])


def _may_be_text(mime_type: str | None) -> bool:
    return mime_type is None or _TEXT_TYPES.fullmatch(essence(mime_type)) is not None


@contextmanager
def _translate_os_errors(uri: str) -> Generator[None]:
    """Translate errors of opening a file for the client; other errors are the server's fault."""
    try:
        yield
    except (OutsideRoot, ValueError):  # ValueError: a null character in the path
        raise ResourceAccessDenied(uri) from None
    except OSError as error:
        if error.errno in _NOT_FOUND_ERRNOS:
            raise ResourceNotFound(uri) from None
        raise


def stat_file(folder: Path, path: str, uri: str) -> os.stat_result | None:
    """Return the status of a file in a folder; None if it does not exist. Raises `ResourceAccessDenied` for a path that
    leads outside of the folder."""
    try:
        return file_status(folder, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OutsideRoot, ValueError):
        raise ResourceAccessDenied(uri) from None
    except OSError:  # a name that is too long, or a loop of links
        raise ResourceNotFound(uri) from None


def _list_folder(folder: Path, uris: FileUris, mime_type: str | None, settings: Settings) -> Any:
    """Return a snapshot of a folder, and its files as resources. Files whose URI is too long are omitted."""
    snapshot = scan_folder(folder)
    listed: list[Resource] = []
    for name, size in zip(snapshot.names, snapshot.sizes, strict=True):
        try:
            uri = check_uri(uris.uri_of(name), settings)
        except (InvalidUri, TemplateError, UnicodeEncodeError):  # the last: a name that is not Unicode, on Windows
            continue
        kind = mime_type or mime_type_of(Path(name))
        listed.append(Resource(uri=uri, name=_display_name(name), mime_type=kind, size=size))
    return snapshot, listed


def _display_name(name: str) -> str:
    """Return a file name for JSON: bytes that are not UTF-8 are replaced."""
    return name if name.isascii() else os.fsencode(name).decode(errors="replace")


# --- entries -----------------------------------------------------------------------------------------


def make_file(
    uri: str,
    path: str | os.PathLike[str],
    catalog: ServerCatalog,
    read: ReadSignature,
    reader: FileReader,
    **options: Unpack[FileOptions],
) -> FileEntry:
    """Make the entry of a file. The file need not exist yet."""
    file = Path(path)
    if file.is_dir():
        raise RegistrationError(f"resource {uri!r}: {file} is a folder; use add_directory")
    options["mime_type"] = options.get("mime_type") or mime_type_of(file)
    options["name"] = options.get("name") or _display_name(file.name)
    files = _FileLoader(options["mime_type"], catalog.settings, reader)

    def contents() -> Any:
        return files.read(lambda: (open_regular(file), file.name), uri)

    access = parse_access(f"resource {uri!r}", options.get("scopes"), options.get("allow"))
    described = select_options(registry_options.ResourceOptions, options)
    made = make_resource(uri, read(contents), catalog.settings, finish=_to_result, access=access, **described)
    return FileEntry(**_fields_of(made), path=file)


def make_directory(
    pattern: str,
    folder: str | os.PathLike[str],
    catalog: ServerCatalog,
    read: ReadSignature,
    reader: FileReader,
    *,
    on_listed: Callable[[DirectoryEntry, FolderSnapshot], None],
    **options: Unpack[DirectoryOptions],
) -> DirectoryEntry:
    """Make the entry of a folder. Raises `RegistrationError` if the folder does not exist."""
    root, uris, settings = Path(folder), FileUris(pattern), catalog.settings
    if not root.is_dir():
        raise RegistrationError(f"resource template {pattern!r}: {root} is not a folder")

    files = _FileLoader(options.get("mime_type"), settings, reader)

    def file(path: str) -> Any:
        return files.read(partial(open_file, root, path), uris.uri_of(path))

    access = parse_access(f"resource {pattern!r}", options.get("scopes"), options.get("allow"))
    described = select_options(registry_options.TemplateOptions, options)
    described["name"] = options.get("name") or _display_name(root.resolve().name)
    walk = partial(_list_folder, root, uris, options.get("mime_type"), settings)
    lister = read(walk) if options.get("listed", True) else None
    made = make_template(pattern, read(file), settings, lister=lister, finish=_to_result, access=access, **described)
    members: dict[str, Any] = {**_fields_of(made), "template": uris.template}
    return DirectoryEntry(**members, folder=root, uris=uris, on_listed=on_listed)


def _fields_of(entry: ResourceEntry | TemplateEntry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__struct_fields__}
