"""Crash dumps: their content, and what they omit."""

import json
import resource
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from trunkline.config import Settings
from trunkline.errors import ConfigError
from trunkline.server.crash_dump import write_dump


def dump(folder: Path, error: BaseException, most: int = 10) -> dict[str, Any]:
    return json.loads(Path(write_dump(str(folder), most, error, {"connections": []})).read_text("utf-8"))


def raised(secret: str) -> ValueError:
    def inner() -> None:
        raise KeyError(secret)

    try:
        try:
            inner()
        except KeyError as error:
            raise ValueError(f"not good: {secret!r}") from error
    except ValueError as error:
        return error


@pytest.mark.row("D14")
def test_dump_has_the_traceback_and_its_causes(tmp_path: Path) -> None:
    told = dump(tmp_path / "made", raised("hunter2"))
    first, last = told["traceback"]
    assert (first["error"], last["error"], told["reason"]) == ("KeyError: …", "ValueError: not good: …", last["error"])
    assert [frame.rpartition(" in ")[2] for frame in first["frames"]] == ["raised", "inner"]
    assert "hunter2" not in json.dumps(told)  # nor the lines of the code, which may hold anything


@pytest.mark.row("D14")
def test_dump_has_the_members_of_a_group_but_no_notes(tmp_path: Path) -> None:
    group = ExceptionGroup("some failed", [raised("hunter2"), ExceptionGroup("others", [OSError("no 'hunter2'")])])
    group.add_note("hunter2 was the password")
    told = dump(tmp_path, group)
    assert [chapter["error"] for chapter in told["traceback"]] == [
        "OSError: no …",
        "KeyError: …",
        "ExceptionGroup: others (1 sub-exception)",
        "ValueError: not good: …",
        "ExceptionGroup: some failed (2 sub-exceptions)",
    ]
    assert "hunter2" not in json.dumps(told)


@pytest.mark.row("D14")
def test_dump_survives_cyclic_equal_and_unprintable_errors(
    tmp_path: Path,
) -> None:
    class Odd(Exception):
        def __eq__(self, other: object) -> bool:
            raise ZeroDivisionError

        __hash__ = Exception.__hash__

        def __str__(self) -> str:
            raise ZeroDivisionError

    first, second = Odd(), Odd()
    first.__cause__, second.__cause__ = second, first
    assert [chapter["error"] for chapter in dump(tmp_path, first)["traceback"]] == ["Odd: (message unavailable)"] * 2


@pytest.mark.row("D14")
def test_dump_size_is_bounded(tmp_path: Path) -> None:
    error: Exception = ValueError("x" * 10_000_000)
    for number in range(1000):
        error = ExceptionGroup(str(number), [error, ValueError("x " * 10_000)])
    write_dump(str(tmp_path), 10, error, {})
    [file] = tmp_path.iterdir()
    assert file.stat().st_size < 200_000


@pytest.mark.row("D14")
def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_dump(str(tmp_path), 10, ValueError(), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.row("D14")
def test_dump_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = Path(write_dump(str(tmp_path / "made"), 10, ValueError(), {}))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.row("D14")
def test_oldest_dumps_are_deleted_first(tmp_path: Path) -> None:
    (tmp_path / "other.json").touch()
    paths = [Path(write_dump(str(tmp_path), 2, ValueError(), {})) for _ in range(4)]
    assert sorted(tmp_path.iterdir()) == sorted([*paths[2:], tmp_path / "other.json"])


def test_dump_names_sort_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is read once: two readings around the turn of a second would make a name that sorts wrongly."""
    readings = iter([1_999_999_999, 2_000_000_000, 2_000_000_001, 3_000_000_000])
    monkeypatch.setattr(time, "time_ns", lambda: next(readings))
    monkeypatch.setattr(time, "time", lambda: next(readings) / 10**9)
    names = [Path(write_dump(str(tmp_path), 10, ValueError(), {})).name for _ in range(3)]
    assert names == sorted(names)
    assert names[0].startswith("crash-19700101T000001-999999999-")


def test_crash_folder_is_a_path_or_none() -> None:
    assert Settings.load(environ={"TRUNKLINE_CRASH_FOLDER": "dumps"}).crash_folder == "dumps"
    assert Settings.load(environ={"TRUNKLINE_CRASH_FOLDER": ""}).crash_folder is None
    with pytest.raises(ConfigError, match="crash_folder must be the path"):
        Settings(crash_folder="")
