"""Images, audio and files as results."""

import base64
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from trunkline import Audio, AudioContent, EmbeddedResource, File, Image, ImageContent, ResourceContents, TextContent
from trunkline.config import Settings
from trunkline.errors import ContentTooLarge
from trunkline.registry.media import Media
from trunkline.registry.results import BadResult, as_block, tool_output

PNG = b"\x89PNG\r\n\x1a\n..."
IN_BASE64 = base64.b64encode(PNG).decode()


@pytest.mark.parametrize(
    ("kind", "data", "mime_type"),
    [
        (Image, PNG, "image/png"),
        (Image, b"\xff\xd8\xff\xe0", "image/jpeg"),
        (Image, b"GIF89a", "image/gif"),
        (Image, b"RIFF....WEBP", "image/webp"),
        (Audio, b"RIFF....WAVE", "audio/wav"),
        (Audio, b"ID3", "audio/mpeg"),
        (Audio, b"\xff\xfb\x90", "audio/mpeg"),
        (Audio, b"OggS", "audio/ogg"),
        (Audio, b"fLaC", "audio/flac"),
    ],
)
def test_mime_type_is_guessed_from_bytes(kind: Any, data: bytes, mime_type: str) -> None:
    assert kind(data).mime_type == mime_type
    assert kind(data, f"{kind.kind}x-mine").mime_type == f"{kind.kind}x-mine"


def test_mime_type_is_guessed_from_url_like_name(tmp_path: Path) -> None:
    (tmp_path / "data:,x?y#z.png").write_bytes(PNG)
    assert File(tmp_path / "data:,x?y#z.png").mime_type == "image/png"


@pytest.mark.parametrize("make", [lambda: Image(b"?"), lambda: Audio(PNG), lambda: Image(b"RIFF....????")])
def test_unknown_bytes_need_mime_type(make: Any) -> None:
    with pytest.raises(ValueError, match=r"these bytes: not recognised as .*; pass mime_type="):
        make()


def test_mime_type_is_guessed_from_name(tmp_path: Path) -> None:
    for name, kind, mime_type in (
        ("a.png", Image, "image/png"),
        ("a.mp3", Audio, "audio/mpeg"),
        ("a", Image, "image/png"),
    ):
        path = tmp_path / name
        path.write_bytes(PNG)
        assert kind(path).mime_type == kind(str(path)).mime_type == mime_type
    path = tmp_path / "a.pdf"
    path.write_bytes(b"%PDF")
    assert File(path).mime_type == "application/pdf"
    assert File(path).uri == path.as_uri()
    with pytest.raises(ValueError, match=r"a\.pdf: not recognised as image/"):
        Image(path)


def test_media_become_content_blocks() -> None:
    settings = Settings()
    file = File(b"?", uri="a://b")

    assert as_block(Image(PNG), settings) == ImageContent(IN_BASE64, "image/png")
    assert as_block(Audio(PNG, "audio/wav"), settings) == AudioContent(IN_BASE64, "audio/wav")
    assert as_block(file, settings) == EmbeddedResource(
        ResourceContents("a://b", "application/octet-stream", blob="Pw==")
    )


def test_file_from_bytes_needs_a_uri() -> None:
    with pytest.raises(ValueError, match="needs a URI"):
        File(b"?")


def test_media_base_class_has_no_content() -> None:
    with pytest.raises(NotImplementedError):
        Media(b"?").block()


@pytest.mark.parametrize("returns", [Image, Image | None, list[Image], list[str | File], Audio | str])
def test_media_annotation_has_no_output_schema(returns: Any) -> None:
    assert tool_output(returns, "tool", Settings()).returns is UNSET


def test_media_can_be_mixed_with_content() -> None:
    result = tool_output(list[str | Image], "tool", Settings()).convert(["look", Image(PNG)], None)

    assert result.content == [TextContent("look"), ImageContent(IN_BASE64, "image/png")]


def test_media_are_checked_like_other_content() -> None:
    with pytest.raises(ContentTooLarge, match="above the limit"):
        as_block(Image(PNG), Settings(max_binary=3))
    with pytest.raises(BadResult, match="is not a MIME type"):
        as_block(Image(PNG, "png"), Settings())
