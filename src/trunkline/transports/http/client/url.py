"""Where things are on the web: an address, its origin, and where a peer points us to."""

from typing import Final
from urllib.parse import urljoin

from msgspec import Struct

from trunkline.errors import ConfigError, TransportError
from trunkline.transports.addresses import HTTP_PORTS, Address, format_host_port, parse_address

__all__ = ["HttpUrl", "RedirectRefused", "parse_url"]

_MAX_SHOWN_URL: Final = 200  # characters of an address that a peer made up


class RedirectRefused(TransportError):
    """A peer points us to where we do not go."""


class HttpUrl(Struct, frozen=True):
    """One address of the web."""

    url: str
    origin: str  # scheme, host and port
    name: str  # for people to read: without what may be secret in it

    def resolve(self, reference: str) -> "HttpUrl":
        """Where a peer at this place points us to. Raises `Misled` for another origin: credentials are for
        this one, and so is whatever we have to say."""
        try:
            there = parse_url(urljoin(self.url, reference))
        except (ConfigError, ValueError) as error:
            raise RedirectRefused(
                f"{self.name} points to {_describe_reference(reference)}, which is no address"
            ) from error
        if there.origin != self.origin:
            raise RedirectRefused(f"{self.name} points to another origin, {there.name}, where we do not follow")
        return there


def parse_url(text: str) -> HttpUrl:
    """The place that an address names. Raises ConfigError for what names none."""
    address = parse_address(text)
    if address.scheme not in HTTP_PORTS or not address.port:
        raise ConfigError(f"{text.partition('?')[0]!r} is no address like https://example.org/mcp")
    origin = f"{address.scheme}://{_authority(address)}"
    return HttpUrl(origin + address.path, origin, origin + address.path.partition("?")[0])


def _authority(address: Address) -> str:
    if address.port != HTTP_PORTS[address.scheme]:
        return format_host_port(address.host, address.port)
    return f"[{address.host}]" if ":" in address.host else address.host


def _describe_reference(reference: str) -> str:
    return repr(reference.partition("?")[0][:_MAX_SHOWN_URL])
