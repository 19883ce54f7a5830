"""URLs that a peer supplied: their origin, and whether they are secure enough to use."""

import re
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from trunkline.errors import AuthorizationFailed
from trunkline.errors.text import printable

__all__ = ["Origin", "is_loopback", "origin_of", "require_secure_url", "safe_text"]

_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_HTTP_SCHEME: Final = {"ws": "http", "wss": "https"}  # HTTP and WebSocket URLs of one server have one origin
_FORBIDDEN_CHARACTERS: Final = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
_MAX_TEXT_CHARS: Final = 300  # characters of peer-supplied text that are shown to a user


class Origin(NamedTuple):
    """Scheme, host and port of a URL."""

    scheme: str
    host: str
    port: int | None


def _split(url: str) -> SplitResult | None:
    """Split an absolute URL with a host; return None if it is malformed."""
    if _FORBIDDEN_CHARACTERS.search(url):
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in _PORTS and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if usable else None


def origin_of(url: str) -> Origin | None:
    """Return the origin of a URL, in lower case and with its port, or None if the URL is malformed."""
    parts = _split(url)
    if parts is None:
        return None
    return Origin(
        _HTTP_SCHEME.get(parts.scheme, parts.scheme), parts.hostname or "", parts.port or _PORTS[parts.scheme]
    )


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address can only be this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def require_secure_url(url: str, what: str, *, hop: str, clause: str) -> str:
    """Return the URL if it is https, or http to this machine, and has no fragment, user or password. Raises
    `AuthorizationFailed`."""
    parts = _split(url)
    if parts is None:
        raise AuthorizationFailed(f"{what} is not a usable URL: {safe_text(url)!r}", hop=hop, clause=clause)
    if parts.username is not None or parts.password is not None or "#" in url:
        why = "must have neither a user nor a fragment"
        raise AuthorizationFailed(f"{what} {why}: {safe_text(url)!r}", hop=hop, clause=clause)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        why = "must be https; http is allowed for this machine only"
        raise AuthorizationFailed(f"{what} {why}: {safe_text(url)!r}", hop=hop, clause=clause)
    return url


def safe_text(text: str) -> str:
    """Make text of a peer safe to show to a user: escape control characters and limit its length."""
    return printable(text.strip(), max_length=_MAX_TEXT_CHARS)
