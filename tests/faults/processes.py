"""Server processes that listen on a port, with their standard error recorded."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.limits import PATIENCE
from tests.ports import held_port
from tests.processes import eventually

ROOT = Path(__file__).parent.parent.parent
MODULE = "tests.faults.order_server"
COMMANDS = {
    "run": [MODULE, "{port}"],
    "uvicorn": ["uvicorn", f"{MODULE}:app", "--port", "{port}"],
    "hypercorn": [
        "hypercorn",
        f"{MODULE}:app",
        "--workers",
        "0",
        "--graceful-timeout",
        "60",
        "--bind",
        "127.0.0.1:{port}",
    ],
    "granian": ["granian", f"{MODULE}:app", "--interface", "asgi", "--port", "{port}"],
    "deployment": ["tests.chaos.campaign_server", "{port}"],
}


class RunningServer:
    """A server process."""

    def __init__(
        self,
        command: str,
        port: int,
        effects: Path,
        *,
        options: Sequence[str] = (),
        python: str = sys.executable,
        **settings: Any,
    ) -> None:
        """`options` are appended to the command. `python` is an interpreter that has the package."""
        self.port = port
        self.url = f"http://127.0.0.1:{port}/mcp"
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        given = {f"TRUNKLINE_{name.upper()}": str(value) for name, value in settings.items()}
        self.process = subprocess.Popen(
            [python, "-m", *(part.format(port=port) for part in COMMANDS[command]), *options],
            cwd=ROOT,
            env={**os.environ, **given, "SHOP_EFFECTS": str(effects)},
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,  # so that its workers end with it
        )

    def ready(self) -> "RunningServer":
        """Wait until it accepts connections."""
        eventually(self.listens)
        return self

    def listens(self) -> bool:
        """Return whether it accepts connections."""
        assert self.process.poll() is None, f"the server has ended: {self.said()}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE):
            return True
        return False

    def said(self) -> str:
        """Standard error so far."""
        return os.pread(self._said.fileno(), 1 << 20, 0).decode()

    @property
    def complaints(self) -> list[str]:
        """Error lines in its standard error."""
        return [
            line
            for line in self.said().splitlines()
            if re.search(r"error|exception|traceback|warning", line, re.IGNORECASE)
        ]

    def stop(self, patience: float = PATIENCE) -> tuple[int, float]:
        """Stop it; return its exit code and the time that took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(patience), time.monotonic() - began

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Kill it, if it is running, and workers that it has left behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._said.close()


@contextlib.contextmanager
def served(effects: Path, command: str = "run", port: int | None = None, **settings: Any) -> Iterator[RunningServer]:
    """A server that accepts connections, for the duration of a test."""
    with held_port() as held:
        made = RunningServer(command, port or held, effects, **settings)
        try:
            yield made.ready()
        finally:
            made.close()
