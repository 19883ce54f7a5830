"""`trunkline install`, `uninstall` and `export`."""

import io
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from tests.unit.cli.commands import run
from tests.unit.cli.test_json_edit import DOCUMENTS

from trunkline import Client
from trunkline.cli.hosts import HOSTS, make_name
from trunkline.cli.main import main
from trunkline.client.server_config import parse_server_entries
from trunkline.config import Settings
from trunkline.errors import MisuseError
from trunkline.jsonc import blank_comments

DATA = Path(__file__).parent / "data" / "hosts"
BROKEN = {"broken.json", "broken.toml"}
FILES = sorted(file for file in DATA.iterdir() if file.name not in BROKEN)
SERVER = '''
import os
from trunkline import Server

server = Server("The shop")

@server.tool
def region() -> str:
    """Tell the region."""
    return os.environ.get("REGION", "none")
'''


class Screen(io.StringIO):
    """Standard error on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def server(tmp_path: Path) -> str:
    path = tmp_path / "my shop.py"
    path.write_text(SERVER)
    return str(path)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without any host."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "APPDATA", "REGION"):
        monkeypatch.delenv(name, raising=False)
    return folder


def host_of(file: Path) -> str:
    return next((name for name in HOSTS if file.name.startswith(name)), "cursor")


def load(file: Path) -> dict[str, Any]:
    text = file.read_bytes().decode()
    return tomllib.loads(text) if file.suffix == ".toml" else json.loads(blank_comments(text))


# --- files of hosts ------------------------------------------------------------------------------


@pytest.mark.parametrize("data", FILES, ids=lambda file: file.name)
def test_install_changes_only_its_entry(
    capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path, data: Path
) -> None:
    path = Path(shutil.copy(data, tmp_path))
    host = host_of(data)
    arguments = ("--host", host, "--config", str(path), "--yes")
    before, expected = path.read_bytes(), load(path)

    code, out, _ = run(capsys, "install", server, *arguments)

    assert code == 0
    entry = {"command": sys.executable, "args": ["-m", "trunkline", "run", server]}
    typed = {"type": "stdio"} if host in {"vscode", "claude-code"} else {}
    expected.setdefault(HOSTS[host].section, {})["The-shop"] = {**typed, **entry}
    assert load(path) == expected
    after = path.read_bytes()
    assert all(line in after.splitlines() for line in before.splitlines() if line.strip().startswith((b"//", b"#")))
    assert (b"\r\n" in before) == (b"\r\n" in after)
    assert after.count(b"\n") == after.count(b"\r\n") or b"\r\n" not in after
    assert after.startswith(b"\xef\xbb\xbf") == before.startswith(b"\xef\xbb\xbf")
    assert "+" in out
    assert not re.search(r"^-.*0123456789", out, re.MULTILINE)

    assert run(capsys, "uninstall", "The-shop", *arguments)[0] == 0
    assert path.read_bytes() == before


@pytest.mark.parametrize("data", FILES, ids=lambda file: file.name)
def test_uninstall_without_a_backup_leaves_the_same_content(
    capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path, data: Path
) -> None:
    path = Path(shutil.copy(data, tmp_path))
    arguments = ("--host", host_of(data), "--config", str(path), "--yes")
    before, content = path.read_bytes(), load(path)
    run(capsys, "install", server, *arguments)
    Path(f"{path}.trunkline-backup").unlink()

    assert run(capsys, "uninstall", "The-shop", *arguments)[0] == 0

    section = HOSTS[host_of(data)].section
    assert {section: {}, **load(path)} == {section: {}, **content}
    if content.get(section):
        assert path.read_bytes() == before


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("data", FILES, ids=lambda file: file.name)
def test_every_other_byte_stays_and_the_backup_can_be_restored(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: Path, mark: str, line_end: str
) -> None:
    text = data.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").replace("\n", line_end)
    path = tmp_path / data.name
    before = f"{mark}{text}".encode()
    path.write_bytes(before)
    arguments = ("--host", host_of(data), "--config", str(path), "--yes")

    code, _, err = run(capsys, "install", sys.executable, "--name", "ours", *arguments)

    assert code == 0, err
    after = path.read_bytes()
    head = next((at for at in range(len(before)) if before[at] != after[at]), len(before))
    assert after.endswith(before[head:])  # the entry was inserted in one place
    assert b"ours" in after[head : len(after) - len(before) + head]
    assert Path(f"{path}.trunkline-backup").read_bytes() == before
    assert run(capsys, "uninstall", "--restore", *arguments)[0] == 0
    assert path.read_bytes() == before


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_broken_file_of_any_host_stays_as_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, host: str, command: str
) -> None:
    data = next(file for file in FILES if host_of(file) == host)
    path = tmp_path / data.name
    broken = data.read_bytes() + b"\n= }"
    path.write_bytes(broken)
    words = [sys.executable, "--name", "ours"] if command == "install" else ["ours"]

    code, out, err = run(capsys, command, *words, "--host", host, "--config", str(path), "--yes")

    assert (code, out) == (2, "")
    assert "nothing was changed" in err
    assert path.read_bytes() == broken
    assert not Path(f"{path}.trunkline-backup").exists()


@given(DOCUMENTS)
def test_uninstall_restores_the_bytes_of_any_document(text: str) -> None:
    content = json.loads(blank_comments(text))
    if not isinstance(content.get("mcpServers", {}), dict):
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mcp.json"
        path.write_bytes(text.encode())
        arguments = ("--host", "cursor", "--config", str(path), "--yes", "--json")
        assert main(["install", sys.executable, "--name", "ours", *arguments]) == 0
        content.setdefault("mcpServers", {})["ours"] = {"command": sys.executable, "args": []}
        assert load(path) == content
        assert main(["uninstall", "ours", *arguments]) == 0
        assert path.read_bytes() == text.encode()


@pytest.mark.parametrize(
    ("name", "position"),
    [("broken.json", "line 5, column 7: expected , or }"), ("broken.toml", "at line 2, column 18")],
)
def test_broken_file_is_refused_with_the_position(
    capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path, name: str, position: str
) -> None:
    path = Path(shutil.copy(DATA / name, tmp_path))
    host = "codex" if path.suffix == ".toml" else "cursor"
    code, out, err = run(capsys, "install", server, "--host", host, "--config", str(path), "--yes")
    assert (code, out) == (2, "")
    assert err.startswith(f"trunkline: {path}: ")
    assert position in err
    assert path.read_bytes() == (DATA / name).read_bytes()
    assert not Path(f"{path}.trunkline-backup").exists()


@pytest.mark.parametrize(
    ("host", "text", "message"),
    [
        ("cursor", '{"mcpServers": []}', '"mcpServers" is not a table of servers'),
        ("codex", "mcp_servers = { a = { command = 'x' } }", "cannot edit; edit it by hand"),
        ("codex", "[mcp_servers]\nshop = { command = 'x', timeout = 1 }", "cannot edit; edit it by hand"),
    ],
)
def test_unusual_forms_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, host: str, text: str, message: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    code, _, err = run(
        capsys, "install", sys.executable, "--name", "shop", "--host", host, "--config", str(path), "--yes"
    )
    assert code == 2
    assert message in err
    assert path.read_text() == text


def test_reinstall_keeps_unknown_members_and_variables(
    capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(
        '{"mcpServers": {"shop": {"url": "https://old", "autoApprove": ["region"], "env": {"A": "1", "REGION": "us"}}}}'
    )
    arguments = ("--name", "shop", "--host", "cursor", "--config", str(path), "--yes", "--env", "REGION=eu")
    for changed in ("changed ", "nothing to change"):
        code, _, err = run(capsys, "install", server, *arguments)
        assert code == 0
        assert changed in err
        assert load(path)["mcpServers"]["shop"] == {
            "command": sys.executable,
            "args": ["-m", "trunkline", "run", server],
            "env": {"A": "1", "REGION": "eu"},
            "autoApprove": ["region"],
        }


def test_reinstall_in_toml_keeps_unknown_keys(capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(DATA / "codex.toml", tmp_path))
    expected = load(path)
    expected["mcp_servers"]["docs"].update(command=sys.executable, args=["-m", "trunkline", "run", server])
    arguments = ("--name", "docs", "--host", "codex", "--config", str(path), "--yes")
    assert run(capsys, "install", server, *arguments)[0] == 0
    assert load(path) == expected
    assert "command" in path.read_text()
    assert f'command = "{sys.executable}" # pinned\n' in path.read_text()


# --- asking and reporting ------------------------------------------------------------------------


def test_nothing_is_written_without_permission(
    capsys: pytest.CaptureFixture[str], server: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / ".cursor" / "mcp.json"
    code, out, err = run(capsys, "install", server, "--host", "cursor")
    assert (code, path.exists()) == (2, False)
    assert '+    "The-shop": {' in out.splitlines()
    assert "add --yes" in err

    for typed, code in ((b"n\n", 1), (b"\n", 1), (b"\x04", 1), (b"y\n", 0)):
        keyboard, terminal = os.openpty()
        os.write(keyboard, typed)
        screen = Screen()
        with os.fdopen(terminal) as source, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", source)
            patch.setattr(sys, "stderr", screen)
            assert main(["install", server, "--host", "cursor"]) == code
        os.close(keyboard)
        assert f"Change {path}? [y/N] " in screen.getvalue()
        assert path.exists() == (code == 0)


def test_dry_run_only_shows_the_change(capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(DATA / "claude-desktop.json", tmp_path))
    code, out, _ = run(capsys, "install", server, "--host", "claude-desktop", "--config", str(path), "--dry-run")
    assert code == 0
    assert out.splitlines() == [
        "@@ line 17 @@",
        '         "GITHUB_PERSONAL_ACCESS_TOKEN": "…"',
        "       }",
        "+    },",
        '+    "The-shop": {',
        f'+      "command": "{sys.executable}",',
        f'+      "args": ["-m", "trunkline", "run", "{server}"]',
        "     }",
        "   },",
    ]
    assert path.read_bytes() == (DATA / "claude-desktop.json").read_bytes()
    assert {file.name for file in tmp_path.iterdir()} == {"claude-desktop.json", "my shop.py", "home"}


def test_change_of_one_long_line_is_shown_alone(
    capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"long":"' + "x" * 400 + '","mcpServers":{}}')
    _, out, _ = run(capsys, "install", server, "--host", "cursor", "--config", str(path), "--dry-run")
    assert out.startswith('+"The-shop":{"command":')
    assert "xxx" not in out


def test_secrets_of_other_servers_are_not_shown(
    capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path
) -> None:
    path = Path(shutil.copy(DATA / "cursor.json", tmp_path))
    arguments = ("--host", "cursor", "--config", str(path), "--yes")
    _, out, _ = run(capsys, "uninstall", "linear", *arguments)
    assert '"Authorization": "…"' in out
    _, out, _ = run(capsys, "install", server, *arguments)
    _, out, _ = run(capsys, "uninstall", "--restore", *arguments)
    assert "lin_0123456789" not in out


def test_control_characters_of_a_file_are_escaped(
    capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{\n  "mcpServers": {\n    "a": {} // \x1b[31m red\n  }\n}')
    _, out, _ = run(capsys, "install", server, "--host", "cursor", "--config", str(path), "--dry-run")
    assert "\\x1b[31m red" in out
    assert "\x1b" not in out


def test_json_reports_the_backup(capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(DATA / "cursor.json", tmp_path))
    arguments = ("--host", "cursor", "--config", str(path), "--yes", "--json")
    _, out, _ = run(capsys, "install", server, *arguments)
    assert json.loads(out) == {
        "host": "cursor",
        "path": str(path),
        "name": "The-shop",
        "changed": True,
        "backup": f"{path}.trunkline-backup",
    }
    assert (tmp_path / "cursor.json.trunkline-backup").read_bytes() == (DATA / "cursor.json").read_bytes()
    _, out, _ = run(capsys, "install", server, *arguments)
    assert json.loads(out)["changed"] is False


def test_restore_brings_the_backup_back(capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(DATA / "vscode.json", tmp_path))
    arguments = ("--host", "vscode", "--config", str(path), "--yes")
    run(capsys, "install", server, *arguments)
    installed = path.read_bytes()

    assert run(capsys, "uninstall", "--restore", *arguments)[0] == 0
    assert path.read_bytes() == (DATA / "vscode.json").read_bytes()
    assert run(capsys, "uninstall", "--restore", *arguments)[0] == 0
    assert path.read_bytes() == installed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "has no server 'nope'; it has linear"),
        ([], "name the entry to remove, or restore"),
        (["linear", "--restore"], "name the entry to remove, or restore"),
        (["--restore"], "there is no backup"),
    ],
)
def test_uninstall_explains_mistakes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    path = Path(shutil.copy(DATA / "cursor.json", tmp_path))
    code, _, err = run(capsys, "uninstall", *arguments, "--host", "cursor", "--config", str(path), "--yes")
    assert code == 2
    assert message in err


# --- servers -------------------------------------------------------------------------------------


async def test_installed_entry_starts_the_server(
    capsys: pytest.CaptureFixture[str], server: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, "install", server, "--host", "cursor", "--env", "REGION=eu", "--yes")[0] == 0
    path = home / ".cursor" / "mcp.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    entry = parse_server_entries(load(path))["The-shop"]
    async with Client(entry.connector(Settings(), variables={})) as client:
        assert (await client.call_tool("region")).data == "eu"


def export(capsys: pytest.CaptureFixture[str], *arguments: str, host: str = "cursor") -> dict[str, Any]:
    code, out, err = run(capsys, "export", *arguments, "--host", host, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize(
    ("host", "entry"),
    [
        ("claude-code", {"type": "http", "url": "https://example.org/mcp", "headers": {"X-Key": "1"}}),
        ("cursor", {"url": "https://example.org/mcp", "headers": {"X-Key": "1"}}),
        ("vscode", {"type": "http", "url": "https://example.org/mcp", "headers": {"X-Key": "1"}}),
        ("windsurf", {"serverUrl": "https://example.org/mcp", "headers": {"X-Key": "1"}}),
        ("codex", {"url": "https://example.org/mcp", "http_headers": {"X-Key": "1"}}),
        ("gemini", {"httpUrl": "https://example.org/mcp", "headers": {"X-Key": "1"}}),
        ("zed", {"url": "https://example.org/mcp", "headers": {"X-Key": "1"}}),
    ],
)
def test_entries_of_addresses(capsys: pytest.CaptureFixture[str], host: str, entry: dict[str, Any]) -> None:
    found = export(capsys, "https://example.org/mcp", "--header", "X-Key: 1", host=host)
    assert found == {"host": host, "section": HOSTS[host].section, "name": "example-org", "entry": entry}


def test_claude_desktop_takes_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "export", "https://example.org/mcp", "--host", "claude-desktop")
    assert (code, err.startswith("trunkline: Claude Desktop takes no address in its file")) == (2, True)


@pytest.mark.parametrize("host", HOSTS)
def test_exported_entry_is_a_document_of_the_host(capsys: pytest.CaptureFixture[str], server: str, host: str) -> None:
    _, out, _ = run(capsys, "export", server, "--host", host)
    content = tomllib.loads(out) if HOSTS[host].toml else json.loads(out)
    entry = content[HOSTS[host].section]["The-shop"]
    assert (entry["command"], entry["args"]) == (sys.executable, ["-m", "trunkline", "run", server])


def test_entry_of_another_configuration_file(capsys: pytest.CaptureFixture[str]) -> None:
    found = export(capsys, f"{DATA}/claude-desktop.json:github", host="codex")
    assert found["name"] == "github"
    assert found["entry"]["env"] == {"GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_0123456789abcdef"}
    _, _, err = run(capsys, "export", f"{DATA}/vscode.json:perplexity", "--host", "cursor")
    assert "refers to variables as ${…}; check that Cursor replaces them" in err


def test_folder_of_an_entry_needs_a_host_that_supports_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "x", "cwd": "/srv"}}}')
    assert export(capsys, str(path), host="gemini")["entry"] == {"command": "x", "args": [], "cwd": "/srv"}
    code, _, err = run(capsys, "export", str(path), "--host", "zed")
    assert (code, "Zed cannot start a server in a folder" in err) == (2, True)


def test_module_of_this_folder_gets_an_import_path(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_of_this_folder.py").write_text(SERVER)
    monkeypatch.chdir(tmp_path)
    entry = export(capsys, "shop_of_this_folder:server")["entry"]
    assert entry["args"][-1] == "shop_of_this_folder:server"
    assert entry["env"] == {"PYTHONPATH": str(tmp_path)}


def test_script_of_another_library_is_started_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "other.py"
    script.write_text("mcp = object()\n")
    assert export(capsys, str(script))["entry"] == {"command": sys.executable, "args": [str(script)]}


def test_uv_runs_the_project_of_the_file(
    capsys: pytest.CaptureFixture[str], server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    code, _, err = run(capsys, "export", server, "--uv", "--host", "cursor")
    assert (code, "there is no program uv" in err) == (2, True)
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text("")
    uv.chmod(0o755)
    run_it = ["python", "-m", "trunkline", "run", server]
    assert export(capsys, server, "--uv")["entry"] == {
        "command": str(uv),
        "args": ["run", "--with", "trunkline", *run_it],
    }
    (tmp_path / "pyproject.toml").write_text("")
    found = export(capsys, server, "--uv")
    assert found["name"] == "my-shop"
    assert found["entry"]["args"] == ["run", "--project", str(tmp_path), *run_it]


def test_copied_variable_has_a_warning_and_is_not_shown(
    capsys: pytest.CaptureFixture[str], server: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", 'top "secret"')
    _, out, err = run(capsys, "install", server, "--host", "cursor", "--env", "SHOP_KEY", "--yes")
    path = home / ".cursor" / "mcp.json"
    assert f"warning: the value of SHOP_KEY will stand in plain text in {path}\n" in err
    assert '+        "SHOP_KEY": "…"' in out.splitlines()
    assert load(path)["mcpServers"]["The-shop"]["env"] == {"SHOP_KEY": 'top "secret"'}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "there is no file missing.py"),
        (["no-such-program x"], "is no Python file, module, address or configuration file, and no program either"),
        (["'open"], "is not a command"),
        (["ws://127.0.0.1:1/mcp"], "hosts connect over HTTP"),
        (["https://example.org/mcp", "--env", "A=1"], "--env is for servers that a host starts"),
        ([sys.executable], "choose a name for the entry with --name"),
        ([sys.executable, "--name", "a b"], "'a b' cannot name a server"),
        ([sys.executable, "--name", "a", "--header", "A: b"], "--header is for servers with an address"),
        ([sys.executable, "--name", "a", "--uv"], "--uv starts a Python file"),
        ([sys.executable, "--name", "a", "--env", "NOT_SET_HERE"], "this shell has no variable NOT_SET_HERE"),
        ([sys.executable, "--name", "a", "--env", "=1"], "is not of the form --env NAME=VALUE"),
        ([f"{DATA}/cursor.json:linear", "--env", "A=1"], "--env is for servers that a host starts"),
    ],
)
def test_mistakes_are_explained(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    code, out, err = run(capsys, "export", *arguments, "--host", "cursor")
    assert (code, out) == (2, "")
    assert message in err


def test_program_that_fails_is_not_installed(capsys: pytest.CaptureFixture[str], tmp_path: Path, home: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import os\nos.environ['SHOP_KEY_THAT_IS_NOT_SET']\n")
    code, _, err = run(capsys, "install", str(script), "--host", "cursor", "--yes")
    assert (code, "cannot be imported: KeyError" in err) == (2, True)
    assert [*home.iterdir()] == []
    assert export(capsys, str(script), "--no-check")["name"] == "broken"


# --- places --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "mac", "windows", "linux"),
    [
        (
            "claude-desktop",
            "H/Library/Application Support/Claude/claude_desktop_config.json",
            "A/Claude/claude_desktop_config.json",
            "C/Claude/claude_desktop_config.json",
        ),
        ("claude-code", "H/.claude.json", "H/.claude.json", "H/.claude.json"),
        ("cursor", "H/.cursor/mcp.json", "H/.cursor/mcp.json", "H/.cursor/mcp.json"),
        (
            "vscode",
            "H/Library/Application Support/Code/User/mcp.json",
            "A/Code/User/mcp.json",
            "C/Code/User/mcp.json",
        ),
        ("windsurf", *["H/.codeium/windsurf/mcp_config.json"] * 3),
        ("codex", *["H/.codex/config.toml"] * 3),
        ("gemini", *["H/.gemini/settings.json"] * 3),
        ("zed", "H/.config/zed/settings.json", "A/Zed/settings.json", "C/zed/settings.json"),
    ],
)
def test_places_of_the_files(host: str, mac: str, windows: str, linux: str) -> None:
    environ = {"APPDATA": "A", "XDG_CONFIG_HOME": "C"}
    found = [str(HOSTS[host].locate(platform, environ, Path("H"))) for platform in ("darwin", "win32", "linux")]
    assert found == [mac, windows, linux]


def test_variables_that_move_a_file() -> None:
    environ = {"CODEX_HOME": "X", "CLAUDE_CONFIG_DIR": "Y"}
    assert str(HOSTS["codex"].locate("linux", environ, Path("H"))) == "X/config.toml"
    assert str(HOSTS["claude-code"].locate("linux", environ, Path("H"))) == "Y/.claude.json"
    assert str(HOSTS["zed"].locate("linux", {}, Path("H"))) == "H/.config/zed/settings.json"
    assert str(HOSTS["zed"].locate("win32", {}, Path("H"))) == "H/AppData/Roaming/Zed/settings.json"


def test_names_are_made_of_texts() -> None:
    assert make_name("Über my shop!") == "ber-my-shop"
    with pytest.raises(MisuseError, match="cannot name a server"):
        make_name("ü")


def test_variables_are_set_only_while_the_program_is_checked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_SEEN_BEFORE", "old")
    script = tmp_path / "shop.py"
    script.write_text("import os\nassert os.environ['SHOP_KEY'] + os.environ['SHOP_SEEN_BEFORE'] == 'kn'\n" + SERVER)
    entry = export(capsys, str(script), "--env", "SHOP_KEY=k", "--env", "SHOP_SEEN_BEFORE=n")["entry"]
    assert entry["env"] == {"SHOP_KEY": "k", "SHOP_SEEN_BEFORE": "n"}
    assert (os.environ.get("SHOP_KEY"), os.environ["SHOP_SEEN_BEFORE"]) == (None, "old")
