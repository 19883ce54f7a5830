"""Crash dumps: what is in them, and what is not."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from trunkline.config import Settings
from trunkline.errors import ConfigError
from trunkline.server.crashes import redacted, write_dump


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Authorization: Bearer abc.def-ghi", "Authorization: …"),
        ("got 'bearer xyz' and a basic dXNlcjpwYXNz", "got … and a basic …"),
        ("api_key=sk-live-1 and password: hunter2, and so on", "api_key=… and password: …, and so on"),
        ("?access_token=abc&page=2", "?access_token=…&page=2"),
        ('no user "alice", nor `bob`', "no user …, nor …"),
        ("card 4111111111111111 is refused", "card … is refused"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln is no token", "… is no token"),
        ("division by zero", "division by zero"),
        ("port 8000 is taken", "port 8000 is taken"),
    ],
)
def test_d14_what_may_be_a_secret_is_blotted_out(text: str, kept: str) -> None:
    assert redacted(text) == kept


def test_d14_values_of_the_environment_are_blotted_out_unless_they_are_everywhere() -> None:
    assert redacted("cannot reach db.internal as me", ["db.internal", "me"]) == "cannot reach … as me"


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


def test_d14_a_dump_tells_where_it_happened_and_what_came_before(tmp_path: Path) -> None:
    told = dump(tmp_path / "made", raised("hunter2"))
    first, last = told["traceback"]
    assert (first["error"], last["error"], told["reason"]) == ("KeyError: …", "ValueError: not good: …", last["error"])
    assert [frame.rpartition(" in ")[2] for frame in first["frames"]] == ["raised", "inner"]
    assert "hunter2" not in json.dumps(told)  # nor the lines of the code, which may hold anything


def test_d14_a_dump_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = Path(write_dump(str(tmp_path / "made"), 10, ValueError(), {}))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_d14_the_oldest_dumps_go_first(tmp_path: Path) -> None:
    (tmp_path / "other.json").touch()
    paths = [Path(write_dump(str(tmp_path), 2, ValueError(), {})) for _ in range(4)]
    assert sorted(tmp_path.iterdir()) == sorted([*paths[2:], tmp_path / "other.json"])


def test_the_folder_is_a_path_or_nothing() -> None:
    assert Settings.load(environ={"TRUNKLINE_CRASH_FOLDER": "dumps"}).crash_folder == "dumps"
    assert Settings.load(environ={"TRUNKLINE_CRASH_FOLDER": ""}).crash_folder is None
    with pytest.raises(ConfigError, match="crash_folder must be the path"):
        Settings(crash_folder="")
