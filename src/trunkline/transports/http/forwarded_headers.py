"""What proxies say about the requests that they pass on, believed only if they are trusted.

A proxy names the caller, the scheme, and the path that it has taken away in front. Anybody could say the same, so from
whoever is no trusted proxy these headers mean nothing.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any, cast

from trunkline.errors import ConfigError
from trunkline.transports.http.request import Scope

__all__ = ["TrustedProxies"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxies:
    """Those who are believed."""

    def __init__(self, trusted: Iterable[str]) -> None:
        """Addresses and networks: `10.0.0.7`, `10.0.0.0/8`, `::1`."""
        try:
            self._networks: list[Network] = [ipaddress.ip_network(text) for text in trusted]
        except ValueError as error:
            raise ConfigError(f"trusted_proxies must be addresses or networks such as 10.0.0.0/8: {error}") from None

    def resolve_scope(self, scope: Scope) -> Scope:
        """A request as it was before the proxies; the very same if it did not come through one that is trusted."""
        client = cast("Sequence[Any] | None", scope.get("client"))
        if not self._networks or not client or not self._trusts(client[0]):
            return scope
        headers = _forwarded_headers(scope)
        seen = dict(scope, proxied=True)
        if b"x-forwarded-for" in headers:
            seen["client"] = (self._client_address(headers[b"x-forwarded-for"].decode("latin-1")), 0)
        if (scheme := headers.get(b"x-forwarded-proto", b"").strip().lower()) in {b"http", b"https"}:
            seen["scheme"] = scheme.decode()
        prefix = headers.get(b"x-forwarded-prefix", b"").decode("latin-1").strip().rstrip("/")
        if prefix.startswith("/") and not prefix.startswith("//") and prefix.isprintable():
            seen["prefix"] = prefix
        return seen

    def _client_address(self, forwarded_for: str) -> str:
        """The last of those whom a request has passed that is no proxy of ours; what came before may be invented."""
        hops = [hop.strip() for hop in forwarded_for.split(",")]
        return next((hop for hop in reversed(hops) if not self._trusts(hop)), hops[0])

    def _trusts(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def _forwarded_headers(scope: Scope) -> dict[bytes, bytes]:
    """The headers that proxies add; of one that stands there several times, all of it."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name.startswith(b"x-forwarded-"):
            found[name] = found[name] + b"," + value if name in found else value
    return found
