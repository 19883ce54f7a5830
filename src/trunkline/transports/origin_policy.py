"""Allow-list of hosts and origins, the defence against DNS rebinding and cross-site requests.

A web page can make a browser send requests to servers on the same machine, or to a name that suddenly resolves to it.
So a server accepts only its own host names and pages of configured origins. The refusal names the setting that would
allow the request.
"""

import ipaddress
import logging
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

__all__ = ["ANY_IP_ADDRESS", "LOOPBACK_HOSTS", "HostOriginPolicy"]

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
"""Host names of the local machine."""

_log: Final = logging.getLogger("trunkline")
ANY_IP_ADDRESS: Final = "<address>"
_MAX_CACHED_DECISIONS: Final = 1024  # a caller that invents host names must not fill the memory


class HostOriginPolicy:
    """Decides by the Host and Origin headers whether to accept a request.

    Hosts may have a port, begin with `*.`, or be `*`. `ANY_IP_ADDRESS` matches every numeric address: no name server
    can redirect one.
    """

    def __init__(self, hosts: Iterable[str] = LOOPBACK_HOSTS, origins: Iterable[str] = ()) -> None:
        self._hosts = tuple(host.lower() for host in hosts)
        self._origins = tuple(origin.lower().rstrip("/") for origin in origins)
        self._decisions: dict[tuple[bytes | None, bytes | None], str | None] = {}

    def refusal_reason(self, host: bytes | None, origin: bytes | None) -> str | None:
        """Return the reason to refuse a request; None to accept it. A refusal is logged once per pair of headers."""
        try:
            return self._decisions[host, origin]
        except KeyError:
            reason = self._decide(host, origin)
            if len(self._decisions) < _MAX_CACHED_DECISIONS:
                self._decisions[host, origin] = reason
                if reason is not None:
                    _log.warning("request refused: %s", reason)
            return reason

    def _decide(self, host: bytes | None, origin: bytes | None) -> str | None:
        name = "" if host is None else host.decode("latin-1").strip().lower()
        if not self._allows_host(name):
            return f"host {name!r} is not allowed; add it to the setting allowed_hosts"
        if origin is None or self.allows_origin(origin):
            return None
        text = origin.decode("latin-1")
        return f"origin {text!r} is not allowed; add it to the setting allowed_origins"

    def allows_origin(self, origin: bytes) -> bool:
        """Return whether pages of an origin may call this server: configured origins, and the server's own."""
        text = origin.decode("latin-1").strip().lower()
        if text in self._origins or "*" in self._origins:
            return True
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and "*" not in self._hosts and self._allows_host(parts.netloc)

    def _allows_host(self, name: str) -> bool:
        bare = _strip_port(name)
        return any(_matches_host(allowed, name, bare) for allowed in self._hosts)


def _matches_host(allowed: str, name: str, bare: str) -> bool:
    if allowed == ANY_IP_ADDRESS:
        return _is_address(bare)
    if allowed.startswith("*"):
        return allowed == "*" or (bare.endswith(allowed[1:]) and len(bare) > len(allowed) - 1)
    return allowed in {name, bare}


def _strip_port(name: str) -> str:
    """Return a host without its port; leave anything else unchanged."""
    host, colon, port = name.rpartition(":")
    if not colon or name.endswith("]") or (port and not port.isdecimal()):
        return name
    return host


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
