"""`X-Forwarded-*` headers, honoured only from trusted proxies.

A proxy reports the client's address, the scheme, and the path prefix that it has stripped. Any client can send the same
headers, so they are ignored unless the connection comes from a trusted proxy. A peer on a Unix socket has no address;
it is called "unix".
"""

import ipaddress
from collections.abc import Iterable
from typing import Final

from trunkline.errors import ConfigError
from trunkline.transports.http.request import UNIX_CLIENT, HttpRequest

__all__ = ["TrustedProxies"]

_UNIX: Final = UNIX_CLIENT[0]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxies:
    """Networks whose `X-Forwarded-*` headers are honoured."""

    def __init__(self, trusted: Iterable[str]) -> None:
        """Take addresses and networks: `10.0.0.7`, `10.0.0.0/8`, `::1`; and `unix` for the peers of Unix sockets.
        Raise `ConfigError` for anything else."""
        known = list(trusted)
        self._unix = _UNIX in known
        try:
            self._networks: list[Network] = [ipaddress.ip_network(text) for text in known if text != _UNIX]
        except ValueError as error:
            raise ConfigError(
                f'trusted_proxies must be addresses or networks such as 10.0.0.0/8, or "unix": {error}'
            ) from None

    def resolve(self, request: HttpRequest) -> None:
        """Give a request that came through a trusted proxy the address, scheme and prefix that its client used."""
        client = request.client
        if client is None or not (self._unix if client == UNIX_CLIENT else self._networks and self._trusts(client[0])):
            return
        headers = request.headers
        request.proxied = True
        if b"x-forwarded-for" in headers:
            request.client = (self._client_address(headers[b"x-forwarded-for"].decode("latin-1")), 0)
        if (scheme := headers.get(b"x-forwarded-proto", b"").strip().lower()) in {b"http", b"https"}:
            request.scheme = scheme.decode()
        prefix = headers.get(b"x-forwarded-prefix", b"").decode("latin-1").strip().rstrip("/")
        if prefix.startswith("/") and not prefix.startswith("//") and prefix.isprintable():
            request.prefix = prefix

    def _client_address(self, forwarded_for: str) -> str:
        """Return the last hop that is no trusted proxy. Earlier hops may be forged."""
        hops = [hop.strip() for hop in forwarded_for.split(",")]
        return next((hop for hop in reversed(hops) if not self._trusts(hop)), hops[0])

    def _trusts(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)
