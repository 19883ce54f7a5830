"""Arguments of `run()`, and failures to start: one line, and an exit code."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.connections import server_tls
from tests.limits import PATIENCE

from trunkline import Server
from trunkline.errors import ConfigError, MisuseError, TransportError
from trunkline.server.run.process import USAGE_ERROR, build_address, run_on_loop


@pytest.fixture
def taken() -> Iterator[int]:
    """A port in use."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize(
    ("transport", "options", "address"),
    [
        ("stdio", {}, None),
        ("http", {}, "http://127.0.0.1:8000/mcp"),
        ("http", {"host": "::1", "port": 0, "path": "/a"}, "http://[::1]:0/a"),
        ("tcp", {}, "tcp://127.0.0.1:0"),
        ("tcp", {"host": "localhost", "port": 4000}, "tcp://localhost:4000"),
        ("unix", {"path": Path("/run/s.sock")}, "unix:///run/s.sock"),
        ("unix", {"path": "s.sock"}, f"unix://{Path.cwd()}/s.sock"),
        ("stdio", {"port": None, "tls": None, "systemd": False}, None),
        ("http", {"uds": Path("/run/s.sock")}, "http+unix:///run/s.sock:/mcp"),
        ("http", {"uds": "s.sock", "path": "/a"}, f"http+unix://{Path.cwd()}/s.sock:/a"),
        ("http", {"systemd": True}, "http+systemd:///mcp"),
        ("http", {"systemd": "web", "path": "a"}, "http+systemd://web/a"),
        ("http", {"systemd": True, "tls": server_tls()}, "https+systemd:///mcp"),
        ("tcp", {"systemd": "mcp"}, "tcp+systemd://mcp"),
        ("unix", {"systemd": True}, "unix+systemd://"),
    ],
)
def test_run_options_become_an_address(transport: str, options: Any, address: str | None) -> None:
    assert build_address(transport, **options) == address


@pytest.mark.parametrize(
    ("transport", "options", "why"),
    [
        ("htpp", {}, "transport 'htpp' is not one of: stdio, http, tcp, unix. Did you mean \"http\"?"),
        ("pigeon", {}, "transport 'pigeon' is not one of: stdio, http, tcp, unix."),
        (None, {}, "transport None is not one of: stdio, http, tcp, unix."),
        ("sse", {}, '"http" serves Streamable HTTP, HTTP+SSE and WebSocket at one address'),
        ("streamable-http", {}, '"http" serves Streamable HTTP, HTTP+SSE and WebSocket'),
        ("stdio", {"port": 8000}, '"stdio" does not use port=; write run("http", port=…) or run("tcp", port=…), or'),
        ("stdio", {"host": "localhost"}, 'transport "stdio" does not use host='),
        ("stdio", {"workers": 2}, '"stdio" does not use workers=; write run("http", workers=…), or leave it out'),
        ("tcp", {"path": "/mcp"}, 'transport "tcp" does not use path='),
        ("tcp", {"workers": 2}, 'transport "tcp" does not use workers='),
        ("unix", {"path": "/s", "port": 1}, 'transport "unix" does not use port='),
        ("unix", {}, 'transport "unix" needs the path of a socket: run("unix", path="/run/server.sock")'),
        ("http", {"port": 80000}, "port= is a whole number from 0 to 65535, not 80000"),
        ("http", {"port": -1}, "port= is a whole number from 0 to 65535, not -1"),
        ("http", {"port": "8000"}, "port= is a whole number from 0 to 65535, not '8000'"),
        ("http", {"port": True}, "port= is a whole number from 0 to 65535, not True"),
        ("http", {"host": 5}, "host= is a name or an address such as 127.0.0.1, not 5"),
        ("http", {"host": "http://127.0.0.1"}, "host= is a name or an address such as 127.0.0.1, not 'http://"),
        ("http", {"path": 5}, "path= is a text or a path, not 5"),
        ("http", {"tls": True}, "or an ssl.SSLContext with the certificate, not True"),
        ("http", {"uds": 5}, "uds= is the path of a Unix socket, such as /run/server.sock, not 5"),
        ("http", {"uds": "/s", "port": 80}, "uds= says where to listen, and so does port=; leave one of them out"),
        ("http", {"uds": "/s", "tls": server_tls()}, "uds= is a local socket; leave tls= out"),
        ("http", {"systemd": True, "uds": "/s"}, "systemd= says where to listen, and so does uds="),
        ("http", {"systemd": True, "host": "::1"}, "systemd= says where to listen, and so does host="),
        ("unix", {"systemd": True, "path": "/s"}, "systemd= says where to listen, and so does path="),
        ("http", {"systemd": 3}, "systemd= is True, or the name of a socket (FileDescriptorName=), not 3"),
        ("http", {"systemd": "a:b"}, "systemd= is True, or the name of a socket (FileDescriptorName=), not 'a:b'"),
        ("tcp", {"uds": "/s"}, 'transport "tcp" does not use uds=; write run("http", uds=…), or leave it out'),
        ("http", {"workers": 0}, "workers= is the number of processes, 1 or more, not 0"),
        ("http", {"workers": "2"}, "workers= is the number of processes, 1 or more, not '2'"),
    ],
)
def test_wrong_option_exits_with_one_line(
    transport: Any, options: Any, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        Server("s").run(transport, **options)
    said = capsys.readouterr().err
    assert raised.value.code == USAGE_ERROR == 2
    assert isinstance(raised.value.__cause__, MisuseError)
    assert said.startswith("trunkline: ")
    assert why in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("options", [{}, {"workers": 2}], ids=["one process", "workers"])
@pytest.mark.parametrize("transport", ["http", "tcp"])
def test_address_in_use_exits_with_one_line(
    transport: Any, options: Any, taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if transport == "tcp":
        options = {}
    with pytest.raises(SystemExit) as raised:
        Server("s").run(transport, port=taken, **options)
    assert raised.value.code == USAGE_ERROR
    assert isinstance(raised.value.__cause__, TransportError)
    assert capsys.readouterr().err == (
        f"trunkline: cannot listen on 127.0.0.1:{taken}: Address already in use; "
        "stop the other program or choose another port\n"
    )


def test_startup_error_prints_no_traceback(taken: int) -> None:
    program = f"from trunkline import Server; Server('s').run('http', port={taken})"
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (USAGE_ERROR, "", 1)


async def test_run_inside_a_loop_suggests_serving_on_it() -> None:
    for options in ({}, {"transport": "http"}, {"transport": "http", "workers": 2}):
        with pytest.raises(MisuseError, match=r"there is one running here.* `await server\.run_http_async"):
            Server("s").run(**options)


def test_startup_error_on_another_thread_is_raised() -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            Server("s").run("http", port=80000)
        except MisuseError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "port=" in str(raised[0])


def test_crash_keeps_its_traceback() -> None:
    """An error after the start is not reported as a failure to start."""

    async def serving() -> tuple[str, ...]:
        raise MisuseError("too late")

    with pytest.raises(MisuseError, match="too late"):
        run_on_loop(Server("s"), serving())


async def test_tls_must_have_a_certificate() -> None:
    with pytest.raises(MisuseError, match=r"tls= is CertificateFiles.*or an ssl\.SSLContext"):
        await Server("s").listen("https://127.0.0.1:0", tls=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="an address is a string like"):
        await Server("s").listen(8000)  # type: ignore[arg-type]
