"""What is said to whoever is not let in: a status, a reason, and the challenge that tells how to do better."""

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
    """Writes refusals for a server whose tokens need these scopes, whatever is asked."""

    scopes: Sequence[str]
    scheme: str  # by which tokens should come

    def unauthorized(
        self, location: ResourceLocation, why: str, kind: str, *, error: str | None = None, scheme: str | None = None
    ) -> Rejected:
        """401. The challenge names an error only if a token was sent (RFC 6750, section 3.1)."""
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
        """403: a token that does not cover what everything here needs."""
        why = f"everything here needs the scope {' '.join(self.scopes)!r}"
        return Rejected(
            403, why, "authorization_failed", [self.insufficient_scope_header(location, principal, (), scheme)]
        )

    def insufficient_scope_header(
        self, location: ResourceLocation, principal: Principal, scopes: Iterable[str], scheme: str
    ) -> tuple[bytes, bytes]:
        """The challenge for scopes that are missing: with all that is needed, and all there was, so that no client
        loses by it what it had."""
        held = sorted(one for one in principal.scopes if one not in _OIDC_SCOPES)
        wanted = dict.fromkeys(one for one in (*self.scopes, *scopes, *held) if one != "offline_access")
        params = {"error": "insufficient_scope", "scope": " ".join(wanted), "resource_metadata": location.metadata_url}
        return (_CHALLENGE, format_challenge(scheme, params).encode())

    def bad_request(self, location: ResourceLocation, why: str) -> Rejected:
        """400: credentials that cannot be read."""
        params = {"error": "invalid_request", "error_description": why, "resource_metadata": location.metadata_url}
        return Rejected(400, why, "invalid_request", [(_CHALLENGE, format_challenge(self.scheme, params).encode())])


def proof_algorithms() -> tuple[str, ...]:
    """What DPoP proofs may be signed by."""
    from trunkline.auth.jose import ALGORITHMS  # not needed by servers that have static tokens only

    return ALGORITHMS
