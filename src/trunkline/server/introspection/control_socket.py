"""Control socket: a local socket on which a serving process describes itself.

Each process has one, `<pid>.sock` in a folder that only its user can open. A client sends one line, `state` or
`stacks`, and receives one line of JSON. The socket changes nothing, and a failure to open it
does not stop the server.
"""

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from trunkline.private_folder import make_private_folder
from trunkline.server.introspection.loop_lag import LoopLag
from trunkline.server.introspection.process_state import CallStack, ServerState, describe_process
from trunkline.wire import codec

__all__ = ["SUFFIX", "ControlSocket", "default_folder"]

SUFFIX: Final = ".sock"
_REQUEST_TIMEOUT: Final = 5.0  # seconds for a client to send its line
_MAX_REQUEST: Final = 1024  # bytes
_log: Final = logging.getLogger("trunkline")


def default_folder() -> Path:
    """Return the folder of this user's control sockets, if no other is configured."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return Path(runtime, "trunkline")
    return Path(tempfile.gettempdir(), f"trunkline-{os.geteuid()}")


class ControlSocket:
    """The control socket of this process."""

    def __init__(
        self, folder: str | None, describe: Callable[[], ServerState], stacks: Callable[[], Sequence[CallStack]]
    ) -> None:
        """`folder` is None for the default one."""
        self._path = (default_folder() if folder is None else Path(folder)) / f"{os.getpid()}{SUFFIX}"
        self._failure_level = logging.INFO if folder is None else logging.WARNING
        self._opened = time.monotonic()
        self._describe = describe
        self._stacks = stacks
        self._lag = LoopLag()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Accept clients; log it if that is not possible."""
        try:
            if not make_private_folder(self._path.parent):
                raise PermissionError(f"{self._path.parent} is not a private folder (mode 0700) of this user")
            self._server = await asyncio.start_unix_server(self._serve, sock=self._bind(), limit=_MAX_REQUEST)
        except OSError as error:
            _log.log(self._failure_level, "no control socket at %s: %s", self._path, error)
            return
        self._lag.start()

    def _bind(self) -> socket.socket:
        """Return a socket that listens. It appears under its name only then, so that no client is refused."""
        unnamed = self._path.with_suffix(".new")
        unnamed.unlink(missing_ok=True)  # of an earlier process with the same id
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.bind(str(unnamed))
            unnamed.chmod(0o600)
            made.listen()
            unnamed.replace(self._path)
        except BaseException:
            made.close()
            raise
        return made

    async def close(self) -> None:
        """Remove the socket."""
        self._lag.stop()
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT):
                request = (await reader.readline()).decode(errors="replace").split()
                writer.write(codec.to_json(self._respond(request)) + b"\n")
                await writer.drain()
        except (OSError, ValueError, TimeoutError):  # the client has gone, or sends something else
            pass
        finally:
            writer.close()

    def _respond(self, request: list[str]) -> Any:
        match request:
            case ["state"]:
                uptime = time.monotonic() - self._opened
                return describe_process(self._describe(), uptime=uptime, loop_lag=self._lag.worst)
            case ["stacks"]:
                return self._stacks()
            case _:
                return {"error": "unknown request: send `state` or `stacks`"}
