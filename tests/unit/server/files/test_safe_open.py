"""Files below a directory, by descriptors and, as on Windows, by paths."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from trunkline.server.files import safe_open
from trunkline.server.files.safe_open import OutsideRoot, file_status, open_directory, open_file, open_regular


@pytest.fixture(params=[True, False], ids=["by descriptor", "by path"])
def root(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(safe_open, "_BY_DESCRIPTOR", request.param)
    made = tmp_path / "root"
    (made / "sub").mkdir(parents=True)
    (made / "sub" / "a.txt").write_text("a")
    (made / "to a").symlink_to("sub/a.txt")
    (made / "out").symlink_to("..")
    (made / "circle").symlink_to("circle")
    (tmp_path / "secret").write_text("secret")
    return made


@pytest.mark.parametrize("path", ["sub/a.txt", "to a", "./sub//a.txt", "sub/../sub/a.txt"])
def test_file_inside_is_opened_with_its_real_name(root: Path, path: str) -> None:
    descriptor, name = open_file(root, path)
    assert (os.read(descriptor, 10), name) == (b"a", "a.txt")
    os.close(descriptor)
    assert file_status(root, path).st_size == 1


@pytest.mark.parametrize("path", ["../secret", "sub/../../secret", "out/secret", "/etc/passwd"])
def test_path_outside_root_is_not_opened(root: Path, path: str) -> None:
    for use in (open_file, file_status):
        with pytest.raises(OutsideRoot):
            use(root, path)


@pytest.mark.parametrize("path", ["nothing", "sub", "", ".", "sub/a.txt/b", "circle", "circle/x", "nothing/x"])
def test_non_file_raises_os_error(root: Path, path: str) -> None:
    with pytest.raises(OSError) as raised:
        open_file(root, path)
    assert raised.value.errno in {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP}


def test_no_descriptor_leaks(root: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for path in ("to a", "../secret", "nothing", "sub", "circle", "sub/../sub/a.txt", "sub/a.txt/b", "", "x\0y"):
        try:
            os.close(open_file(root, path)[0])
        except (OutsideRoot, OSError, ValueError):
            continue
    assert os.listdir("/proc/self/fd") == before


def test_file_replaced_by_a_link_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    status = os.stat

    def swapped(*args: Any, **options: Any) -> os.stat_result:
        found = status(*args, **options)
        (tmp_path / "a").unlink()
        (tmp_path / "a").symlink_to("b")
        return found

    monkeypatch.setattr(os, "stat", swapped)
    with pytest.raises(OSError, match="symbolic links") as raised:
        open_file(tmp_path, "a")
    assert raised.value.errno == errno.ELOOP


def test_file_replaced_by_a_pipe_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("a")
    status = os.stat

    def swapped(*args: Any, **options: Any) -> os.stat_result:
        found = status(*args, **options)
        (tmp_path / "a").unlink()
        os.mkfifo(tmp_path / "a")
        return found

    monkeypatch.setattr(os, "stat", swapped)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "a")


def test_open_directory_rejects_links_in_the_path(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    for names in ((), ("a",), ("a", "b")):
        with open_directory(tmp_path, names) as found, open_directory(tmp_path, names, by_descriptor=False) as path:
            assert os.listdir(found) == os.listdir(path)
    for names in (("link",), ("link", "b"), ("nothing",)):
        with pytest.raises(OSError, match="directory"), open_directory(tmp_path, names):
            pass
