"""Where things are on the web: an address, its origin, and where a peer points us to."""

from typing import Final
from urllib.parse import urljoin

from msgspec import Struct

from trunkline.errors import ConfigError, TransportError
from trunkline.transports.addresses import WEB, Address, parse, spelt

__all__ = ["Misled", "Place", "place"]

_SHOWN: Final = 200  # characters of an address that a peer made up


class Misled(TransportError):
    """A peer points us to where we do not go."""


class Place(Struct, frozen=True):
    """One address of the web."""

    url: str
    origin: str  # scheme, host and port
    name: str  # for people to read: without what may be secret in it

    def leads_to(self, reference: str) -> "Place":
        """Where a peer at this place points us to. Raises `Misled` for another origin: credentials are for
        this one, and so is whatever we have to say."""
        try:
            there = place(urljoin(self.url, reference))
        except (ConfigError, ValueError) as error:
            raise Misled(f"{self.name} points to {_shown(reference)}, which is no address") from error
        if there.origin != self.origin:
            raise Misled(f"{self.name} points to another origin, {there.name}, where we do not follow")
        return there


def place(text: str) -> Place:
    """The place that an address names. Raises ConfigError for what names none."""
    address = parse(text)
    if address.scheme not in WEB or not address.port:
        raise ConfigError(f"{text.partition('?')[0]!r} is no address like https://example.org/mcp")
    origin = f"{address.scheme}://{_authority(address)}"
    return Place(origin + address.path, origin, origin + address.path.partition("?")[0])


def _authority(address: Address) -> str:
    if address.port != WEB[address.scheme]:
        return spelt(address.host, address.port)
    return f"[{address.host}]" if ":" in address.host else address.host


def _shown(reference: str) -> str:
    return repr(reference.partition("?")[0][:_SHOWN])
