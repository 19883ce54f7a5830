"""Error responses of the resource server: status, reason and `WWW-Authenticate` challenge."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from trunkline.auth.challenge import format_challenge
from trunkline.auth.principal import Principal
from trunkline.auth.server.resource_url import ResourceLocation
from trunkline.transports.http.authenticator import Rejected

__all__ = ["ChallengeWriter", "proof_algorithms"]

_CHALLENGE: Final = b"www-authenticate"
_OIDC_SCOPES: Final = frozenset({"openid", "profile", "email", "address", "phone", "offline_access"})


class ChallengeWriter(Struct, frozen=True):
    """Builds error responses for a server that requires these scopes for every request."""

    scopes: Sequence[str]
    scheme: str  # preferred scheme: Bearer or DPoP

    def unauthorized(
        self, location: ResourceLocation, why: str, kind: str, *, error: str | None = None, scheme: str | None = None
    ) -> Rejected:
        """Return a 401. The challenge names an error only if the request had a token (RFC 6750, section 3.1)."""
        used = scheme or self.scheme
        params = {
            "error": error,
            "error_description": why if error else None,
            "scope": " ".join(self.scopes) or None,
            "resource_metadata": location.metadata_url,
            "algs": " ".join(proof_algorithms()) if used == "DPoP" else None,
        }
        return Rejected(401, why, kind, [(_CHALLENGE, format_challenge(used, params).encode())])

    def insufficient_scope(self, location: ResourceLocation, principal: Principal, scheme: str) -> Rejected:
        """Return a 403 for a token without the scopes that every request requires."""
        why = f"access denied: the token lacks a required scope of {' '.join(self.scopes)!r}"
        return Rejected(
            403, why, "authorization_failed", [self.insufficient_scope_header(location, principal, (), scheme)]
        )

    def insufficient_scope_header(
        self, location: ResourceLocation, principal: Principal, scopes: Iterable[str], scheme: str
    ) -> tuple[bytes, bytes]:
        """Return the challenge for missing scopes. It lists all required scopes and those of the token, so that a
        client does not lose scopes by following it."""
        held = sorted(one for one in principal.scopes if one not in _OIDC_SCOPES)
        required = dict.fromkeys(one for one in (*self.scopes, *scopes, *held) if one != "offline_access")
        params = {
            "error": "insufficient_scope",
            "scope": " ".join(required),
            "resource_metadata": location.metadata_url,
        }
        return (_CHALLENGE, format_challenge(scheme, params).encode())

    def bad_request(self, location: ResourceLocation, why: str) -> Rejected:
        """Return a 400 for malformed credentials."""
        params = {"error": "invalid_request", "error_description": why, "resource_metadata": location.metadata_url}
        return Rejected(400, why, "invalid_request", [(_CHALLENGE, format_challenge(self.scheme, params).encode())])


def proof_algorithms() -> tuple[str, ...]:
    """Return the signature algorithms of DPoP proofs."""
    from trunkline.auth.jose import ALGORITHMS  # imported late: servers with static tokens do not need joserfc

    return ALGORITHMS
