"""What a client can be told to connect to."""

import sys
from pathlib import Path

import pytest

from trunkline import Client, Server, Settings
from trunkline.client.targets import InProcess, connector_of
from trunkline.errors import MisuseError
from trunkline.transports.http.client.connector import HttpConnector
from trunkline.transports.process import Command
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
        ("nowhere.py", ["nowhere.py"]),
    ],
)
def test_a_command_is_started(target: object, argv: list[str]) -> None:
    connector = connector_of(target, Settings())
    assert isinstance(connector, Command)
    assert connector.argv == argv


def test_a_script_that_is_there_is_run_by_its_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.touch()
    connector = connector_of(str(script), Settings())
    assert isinstance(connector, Command)
    assert connector.argv == [sys.executable, str(script)]


@pytest.mark.parametrize(
    ("address", "kind", "name"),
    [
        ("tcp://127.0.0.1:9000", TcpConnector, "tcp://127.0.0.1:9000"),
        ("tls://example.org:9000", TcpConnector, "tls://example.org:9000"),
        ("unix:///tmp/line", UnixConnector, "unix:///tmp/line"),
        ("https://example.org/mcp?key=secret", HttpConnector, "https://example.org/mcp"),
    ],
)
def test_w03_an_address_is_connected_to(address: str, kind: type, name: str) -> None:
    connector = connector_of(address, Settings())
    assert type(connector) is kind
    assert connector.name == name


@pytest.mark.parametrize("target", ["tcp://127.0.0.1", "http://", "gopher://x", [], 5, None])
def test_what_is_nothing_to_connect_to_is_refused(target: object) -> None:
    with pytest.raises(MisuseError):
        Client(target)


def test_a_server_is_connected_to_within_the_process() -> None:
    connector = connector_of(Server("here"), Settings())
    assert isinstance(connector, InProcess)
    assert connector.name == "here"
