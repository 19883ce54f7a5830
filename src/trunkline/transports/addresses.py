"""Parse and format addresses.

Schemes: tcp://127.0.0.1:4000, tls://example.org:4000, unix:///run/server.sock, http://127.0.0.1:8000/mcp,
https://example.org/mcp, ws://127.0.0.1:8000/mcp and wss://example.org/mcp.

A server also listens at http+unix:///run/server.sock:/mcp, HTTP on a Unix socket, with the colon between socket and
path as nginx writes it; and on sockets that systemd passed, by their name: http+systemd://name/mcp, tcp+systemd://name
and unix+systemd://name. Without a name it listens on all of them.
"""

import re
from typing import Any, Final, cast
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from trunkline.errors import ConfigError
from trunkline.errors.suggestions import did_you_mean

__all__ = ["HTTP_PORTS", "HTTP_UNIX", "WEBSOCKET_PORTS", "Address", "format_bound", "format_host_port", "parse_address"]

HTTP_PORTS: Final = {"http": 80, "https": 443}
"""Default ports of the HTTP schemes."""

WEBSOCKET_PORTS: Final = {"ws": 80, "wss": 443}
"""Default ports of the WebSocket schemes."""

_DEFAULT_PORTS: Final = HTTP_PORTS | WEBSOCKET_PORTS
HTTP_UNIX: Final = "http+unix"
"""Scheme of HTTP on a Unix socket."""

_INHERITED: Final = "+systemd"  # the end of a scheme for sockets that systemd passed
_INHERITABLE: Final = ("http", "https", "tcp", "tls", "unix")
_SCHEMES: Final = (
    *(*_DEFAULT_PORTS, "tcp", "tls", "unix", HTTP_UNIX),
    *(f"{scheme}{_INHERITED}" for scheme in _INHERITABLE),
)
_TRANSPORTS: Final = {"https": "http", "tls": "tcp"}
_MAX_PORT: Final = (1 << 16) - 1
_EXAMPLES: Final = "like tcp://127.0.0.1:4000, tls://example.org:4000, unix:///run/s.sock or https://example.org/mcp"
_UNIX_EXAMPLE: Final = "http+unix:///run/s.sock:/mcp"
_UNPRINTABLE: Final = re.compile(r"[\x00-\x20\x7f\\]")


class Address(Struct, frozen=True):
    """Host and port, the path of a Unix socket, or as `host` the name of sockets that systemd passed. For HTTP and
    WebSocket, `path` includes the query."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    uds: str = ""  # the Unix socket of an HTTP address

    @property
    def transport(self) -> str:
        """The protocol: http, tcp, unix, ws or wss."""
        base = self.scheme.partition("+")[0]
        return _TRANSPORTS.get(base, base)

    @property
    def secure(self) -> bool:
        """Whether a server at this address needs a certificate."""
        return self.scheme.partition("+")[0] in _TRANSPORTS

    @property
    def inherited(self) -> bool:
        """Whether systemd passes the sockets."""
        return self.scheme.endswith(_INHERITED)

    @property
    def socket_path(self) -> str:
        """The path of the Unix socket; empty for other addresses."""
        return self.path if self.scheme == "unix" else self.uds


def parse_address(text: str) -> Address:
    """Parse an address. Raise ConfigError if it is invalid."""
    value: Any = text
    if not isinstance(value, str):
        raise ConfigError(f"an address is a string {_EXAMPLES}, not {value!r}")
    scheme, separator, rest = text.partition("://")
    if separator and scheme.lower() in _DEFAULT_PORTS:
        return _parse_http_url(text)
    if separator and scheme == "unix" and rest.startswith("/"):
        return Address(scheme, path=rest)
    if scheme == HTTP_UNIX and rest.startswith("/"):
        return _parse_http_unix(rest)
    if separator and scheme.endswith(_INHERITED) and scheme in _SCHEMES:
        return _parse_inherited(text, scheme, rest)
    host, colon, port = rest.rpartition(":")
    if separator and scheme in {"tcp", "tls"} and colon and host and port.isdecimal() and int(port) <= _MAX_PORT:
        return Address(scheme, host.removeprefix("[").removesuffix("]"), int(port))
    raise ConfigError(
        f"{text!r} is not an address {_EXAMPLES}: {_explain_invalid(scheme if separator else None, port)}"
    )


def _explain_invalid(scheme: str | None, port: str) -> str:
    if scheme is None:
        return "it has no scheme, such as http://"
    if scheme not in _SCHEMES:
        return f"there is no scheme {scheme!r}.{did_you_mean(scheme, _SCHEMES)}"
    if scheme == "unix":
        return "the path of a socket begins with a slash"
    if scheme == HTTP_UNIX:
        return f"the path of a socket begins with a slash, and that of the endpoint follows a colon: {_UNIX_EXAMPLE}"
    return "it has no host or no port" if not port.isdecimal() else f"a port is at most {_MAX_PORT}"


def _parse_http_unix(rest: str) -> Address:
    """Split the path of a socket from that of the endpoint, at the last colon that a slash follows."""
    before, colon, after = rest.rpartition(":/")
    return Address(HTTP_UNIX, path=f"/{after}" if colon else "/", uds=before if colon else rest)


def _parse_inherited(text: str, scheme: str, rest: str) -> Address:
    name, slash, path = rest.partition("/")
    http = scheme.startswith("http")
    if ":" in name or (slash and not http):
        raise ConfigError(
            f"{text!r} is not an address like http+systemd://name/mcp or tcp+systemd://name: it has the name of a "
            "socket (FileDescriptorName=) or none, and no port"
        )
    return Address(scheme, name, path=f"/{path}" if http else "")


def _parse_http_url(text: str) -> Address:
    parts = _split_url(text)
    if "@" in parts.netloc:  # not quoted in the error, since logs must not contain secrets
        raise ConfigError("an address must not contain a user name and a password; pass them as headers")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(
            f"{text.partition('?')[0]!r} is not an address like https://example.org/mcp: "
            f"a port is a number from 0 to {_MAX_PORT}"
        ) from None
    if not host or _UNPRINTABLE.search(text):
        raise ConfigError(f"{text.partition('?')[0]!r} is not an address like https://example.org/mcp")
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    return Address(parts.scheme, host, _DEFAULT_PORTS[parts.scheme] if port is None else port, path)


def _split_url(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:  # for example, unbalanced brackets
        raise ConfigError(f"this is not an address like https://example.org/mcp: {error}") from None


def format_host_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def format_bound(where: Address, bound: Any) -> str:
    """Return the address of a socket as a client writes it. `bound` is the socket's own name: a host and port, or a
    path."""
    base = where.scheme.partition("+")[0]
    endpoint = where.path if where.transport == "http" else ""
    if isinstance(bound, tuple):
        host, port = cast("tuple[Any, ...]", bound)[:2]
        return f"{base}://{format_host_port(host, port)}{endpoint}"
    path = bound.decode(errors="replace").replace("\0", "@", 1) if isinstance(bound, bytes) else bound  # abstract
    return f"{HTTP_UNIX}://{path}:{endpoint}" if endpoint else f"unix://{path}"
