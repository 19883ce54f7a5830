"""Files of a directory and their URIs, over all names that the file system allows."""

import base64
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline import Client, Server
from trunkline.server.files.uris import FileUris

AWKWARD = [
    b"%",
    b"%61",
    b"%2f",
    b"%25",
    b"?",
    b"#",
    b":",
    b"C:",
    b" ",
    b"\\",
    b"..",
    b"\n",
    b"\x7f",
    b"\xff",
    b"\xc3\xa9",
]
AWKWARD += [b"{", b"}", b"+", b"&", b"=", b";", b"~", b"[", b"data:,", b".txt", b"\xed\xa0\x80", b"a", b"0"]

names = (
    st.one_of(
        st.binary(min_size=1, max_size=12), st.lists(st.sampled_from(AWKWARD), min_size=1, max_size=4).map(b"".join)
    )
    .map(lambda name: name.replace(b"/", b"-").replace(b"\0", b"-"))
    .filter(lambda name: name not in {b".", b".."})
)
paths = st.lists(names, min_size=1, max_size=3).map(b"/".join).map(os.fsdecode)


@pytest.mark.parametrize(
    "pattern", ["f:///{+path}", "f:///{path}", "f:{?path}", "f:{#path}", "f:///{+path}.md", "f:{;path}/x"]
)
@given(path=paths)
def test_path_of_inverts_uri_of(pattern: str, path: str) -> None:
    uris = FileUris(pattern)
    uri = uris.uri_of(path)

    assert uris.path_of(uri) == path
    assert uri.isascii()
    assert uri.isprintable()


@given(st.sets(names, max_size=5), st.sampled_from(["f:///{+path}", "f:///{path}"]))
async def test_every_listed_file_is_readable_by_its_uri(found: set[bytes], pattern: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in found:
            (folder / os.fsdecode(name)).write_bytes(b"the file " + name)
            (folder / "in").mkdir(exist_ok=True)
            (folder / "in" / os.fsdecode(name)).write_bytes(b"the inner file " + name)
        server = Server("t", observers=[])
        server.add_directory(pattern, folder)
        read: set[bytes] = set()
        async with Client(server) as client:
            async for resource in client.resources():
                (contents,) = await client.read_resource(resource.uri)
                assert contents.uri == resource.uri
                read.add(base64.b64decode(contents.blob) if contents.text is None else contents.text.encode())
        await server.aclose()

    assert read == {b"the file " + name for name in found} | {b"the inner file " + name for name in found}
