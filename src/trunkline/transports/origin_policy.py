"""Which callers a network transport lets in: by the host that they ask for, and by the page that they come from.

A web page can have a browser talk to servers on the same machine, or to a name that suddenly leads there. So a server
answers only to the names it is known by, and only to pages of origins that it was told of. What is turned away is told
which setting would let it in.
"""

import ipaddress
import logging
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

__all__ = ["ANY_IP_ADDRESS", "LOOPBACK_HOSTS", "HostOriginPolicy"]

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
"""The names of this machine to itself."""

_log: Final = logging.getLogger("trunkline")
ANY_IP_ADDRESS: Final = "<address>"
_MAX_CACHED_DECISIONS: Final = 1024  # decisions; a caller who invents names must not fill the memory


class HostOriginPolicy:
    """Decides by the headers Host and Origin. Names may have a port, begin with `*.`, or be `*`; `IP` stands for every
    address that is written in numbers, which no name server can lead somewhere else."""

    def __init__(self, hosts: Iterable[str] = LOOPBACK_HOSTS, origins: Iterable[str] = ()) -> None:
        self._hosts = tuple(host.lower() for host in hosts)
        self._origins = tuple(origin.lower().rstrip("/") for origin in origins)
        self._decisions: dict[tuple[bytes | None, bytes | None], str | None] = {}

    def refusal_reason(self, host: bytes | None, origin: bytes | None) -> str | None:
        """Why a caller is turned away; None if it is let in."""
        try:
            return self._decisions[host, origin]
        except KeyError:
            why = self._decide(host, origin)
            if len(self._decisions) < _MAX_CACHED_DECISIONS:
                self._decisions[host, origin] = why
                if why is not None:
                    _log.warning("turned away: %s", why)
            return why

    def _decide(self, host: bytes | None, origin: bytes | None) -> str | None:
        name = "" if host is None else host.decode("latin-1").strip().lower()
        if not self._allows_host(name):
            return f"host {name!r} is not allowed here; the setting allowed_hosts names those that are"
        if origin is None or self.allows_origin(origin):
            return None
        text = origin.decode("latin-1")
        return f"origin {text!r} is not allowed here; the setting allowed_origins names those that are"

    def allows_origin(self, origin: bytes) -> bool:
        """Whether pages of an origin may talk to us: those that were named, and our own."""
        text = origin.decode("latin-1").strip().lower()
        if text in self._origins or "*" in self._origins:
            return True
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and "*" not in self._hosts and self._allows_host(parts.netloc)

    def _allows_host(self, name: str) -> bool:
        bare = _strip_port(name)
        return any(_matches_host(known, name, bare) for known in self._hosts)


def _matches_host(known: str, name: str, bare: str) -> bool:
    if known == ANY_IP_ADDRESS:
        return _is_address(bare)
    if known.startswith("*"):
        return known == "*" or (bare.endswith(known[1:]) and len(bare) > len(known) - 1)
    return known in {name, bare}


def _strip_port(name: str) -> str:
    """The same without a port; what is not written like that stays as it is."""
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
