"""Configuration files: replaced whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from trunkline.cli.config_file import ConfigFile
from trunkline.errors import ConfigError


def content_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.json"
    path.write_bytes(b"\xef\xbb\xbfbefore\r\n")
    return path


def test_replaced_file_keeps_a_backup(path: Path) -> None:
    file = ConfigFile(path)
    assert file.text == "\ufeffbefore\r\n"
    file.replace("after\r\n")

    assert content_of(path.parent) == {
        "mcp.json": b"after\r\n",
        "mcp.json.trunkline-backup": b"\xef\xbb\xbfbefore\r\n",
    }
    assert ConfigFile(path).read_backup() == "\ufeffbefore\r\n"


def test_mode_is_kept(path: Path) -> None:
    path.chmod(0o640)
    ConfigFile(path).replace("after")
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o640}


def test_new_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "mcp.json"
    file = ConfigFile(path)
    assert (file.exists, file.text, file.read_backup()) == (False, "", None)
    file.replace("after")

    assert content_of(path.parent) == {"mcp.json": b"after"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_symbolic_link_stays_one(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "host"
    folder.mkdir()
    link = folder / "config.json"
    link.symlink_to(Path("..") / "mcp.json")
    ConfigFile(link).replace("after")

    assert link.is_symlink()
    assert path.read_text() == "after"
    assert (folder / "config.json.trunkline-backup").read_bytes() == b"\xef\xbb\xbfbefore\r\n"


def test_link_to_itself_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "mcp.json"
    link.symlink_to(link)
    with pytest.raises(ConfigError, match="cannot read"):
        ConfigFile(link)


def test_concurrent_change_is_not_overwritten(path: Path) -> None:
    file = ConfigFile(path)
    path.write_text("of another program")
    with pytest.raises(ConfigError, match="has changed since it was read"):
        file.replace("after")
    assert content_of(path.parent) == {"mcp.json": b"of another program"}


def test_change_while_the_new_content_is_written_is_not_overwritten(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ConfigFile(path)
    sync = os.fsync

    def change(descriptor: int) -> None:
        sync(descriptor)
        path.write_text("of another program")

    monkeypatch.setattr(os, "fsync", change)
    with pytest.raises(ConfigError, match="has changed since it was read"):
        file.replace("after")
    assert content_of(path.parent)["mcp.json"] == b"of another program"
    assert {*content_of(path.parent)} == {"mcp.json", "mcp.json.trunkline-backup"}


def test_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    file = ConfigFile(path)
    path.write_text("of another program")
    with pytest.raises(ConfigError, match="has changed since it was read"):
        file.replace("after")
    assert path.read_text() == "of another program"


def test_failed_rename_leaves_the_file_and_no_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ConfigFile(path)

    def fail(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(ConfigError, match="No space left on device; nothing was changed"):
        file.replace("after")
    assert content_of(path.parent) == {"mcp.json": b"\xef\xbb\xbfbefore\r\n"}


def test_read_only_file_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write every file
    with pytest.raises(ConfigError, match="is read-only"):
        ConfigFile(path).replace("after")
    assert [*content_of(path.parent)] == ["mcp.json"]


def test_other_encodings_are_refused(path: Path) -> None:
    path.write_bytes("{}".encode("utf-16"))
    with pytest.raises(ConfigError, match="is not UTF-8 text: byte 0 is invalid"):
        ConfigFile(path)


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        ConfigFile(tmp_path)
