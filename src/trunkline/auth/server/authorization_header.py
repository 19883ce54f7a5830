"""Parse the `Authorization` request header (RFC 6750, RFC 9449)."""

import re
from typing import Final
from urllib.parse import parse_qsl

from msgspec import Struct

__all__ = ["MalformedAuthorization", "PresentedToken", "has_query_token", "parse_authorization"]

_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_SCHEMES: Final = {"bearer": "Bearer", "dpop": "DPoP"}


class PresentedToken(Struct, frozen=True):
    """A token and its scheme, `Bearer` or `DPoP`."""

    scheme: str
    token: str

    def __repr__(self) -> str:
        return f"PresentedToken({self.scheme})"


class MalformedAuthorization(Exception):
    """An `Authorization` header that cannot be parsed."""


def parse_authorization(header: bytes) -> PresentedToken | None:
    """Return the token of a header, or None for another scheme. Raises `MalformedAuthorization`."""
    if header[:7] == b"Bearer ":  # the common spelling, without a lookup
        scheme, credentials = "Bearer", header[7:].decode("latin-1")
    else:
        name, _, credentials = header.decode("latin-1").partition(" ")
        known = _SCHEMES.get(name.lower())
        if known is None:
            return None
        scheme = known
    token = credentials.strip(" ")
    if not _TOKEN.fullmatch(token):
        raise MalformedAuthorization
    return PresentedToken(scheme, token)


def has_query_token(query: bytes) -> bool:
    """Return whether the query has an access token, which would end up in histories and logs."""
    if b"access" not in query.lower() and b"%" not in query:
        return False
    return any(name.lower() == "access_token" for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True))
