"""`trunkline auth status` and `trunkline auth logout`: stored logins, and their removal."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from trunkline.auth.client.authorization_code import CodeGrant
from trunkline.auth.client.token_store import FileTokens
from trunkline.auth.client.tokens import StoredToken, encode_stored_token, token_store_key
from trunkline.cli.main import main

URL = "https://notes.example/mcp"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A token folder for this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def log_in(**members: object) -> None:
    kept = StoredToken(issuer="https://login.example", client_id="desk", access="s3cret", **members)
    asyncio.run(FileTokens().put(token_store_key(URL, CodeGrant.name), encode_stored_token(kept)))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"expires": 4102444800.0, "refresh": "r3fresh"}, "expires at 2100-01-01 00:00:00+00:00, and is renewed"),
        ({"expires": 946684800.0}, "expired at 2000-01-01 00:00:00+00:00, then a new login is needed"),
        ({}, "has no known expiry"),
    ],
)
def test_status_shows_login_without_tokens(
    capsys: pytest.CaptureFixture[str], members: dict[str, object], words: str
) -> None:
    log_in(granted=("notes", "notes:write"), **members)

    assert main(["auth", "status", URL]) == 0
    said = capsys.readouterr().out
    for part in (URL, "https://login.example", "desk", "notes notes:write", words):
        assert part in said
    assert "s3cret" not in said
    assert "r3fresh" not in said


def test_status_without_login(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["auth", "status", URL]) == 1
    assert capsys.readouterr().out == f"{URL}: not logged in\n"


def test_logout_deletes_login(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    log_in(expires=time.time() + 60)

    assert main(["auth", "logout", URL]) == 0
    assert main(["auth", "status", URL]) == 1
    assert main(["auth", "logout", URL]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{URL}: logged out",
        f"{URL}: not logged in",
        f"{URL}: was not logged in",
    ]
    assert [path for path in folder.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()] == []


def test_readable_store_is_refused(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    log_in()
    (place,) = [path.parent for path in folder.rglob("*.token")]
    place.chmod(0o755)

    assert main(["auth", "status", URL]) == 1
    assert capsys.readouterr().err.startswith("trunkline: other users can access ")


def test_issuer_text_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    log_in(granted=("\x1b[2J",))

    assert main(["auth", "status", URL]) == 0
    assert "\\x1b[2J" in capsys.readouterr().out


def test_findings_as_json_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["auth", "doctor", "http://127.0.0.1:1/\x9b2J", "--json"]) == 1
    out = capsys.readouterr().out
    assert "\x9b" not in out
    assert json.loads(out)["url"] == "http://127.0.0.1:1/\x9b2J"
