"""Connections that use up the file descriptors of a server: it pauses accepting, resumes, and never exits."""

import contextlib
import json
import resource
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.modern import enveloped, headers_of
from tests.processes import PATIENCE, children, command, eventually

LIMIT = 128  # descriptors of each server process
WAVE = 2100  # connections

SERVER = """
    import json, os, resource, sys
    from trunkline import Server, Settings

    options = json.loads(sys.argv[1])
    limit = options.pop("limit")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if options.pop("plain_asyncio", False):
        sys.modules["uvloop"] = None  # makes its import fail
    server = Server("it", observers=[], settings=Settings(**options.pop("settings", {})))

    @server.tool
    async def opens(count: int) -> int:
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]
        for file in files:
            os.close(file)
        return len(files)

    server.run(**options)
"""


class LimitedServer:
    """A server process with few descriptors, and the test's connections to it."""

    def __init__(self, log: Path, **options: Any) -> None:
        self.log = log
        self.transport = options["transport"]
        self.path = options.get("path")
        with log.open("wb") as errors:
            self.process = subprocess.Popen([*command(SERVER), json.dumps({"limit": LIMIT, **options})], stderr=errors)
        self.connections: list[socket.socket] = []
        address = eventually(self._address)
        self.at: Any = address.removeprefix("unix://") if self.transport == "unix" else self._host_and_port(address)
        self.pids = {self.process.pid}
        if (workers := options.get("workers")) is not None:
            self.pids |= eventually(lambda: len(children(self.process.pid)) == workers and children(self.process.pid))

    def _address(self) -> str | None:
        assert self.process.poll() is None, self.said()
        lines = [line for line in self.said().splitlines() if " listens at " in line]
        return lines[0].partition(" listens at ")[2] if lines else None

    @staticmethod
    def _host_and_port(address: str) -> tuple[str, int]:
        host, _, port = address.partition("://")[2].removesuffix("/mcp").rpartition(":")
        return host, int(port)

    def said(self) -> str:
        """Its standard error."""
        return self.log.read_text("utf-8", "replace")

    def dial(self) -> socket.socket:
        """Connect; the kernel completes this, whether or not the server accepts."""
        made = socket.socket(socket.AF_UNIX if self.transport == "unix" else socket.AF_INET)
        made.settimeout(PATIENCE)
        made.connect(self.at)
        return made

    def occupy(self, count: int) -> None:
        """Open connections that never send anything."""
        self.connections += [self.dial() for _ in range(count)]

    def release(self) -> None:
        """Close the connections that `occupy` opened."""
        for connection in self.connections:
            connection.close()
        self.connections.clear()

    def call(self, count: int = 1) -> int | None:
        """Call the tool over a new connection; None if the server rejected it."""
        params = enveloped(name="opens", arguments={"count": count})
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        body = json.dumps(message).encode()
        with self.dial() as line:
            try:
                line.sendall(self._request(body, params))
                answer = line.makefile("rb").read() if self.transport == "http" else line.makefile("rb").readline()
            except ConnectionError:
                return None
        found = answer.partition(b"\r\n\r\n")[2] if self.transport == "http" else answer
        return json.loads(found)["result"]["structuredContent"] if b'"result"' in found else None

    def _request(self, body: bytes, params: Any) -> bytes:
        if self.transport != "http":
            return body + b"\n"
        headers = {
            "host": "127.0.0.1",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "connection": "close",
            "content-length": str(len(body)),
            **{name.replace("_", "-"): value for name, value in headers_of("tools/call", params).items()},
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body

    @property
    def descriptors(self) -> int:
        """The most descriptors that one of its processes has open."""
        return max(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.pids)

    def check_alive(self) -> None:
        """Fail unless the original processes are still running."""
        assert self.process.poll() is None, self.said()
        assert {self.process.pid, *children(self.process.pid)} == self.pids, self.said()

    def close(self) -> None:
        self.release()
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> LimitedServer:
            if options["transport"] == "unix":
                options["path"] = str(tmp_path / "socket")
            served = LimitedServer(
                tmp_path / "log", **({} if options["transport"] == "unix" else {"port": 0}), **options
            )
            stack.callback(served.close)
            return served

        yield start


KINDS: list[Any] = [
    pytest.param({"transport": "http", "workers": 2}, id="workers"),
    pytest.param({"transport": "http"}, id="http"),
    pytest.param({"transport": "http", "plain_asyncio": True}, id="http, asyncio"),
    pytest.param({"transport": "tcp"}, id="tcp"),
    pytest.param({"transport": "unix"}, id="unix"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_idle_connections_beyond_descriptor_limit_kill_no_process(serve: Any, kind: Any) -> None:
    served = serve(**kind)
    served.occupy(2 * LIMIT)
    eventually(lambda: served.descriptors > LIMIT // 2)
    served.check_alive()
    served.release()
    assert eventually(served.call) == 1
    served.check_alive()
    assert "Traceback" not in served.said()


@pytest.mark.parametrize("kind", KINDS)
def test_silent_connections_are_closed_to_free_descriptors(serve: Any, kind: Any) -> None:
    served = serve(**kind, settings={"header_timeout": 0.5, "initialize_timeout": 0.5})
    served.occupy(LIMIT)
    assert eventually(served.call) == 1
    served.check_alive()


def test_reserve_lets_handlers_open_files(serve: Any) -> None:
    served = serve(transport="http", settings={"header_timeout": None})
    with served.dial() as line:
        params = enveloped(name="opens", arguments={"count": 16})
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        line.sendall(served._request(json.dumps(message).encode(), params)[:-1])
        served.occupy(2 * LIMIT)
        eventually(lambda: served.descriptors > LIMIT // 2)
        line.sendall(b"}")
        assert b'"structuredContent":16' in line.makefile("rb").read()
    served.check_alive()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Raise the descriptor limit of this process, the attacker, to the system's maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4 * WAVE + 1000:
        pytest.skip(f"needs {4 * WAVE + 1000} descriptors, and {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
@pytest.mark.usefixtures("many_descriptors")
def test_waves_of_idle_connections_kill_no_worker(serve: Any) -> None:
    served = serve(transport="http", workers=4, limit=1024)
    for _ in range(4):
        served.occupy(WAVE)
        eventually(lambda: served.call() == 1, 60.0)  # idle connections are closed after `header_timeout`, 10 s
        served.check_alive()
    served.release()
    assert eventually(served.call) == 1
    served.check_alive()
    assert "Traceback" not in served.said()
