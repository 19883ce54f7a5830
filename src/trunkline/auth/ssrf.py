"""Egress policy against server-side request forgery (SSRF).

A peer supplies the URLs of its metadata, its keys and its login page. Without a policy it could direct requests to
hosts that only this process can reach: this machine, its network, or the metadata service of a cloud.

This module performs no DNS lookups. Callers pass every resolved address to `EgressPolicy.denial_reason`, including the
address that they connect to.
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
AddressKind = Literal["loopback", "private", "special"]  # this machine, a private network, a special-purpose network

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
_GLOBAL_UNICAST_V6: Final = IPv6Network("2000::/3")  # the only allocated range
_NAT64: Final = IPv6Network("64:ff9b::/96")  # IPv4 addresses behind a NAT64 gateway


class EgressDenied(ValueError):
    """The policy forbids a URL. The message is safe to show to users."""


class Target(Struct, frozen=True):
    """A parsed http or https URL."""

    url: str
    scheme: str
    host: str  # in lower case, without brackets and last dots
    display_url: str  # for messages: without query and fragment, which may be secret
    literal_ip: IPAddress | None  # None if the host is a name

    @property
    def is_local(self) -> bool:
        """Whether the host names this machine."""
        if self.literal_ip is not None:
            return _classify(self.literal_ip) == "loopback"
        return self.host == "localhost" or self.host.endswith(".localhost")


class EgressPolicy(Struct, frozen=True):
    """Hosts and networks that requests may reach, in addition to all public addresses."""

    loopback: bool = False  # allow this machine, also over http
    allowed: tuple[str, ...] = ()  # host names, "*.domain" patterns and networks that need not be public

    def __post_init__(self) -> None:
        """Validate the networks in `allowed`. Raises `ConfigError`."""
        for entry in self.allowed:
            if "/" in entry and not _parse_networks((entry,)):
                raise ConfigError(f"egress_allowed: {entry!r} is neither a network such as 10.0.0.0/8 nor a host name")

    @classmethod
    def for_url(cls, url: str, settings: Settings) -> "EgressPolicy":
        """Return the policy for a URL that the user of this library configured: the MCP server's URL for a client, the
        issuer's for a server.

        It allows the URL's host, all of this machine if that host is this machine, and the setting `egress_allowed`.
        """
        try:
            named = parse_target(url)
        except EgressDenied:
            return cls(allowed=settings.egress_allowed)
        host = named.host if named.literal_ip is None else str(_unmap_ipv4(named.literal_ip))
        return cls(named.is_local, (host, *settings.egress_allowed))

    def check(self, target: Target) -> None:
        """Raise `EgressDenied` if the URL is forbidden whatever its host name resolves to."""
        if target.scheme == "http" and not (self.loopback and target.is_local):
            raise EgressDenied(f"{target.display_url} must use https; http is for servers on this machine only")
        if target.literal_ip is not None and (why := self.denial_reason(target, str(target.literal_ip))) is not None:
            raise EgressDenied(why)
        if target.literal_ip is None and target.is_local and not (self.loopback or self._allows_host(target.host)):
            raise EgressDenied(f"{target.host} is this machine itself")

    def denial_reason(self, target: Target, address: str) -> str | None:
        """Return why a resolved address of a target is forbidden, or None if it is allowed."""
        try:
            found = _unmap_ipv4(ip_address(address))
        except ValueError:
            return f"{target.host} resolves to {address!r}, which is not an IP address"
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
    """Parse a URL. Raises `EgressDenied` if it is not http or https, or if other parsers could read it differently."""
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
        return f"unsupported scheme {scheme[1]!r}; use https" if scheme else "not a URL; it must start with https://"
    authority = re.split(r"[/?#\\]", url[scheme.end() :].lstrip("/"), maxsplit=1)[0]
    if "@" in authority:
        return "a URL must not contain a user name or password"
    return "not a URL such as https://example.org/path"


def _parse_ip_literal(host: str) -> IPAddress | None:
    """Return the IP address that a host is written as, or None for a name. Accepts the legacy spellings 2130706433,
    0x7f.1 and 0177.0.0.1."""
    try:
        if ":" in host:
            return IPv6Address(host)
        if _NUMERIC_LABEL.fullmatch(host.rpartition(".")[2]):
            return IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        raise EgressDenied(f"{host} is not an IP address") from None
    if not host:
        raise EgressDenied("not a URL such as https://example.org/path")
    return None


def _unmap_ipv4(address: IPAddress) -> IPAddress:
    """Return the IPv4 address of an IPv4-mapped IPv6 address: it is the one that a socket connects to."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _classify(address: IPAddress) -> AddressKind | None:
    found = _find_special(_unmap_ipv4(address))
    return found and found[0]


def _find_special(address: IPAddress) -> tuple[AddressKind, str] | None:
    """Return the kind and description of a special-purpose address, or None if the address is public."""
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
