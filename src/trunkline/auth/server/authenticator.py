"""One application's gate: looks at what each request brings, and says who it is or what is wrong."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from trunkline.auth.metadata import ResourceMetadata
from trunkline.auth.server.authorization_header import Given, Malformed, given_in, in_query
from trunkline.auth.server.challenges import Refusing, proof_algorithms
from trunkline.auth.server.issuer_requests import TooManyRejected
from trunkline.auth.server.resource_url import Place, place_of, published_at, said_place
from trunkline.auth.server.verifiers import BadToken, Unavailable, Verified, Verifier, candidates
from trunkline.errors import StoreError
from trunkline.transports.http.authenticator import Admitted, Turned, Verdict
from trunkline.wire import codec

if TYPE_CHECKING:
    from trunkline.auth.server.dpop import BadProof, Memory, Proofs, Used
    from trunkline.auth.server.resource_server import ResourceServer

__all__ = ["Entrance"]

_log: Final = logging.getLogger("trunkline")
_SSE: Final = "/sse"  # HTTP+SSE is a resource of its own: that is the address which its clients know
_MOST_PLACES: Final = 256
_QUIET: Final = 60.0  # seconds between two lines in the log about the same trouble

Scope = dict[str, Any]


class _Comer(Struct, frozen=True):
    """Whoever has sent a request with a token."""

    scope: Scope
    headers: Mapping[bytes, bytes]
    place: Place
    given: Given
    now: float

    def __repr__(self) -> str:
        return f"_Comer({self.place.resource!r}, {self.given!r})"


class Entrance:
    """Decides who may come in to the endpoint at a path."""

    def __init__(
        self, resource: "ResourceServer", path: str, memory: "Callable[[], Memory | None] | None" = None
    ) -> None:
        """`memory` gives what other processes remember of proofs as well, where there are others."""
        self._resource = resource
        self._memory = memory
        self._path = path
        self._refusing = Refusing(resource.scopes, "DPoP" if resource.dpop else "Bearer")
        self._places: dict[object, Place] = {}
        self._pages = dict.fromkeys(published_at(_SSE, None), _SSE)
        self._pages.update(dict.fromkeys(published_at(path, resource.public_url), path))
        self._proofs: Proofs | None = None  # made when the first is needed
        self._told: float | None = None  # when trouble was last logged

    # --- where ---------------------------------------------------------------------------------

    def _place(self, scope: Scope, headers: Mapping[bytes, bytes], path: str) -> Place:
        public = self._resource.public_url
        key = path if public is not None else _seen(scope, headers, path)
        place = self._places.get(key)
        if place is None:
            place = place_of(scope, headers, path) if public is None else said_place(public, self._path, path)
            if len(self._places) < _MOST_PLACES:
                self._places[key] = place
        return place

    def page(self, scope: Scope, route: str) -> bytes | None:
        """The metadata of the endpoint, for anybody to read."""
        path = self._pages.get(route)
        if path is None:
            return None
        resource = self._resource
        issuers = tuple(dict.fromkeys(one.issuer for one in resource.verifiers if one.issuer is not None))
        return codec.to_json(
            ResourceMetadata(
                resource=self._place(scope, dict(scope["headers"]), path).resource,
                authorization_servers=issuers or None,
                scopes_supported=resource.scopes_supported or None,
                bearer_methods_supported=("header",),
                resource_name=resource.resource_name,
                resource_documentation=resource.documentation,
                dpop_signing_alg_values_supported=proof_algorithms()
                if issuers and resource.dpop is not False
                else None,
                dpop_bound_access_tokens_required=resource.dpop or None,
            )
        )

    # --- who -----------------------------------------------------------------------------------

    def admit(self, scope: Scope, headers: dict[bytes, bytes], path: str) -> Verdict | Awaitable[Verdict]:
        """Whether the sender of a request may come in."""
        place = self._place(scope, headers, path)
        if (query := scope.get("query_string")) and in_query(query):
            why = "a token does not belong into an address; send it as Authorization: Bearer"
            return self._refusing.malformed(place, why)
        header = headers.get(b"authorization")
        try:
            given = None if header is None else given_in(header)
        except Malformed:
            return self._refusing.malformed(place, "the header Authorization cannot be read")
        if given is None:
            return self._refusing.unauthorized(place, "say who you are: send a token", "authentication_failed")
        comer = _Comer(scope, headers, place, given, self._resource.now())
        known = self._resource.tokens.get(given.token, place.audiences, comer.now)
        return self._met(comer) if known is None else self._decided(comer, known)

    async def _met(self, comer: _Comer) -> Verdict:
        """The same for a token that was not seen before, or not lately."""
        try:
            verified = await self._verified(comer)
        except BadToken as bad:
            scheme = comer.given.scheme
            return self._refusing.unauthorized(comer.place, bad.why, bad.kind, error="invalid_token", scheme=scheme)
        except TooManyRejected as refused:
            return _slow_down(str(refused), refused.wait)
        except Unavailable as trouble:
            return self._unavailable(trouble, comer.now)
        verdict = self._decided(comer, verified)
        return verdict if isinstance(verdict, Admitted | Turned) else await verdict

    async def _verified(self, comer: _Comer) -> Verified:
        """What a token proves: to the verifier for its issuer, or to the first that knows it."""
        token, audiences = comer.given.token, comer.place.audiences
        bad = BadToken("the token is from an issuer that is not known here")
        for verifier in candidates(self._resource.verifiers, token):
            try:
                verified = await self._judged(verifier, comer)
            except BadToken as error:
                bad = error
                continue
            held = Verified(self._resource.held(verified.principal), verified.expires, verified.key)
            self._resource.tokens.put(token, audiences, held, verifier, comer.now)
            return held
        raise bad

    async def _judged(self, verifier: Verifier, comer: _Comer) -> Verified:
        """The verdict of one verifier, within the limits of requests to its issuer."""
        token, audiences, now = comer.given.token, comer.place.audiences, comer.now
        requests = self._resource.requests.get(verifier)
        if requests is not None:
            ask = partial(_answer, verifier, token, audiences, now)
            return await requests.verify(token, audiences, ask, address=_address(comer.scope), now=now)
        answer = verifier.verify(token, audiences, now)
        # In a task of its own: a request may be read outside of any, where no deadline can be set.
        return answer if isinstance(answer, Verified) else await asyncio.ensure_future(answer)

    def _decided(self, comer: _Comer, verified: Verified) -> Verdict | Awaitable[Verdict]:
        """Whether whoever a token is about may come in, with this very request."""
        if verified.key is None and comer.given.scheme != "DPoP" and not self._resource.dpop:
            return self._allowed(comer, verified)
        if isinstance(key := self._key(comer, verified), Turned):
            return key
        memory = None if self._memory is None else self._memory()
        if memory is not None:
            return self._proved(comer, verified, key, memory)
        used = self._used(comer, key, self._made_proofs())
        return used if isinstance(used, Turned) else self._allowed(comer, verified)

    async def _proved(self, comer: _Comer, verified: Verified, key: str, memory: "Memory") -> Verdict:
        """The same, where a proof may have been used at another process."""
        from trunkline.auth.server.dpop import UsedBefore

        try:
            proofs = self._proofs or self._made_proofs(await memory.secret())
            used = self._used(comer, key, proofs)
            if not isinstance(used, Turned) and not await memory.first(used.what, used.until):
                return self._bad_proof(comer, UsedBefore(), proofs)
        except StoreError as error:
            return self._unavailable(Unavailable(f"which proofs were used cannot be found out: {error}"), comer.now)
        return used if isinstance(used, Turned) else self._allowed(comer, verified)

    def _made_proofs(self, secret: bytes | None = None) -> "Proofs":
        from trunkline.auth.server.dpop import Proofs

        self._proofs = self._proofs or Proofs(nonces=self._resource.dpop_nonces, secret=secret)
        return self._proofs

    def _allowed(self, comer: _Comer, verified: Verified) -> Verdict:
        """Whether whoever a token is about may come in, if it is who it says."""
        principal = verified.principal
        if not principal.scopes.issuperset(self._resource.scopes):
            return self._refusing.insufficient(comer.place, principal, comer.given.scheme)
        allow = self._resource.allow
        if allow is not None and not allow(principal):
            return Turned(403, "you may not come in here", "unauthorized_operation")
        return Admitted(principal, None if verified.expires is None else verified.expires - comer.now)

    def _key(self, comer: _Comer, verified: Verified) -> str | Turned:
        """The key that a proof has to be made with, or what is wrong with a token that needs one."""
        if verified.key is None:
            return self._unbound(comer, "the token is not bound to a key, as it has to be")
        if self._resource.dpop is False:
            return self._unbound(comer, "the token is bound to a key, which is not looked at here")
        if comer.given.scheme != "DPoP":
            return self._unbound(comer, "the token is bound to a key: send it as Authorization: DPoP, with a proof")
        return verified.key

    def _unbound(self, comer: _Comer, why: str) -> Turned:
        return self._refusing.unauthorized(comer.place, why, "invalid_token", error="invalid_token", scheme="DPoP")

    def _used(self, comer: _Comer, key: str, proofs: "Proofs") -> "Used | Turned":
        """Uses a proof, or says what is wrong with it."""
        from trunkline.auth.server.dpop import BadProof
        from trunkline.auth.server.dpop_replay import TooManyProofs

        proof = comer.headers.get(b"dpop", b"").decode("latin-1")
        method, url = comer.scope.get("method", "GET"), self._asked_at(comer)
        try:
            return proofs.check(proof, key=key, method=method, url=url, token=comer.given.token, now=comer.now)
        except BadProof as bad:
            return self._bad_proof(comer, bad, proofs)
        except TooManyProofs as refused:
            return _slow_down(f"the DPoP proof is not accepted: {refused}", refused.wait)

    def _bad_proof(self, comer: _Comer, bad: "BadProof", proofs: "Proofs") -> Turned:
        from trunkline.auth.server.dpop import NonceWanted

        error = "use_dpop_nonce" if isinstance(bad, NonceWanted) else "invalid_dpop_proof"
        why = f"the DPoP proof is no good: {bad}"
        turned = self._refusing.unauthorized(comer.place, why, "invalid_token", error=error, scheme="DPoP")
        nonce = proofs.nonce(comer.now)
        return Turned(401, why, turned.kind, [*turned.headers, *([(b"dpop-nonce", nonce.encode())] if nonce else [])])

    def _asked_at(self, comer: _Comer) -> str:
        """The address of a request, as whoever sent it knows it."""
        route: str = comer.scope["path"].removeprefix(comer.scope.get("root_path", "")).rstrip("/")
        return comer.place.resource if (route or "/") == self._path else f"{comer.place.base}{route}"

    def challenge(self, scope: Scope, path: str, principal: Any, scopes: Sequence[str]) -> tuple[bytes, bytes]:
        """What somebody who was let in needs for what it asked."""
        headers = dict(scope["headers"])
        scheme = "DPoP" if headers.get(b"authorization", b"")[:5].lower() == b"dpop " else "Bearer"
        return self._refusing.needed(self._place(scope, headers, path), principal, scopes, scheme)

    def _unavailable(self, trouble: Unavailable, now: float) -> Turned:
        """Nobody's fault who comes: trying again later will do."""
        if self._told is None or not 0 <= now - self._told < _QUIET:
            self._told = now
            _log.warning("nobody can be let in: %s", trouble)
        return Turned(503, "tokens cannot be verified now", "temporarily_unavailable", [(b"retry-after", b"5")])


async def _answer(verifier: Verifier, token: str, audiences: frozenset[str], now: float) -> Verified:
    answer = verifier.verify(token, audiences, now)
    return answer if isinstance(answer, Verified) else await answer


def _address(scope: Scope) -> str | None:
    """The address of a caller, as far as it is known: a Unix socket has none."""
    client = scope.get("client")
    return client[0] if client and client[0] else None


def _slow_down(why: str, wait: int) -> Turned:
    return Turned(429, why, "rate_limit_exceeded", [(b"retry-after", b"%d" % wait)])


def _seen(scope: Scope, headers: Mapping[bytes, bytes], path: str) -> object:
    """All of a request that its place depends upon."""
    server = scope.get("server")
    port = server[1] if server else None
    return (path, headers.get(b"host"), scope.get("scheme"), port, scope.get("root_path"), scope.get("proxied"))
