"""What a client is told to connect to, and who opens a line there."""

import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from trunkline.auth.ssrf import Reach
from trunkline.client.target_errors import check_text, is_path, no_target, script_error
from trunkline.config import Settings
from trunkline.errors import MisuseError
from trunkline.transports.channel import Accept, Channel, Connector

if TYPE_CHECKING:
    from trunkline.server.server import Server
    from trunkline.transports.http.client.credentials import Auth

__all__ = ["Target", "connector_of", "reach_of", "shown"]

Target = "str | PathLike[str] | Sequence[str | PathLike[str]] | Server | Connector"
"""A command, as a list or as one text; a script; an address (`https://`, `tcp://`, `unix://` …); a `Server`; or
a `Connector`."""

_BY_NETWORK: Final = {"http": "http", "https": "https", "ws": "http", "wss": "https", "tcp": "http", "tls": "https"}
_INTERPRETERS: Final = {".py": (sys.executable,), ".js": ("node",), ".mjs": ("node",)}


def connector_of(target: Any, settings: Settings, auth: "Auth | None" = None) -> Connector:
    """Who opens lines to a target. `auth` proves who we are, which only servers on the web want to know."""
    from trunkline.server.server import Server

    if isinstance(target, str) and "://" not in target:
        check_text(target, _INTERPRETERS)
    if auth is not None and not _on_the_web(target):
        raise MisuseError("auth= is for addresses like https://example.org/mcp; a connector takes its own")
    if isinstance(target, Server):
        return InProcess(target)
    if hasattr(target, "connect") and not isinstance(target, type):
        return cast("Connector", target)
    if isinstance(target, str):
        return _by_text(target, settings, auth)
    if isinstance(target, PathLike):
        return _command(_script(Path(cast("PathLike[str]", target))), settings)
    if isinstance(target, Sequence) and not isinstance(target, bytes | bytearray):
        return _command(list(cast("Sequence[Any]", target)), settings)
    raise no_target(target, Server)


def reach_of(connector: Connector, settings: Settings) -> Reach:
    """How far a server may send its user: to the public internet and to its own host; to this machine, if it is on this
    machine itself; and to what the settings allow."""
    scheme, colon, rest = connector.name.partition("://")
    if not colon or scheme not in _BY_NETWORK:
        return Reach(loopback=True, allowed=settings.egress_allowed)
    return Reach.around(f"{_BY_NETWORK[scheme]}://{rest}", settings)


def shown(connector: Connector) -> str:
    """The name of a connector without what may be secret: of a command, the program alone."""
    from trunkline.transports.stdio.client import Command

    if not isinstance(connector, Command):
        return connector.name
    return f"{Path(connector.argv[0]).name}{' …' if len(connector.argv) > 1 else ''}"


def _on_the_web(target: Any) -> bool:
    from trunkline.transports import addresses

    if not isinstance(target, str) or "://" not in target:
        return False
    return addresses.parse(target).scheme in {*addresses.WEB, *addresses.WEBSOCKET}


def _by_text(text: str, settings: Settings, auth: "Auth | None") -> Connector:
    if "://" in text:
        return _by_address(text, settings, auth)
    path = Path(text)
    named = path.is_file() and path.suffix in _INTERPRETERS
    return _command(_script(path) if named or is_path(text) else text, settings)


def _by_address(text: str, settings: Settings, auth: "Auth | None") -> Connector:
    from trunkline.transports import addresses

    address = addresses.parse(text)
    if address.scheme in addresses.WEB:
        from trunkline.transports.http.client.connector import HttpConnector

        return HttpConnector(text, auth=auth, settings=settings)
    if address.scheme in addresses.WEBSOCKET:
        from trunkline.transports.websocket.client import WebSocketConnector

        return WebSocketConnector(text, auth=auth, settings=settings)
    if address.scheme == "unix":
        from trunkline.transports.unix import UnixConnector

        return UnixConnector(address.path, settings=settings)
    from trunkline.transports.tcp import TcpConnector

    return TcpConnector(address.host, address.port, tls=address.scheme == "tls", settings=settings)


def _script(path: Path) -> list[str]:
    if (error := script_error(path, _INTERPRETERS)) is not None:
        raise error
    return [*_INTERPRETERS.get(path.suffix, ()), str(path)]


def _command(command: Any, settings: Settings) -> Connector:
    from trunkline.transports.stdio.client import Command

    return Command(command, settings=settings)


class InProcess:
    """Connects to a server in the same process and on the same loop. The server's lifespan is entered if it has not
    been, and left with the last client."""

    def __init__(self, server: "Server") -> None:
        self._server = server

    @property
    def name(self) -> str:
        """The server's name."""
        return self._server.name

    async def connect(self, accept: Accept) -> Channel:
        """A new line within the process."""
        from trunkline.transports.memory import memory_pair

        await self._server.attach(self)
        ours, theirs = memory_pair(settings=self._server.settings)
        ours.open(accept(ours))
        theirs.open(self._server.connect(theirs))
        return ours

    async def release(self) -> None:
        """There will be no more lines, until one is asked for again."""
        await self._server.detach(self)
