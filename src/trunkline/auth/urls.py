"""Addresses that somebody else named: what they are made of, and whether they may be used at all."""

import re
from ipaddress import ip_address
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from trunkline.errors import AuthorizationFailed
from trunkline.errors.text import printable

__all__ = ["Origin", "is_loopback", "origin_of", "require_secure_url", "safe_text"]

_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_HTTP_SCHEME: Final = {"ws": "http", "wss": "https"}  # one server, whichever way it is spoken to
_FORBIDDEN_CHARACTERS: Final = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
_MAX_TEXT_CHARS: Final = 300  # characters of what a peer says that a person is shown


class Origin(NamedTuple):
    """Scheme, host and port: who is spoken to, whatever the path."""

    scheme: str
    host: str
    port: int | None


def _split(url: str) -> SplitResult | None:
    """The parts of an absolute address with a host; None for what is none."""
    if _FORBIDDEN_CHARACTERS.search(url):
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in _PORTS and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if usable else None


def origin_of(url: str) -> Origin | None:
    """The origin of an address, in lower case and with its port; None for what is no address."""
    parts = _split(url)
    if parts is None:
        return None
    return Origin(
        _HTTP_SCHEME.get(parts.scheme, parts.scheme), parts.hostname or "", parts.port or _PORTS[parts.scheme]
    )


def is_loopback(host: str) -> bool:
    """Whether a name or an address can only be this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def require_secure_url(url: str, what: str, *, hop: str, clause: str) -> str:
    """The address, if it may be used: https, or http to this machine; without a fragment, user or password."""
    parts = _split(url)
    if parts is None:
        raise AuthorizationFailed(
            f"{what} is not an address that can be used: {safe_text(url)!r}", hop=hop, clause=clause
        )
    if parts.username is not None or parts.password is not None or "#" in url:
        why = "may have neither a user nor a fragment"
        raise AuthorizationFailed(f"{what} {why}: {safe_text(url)!r}", hop=hop, clause=clause)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        why = "must be https; http is only for this machine"
        raise AuthorizationFailed(f"{what} {why}: {safe_text(url)!r}", hop=hop, clause=clause)
    return url


def safe_text(text: str) -> str:
    """What a peer said, fit to be shown to a person: no control characters, and not too much of it."""
    return printable(text.strip(), max_length=_MAX_TEXT_CHARS)
