"""Token responses of an authorization server, and the stored form of tokens."""

import math
import re
from typing import Any, Final

from msgspec import Struct

from trunkline.auth.metadata import canonical_resource
from trunkline.auth.urls import safe_text
from trunkline.errors import AuthorizationFailed
from trunkline.wire import codec

__all__ = [
    "StoredToken",
    "TokenResponse",
    "decode_stored_token",
    "encode_stored_token",
    "read_token_response",
    "token_store_key",
]

_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_TOKEN_TYPES: Final = {"bearer": "Bearer", "dpop": "DPoP"}
_MAX_LIFETIME: Final = 10 * 365 * 86_400.0  # seconds; larger values mean that the token does not expire
_CLAUSE: Final = "RFC 6749, section 5.1"


class TokenResponse(Struct, frozen=True):
    """A successful token response."""

    access_token: str
    token_type: str
    lifetime: float | None = None  # seconds; None if the response has no `expires_in`
    refresh_token: str | None = None
    scopes: tuple[str, ...] | None = None  # None: the requested ones

    def __repr__(self) -> str:
        return f"TokenResponse({self.token_type}, lifetime={self.lifetime}, scopes={self.scopes})"


class StoredToken(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token for one MCP server, and everything needed to renew it without user interaction."""

    issuer: str
    client_id: str
    access: str
    kind: str = "Bearer"
    expires: float | None = None  # seconds since the epoch
    renew: float | None = None  # seconds since the epoch: time of renewal
    refresh: str | None = None
    granted: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()
    hint: str | None = None  # URL of the resource metadata, if the server named it
    key: dict[str, Any] | None = None  # the private key that the token is bound to

    def __repr__(self) -> str:
        return f"StoredToken({self.kind} of {self.issuer!r}, expires={self.expires}, granted={self.granted})"


class _TokenResponseBody(Struct):
    access_token: str | None = None
    token_type: str | None = None
    expires_in: float | str | None = None
    refresh_token: str | None = None
    scope: str | None = None

    def __repr__(self) -> str:
        return f"_TokenResponseBody({self.token_type!r})"


_decode_response_body: Final = codec.json_decoder(_TokenResponseBody)
_decode_stored: Final = codec.json_decoder(StoredToken)


def read_token_response(body: bytes, *, hop: str, kinds: "dict[str, str] | None" = None) -> TokenResponse:
    """Decode a token response. `kinds` are the accepted token types, by their names in lower case. Raises
    `AuthorizationFailed`."""
    try:
        issued = _decode_response_body(body)
    except (codec.DecodeError, RecursionError):
        raise AuthorizationFailed("the token response cannot be read", hop=hop, clause=_CLAUSE) from None
    if not issued.access_token or not _VISIBLE.fullmatch(issued.access_token):
        raise AuthorizationFailed("the token response has no usable access token", hop=hop, clause=_CLAUSE)
    kind = (_TOKEN_TYPES if kinds is None else kinds).get((issued.token_type or "").lower())
    if kind is None:
        message = f"the token response has a token of type {safe_text(issued.token_type or '')!r}"
        raise AuthorizationFailed(f"{message}, which cannot be used", hop=hop, clause=_CLAUSE)
    scopes = None if issued.scope is None else tuple(issued.scope.split())
    return TokenResponse(
        issued.access_token, kind, _read_lifetime(issued.expires_in), issued.refresh_token or None, scopes
    )


def _read_lifetime(value: float | str | None) -> float | None:
    """Return the lifetime in seconds. Some servers send it as a string; an invalid value counts as absent."""
    try:
        seconds = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return min(seconds, _MAX_LIFETIME) if seconds > 0 else None


def token_store_key(server: str, grant: str) -> str:
    """Return the store key of the token for a server; each grant has its own."""
    return f"tokens of {grant} for {canonical_resource(server)}"


def decode_stored_token(data: bytes | None) -> StoredToken | None:
    """Decode a stored token; return None if there is none or it is unreadable."""
    try:
        return None if data is None else _decode_stored(data)
    except (codec.DecodeError, RecursionError):
        return None


def encode_stored_token(token: StoredToken) -> bytes:
    """Encode a token for the store."""
    return codec.to_json(token)
