"""Authenticator of one application: verifies the token of each request and returns the principal or an error
response."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from trunkline.auth.metadata import ResourceMetadata
from trunkline.auth.principal import Principal
from trunkline.auth.server.authorization_header import (
    MalformedAuthorization,
    PresentedToken,
    has_query_token,
    parse_authorization,
)
from trunkline.auth.server.challenges import ChallengeWriter, proof_algorithms
from trunkline.auth.server.issuer_requests import IssuerRequests, TooManyRejected
from trunkline.auth.server.resource_url import (
    ResourceLocation,
    location_from_public_url,
    location_from_request,
    metadata_paths,
)
from trunkline.auth.server.token_cache import TokenCache
from trunkline.auth.server.verifiers import BadToken, Unavailable, Verified, Verifier, select_verifiers
from trunkline.errors import StoreError
from trunkline.transports.http.authenticator import Admitted, AuthResult, Rejected
from trunkline.transports.http.request import HttpRequest
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.auth.server.dpop import BadProof, ProofVerifier, SharedProofStore, UsedProof

__all__ = ["TokenAuthenticator", "TokenRules"]

_log: Final = logging.getLogger("trunkline")
_SSE: Final = "/sse"  # HTTP+SSE is a resource of its own, since its clients know that URL
_MAX_LOCATIONS: Final = 256
_LOG_INTERVAL: Final = 60.0  # seconds between two warnings about unavailable verifiers


class _TokenRequest(Struct, frozen=True):
    """A request with a token."""

    http: HttpRequest
    location: ResourceLocation
    presented: PresentedToken
    now: float

    def __repr__(self) -> str:
        return f"_TokenRequest({self.location.resource!r}, {self.presented!r})"


class TokenRules(Protocol):
    """Rules of a resource server, as its authenticators apply them. `ResourceServer` documents the attributes."""

    verifiers: tuple[Verifier, ...]
    scopes: tuple[str, ...]
    public_url: str | None
    allow: Callable[[Principal], bool] | None
    scopes_supported: tuple[str, ...]
    documentation: str | None
    resource_name: str | None
    dpop: bool | None
    dpop_nonces: bool
    now: Callable[[], float]
    tokens: TokenCache
    requests: dict[Verifier, IssuerRequests]

    def held(self, principal: Principal) -> Principal:
        """Return the principal with all scopes that its own scopes imply."""
        ...


class TokenAuthenticator:
    """Authenticates requests to the endpoint at a path, by access tokens."""

    def __init__(
        self, rules: TokenRules, path: str, memory: "Callable[[], SharedProofStore | None] | None" = None
    ) -> None:
        """`memory` returns the replay store that all processes share, if there are several."""
        self._rules = rules
        self._shared_proofs = memory
        self._path = path
        self._challenges = ChallengeWriter(rules.scopes, "DPoP" if rules.dpop else "Bearer")
        self._locations: dict[object, ResourceLocation] = {}
        self._metadata_paths = dict.fromkeys(metadata_paths(_SSE, None), _SSE)
        self._metadata_paths.update(dict.fromkeys(metadata_paths(path, rules.public_url), path))
        self._proof_verifier: ProofVerifier | None = None  # created on first use
        self._logged_at: float | None = None  # time of the last warning

    # --- location ----------------------------------------------------------------------------------

    def _locate(self, request: HttpRequest, path: str) -> ResourceLocation:
        public = self._rules.public_url
        key = path if public is not None else _location_key(request, path)
        location = self._locations.get(key)
        if location is None:
            location = (
                location_from_request(request, path)
                if public is None
                else location_from_public_url(public, self._path, path)
            )
            if len(self._locations) < _MAX_LOCATIONS:
                self._locations[key] = location
        return location

    def metadata_document(self, request: HttpRequest) -> bytes | None:
        """Return the endpoint's resource metadata as JSON if that is at the request's path; None if not. It is
        public."""
        path = self._metadata_paths.get(request.path)
        if path is None:
            return None
        rules = self._rules
        issuers = tuple(dict.fromkeys(one.issuer for one in rules.verifiers if one.issuer is not None))
        return codec.to_json(
            ResourceMetadata(
                resource=self._locate(request, path).resource,
                authorization_servers=issuers or None,
                scopes_supported=rules.scopes_supported or None,
                bearer_methods_supported=("header",),
                resource_name=rules.resource_name,
                resource_documentation=rules.documentation,
                dpop_signing_alg_values_supported=proof_algorithms() if issuers and rules.dpop is not False else None,
                dpop_bound_access_tokens_required=rules.dpop or None,
            )
        )

    # --- authentication ----------------------------------------------------------------------------

    def authenticate(self, request: HttpRequest, path: str) -> AuthResult | Awaitable[AuthResult]:
        """Authenticate a request. Return the result directly if the token is cached or missing."""
        location = self._locate(request, path)
        if request.query and has_query_token(request.query):
            why = "an access token must not be in the URL; send it as Authorization: Bearer"
            return self._challenges.bad_request(location, why)
        header = request.headers.get(b"authorization")
        try:
            presented = None if header is None else parse_authorization(header)
        except MalformedAuthorization:
            return self._challenges.bad_request(location, "the Authorization header is malformed")
        if presented is None:
            return self._challenges.unauthorized(
                location, "authentication required: send an access token", "authentication_failed"
            )
        asked = _TokenRequest(request, location, presented, self._rules.now())
        cached = self._rules.tokens.get(presented.token, location.audiences, asked.now)
        return self._authenticate_unknown_token(asked) if cached is None else self._authorize(asked, cached)

    async def _authenticate_unknown_token(self, request: _TokenRequest) -> AuthResult:
        """Verify a token that is not in the cache."""
        try:
            verified = await self._verify(request)
        except BadToken as bad:
            scheme = request.presented.scheme
            return self._challenges.unauthorized(
                request.location, bad.why, bad.kind, error="invalid_token", scheme=scheme
            )
        except TooManyRejected as refused:
            return _refuse_rate(str(refused), refused.wait)
        except Unavailable as trouble:
            return self._refuse_unavailable(trouble, request.now)
        verdict = self._authorize(request, verified)
        return verdict if isinstance(verdict, Admitted | Rejected) else await verdict

    async def _verify(self, request: _TokenRequest) -> Verified:
        """Verify a token with the verifier of its issuer, or with the first verifier that accepts it, and cache the
        result."""
        token, audiences = request.presented.token, request.location.audiences
        bad = BadToken("the token is from an unknown issuer")
        for verifier in select_verifiers(self._rules.verifiers, token):
            try:
                verified = await self._ask_verifier(verifier, request)
            except BadToken as error:
                bad = error
                continue
            result = Verified(self._rules.held(verified.principal), verified.expires, verified.key)
            self._rules.tokens.put(token, audiences, result, verifier, request.now)
            return result
        raise bad

    async def _ask_verifier(self, verifier: Verifier, request: _TokenRequest) -> Verified:
        """Call one verifier, within the limits of requests to its issuer."""
        token, audiences, now = request.presented.token, request.location.audiences, request.now
        requests = self._rules.requests.get(verifier)
        if requests is not None:
            ask = partial(_verify_async, verifier, token, audiences, now)
            return await requests.verify(token, audiences, ask, address=request.http.client_host or None, now=now)
        result = verifier.verify(token, audiences, now)
        # In a task of its own: this code may run outside of a task, where asyncio.timeout does not work.
        return result if isinstance(result, Verified) else await asyncio.ensure_future(result)

    def _authorize(self, request: _TokenRequest, verified: Verified) -> AuthResult | Awaitable[AuthResult]:
        """Check the DPoP binding of a verified token, then its scopes."""
        if verified.key is None and request.presented.scheme != "DPoP" and not self._rules.dpop:
            return self._check_scopes(request, verified)
        if isinstance(key := self._require_bound_key(request, verified), Rejected):
            return key
        memory = None if self._shared_proofs is None else self._shared_proofs()
        if memory is not None:
            return self._authorize_with_shared_proofs(request, verified, key, memory)
        used = self._check_proof(request, key, self._get_proof_verifier())
        return used if isinstance(used, Rejected) else self._check_scopes(request, verified)

    async def _authorize_with_shared_proofs(
        self, request: _TokenRequest, verified: Verified, key: str, shared_proofs: "SharedProofStore"
    ) -> AuthResult:
        """Like `_authorize`, where another process may have accepted the same proof."""
        from trunkline.auth.server.dpop import ProofReplayed

        try:
            proofs = self._proof_verifier or self._get_proof_verifier(await shared_proofs.secret())
            used = self._check_proof(request, key, proofs)
            if not isinstance(used, Rejected) and not await shared_proofs.record_first_use(used.id, used.expires):
                return self._refuse_proof(request, ProofReplayed(), proofs)
        except StoreError as error:
            return self._refuse_unavailable(
                Unavailable(f"the replay store of DPoP proofs is unavailable: {error}"), request.now
            )
        return used if isinstance(used, Rejected) else self._check_scopes(request, verified)

    def _get_proof_verifier(self, secret: bytes | None = None) -> "ProofVerifier":
        from trunkline.auth.server.dpop import ProofVerifier

        self._proof_verifier = self._proof_verifier or ProofVerifier(nonces=self._rules.dpop_nonces, secret=secret)
        return self._proof_verifier

    def _check_scopes(self, request: _TokenRequest, verified: Verified) -> AuthResult:
        """Check the required scopes and the `allow` callback."""
        principal = verified.principal
        if not principal.scopes.issuperset(self._rules.scopes):
            return self._challenges.insufficient_scope(request.location, principal, request.presented.scheme)
        allow = self._rules.allow
        if allow is not None and not allow(principal):
            return Rejected(403, "access denied for this principal", "unauthorized_operation")
        return Admitted(principal, None if verified.expires is None else verified.expires - request.now)

    def _require_bound_key(self, request: _TokenRequest, verified: Verified) -> str | Rejected:
        """Return the key that the proof must be signed with, or the error response for a wrong binding."""
        if verified.key is None:
            return self._refuse_binding(request, "the token must be bound to a key (DPoP)")
        if self._rules.dpop is False:
            return self._refuse_binding(
                request, "the token is bound to a key (DPoP), which this server does not support"
            )
        if request.presented.scheme != "DPoP":
            return self._refuse_binding(
                request, "the token is bound to a key: send it as Authorization: DPoP, with a proof"
            )
        return verified.key

    def _refuse_binding(self, request: _TokenRequest, why: str) -> Rejected:
        return self._challenges.unauthorized(
            request.location, why, "invalid_token", error="invalid_token", scheme="DPoP"
        )

    def _check_proof(self, request: _TokenRequest, key: str, proofs: "ProofVerifier") -> "UsedProof | Rejected":
        """Verify and record the DPoP proof of a request, or return the error response."""
        from trunkline.auth.server.dpop import BadProof
        from trunkline.auth.server.dpop_replay import TooManyProofs

        proof = request.http.headers.get(b"dpop", b"").decode("latin-1")
        method, url = request.http.method, self._request_url(request)
        try:
            return proofs.check(proof, key=key, method=method, url=url, token=request.presented.token, now=request.now)
        except BadProof as bad:
            return self._refuse_proof(request, bad, proofs)
        except TooManyProofs as refused:
            return _refuse_rate(f"the DPoP proof is not accepted: {refused}", refused.wait)

    def _refuse_proof(self, request: _TokenRequest, bad: "BadProof", proofs: "ProofVerifier") -> Rejected:
        from trunkline.auth.server.dpop import NonceRequired

        error = "use_dpop_nonce" if isinstance(bad, NonceRequired) else "invalid_dpop_proof"
        why = f"the DPoP proof is invalid: {bad}"
        turned = self._challenges.unauthorized(request.location, why, "invalid_token", error=error, scheme="DPoP")
        nonce = proofs.nonce(request.now)
        return Rejected(401, why, turned.kind, [*turned.headers, *([(b"dpop-nonce", nonce.encode())] if nonce else [])])

    def _request_url(self, request: _TokenRequest) -> str:
        """Return the URL of a request as its client sees it."""
        path = request.http.path
        return request.location.resource if path == self._path else f"{request.location.base_url}{path.rstrip('/')}"

    def scope_challenge(
        self, request: HttpRequest, path: str, principal: Any, scopes: Sequence[str]
    ) -> tuple[bytes, bytes]:
        """Return the challenge for scopes that an authenticated caller lacks."""
        scheme = "DPoP" if request.headers.get(b"authorization", b"")[:5].lower() == b"dpop " else "Bearer"
        return self._challenges.insufficient_scope_header(self._locate(request, path), principal, scopes, scheme)

    def _refuse_unavailable(self, trouble: Unavailable, now: float) -> Rejected:
        """Return a 503 with Retry-After: the caller is not at fault."""
        if self._logged_at is None or not 0 <= now - self._logged_at < _LOG_INTERVAL:
            self._logged_at = now
            _log.warning("tokens cannot be verified: %s", trouble)
        return Rejected(503, "tokens cannot be verified now", "temporarily_unavailable", [(b"retry-after", b"5")])


async def _verify_async(verifier: Verifier, token: str, audiences: frozenset[str], now: float) -> Verified:
    result = verifier.verify(token, audiences, now)
    return result if isinstance(result, Verified) else await result


def _refuse_rate(why: str, wait: int) -> Rejected:
    return Rejected(429, why, "rate_limit_exceeded", [(b"retry-after", b"%d" % wait)])


def _location_key(request: HttpRequest, path: str) -> object:
    """Return all parts of a request that its location depends on."""
    port = request.server[1] if request.server else None
    return (path, request.headers.get(b"host"), request.scheme, port, request.root_path, request.proxied)
