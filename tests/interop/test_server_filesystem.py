"""Our client against npm's server-filesystem: roots decide where its tools work."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from tests.interop.host import Host
from tests.official import NODE, NPM_FOLDER

from trunkline.errors import PeerError
from trunkline.protocol.types import EmbeddedResource, ImageContent
from trunkline.transports.stdio.client import Command

SERVER = NPM_FOLDER / "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
MOVED = "Updated allowed directories"

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Files(NamedTuple):
    """The server, our client, and the allowed folder."""

    host: Host
    folder: Path
    complaints: "asyncio.Queue[str]"  # standard error

    async def call(self, tool: str, **arguments: object) -> str:
        """The text result of a tool, which equals its structured content."""
        result = await self.host.client.call_tool(tool, arguments)
        assert result.data.content == result.text
        return result.text

    async def moved(self) -> None:
        """Wait until the server has read its roots."""
        while MOVED not in await self.complaints.get():
            pass


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def files(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Files]:
    """It starts without a folder, and has to list the roots."""
    folder, complaints = tmp_path_factory.mktemp("files").resolve(), asyncio.Queue[str]()
    async with Host(Command([NODE, SERVER], on_stderr=complaints.put_nowait), roots=[folder]) as host:
        files = Files(host, folder, complaints)
        await files.moved()
        yield files


async def test_file_is_written_edited_and_read(files: Files) -> None:
    path = files.folder / "poem.txt"
    await files.call("write_file", path=str(path), content="one\ntwo\nthree\n")
    diff = await files.call("edit_file", path=str(path), edits=[{"oldText": "two", "newText": "zwei"}])
    assert "+zwei" in diff
    assert path.read_text() == "one\nzwei\nthree\n"
    assert await files.call("read_text_file", path=str(path), head=2) == "one\nzwei"
    assert await files.call("read_file", path=str(path)) == "one\nzwei\nthree\n"
    assert "size: 15" in await files.call("get_file_info", path=str(path))


async def test_folders_are_created_listed_and_searched(files: Files) -> None:
    inner = files.folder / "inner"
    await files.call("create_directory", path=str(inner))
    (inner / "a.md").write_text("a")
    await files.call("move_file", source=str(inner / "a.md"), destination=str(inner / "b.md"))
    assert await files.call("list_directory", path=str(inner)) == "[FILE] b.md"
    assert "b.md" in await files.call("list_directory_with_sizes", path=str(inner), sortBy="size")
    assert '"name": "b.md"' in await files.call("directory_tree", path=str(inner))
    assert await files.call("search_files", path=str(files.folder), pattern="**/b.md") == str(inner / "b.md")
    assert "a" in await files.call("read_multiple_files", paths=[str(inner / "b.md")])


async def test_bytes_arrive_as_images_and_resources(files: Files) -> None:
    for name, kind in (("dot.png", ImageContent), ("dot.bin", EmbeddedResource)):
        (files.folder / name).write_bytes(b"\x00\x01\x02")
        result = await files.host.client.call_tool("read_media_file", {"path": str(files.folder / name)})
        [block] = result.content
        assert isinstance(block, kind)
        assert (block.data if isinstance(block, ImageContent) else block.resource.blob) == "AAEC"


async def test_access_is_limited_to_changing_roots(files: Files, tmp_path: Path) -> None:
    """We notify it of a change, it lists the roots again, and from then on works elsewhere."""
    note = tmp_path.resolve() / "note.txt"
    note.write_text("found")
    with pytest.raises(PeerError, match="Access denied"):
        await files.call("read_text_file", path=str(note))
    await files.host.client.set_roots([note.parent])
    await files.moved()
    assert await files.call("list_allowed_directories") == f"Allowed directories:\n{note.parent}"
    assert await files.call("read_text_file", path=str(note)) == "found"
    await files.host.client.set_roots([files.folder])
    await files.moved()
    with pytest.raises(PeerError, match="Access denied"):
        await files.call("read_text_file", path=str(note))


async def test_every_offered_tool_is_used(files: Files) -> None:
    used = Path(__file__).read_text()
    assert [tool.name async for tool in files.host.client.tools() if f'"{tool.name}"' not in used] == []


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_works_in_every_older_revision(revision: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    async with Host(Command([NODE, SERVER, tmp_path]), revision, without=("roots",)) as host:
        assert host.client.revision == revision
        assert (await host.client.call_tool("list_directory", {"path": str(tmp_path)})).text == "[FILE] a.txt"
