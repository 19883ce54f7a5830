"""New certificates are used without a restart: over TCP, HTTP and WebSocket, in one process and with workers."""

import json
import os
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tests.attacks.raw import Caller, initialize, request
from tests.processes import PATIENCE, children, eventually
from tests.spec.certificates import Pair, shown_at, trusting
from tests.spec.deployed import Service, service

from trunkline import CertificateFiles, Client, Server, Settings
from trunkline.errors import ConfigError, MisuseError
from trunkline.testing import ManualClock
from trunkline.transports.addresses import parse_address
from trunkline.transports.channel import Connector
from trunkline.transports.http.client.connector import HttpConnector
from trunkline.transports.tcp import TcpConnector
from trunkline.transports.websocket.client import WebSocketConnector

INTERVAL = 10.0
QUIET = Settings(keepalive_interval=None, auto_reconnect=False)


def tcp(port: int, context: ssl.SSLContext) -> Connector:
    return TcpConnector("127.0.0.1", port, tls=context)


def http(port: int, context: ssl.SSLContext) -> Connector:
    return HttpConnector(f"https://127.0.0.1:{port}/mcp", tls=context)


def websocket(port: int, context: ssl.SSLContext) -> Connector:
    return WebSocketConnector(f"wss://127.0.0.1:{port}/mcp", tls=context)


ADDRESSES = {tcp: "tls://127.0.0.1:0", http: "https://127.0.0.1:0/mcp", websocket: "https://127.0.0.1:0/mcp"}


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return CertificateFiles(tmp_path / "server.pem", tmp_path / "server.key")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server(clock: ManualClock) -> AsyncIterator[Server]:
    made = Server("library", clock=clock, settings=Settings(certificate_check_interval=INTERVAL))
    yield made
    await made.aclose()


@pytest.mark.parametrize("connect", ADDRESSES, ids=lambda connect: connect.__name__)
@pytest.mark.parametrize("how", ["file change", "reload"])
async def test_new_connections_use_the_new_certificate(
    server: Server,
    clock: ManualClock,
    files: CertificateFiles,
    connect: Callable[[int, ssl.SSLContext], Connector],
    how: str,
) -> None:
    first, second, folder = Pair("first"), Pair("second"), Path(files.certfile).parent
    first.write(folder)
    listener = await server.listen(ADDRESSES[connect], tls=files)
    port = parse_address(listener.address).port
    async with Client(connect(port, trusting(first)), settings=QUIET) as old:
        await old.ping()
        second.write(folder)
        if how == "reload":
            server.reload_certificates()
        else:
            clock.advance(INTERVAL)
            clock.advance(INTERVAL)
        async with Client(connect(port, trusting(second)), settings=QUIET) as new:
            await new.ping()
        if connect is not http:  # a request may use a new connection
            await old.ping()


async def test_open_http_connection_continues(server: Server, files: CertificateFiles, tmp_path: Path) -> None:
    first = Pair("first")
    first.write(tmp_path)
    listener = await server.listen("https://127.0.0.1:0/mcp", tls=files)
    port = parse_address(listener.address).port
    async with Caller(port, tls=trusting(first)) as caller:
        for name in ("second", "third"):
            caller.say(request("POST", "/mcp", initialize()))
            assert (await caller.answer()).status == 200
            Pair(name).write(tmp_path)
            server.reload_certificates()


