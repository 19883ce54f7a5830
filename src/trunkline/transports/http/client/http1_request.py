"""Encode HTTP/1.1 requests: the target of a URL, and the bytes of a request's head."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from msgspec import Struct

from trunkline.transports.addresses import HTTP_PORTS, format_host_port
from trunkline.version import __version__

__all__ = ["Origin", "Target", "encode_headers", "encode_request", "parse_target"]

_PATH_CHARACTERS: Final = "!$%&'()*+,/:;=?@~"  # besides letters, digits and "-._~": left as they are (RFC 3986)
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FORBIDDEN_IN_VALUES: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_OWN_HEADERS: Final = frozenset({"content-length", "transfer-encoding"})  # they follow from the body
_NEEDS_LENGTH: Final = frozenset({"POST", "PUT", "PATCH"})  # even with an empty body (RFC 9110, section 8.6)
_MAX_PORT: Final = (1 << 16) - 1


class Origin(Struct, frozen=True):
    """Scheme, host and port. The host is an address or a name in ASCII."""

    secure: bool
    host: str
    port: int


class Target(Struct, frozen=True):
    """A URL, as a request names it."""

    origin: Origin
    authority: str  # for the Host header: without a default port
    path: str  # with the query, in ASCII

    @property
    def absolute(self) -> str:
        """The URL, for a request to a proxy."""
        return f"{'https' if self.origin.secure else 'http'}://{self.authority}{self.path}"


def parse_target(url: str) -> Target:
    """Parse a URL. Raise ValueError if it is not an HTTP URL."""
    parts = urlsplit(url)
    if parts.scheme not in HTTP_PORTS or not parts.hostname or "@" in parts.netloc:
        raise ValueError("the URL is invalid")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode("ascii")
    default = HTTP_PORTS[parts.scheme]
    port = default if parts.port is None else parts.port
    if not 0 < port <= _MAX_PORT or _FORBIDDEN_IN_VALUES.search(host) or " " in host:
        raise ValueError("the URL is invalid")
    bracketed = f"[{host}]" if ":" in host else host
    path = quote(f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}", safe=_PATH_CHARACTERS)
    authority = bracketed if port == default else format_host_port(host, port)
    return Target(Origin(parts.scheme == "https", host, port), authority, path)


def encode_headers(target: Target, headers: Mapping[str, str]) -> bytes:
    """Encode the header lines of requests to a target, with Host and User-Agent unless they are given. Raise ValueError
    for a name or value that would change the structure of the request."""
    names = {name.lower() for name in headers}
    lines = [] if "host" in names else [f"Host: {target.authority}\r\n"]
    if "user-agent" not in names:
        lines.append(f"User-Agent: trunkline/{__version__}\r\n")
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or _FORBIDDEN_IN_VALUES.search(value):
            raise ValueError(f"the header {name!r} contains a character that a header must not contain")
        if name.lower() not in _OWN_HEADERS:
            lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode()


def encode_request(method: str, target: str, headers: bytes, body: bytes | None) -> bytes:
    """Encode a request with encoded headers."""
    if body is None and method not in _NEEDS_LENGTH:
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (method.encode(), target.encode(), headers)
    content = body or b""
    length = len(content)
    return b"%b %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (
        method.encode(),
        target.encode(),
        headers,
        length,
        content,
    )
