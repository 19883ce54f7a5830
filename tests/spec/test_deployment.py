"""Listening at Unix sockets over HTTP, on sockets of systemd, and on a shared port."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.raw import ask, call, text_of, tool
from tests.contract.connections import server_tls
from tests.modern import enveloped, headers_of
from tests.processes import PATIENCE, children, eventually
from tests.spec.deployed import PROGRAM, post, post_now, service
from websockets.asyncio.client import unix_connect

from trunkline import Client, Server, Settings
from trunkline.errors import ConfigError, MisuseError, TransportError
from trunkline.facts import Connected
from trunkline.testing import RecordingObserver
from trunkline.transports.addresses import parse_address
from trunkline.transports.http.client.connector import HttpConnector
from trunkline.transports.listening import bind

MODES = pytest.mark.parametrize("workers", ["", ", workers=2"], ids=["one process", "workers"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A listening TCP socket, as systemd would open it."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server("library")
    yield made
    await made.aclose()


# --- HTTP on a Unix socket -------------------------------------------------------------------------------


async def test_http_is_served_on_a_unix_socket(server: Server, path: Path) -> None:
    listener = await server.listen(f"http+unix://{path}:/mcp")
    assert listener.address == f"http+unix://{path}:/mcp"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (await post(str(path))).json["result"]["serverInfo"]["name"] == "library"
    await server.aclose()
    assert not path.exists()


async def test_websockets_are_served_on_a_unix_socket(server: Server, path: Path) -> None:
    await server.listen(f"http+unix://{path}:/mcp")
    async with unix_connect(str(path), "ws://localhost/mcp", subprotocols=["mcp"]) as connection:  # type: ignore[list-item]
        await connection.send(json.dumps(call("ping", ident=7)))
        assert json.loads(await connection.recv())["id"] == 7


async def test_endpoint_of_a_unix_socket_without_a_path_is_the_root(server: Server, path: Path) -> None:
    await server.listen(f"http+unix://{path}")
    assert (await post(str(path), path="/")).status == 200


@pytest.mark.parametrize(("host", "status"), [("localhost", 200), ("tools.example.org", 200), ("evil.example", 403)])
async def test_host_is_checked_on_a_unix_socket(path: Path, host: str, status: int) -> None:
    server = Server("library", settings=Settings(allowed_hosts=("tools.example.org",)))
    await server.listen(f"http+unix://{path}:/mcp")
    assert (await post(str(path), host=host)).status == status
    await server.aclose()


@pytest.mark.parametrize(
    ("trusted", "peer"), [((), "unix:0"), (("unix",), "192.0.2.7:0")], ids=["untrusted proxy", "trusted proxy"]
)
async def test_peer_of_a_unix_socket_is_named(path: Path, trusted: tuple[str, ...], peer: str) -> None:
    observer = RecordingObserver()
    server = Server("library", observers=[observer], settings=Settings(trusted_proxies=trusted))
    await server.listen(f"http+unix://{path}:/mcp")
    await post(str(path), x_forwarded_for="192.0.2.7")
    assert [opened.peer for opened in observer.of(Connected)] == [peer]
    await server.aclose()


@pytest.mark.parametrize(("access", "mode"), [("owner", 0o600), ("group", 0o660), ("all", 0o666)])
@pytest.mark.parametrize("scheme", ["http+unix", "unix"])
async def test_setting_decides_who_may_connect(path: Path, scheme: str, access: Any, mode: int) -> None:
    server = Server("library", settings=Settings(unix_socket_access=access))
    await server.listen(f"{scheme}://{path}")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    await server.aclose()


async def test_socket_file_of_a_running_http_server_is_kept(server: Server, path: Path) -> None:
    await server.listen(f"http+unix://{path}:/mcp")
    other = Server("other")
    with pytest.raises(TransportError, match=f"cannot listen on http.unix://{path}:/mcp: another server listens there"):
        await other.listen(f"http+unix://{path}:/mcp")
    assert (await post(str(path))).status == 200
    await other.aclose()


def test_socket_file_with_a_full_backlog_is_kept(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(str(path))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(run=f"server.run('http', uds={str(path)!r})")],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        for each in waiting:
            each.close()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "another server listens there; stop it, or choose another path" in done.stderr


async def test_tls_on_a_unix_socket_is_refused(server: Server, path: Path) -> None:
    with pytest.raises(ConfigError, match="do not match"):
        await server.listen(f"http+unix://{path}:/mcp", tls=server_tls())


@pytest.mark.parametrize("address", ["tcp+systemd://web", "http+systemd://web/mcp"])
def test_client_refuses_addresses_of_systemd(address: str) -> None:
    with pytest.raises(ConfigError, match="is for servers; a client uses the address of the socket"):
        Client(address)


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_client_connects_to_http_on_a_unix_socket(
    server: Server, path: Path, revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    listener = await server.listen(f"http+unix://{path}:/mcp")
    async with Client(listener.address, revision=revision) as client:  # type: ignore[arg-type]
        assert (await client.call_tool("add", {"a": 1, "b": 2})).data == 3


async def test_client_reports_a_missing_unix_socket(path: Path) -> None:
    with pytest.raises(TransportError, match=f"http.unix://{path}:/mcp: no server is listening there; is it running"):
        async with Client(f"http+unix://{path}:/mcp?key=secret", settings=Settings(auto_reconnect=False)):
            pass


@pytest.mark.parametrize("options", [{"auth": "token"}, {"proxy": "http://127.0.0.1:9"}], ids=["auth", "proxy"])
def test_unix_socket_takes_no_proxy_and_no_auth(options: Any) -> None:
    with pytest.raises(MisuseError, match="is a local socket, which takes no proxy= and no auth=; pass headers="):
        HttpConnector("http+unix:///run/s.sock:/mcp", **options)


@MODES
def test_program_serves_http_on_a_unix_socket(path: Path, workers: str) -> None:
    with service(f"server.run('http', uds={str(path)!r}{workers})") as started:
        assert started.address == f"http+unix://{path}:/mcp"
        assert post_now(str(path)).status == 200
    assert started.process.returncode == 0, started.log
    assert not path.exists()


@MODES
def test_killed_program_leaves_a_file_that_the_next_one_replaces(path: Path, workers: str) -> None:
    run = f"server.run('http', uds={str(path)!r}{workers})"
    with service(run) as killed:
        left = children(killed.process.pid)
        killed.process.kill()
        killed.process.wait(PATIENCE)
    assert path.exists()
    with service(run):
        assert post_now(str(path)).status == 200
    assert not path.exists()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))


# --- sockets of systemd ----------------------------------------------------------------------------------


@MODES
def test_program_takes_over_sockets_of_systemd(listening: socket.socket, workers: str) -> None:
    port = listening.getsockname()[1]
    with service(f"server.run('http', systemd=True{workers})", sockets=[listening]) as started:
        assert started.address == f"http://127.0.0.1:{port}/mcp"
        assert post_now(port).status == 200
    assert started.process.returncode == 0, started.log
    socket.create_connection(("127.0.0.1", port)).close()  # it still listens, and the next process takes it


@MODES
def test_environment_of_systemd_is_removed(listening: socket.socket, workers: str) -> None:
    port = listening.getsockname()[1]
    with service(f"server.run('http', systemd=True{workers})", sockets=[listening]):
        params = enveloped(name="environment", arguments={})
        headers = headers_of("tools/call", params)
        answer = post_now(port, body=tool("environment") | {"params": params}, **headers)
    assert answer.status == 200
    assert "PATH" in text_of(answer.json)
    assert "LISTEN_" not in text_of(answer.json)


@MODES
def test_several_sockets_of_systemd_are_one_server(listening: socket.socket, path: Path, workers: str) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        run = f"server.run('http', systemd=True{workers})"
        with service(run, sockets=[listening, other], environ={"LISTEN_FDNAMES": "web:local"}):
            assert post_now(listening.getsockname()[1]).status == 200
            assert post_now(str(path)).status == 200
    assert path.exists(), "the file belongs to systemd"


def test_sockets_of_systemd_are_chosen_by_name(listening: socket.socket, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        run = "server.run('unix', systemd='lines')"
        names = {"LISTEN_FDNAMES": "web:lines"}
        with service(run, sockets=[listening, other], environ=names) as started:
            assert started.address == f"unix://{path}"


@pytest.mark.parametrize(
    ("run", "environ", "why"),
    [
        ("server.run('http', systemd='web')", {}, "systemd passed no socket with the name 'web', only unknown"),
        ("server.run('unix', systemd=True)", {}, "is a TCP socket, and this transport needs a Unix socket"),
        ("server.run('http', systemd=True, workers=2)", {"LISTEN_FDNAMES": "a:b"}, "LISTEN_FDNAMES has 2 names"),
        (
            "import os; os.environ['LISTEN_PID'] = '1'; server.run('http', systemd=True)",
            {},
            "LISTEN_PID is '1', but this is process",
        ),
        (
            "import os; os.environ.pop('LISTEN_FDS'); server.run('http', systemd=True)",
            {},
            "systemd passed no sockets: LISTEN_FDS is not set",
        ),
    ],
    ids=["wrong name", "wrong family", "workers", "wrong process", "none"],
)
def test_unusable_sockets_exit_with_one_line(
    listening: socket.socket, run: str, environ: dict[str, str], why: str
) -> None:
    with service(run, sockets=[listening], environ=environ) as started:
        pass
    assert started.process.returncode == 2
    assert why in started.log
    assert started.log.count("\n") == 1


def test_public_socket_of_systemd_without_tls_is_warned_about() -> None:
    with (
        socket.create_server(("0.0.0.0", 0)) as opened,
        service("server.run('http', systemd=True)", sockets=[opened]) as started,
    ):
        assert post_now(opened.getsockname()[1], host="192.0.2.1").status == 200, (
            "any address of the machine is its own"
        )
    assert "without encryption; pass tls=, or a socket unit with a loopback address" in started.log


# --- a shared port ---------------------------------------------------------------------------------------


async def test_processes_share_a_port_with_reuse_port() -> None:
    settings = Settings(reuse_port=True)
    first, second = Server("first", settings=settings), Server("second", settings=settings)
    listener = await first.listen("http://127.0.0.1:0/mcp")
    await second.listen(listener.address)
    port = parse_address(listener.address).port
    await first.aclose()
    answer = await ask(port, "POST", "/mcp", call("ping"), mcp_protocol_version="2025-11-25")
    assert answer.status in {200, 400}, "the second server answers"
    await second.aclose()


async def test_port_is_not_shared_by_default() -> None:
    first, second = Server("first", settings=Settings(reuse_port=True)), Server("second")
    listener = await first.listen("tcp://127.0.0.1:0")
    with pytest.raises(TransportError, match="Address already in use; stop the other program"):
        await second.listen(listener.address)
    await first.aclose()
    await second.aclose()


def test_port_of_a_program_that_does_not_share_it_is_explained(listening: socket.socket) -> None:
    with pytest.raises(TransportError, match="all processes need the setting reuse_port and the same user"):
        bind("127.0.0.1", listening.getsockname()[1], reuse_port=True)


def test_system_without_reuse_port_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(
        ConfigError, match="reuse_port needs SO_REUSEPORT, which this system lacks: leave it off, and use"
    ):
        bind("127.0.0.1", 0, reuse_port=True)


@MODES
def test_programs_share_a_port(workers: str) -> None:
    with socket.socket() as held:  # it does not listen, so it gets no connections
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        run = f"server.run('http', port={port}{workers})"
        shared = {"TRUNKLINE_REUSE_PORT": "1"}
        with service(run, environ=shared) as first, service(run, environ=shared) as second:
            assert first.address == second.address
            os.kill(first.process.pid, signal.SIGTERM)
            assert first.process.wait(PATIENCE) == 0, first.log
            assert post_now(port).status == 200
