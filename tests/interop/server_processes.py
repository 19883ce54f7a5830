"""Server processes that listen on a local port."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.processes import PATIENCE, children, eventually

STARTING = 60.0  # seconds before a process that does not listen is a failure
LISTENING = "0A"  # how the kernel writes that state of a socket


class ServerProcess:
    """A process that listens on a port of its choice."""

    def __init__(self, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdout=self._said,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # so that its children end with it
        )

    @property
    def said(self) -> str:
        """Its output so far, on either stream."""
        return os.pread(self._said.fileno(), 1 << 20, 0).decode()

    def place(self) -> str:
        """Host and port, once it listens there."""
        return f"127.0.0.1:{eventually(self._port, STARTING, every=0.05)}"

    def _port(self) -> int | None:
        assert self.process.poll() is None, f"it has ended: {self.said}"
        return next(filter(None, map(port_of, family(self.process.pid))), None)

    def end(self) -> int:
        """Ask it to stop, which includes its workers; return its exit status."""
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """Kill it, if it is running."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._said.close()


@contextmanager
def served(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """A server process, for the duration of a test."""
    server = ServerProcess(command, env)
    try:
        yield server
    finally:
        server.close()


def family(pid: int) -> Iterator[int]:
    """A process and its descendants: a command may start another in its place."""
    yield pid
    with suppress(FileNotFoundError):  # it has ended meanwhile
        for child in children(pid):
            yield from family(child)


def port_of(pid: int) -> int | None:
    """The port of a process, if it listens: some choose port 0 and never print the result."""
    try:
        return _listening(pid)
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return None


def _listening(pid: int) -> int | None:
    sockets: set[str] = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            sockets.add(os.readlink(entry.path))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENING and f"socket:[{inode}]" in sockets:
                return int(local.rpartition(":")[2], 16)
    return None
