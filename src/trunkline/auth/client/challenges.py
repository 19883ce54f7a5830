"""Challenges in the responses of an MCP server, as a client reads them."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from trunkline.auth.challenge import Challenge, parse_challenges
from trunkline.auth.urls import safe_text
from trunkline.errors import AuthorizationFailed
from trunkline.transports.http.client.credentials import HttpExchange

__all__ = ["FORBIDDEN", "UNAUTHORIZED", "TokenChallenge", "read_challenge", "read_sent_token"]

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
_SUPPORTED_SCHEMES: Final = frozenset({"bearer", "dpop"})


class TokenChallenge(Struct, frozen=True):
    """What a 401 or 403 response demands of the token."""

    status: int
    sent_token: str | None  # the refused token
    error: str | None = None  # OAuth error code
    scopes: tuple[str, ...] | None = None
    resource_metadata_url: str | None = None  # URL of the resource metadata
    description: str = ""  # error description, for messages
    dpop_required: bool = False  # the server accepts DPoP tokens only

    def __repr__(self) -> str:
        return f"TokenChallenge({self.status}, {self.error}, scopes={self.scopes})"


def read_challenge(response: HttpExchange) -> TokenChallenge | None:
    """Return the challenge of a response, or None if the response demands no other token. Raises
    `AuthorizationFailed` if the scheme is not supported."""
    if response.status not in {UNAUTHORIZED, FORBIDDEN}:
        return None
    values = [value for name, value in response.headers.items() if name.lower() == "www-authenticate"]
    challenges = parse_challenges(", ".join(values))
    ours = [one for one in challenges if one.scheme in _SUPPORTED_SCHEMES]
    params = {name: value for one in reversed(ours) for name, value in one.params.items()}
    error = params.get("error")
    if response.status == FORBIDDEN and error != "insufficient_scope":
        return None
    if challenges and not ours:
        schemes = ", ".join(safe_text(one.scheme) for one in challenges)
        why = f"the server wants {schemes}, but only Bearer and DPoP are supported"
        raise AuthorizationFailed(why, hop="server", clause="RFC 6750, section 3")
    words = params.get("error_description") or error
    return TokenChallenge(
        response.status,
        read_sent_token(response.sent),
        error,
        Challenge("", params).scopes,
        params.get("resource_metadata"),
        f": {safe_text(words)}" if words else "",
        bool(ours) and all(one.scheme == "dpop" for one in ours),
    )


def read_sent_token(sent: Mapping[str, str]) -> str | None:
    """Return the token that a request was sent with."""
    return sent.get("Authorization", "").partition(" ")[2] or None
