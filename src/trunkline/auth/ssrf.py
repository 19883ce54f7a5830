"""Which addresses may be gone to. A peer names where its metadata, its keys and its logins are; if that were believed,
it could send us to whatever only we can reach: this machine, its network, the keeper of a cloud's secrets.

Nothing here looks up a name. Whoever does asks about each address that was found, and about the one it connects to.
"""

import re
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Literal

from msgspec import Struct

from trunkline.config import Settings
from trunkline.errors import ConfigError

__all__ = ["EgressDenied", "EgressPolicy", "Target", "parse_target"]

IPAddress = IPv4Address | IPv6Address
AddressKind = Literal["loopback", "private", "special"]  # this machine, a network of somebody's own, nobody's at all

_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[!-\[\]-~]*?)?(?P<query>[?#][!-\[\]-~]*)?",  # no space, backslash or control character anywhere
    re.IGNORECASE,
)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20}):")
_NUMERIC_LABEL: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")  # a last label like this makes a host an IPv4 address
_MAX_PORT: Final = 65535

# IANA's registries of special addresses. The flags of `ipaddress` differ between versions of Python.
_SPECIAL_PURPOSE: Final[tuple[tuple[str, AddressKind, str], ...]] = (
    ("127.0.0.0/8", "loopback", "this machine itself"),
    ("10.0.0.0/8", "private", "of a private network"),
    ("172.16.0.0/12", "private", "of a private network"),
    ("192.168.0.0/16", "private", "of a private network"),
    ("100.64.0.0/10", "private", "shared by a provider's customers"),
    ("169.254.0.0/16", "special", "link-local, where clouds keep secrets"),
    ("0.0.0.0/8", "special", "unspecified"),
    ("192.0.0.0/24", "special", "reserved for protocols"),
    ("192.0.2.0/24", "special", "for documentation"),
    ("198.51.100.0/24", "special", "for documentation"),
    ("203.0.113.0/24", "special", "for documentation"),
    ("198.18.0.0/15", "special", "for benchmarks"),
    ("192.88.99.0/24", "special", "a relay of 6to4"),
    ("224.0.0.0/4", "special", "multicast"),
    ("240.0.0.0/4", "special", "reserved"),
    ("::1/128", "loopback", "this machine itself"),
    ("fc00::/7", "private", "of a private network"),
    ("::/128", "special", "unspecified"),
    ("fe80::/10", "special", "link-local"),
    ("ff00::/8", "special", "multicast"),
    ("64:ff9b:1::/48", "special", "translated by a network of its own"),
    ("2001::/32", "special", "a tunnel of Teredo"),
    ("2001:2::/48", "special", "for benchmarks"),
    ("2001::/23", "special", "reserved for protocols"),
    ("2001:db8::/32", "special", "for documentation"),
    ("2002::/16", "special", "a tunnel of 6to4"),
    ("3fff::/20", "special", "for documentation"),
)
_NETWORKS: Final[tuple[tuple[IPv4Network | IPv6Network, AddressKind, str], ...]] = tuple(
    (ip_network(network), kind, why) for network, kind, why in _SPECIAL_PURPOSE
)
_GLOBAL_UNICAST_V6: Final = IPv6Network("2000::/3")  # all that has been given out
_NAT64: Final = IPv6Network("64:ff9b::/96")  # NAT64: an IPv4 address, for those who have none


class EgressDenied(ValueError):
    """An address that is not gone to, and why. It may be shown to anybody."""


class Target(Struct, frozen=True):
    """An address of the web, taken apart."""

    url: str
    scheme: str
    host: str  # in lower case, without brackets and last dots
    display_url: str  # for people to read: without what may be secret in it
    literal_ip: IPAddress | None  # what the host is, if it is no name

    @property
    def is_local(self) -> bool:
        """Whether it says that it is this machine."""
        if self.literal_ip is not None:
            return _classify(self.literal_ip) == "loopback"
        return self.host == "localhost" or self.host.endswith(".localhost")


