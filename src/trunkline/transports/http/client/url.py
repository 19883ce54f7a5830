"""HTTP URLs, and the rule that references of a peer must stay within its origin."""

from typing import Final
from urllib.parse import urljoin

from msgspec import Struct

from trunkline.errors import ConfigError, TransportError
from trunkline.transports.addresses import HTTP_PORTS, HTTP_UNIX, Address, format_host_port, parse_address

__all__ = ["HttpUrl", "RedirectRefused", "parse_url"]

_UNIX_ORIGIN: Final = "http://localhost"
_MAX_SHOWN_URL: Final = 200  # characters of a peer's reference


class RedirectRefused(TransportError):
    """A redirect or endpoint that leads to another origin or to no valid URL."""


class HttpUrl(Struct, frozen=True):
    """A parsed HTTP URL."""

    url: str
    origin: str  # scheme, host and port
    name: str  # for messages: without the query, which may contain secrets
    uds: str | None = None  # the Unix socket of the server, instead of the host and port

    def resolve(self, reference: str) -> "HttpUrl":
        """Resolve a reference of this peer. Raise `RedirectRefused` for another origin: credentials and messages are
        for this one only."""
        try:
            target = parse_url(urljoin(self.url, reference))
        except (ConfigError, ValueError) as error:
            raise RedirectRefused(
                f"{self.name} refers to {_describe_reference(reference)}, which is not a URL"
            ) from error
        if target.origin != self.origin:
            raise RedirectRefused(f"{self.name} refers to another origin, {target.name}, which is not followed")
        return target


def parse_url(text: str) -> HttpUrl:
    """Parse a URL, or the address of a server on a Unix socket. Raise ConfigError if it is neither. A Unix socket has
    no host name; requests to one name `localhost`, which servers allow."""
    address = parse_address(text)
    if address.scheme == HTTP_UNIX:
        name = f"{HTTP_UNIX}://{address.uds}:{address.path.partition('?')[0]}"
        return HttpUrl(f"{_UNIX_ORIGIN}{address.path}", _UNIX_ORIGIN, name, address.uds)
    if address.scheme not in HTTP_PORTS or not address.port:
        raise ConfigError(f"{text.partition('?')[0]!r} is not an address like https://example.org/mcp")
    origin = f"{address.scheme}://{_authority(address)}"
    return HttpUrl(origin + address.path, origin, origin + address.path.partition("?")[0])


def _authority(address: Address) -> str:
    if address.port != HTTP_PORTS[address.scheme]:
        return format_host_port(address.host, address.port)
    return f"[{address.host}]" if ":" in address.host else address.host


def _describe_reference(reference: str) -> str:
    return repr(reference.partition("?")[0][:_MAX_SHOWN_URL])
