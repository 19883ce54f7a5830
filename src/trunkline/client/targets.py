"""Targets of a client, and the connectors for them."""

import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from trunkline.auth.ssrf import EgressPolicy
from trunkline.client.target_errors import check_text, is_path, script_error, unsupported_target_error
from trunkline.config import Settings
from trunkline.errors import ConfigError, MisuseError
from trunkline.transports.channel import Accept, Channel, Connector

if TYPE_CHECKING:
    from trunkline.server.server import Server
    from trunkline.transports.http.client.credentials import Auth

__all__ = ["Target", "allowed_reach", "display_name", "in_process_server", "make_connector"]

Target = "str | PathLike[str] | Sequence[str | PathLike[str]] | Server | Connector"
"""A command, as a list or as one string; a script; an address (`https://`, `tcp://`, `unix://` …); a `Server`; or a
`Connector`."""

_EQUIVALENT_SCHEMES: Final = {
    "http": "http",
    "https": "https",
    "ws": "http",
    "wss": "https",
    "tcp": "http",
    "tls": "https",
}
_INTERPRETERS: Final = {".py": (sys.executable,), ".js": ("node",), ".mjs": ("node",)}


def make_connector(target: Any, settings: Settings, auth: "Auth | None" = None) -> Connector:
    """Return the connector for a target. `auth` is for HTTP and WebSocket addresses only."""
    from trunkline.server.server import Server

    if isinstance(target, str) and "://" not in target:
        check_text(target, _INTERPRETERS)
    if auth is not None and not _is_web_address(target):
        raise MisuseError("auth= is for addresses like https://example.org/mcp; pass auth to the connector itself")
    if isinstance(target, Server):
        return InProcessConnector(target)
    if hasattr(target, "connect") and not isinstance(target, type):
        return cast("Connector", target)
    if isinstance(target, str):
        return _text_connector(target, settings, auth)
    if isinstance(target, PathLike):
        return _command_connector(_script_command(Path(cast("PathLike[str]", target))), settings)
    if isinstance(target, Sequence) and not isinstance(target, bytes | bytearray):
        return _command_connector(list(cast("Sequence[Any]", target)), settings)
    raise unsupported_target_error(target, Server)


def allowed_reach(connector: Connector, settings: Settings) -> EgressPolicy:
    """Return the policy for URLs that a server asks its user to open: the public internet and its own host; this
    machine, if the server runs on it; and the hosts that the settings allow."""
    scheme, colon, rest = connector.name.partition("://")
    if not colon or scheme not in _EQUIVALENT_SCHEMES:
        return EgressPolicy(loopback=True, allowed=settings.egress_allowed)
    return EgressPolicy.for_url(f"{_EQUIVALENT_SCHEMES[scheme]}://{rest}", settings)


def display_name(connector: Connector) -> str:
    """Return the name of a connector without possible secrets: of a command, the program alone."""
    from trunkline.transports.stdio.client import Command

    if not isinstance(connector, Command):
        return connector.name
    return f"{Path(connector.argv[0]).name}{' …' if len(connector.argv) > 1 else ''}"


def in_process_server(connector: Connector) -> "Server | None":
    """Return the server of a connector, if it is in this process."""
    return connector.server if isinstance(connector, InProcessConnector) else None


def _is_web_address(target: Any) -> bool:
    from trunkline.transports import addresses

    if not isinstance(target, str) or "://" not in target:
        return False
    return addresses.parse_address(target).scheme in {*addresses.HTTP_PORTS, *addresses.WEBSOCKET_PORTS}


def _text_connector(text: str, settings: Settings, auth: "Auth | None") -> Connector:
    if "://" in text:
        return _address_connector(text, settings, auth)
    path = Path(text)
    named = path.is_file() and path.suffix in _INTERPRETERS
    return _command_connector(_script_command(path) if named or is_path(text) else text, settings)


def _address_connector(text: str, settings: Settings, auth: "Auth | None") -> Connector:
    from trunkline.transports import addresses

    address = addresses.parse_address(text)
    if address.transport == "http" and not address.inherited:
        from trunkline.transports.http.client.connector import HttpConnector

        return HttpConnector(text, auth=auth, settings=settings)
    if address.scheme in addresses.WEBSOCKET_PORTS:
        from trunkline.transports.websocket.client import WebSocketConnector

        return WebSocketConnector(text, auth=auth, settings=settings)
    if address.inherited:
        raise ConfigError(f"{text!r} is for servers; a client uses the address of the socket, as in its socket unit")
    if address.scheme == "unix":
        from trunkline.transports.unix import UnixConnector

        return UnixConnector(address.path, settings=settings)
    from trunkline.transports.tcp import TcpConnector

    return TcpConnector(address.host, address.port, tls=address.scheme == "tls", settings=settings)


def _script_command(path: Path) -> list[str]:
    if (error := script_error(path, _INTERPRETERS)) is not None:
        raise error
    return [*_INTERPRETERS.get(path.suffix, ()), str(path)]


def _command_connector(command: Any, settings: Settings) -> Connector:
    from trunkline.transports.stdio.client import Command

    return Command(command, settings=settings)


class InProcessConnector:
    """Connects to a server in the same process and on the same loop. The first client enters the server's lifespan
    unless it is entered, and the last client exits it."""

    def __init__(self, server: "Server") -> None:
        self._server = server

    @property
    def server(self) -> "Server":
        """The server."""
        return self._server

    @property
    def name(self) -> str:
        """The server's name."""
        return self._server.name

    async def connect(self, accept: Accept) -> Channel:
        """Open an in-memory channel to the server."""
        from trunkline.transports.memory import memory_pair

        await self._server.attach(self)
        ours, theirs = memory_pair(settings=self._server.settings)
        ours.open(accept(ours))
        theirs.open(self._server.connect(theirs))
        return ours

    async def release(self) -> None:
        """Detach from the server, until the next `connect`."""
        await self._server.detach(self)