class EgressPolicy(Struct, frozen=True):
    """How far requests may go, beside addresses that everybody on the internet can reach."""

    loopback: bool = False  # this machine itself, also by http
    allowed: tuple[str, ...] = ()  # names, "*.names" and networks that need not be public

    def __post_init__(self) -> None:
        """Refuses networks that are none."""
        for entry in self.allowed:
            if "/" in entry and not _parse_networks((entry,)):
                raise ConfigError(f"egress_allowed: {entry!r} is no network like 10.0.0.0/8, and no name of a host")

    @classmethod
    def for_url(cls, url: str, settings: Settings) -> "EgressPolicy":
        """As far as an address allows that our own user has named: the MCP server's for a client, the issuer's for a
        server. That very host may be gone to; if it is this machine, all of this machine; and what the settings
        allow."""
        try:
            named = parse_target(url)
        except EgressDenied:
            return cls(allowed=settings.egress_allowed)
        host = named.host if named.literal_ip is None else str(_unmap_ipv4(named.literal_ip))
        return cls(named.is_local, (host, *settings.egress_allowed))

    def check(self, target: Target) -> None:
        """Raises `Refused` for what can be told without looking up a name."""
        if target.scheme == "http" and not (self.loopback and target.is_local):
            raise EgressDenied(
                f"{target.display_url} is not to be trusted without https; http is for servers on this machine only"
            )
        if target.literal_ip is not None and (why := self.denial_reason(target, str(target.literal_ip))) is not None:
            raise EgressDenied(why)
        if target.literal_ip is None and target.is_local and not (self.loopback or self._allows_host(target.host)):
            raise EgressDenied(f"{target.host} is this machine itself")

    def denial_reason(self, target: Target, address: str) -> str | None:
        """Why an address, which was found for a target, may not be gone to; None if it may."""
        try:
            found = _unmap_ipv4(ip_address(address))
        except ValueError:
            return f"{target.host} is at {address!r}, which is no address"
        special = _find_special(found)
        kind = special and special[0]
        if target.scheme == "http" and kind != "loopback":
            return f"{target.host} is at {address}, which is not this machine, and http is for this machine only"
        if special is None or (kind == "loopback" and self.loopback) or self._allows_network(found):
            return None
        if kind != "special" and self._allows_host(target.host):
            return None
        where = "" if target.literal_ip else f" is at {address}, which"
        return f"{target.host}{where} is {special[1]}; the setting egress_allowed names where else one may go"

    def _allows_network(self, address: IPAddress) -> bool:
        return any(address in network for network in _parse_networks(self.allowed))

    def _allows_host(self, host: str) -> bool:
        names = [entry.lower().rstrip(".") for entry in self.allowed]
        return any(host == name or (name.startswith("*.") and host.endswith(name[1:])) for name in names)


def parse_target(url: str) -> Target:
    """Takes an address apart. Raises `Refused` for what is none of the web's, or is spelt so that others could read
    something else in it."""
    parts = _URL.fullmatch(url)
    if parts is None:
        raise EgressDenied(_explain_malformed(url))
    port = parts["port"]
    if port is not None and not 0 < int(port) <= _MAX_PORT:
        raise EgressDenied(f"there is no port {port}")
    scheme, host = parts["scheme"].lower(), parts["host"].lower().strip("[]").rstrip(".")
    name = f"{scheme}://{parts['host']}{f':{port}' if port else ''}{parts['path'] or ''}"
    return Target(url, scheme, host, name, _parse_ip_literal(host))


def _explain_malformed(url: str) -> str:
    scheme = _SCHEME.match(url)
    if scheme is None or scheme[1].lower() not in {"http", "https"}:
        return f"{scheme[1]!r} is no scheme to go by; https is" if scheme else "that is no address; one begins https://"
    authority = re.split(r"[/?#\\]", url[scheme.end() :].lstrip("/"), maxsplit=1)[0]
    if "@" in authority:
        return "an address is no place for a name and a password"
    return "that is no address like https://example.org/path"


def _parse_ip_literal(host: str) -> IPAddress | None:
    """The address that a host is in itself, also in the spellings of old: 2130706433, 0x7f.1, 0177.0.0.1."""
    try:
        if ":" in host:
            return IPv6Address(host)
        if _NUMERIC_LABEL.fullmatch(host.rpartition(".")[2]):
            return IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        raise EgressDenied(f"{host} is no address") from None
    if not host:
        raise EgressDenied("that is no address like https://example.org/path")
    return None


def _unmap_ipv4(address: IPAddress) -> IPAddress:
    """The IPv4 address that is really connected to."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _classify(address: IPAddress) -> AddressKind | None:
    found = _find_special(_unmap_ipv4(address))
    return found and found[0]


def _find_special(address: IPAddress) -> tuple[AddressKind, str] | None:
    """What is special about an address; None for one that everybody can reach."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        inner = _find_special(IPv4Address(int(address) & 0xFFFF_FFFF))
        if inner is None:
            return None
        return "special", f"translated to one that is {inner[1]}"
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return "special", "of one line only"
    for network, kind, why in _NETWORKS:
        if address in network:
            return kind, why
    if isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST_V6:
        return None
    return "special", "reserved"


def _parse_networks(entries: tuple[str, ...]) -> list[IPv4Network | IPv6Network]:
    found: list[IPv4Network | IPv6Network] = []
    for entry in entries:
        try:
            found.append(ip_network(entry, strict=False))
        except ValueError:
            continue  # a name
    return found
