"""What a client is told to connect to, and who opens a line there."""

import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from trunkline.config import Settings
from trunkline.errors import MisuseError
from trunkline.transports.channel import Accept, Channel, Connector

if TYPE_CHECKING:
    from trunkline.server.server import Server

__all__ = ["Target", "connector_of"]

Target = "str | PathLike[str] | Sequence[str | PathLike[str]] | Server | Connector"
"""A command, as a list or as one text; a script; an address (`tcp://`, `unix://`); a `Server`; or a `Connector`."""

_INTERPRETERS: Final = {".py": (sys.executable,), ".js": ("node",), ".mjs": ("node",)}


def connector_of(target: Any, settings: Settings) -> Connector:
    """Who opens lines to a target."""
    from trunkline.server.server import Server

    if isinstance(target, Server):
        return InProcess(target)
    if hasattr(target, "connect"):
        return cast("Connector", target)
    if isinstance(target, str):
        return _by_text(target, settings)
    if isinstance(target, PathLike):
        return _command(_script(Path(cast("PathLike[str]", target))), settings)
    if isinstance(target, Sequence) and target:
        return _command(list(cast("Sequence[Any]", target)), settings)
    raise MisuseError(f"{target!r} is nothing to connect to: a command, a script, an address or a Server is")


def _by_text(text: str, settings: Settings) -> Connector:
    parts = urlsplit(text)
    if parts.scheme in {"tcp", "tls"} and parts.netloc:
        from trunkline.transports.tcp import TcpConnector

        if parts.hostname is None or parts.port is None:
            raise MisuseError(f"{text!r} needs a host and a port, as in {parts.scheme}://127.0.0.1:9000")
        return TcpConnector(parts.hostname, parts.port, tls=parts.scheme == "tls", settings=settings)
    if parts.scheme == "unix" and not parts.netloc:
        from trunkline.transports.tcp import UnixConnector

        return UnixConnector(parts.path, settings=settings)
    if "://" in text:
        raise MisuseError(f"there is no transport for {text!r}; tcp://, tls:// and unix:// addresses are understood")
    path = Path(text)
    return _command(_script(path) if path.suffix in _INTERPRETERS and path.is_file() else text, settings)


def _script(path: Path) -> list[str]:
    return [*_INTERPRETERS.get(path.suffix, ()), str(path)]


def _command(command: Any, settings: Settings) -> Connector:
    from trunkline.transports.process import Command

    return Command(command, settings=settings)


class InProcess:
    """Connects to a server in the same process and on the same loop."""

    def __init__(self, server: "Server") -> None:
        self._server = server

    @property
    def name(self) -> str:
        """The server's name."""
        return self._server.name

    async def connect(self, accept: Accept) -> Channel:
        """A new line within the process. The server's lifespan is entered if it has not been."""
        from trunkline.transports.memory import memory_pair

        await self._server.start()
        ours, theirs = memory_pair()
        ours.open(accept(ours))
        theirs.open(self._server.connect(theirs))
        return ours
