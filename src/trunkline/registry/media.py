"""Images, audio and files as results: built from bytes or a path, and sent as base64 content."""

import binascii
from os import PathLike
from typing import TYPE_CHECKING, ClassVar, Final

from trunkline.protocol.types import AudioContent, ContentBlock, EmbeddedResource, ImageContent, ResourceContents

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Audio", "File", "Image", "Media"]

_SIGNATURES: Final = {  # first bytes of files
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"ID3": "audio/mpeg",
    b"\xff\xfb": "audio/mpeg",
    b"OggS": "audio/ogg",
    b"fLaC": "audio/flac",
}
_IN_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}


class Media:
    """Base class of `Image`, `Audio` and `File`: bytes, and their MIME type."""

    kind: ClassVar[str] = ""

    def __init__(self, source: bytes | str | PathLike[str], mime_type: str | None = None) -> None:
        """Take bytes, or read the file at a path immediately. Guess the MIME type if there is none."""
        self.path = None if isinstance(source, bytes) else _path(source)
        self.data = source if isinstance(source, bytes) else _path(source).read_bytes()
        self.mime_type = mime_type or self._guess()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.mime_type!r}, {len(self.data)} bytes>"

    def _guess(self) -> str:
        import mimetypes  # imported on use: slow

        named = None if self.path is None else mimetypes.guess_type(f"./{self.path.name}")[0]  # it takes a URL
        found = named or _by_content(self.data) or ""
        if not found.startswith(self.kind):
            raise ValueError(f"{self.path or 'these bytes'}: not recognised as {self.kind}…; pass mime_type=…")
        return found or "application/octet-stream"

    @property
    def base64(self) -> str:
        """The bytes in base64."""
        return binascii.b2a_base64(self.data, newline=False).decode()

    def block(self) -> ContentBlock:
        """Return the content block."""
        raise NotImplementedError


class Image(Media):
    """An image to return, from bytes or a path. Becomes an `ImageContent`."""

    kind = "image/"

    def block(self) -> ContentBlock:
        """Return the content block."""
        return ImageContent(self.base64, self.mime_type)


class Audio(Media):
    """Audio to return, from bytes or a path. Becomes an `AudioContent`."""

    kind = "audio/"

    def block(self) -> ContentBlock:
        """Return the content block."""
        return AudioContent(self.base64, self.mime_type)


class File(Media):
    """A file to return, from bytes or a path. Becomes an `EmbeddedResource`."""

    def __init__(
        self, source: bytes | str | PathLike[str], mime_type: str | None = None, *, uri: str | None = None
    ) -> None:
        """Take bytes, or read the file at a path immediately. Bytes need a URI."""
        super().__init__(source, mime_type)
        if uri is None and self.path is None:
            raise ValueError("a file made of bytes needs a URI: pass uri=…")
        self.uri = uri or self.path.absolute().as_uri()  # pyright: ignore[reportOptionalMemberAccess] - one of them is

    def block(self) -> ContentBlock:
        """Return the content block."""
        return EmbeddedResource(ResourceContents(self.uri, self.mime_type, blob=self.base64))


def _path(source: str | PathLike[str]) -> "Path":
    from pathlib import Path  # imported on use: most servers send no files

    return Path(source)


def _by_content(data: bytes) -> str | None:
    if data.startswith(b"RIFF"):
        return _IN_RIFF.get(data[8:12])
    return next((mime for start, mime in _SIGNATURES.items() if data.startswith(start)), None)