async def test_broken_certificate_prevents_the_start(server: Server, files: CertificateFiles, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot load the certificate .*server\.pem: .*No such file or directory"):
        await server.listen("https://127.0.0.1:0/mcp", tls=files)
    with pytest.raises(ConfigError, match="tls:// and https:// need a certificate, other schemes take none"):
        await server.listen("http://127.0.0.1:0/mcp", tls=files)
    with pytest.raises(MisuseError, match="tls= is CertificateFiles"):
        await server.listen("https://127.0.0.1:0/mcp", tls="server.pem")  # type: ignore[arg-type]


async def test_closed_listener_no_longer_follows_its_files(
    server: Server, clock: ManualClock, files: CertificateFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Pair("first").write(tmp_path)
    listener = await server.listen("tls://127.0.0.1:0", tls=files)
    await listener.close()
    Path(files.certfile).unlink()
    for _ in range(3):
        clock.advance(INTERVAL)
    assert not caplog.records


# --- programs --------------------------------------------------------------------------------------------

MODES = pytest.mark.parametrize(
    "options",
    ["'http'", "'http', workers=2", "'tcp'"],
    ids=["http", "http with workers", "tcp"],
)


def run(options: str, folder: Path) -> str:
    return f"server.run({options}, port=0, tls=CertificateFiles({str(folder / 'server.pem')!r}, {str(folder / 'server.key')!r}))"


def port_of(started: Service) -> int:
    assert started.address, started.log
    return parse_address(started.address).port


def states(port: int, pair: Pair) -> Any:
    """The states of the workers."""
    with urlopen(f"https://127.0.0.1:{port}/readyz", timeout=PATIENCE, context=trusting(pair)) as answer:
        return json.load(answer)["workers"]


def every_worker_shows(started: Service, pair: Pair) -> None:
    """Wait until enough new connections in a row, which the workers get in turn, show a certificate."""
    port = port_of(started)
    eventually(lambda: all(shown_at(port) == pair.shown for _ in range(4)), every=0.05)


@MODES
def test_hangup_reloads_the_certificate(tmp_path: Path, options: str) -> None:
    first, second = Pair("first"), Pair("second")
    first.write(tmp_path)
    with service(run(options, tmp_path), environ={"TRUNKLINE_CERTIFICATE_CHECK_INTERVAL": "off"}) as started:
        assert shown_at(port_of(started)) == first.shown
        workers = children(started.process.pid)
        second.write(tmp_path)
        os.kill(started.process.pid, signal.SIGHUP)
        every_worker_shows(started, second)
        assert children(started.process.pid) == workers
    assert started.process.returncode == 0, started.log


@MODES
def test_changed_files_are_found(tmp_path: Path, options: str) -> None:
    first, second = Pair("first"), Pair("second")
    first.write(tmp_path)
    with service(run(options, tmp_path), environ={"TRUNKLINE_CERTIFICATE_CHECK_INTERVAL": "0.05"}) as started:
        assert shown_at(port_of(started)) == first.shown
        second.write(tmp_path)
        every_worker_shows(started, second)
    assert started.process.returncode == 0, started.log


@MODES
def test_broken_files_are_logged_and_the_old_certificate_stays(tmp_path: Path, options: str) -> None:
    first = Pair("first")
    first.write(tmp_path)
    processes = 2 if "workers" in options else 1
    with service(run(options, tmp_path), environ={"TRUNKLINE_CERTIFICATE_CHECK_INTERVAL": "0.05"}) as started:
        port = port_of(started)
        if processes > 1:
            eventually(lambda: states(port, first) == {"0": "ready", "1": "ready"}, every=0.05)
        (tmp_path / "server.key").write_bytes(Pair("other").key)
        started.wait_for_log("cannot load the certificate .*: the private key does not belong", processes)
        assert shown_at(port) == first.shown
    assert started.log.count("cannot load") == processes
    assert started.process.returncode == 0, started.log


def test_worker_that_starts_with_broken_files_uses_the_last_certificate(tmp_path: Path) -> None:
    first, second = Pair("first"), Pair("second")
    first.write(tmp_path)
    with service(
        run("'http', workers=1", tmp_path), environ={"TRUNKLINE_CERTIFICATE_CHECK_INTERVAL": "off"}
    ) as started:
        second.write(tmp_path)
        os.kill(started.process.pid, signal.SIGHUP)
        every_worker_shows(started, second)
        (tmp_path / "server.key").unlink()
        (worker,) = children(started.process.pid)
        os.kill(worker, signal.SIGKILL)
        started.wait_for_log("cannot load the certificate .*: No such file or directory; new connections still use")
        every_worker_shows(started, second)
        Pair("third").write(tmp_path)
        os.kill(started.process.pid, signal.SIGHUP)
        eventually(lambda: shown_at(port_of(started)) != second.shown, every=0.05)
    assert started.process.returncode == 0, started.log


@MODES
def test_program_with_a_broken_certificate_exits_with_one_line(tmp_path: Path, options: str) -> None:
    Pair("first").write(tmp_path)
    (tmp_path / "server.key").unlink()
    with service(run(options, tmp_path)) as started:
        pass
    assert started.process.returncode == 2
    assert started.log.count("\n") == 1
    assert "cannot load the certificate" in started.log


def test_hangup_of_a_worker_reloads_its_certificate(tmp_path: Path) -> None:
    first, second = Pair("first"), Pair("second")
    first.write(tmp_path)
    with service(
        run("'http', workers=1", tmp_path), environ={"TRUNKLINE_CERTIFICATE_CHECK_INTERVAL": "off"}
    ) as started:
        (worker,) = children(started.process.pid)
        second.write(tmp_path)
        os.kill(worker, signal.SIGHUP)
        every_worker_shows(started, second)
        assert children(started.process.pid) == {worker}
    assert started.process.returncode == 0, started.log


@pytest.mark.parametrize("workers", ["", ", workers=2"], ids=["one process", "workers"])
def test_hangup_ends_a_program_without_certificate_files(workers: str) -> None:
    with service(f"server.run('http', port=0{workers})") as started:
        left = children(started.process.pid)
        os.kill(started.process.pid, signal.SIGHUP)
        assert started.process.wait(PATIENCE) == -signal.SIGHUP
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
