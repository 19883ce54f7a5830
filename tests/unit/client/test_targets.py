"""What a client can be told to connect to."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import tests.http_peer

from trunkline import Client, Server, Settings
from trunkline.client.targets import InProcessConnector, make_connector
from trunkline.errors import ConnectionClosed, MisuseError
from trunkline.transports.http.client.connector import HttpConnector
from trunkline.transports.stdio.client import Command
from trunkline.transports.tcp import TcpConnector
from trunkline.transports.unix import UnixConnector


@pytest.mark.parametrize(
    ("target", "argv"),
    [
        (["python", "-m", "server"], ["python", "-m", "server"]),
        (("python", Path("a b.py")), ["python", "a b.py"]),
        ("python -m 'my server'", ["python", "-m", "my server"]),
        (Path("server.py"), [sys.executable, "server.py"]),
        (Path("server.js"), ["node", "server.js"]),
        (Path("server"), ["server"]),
        ("server.py", [sys.executable, "server.py"]),
        ("server.py --quiet", ["server.py", "--quiet"]),
        ("not-installed", ["not-installed"]),
    ],
)
def test_command_is_started(target: object, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("server", "server.py", "server.js"):
        Path(name).touch(mode=0o700)
    connector = make_connector(target, Settings())
    assert isinstance(connector, Command)
    assert connector.argv == argv


def test_existing_script_runs_with_its_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.touch()
    connector = make_connector(str(script), Settings())
    assert isinstance(connector, Command)
    assert connector.argv == [sys.executable, str(script)]


@pytest.mark.row("W03")
@pytest.mark.parametrize(
    ("address", "kind", "name"),
    [
        ("tcp://127.0.0.1:9000", TcpConnector, "tcp://127.0.0.1:9000"),
        ("tls://example.org:9000", TcpConnector, "tls://example.org:9000"),
        ("unix:///tmp/line", UnixConnector, "unix:///tmp/line"),
        ("https://example.org/mcp?key=secret", HttpConnector, "https://example.org/mcp"),
    ],
)
def test_address_selects_a_connector(address: str, kind: type, name: str) -> None:
    connector = make_connector(address, Settings())
    assert type(connector) is kind
    assert connector.name == name


@pytest.mark.parametrize("target", ["tcp://127.0.0.1", "http://", "gopher://x", [], 5, None])
def test_unsupported_target_is_refused(target: object) -> None:
    with pytest.raises(MisuseError):
        Client(target)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("nope.py", "there is no file 'nope.py' in .*; check the path of the script"),
        (Path("nope.py"), "there is no file 'nope.py' in "),
        (Path("/nowhere/nope.py"), "there is no file '/nowhere/nope.py'; check"),
        ("nope.py --quiet", "there is no file 'nope.py' in "),
        ("localhost:8000", "begins with a scheme: http://localhost:8000/mcp"),
        ("localhost:8000/api", "begins with a scheme: http://localhost:8000/api"),
        ("127.0.0.1", "begins with a scheme: http://127.0.0.1/mcp"),
        ("[::1]:8000", r"begins with a scheme: http://\[::1\]:8000/mcp"),
        ("example.org/mcp", "begins with a scheme: http://example.org/mcp"),
        ("http:/localhost:8000/mcp", "did you mean http://localhost:8000/mcp"),
        ("https//example.org", "did you mean https://example.org"),
        ("htp://localhost/mcp", "there is no scheme 'htp'. Did you mean \"http\""),
        ("folder", "'folder' is a directory; name the server's script"),
        (Path("folder"), "'folder' is a directory; name the server's script"),
        ("script.ts", "'script.ts' is not executable, and no interpreter is known"),
        (Path("script.ts"), "'script.ts' is not executable, and no interpreter is known"),
        ("python 'server.py", "cannot be read as a command: No closing quotation"),
        ("", "name of a program"),
        ([], "name of a program"),
        (["", "x"], "name of a program"),
        ([1, 2], "list of strings and paths"),
        ([b"python"], "list of strings and paths"),
        (b"server.py", "a client connects to .*, not to b'server.py'"),
        (lambda: None, "a client connects to a command, a script, an address"),
        (Server, "cannot connect to the class Server; pass an instance"),
        (tests.http_peer, r"pass the server in it: Client\(tests.http_peer.server\)"),
        ({"mcpServers": {}}, r"write Client\(\[command, \*args\]\) or Client\(url\) for each"),
        ({"mcpServers": {"a": {"url": "https://example.org/mcp?key=x"}}}, r"write Client\('https://example.org/mcp'\)"),
        ({"command": "uvx", "args": ["a"]}, r"write Client\(\['uvx', '…'\]\) for its command and args"),
        (list(range(100)).__iter__(), "not to <list_iterator"),
    ],
)
def test_wrong_target_is_refused_with_a_suggestion(
    target: object, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("script.ts").touch(mode=0o600)
    with pytest.raises(MisuseError, match=why):
        Client(target)


def test_suggestion_names_the_server_in_a_module() -> None:
    module = ModuleType("shop")
    module.till = Server("till")  # type: ignore[attr-defined]
    with pytest.raises(MisuseError, match=r"Client\(shop\.till\)"):
        Client(module)


def test_configuration_secrets_are_not_shown() -> None:
    entry = {"command": "uvx", "args": ["--token", "SECRET"], "env": {"KEY": "SECRET"}}
    with pytest.raises(MisuseError) as raised:
        Client({"mcpServers": {"a": entry}})
    assert "SECRET" not in str(raised.value)


async def test_script_that_never_serves_gets_advice(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text("import sys\nprint('\\n'.join(map(str, range(30))), 'loaded', file=sys.stderr)\n")
    with pytest.raises(ConnectionClosed) as raised:
        await Client(script).open()
    assert raised.value.status == 0
    first, heading, *lines = str(raised.value).splitlines()
    assert "exited with status 0 before it was ready; a server script has to call run()" in first
    assert heading == "The end of its standard error:"
    assert lines == [*map(str, range(10, 29)), "29 loaded"]
    assert raised.value.last_words.startswith("0\n")


async def test_script_that_fails_at_start_reports_its_error(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text("import no_such_module\n")
    with pytest.raises(ConnectionClosed, match="exited with status 1 before it was ready\n") as raised:
        await Client(script).open()
    assert str(raised.value).endswith("ModuleNotFoundError: No module named 'no_such_module'")


def test_server_is_connected_in_process() -> None:
    connector = make_connector(Server("here"), Settings())
    assert isinstance(connector, InProcessConnector)
    assert connector.name == "here"
