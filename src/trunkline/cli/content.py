"""Content blocks and resources as text for the terminal. Images, audio and other binary data become files."""

import base64
import mimetypes
import tempfile
from collections.abc import Iterable
from pathlib import Path

from trunkline.cli.terminal import Terminal, escape, escape_lines
from trunkline.protocol.types import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)

__all__ = ["ContentPrinter"]


class ContentPrinter:
    """Prints content, and saves binary data in a folder, by default a new one."""

    def __init__(self, terminal: Terminal, folder: Path | None = None) -> None:
        self._terminal = terminal
        self._folder = folder
        self._saved = 0

    def print_blocks(self, blocks: Iterable[ContentBlock]) -> None:
        """Print content blocks one below the other."""
        for block in blocks:
            match block:
                case TextContent():
                    self._terminal.line(escape_lines(block.text))
                case ImageContent():
                    self._save(block.data, block.mime_type, "image")
                case AudioContent():
                    self._save(block.data, block.mime_type, "audio")
                case ResourceLink():
                    self._terminal.line(f"{escape(block.title or block.name)}: {escape(block.uri)}")
                case EmbeddedResource():
                    self.print_contents(block.resource)

    def print_contents(self, contents: ResourceContents) -> None:
        """Print the text of a resource, or save its data."""
        if contents.text is not None:
            self._terminal.line(escape_lines(contents.text))
        elif contents.blob is not None:
            self._save(contents.blob, contents.mime_type or "application/octet-stream", "resource")

    def _save(self, data: str, kind: str, what: str) -> None:
        try:
            content = base64.b64decode(data, validate=True)
        except ValueError:
            self._terminal.line(f"[{what}: the data is not base64]")
            return
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="trunkline-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        suffix = mimetypes.guess_extension(kind.partition(";")[0]) or ".bin"
        while True:
            self._saved += 1
            path = self._folder / f"{what}-{self._saved}{suffix}"
            try:
                with path.open("xb") as file:
                    file.write(content)
            except FileExistsError:
                continue
            break
        self._terminal.line(f"[{what}, {escape(kind)}, {len(content)} bytes: {path}]")
