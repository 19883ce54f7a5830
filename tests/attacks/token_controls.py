"""Controls of resource servers: token verification and the separation of principals."""

import base64
import json
from typing import Any

import pytest
from tests.attacks.patches import Patch, Rows, both, forced, replaced

from trunkline.auth import challenge
from trunkline.auth.jose import KeySet, SignedToken
from trunkline.auth.principal import Principal
from trunkline.auth.server import authenticator, claims, token_cache
from trunkline.auth.server.authenticator import TokenAuthenticator
from trunkline.auth.server.dpop import ProofVerifier
from trunkline.auth.server.issuer_keys import IssuerKeys
from trunkline.auth.server.issuer_requests import IssuerRequests
from trunkline.auth.server.resource_server import ResourceServer
from trunkline.auth.server.resource_url import ResourceLocation
from trunkline.auth.server.verifiers import Verified
from trunkline.protocol.modern import CacheHint
from trunkline.registry.access import Access
from trunkline.server.access.rules import AccessRules as ServerRules
from trunkline.server.catalog import ServerCatalog
from trunkline.server.run import process
from trunkline.transports.http.app import HttpApp
from trunkline.transports.http.authenticator import Admitted
from trunkline.transports.http.request import HttpRequest
from trunkline.transports.http.session.sessions import SessionTable


def _part(text: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def _unverified_claims(self: KeySet, token: str, _: Any = ()) -> SignedToken:
    """Accept the claims of a token without checking its signature."""
    header, body, *_ = token.split(".")
    return SignedToken(_part(header), _part(body))


def _without(name: str, **instead: Any) -> Patch:
    """Skip the check of one claim, as if it had the expected value."""
    original = claims.validate_claims

    def without_claim_check(header: Any, said: Any, rules: Any, now: float) -> Verified:
        usual = {"aud": next(iter(rules.audiences)), "iss": rules.issuer} | instead
        return original(header, {**said, name: usual[name]}, rules, now)

    def apply(patch: pytest.MonkeyPatch) -> None:
        from trunkline.auth.server import jwt

        patch.setattr(jwt, "validate_claims", without_claim_check)

    return apply


def _first_verifier(patch: pytest.MonkeyPatch) -> None:
    """Use the keys of every verifier for the tokens of every issuer."""
    seen: list[KeySet] = []
    original_init, original = KeySet.__init__, KeySet.verify

    def init(self: KeySet, jwks: bytes) -> None:
        original_init(self, jwks)
        seen.append(self)
        for one in seen:
            one._keys = [key for each in seen for key in each._keys]

    patch.setattr(KeySet, "__init__", init)
    patch.setattr(KeySet, "verify", original)


def _url_from_headers(request: HttpRequest, path: str) -> ResourceLocation:
    """Derive the resource URL from headers that any client can send."""
    said = {name.decode(): value.decode() for name, value in request.headers.items()}
    host, port = said.get("x-forwarded-host", said["host"]), said.get("x-forwarded-port")
    scheme = said.get("x-forwarded-proto", request.scheme)
    base = f"{scheme}://{host}{f':{port}' if port else ''}{said.get('x-forwarded-prefix', '')}"
    return ResourceLocation(f"{base}{path}", frozenset({f"{base}{path}"}), base, base)


def _without_audience(public: str, main: str, path: str) -> ResourceLocation:
    """Accept tokens without this audience at a public address."""
    return ResourceLocation(public, frozenset({public, "https://mcp.example/mcp"}), public, public)


async def _always_introspect(_: IssuerRequests, token: str, audiences: Any, ask: Any, **__: Any) -> Verified:
    """Introspect each token anew, without limits."""
    return await ask()


def _any_proof(*_: Any, **__: Any) -> None:
    return None


def _principals_by(*names: str) -> Patch:
    """Tell principals apart by fewer fields."""

    def identity(self: Principal) -> tuple[str, ...]:
        return tuple(getattr(self, name) for name in names)

    return both(
        replaced(Principal, "__eq__", lambda self, other: identity(self) == identity(other)),
        replaced(Principal, "__hash__", lambda self: hash(identity(self))),
        replaced(Principal, "__repr__", lambda self: repr(identity(self))),
    )


def _session_id_authenticates(patch: pytest.MonkeyPatch) -> None:
    """Accept the session id as proof of the principal."""
    add, admit = SessionTable.add, TokenAuthenticator.authenticate
    owners: dict[bytes, Any] = {}

    def added(self: SessionTable, made: Any, principal: Any) -> Any:
        session = add(self, made, principal)
        owners[session.id.encode()] = principal
        return session

    def admitted(self: TokenAuthenticator, request: HttpRequest, path: str) -> Any:
        owner = owners.get(request.headers.get(b"mcp-session-id", b""))
        return admit(self, request, path) if owner is None else Admitted(owner)

    patch.setattr(SessionTable, "add", added)
    patch.setattr(TokenAuthenticator, "authenticate", admitted)


def _open_websocket(patch: pytest.MonkeyPatch) -> None:
    """A WebSocket endpoint without authentication."""
    original = HttpApp._admit_websocket

    def admit(self: HttpApp, request: HttpRequest) -> Any:
        gate, self._authenticator = self._authenticator, None
        try:
            return original(self, request)
        finally:
            self._authenticator = gate

    patch.setattr(HttpApp, "_admit_websocket", admit)


def _endless_credentials(patch: pytest.MonkeyPatch) -> None:
    """Credentials that are good for as long as a connection lasts."""
    original = HttpApp._accept_credentials

    def accept(self: HttpApp, request: HttpRequest, result: Any) -> bool:
        accepted = original(self, request, result)
        request.auth_expires_at = None
        return accepted

    patch.setattr(HttpApp, "_accept_credentials", accept)
    patch.setattr(HttpApp, "_auth_expiry", lambda *_: None)


ALL_USERS_OF_A_CLIENT_ARE_ONE = _principals_by("issuer", "client")
COVERED = replaced(Access, "is_covered_by", lambda *_: True)

ROWS: Rows = {
    "test_tenants": {
        "test_users_of_one_client_do_not_share_a_session": ALL_USERS_OF_A_CLIENT_ARE_ONE,
        "test_same_subject_at_another_issuer_is_another_principal": _principals_by("client", "subject"),
        "test_same_user_with_another_client_has_other_sessions": _principals_by("issuer", "subject"),
        "test_stream_url_is_useless_to_another_user": ALL_USERS_OF_A_CLIENT_ARE_ONE,
        "test_session_id_is_no_authentication": _session_id_authenticates,
        "test_websocket_needs_a_token_for_its_audience": _open_websocket,
        "test_open_streams_end_with_their_token": _endless_credentials,
        "test_state_is_useless_to_another_user": ALL_USERS_OF_A_CLIENT_ARE_ONE,
        "test_cursor_is_useless_to_another_user": ALL_USERS_OF_A_CLIENT_ARE_ONE,
        "test_filtered_lists_are_not_cached_across_users": replaced(
            ServerCatalog, "cache_hint", lambda self, what, **_: CacheHint(60.0, "public")
        ),
        "test_uncallable_tools_are_not_listed": replaced(ServerRules, "hidden_keys", lambda *_: frozenset()),
        "test_session_grants_nothing_beyond_the_request_token": COVERED,
        "test_updates_of_unreadable_resources_are_not_sent": COVERED,
        "test_updates_stop_after_scopes_shrink": COVERED,
        "test_strict_server_rejects_entries_without_a_rule": forced(ResourceServer, strict=False),
        "test_scoped_entries_need_an_authenticated_listener": replaced(process, "_check_no_scopes", lambda _: None),
    },
    "test_oauth_server": {
        "test_forged_token_is_refused": replaced(KeySet, "verify", _unverified_claims),
        "test_unknown_keys_cause_bounded_fetches": replaced(IssuerKeys, "_may_fetch", lambda *_: True),
        "test_token_for_another_audience_is_refused": _without("aud"),
        "test_token_of_another_issuer_is_refused": _without("iss"),
        "test_issuers_cannot_impersonate_each_other": _first_verifier,
        "test_cached_token_is_bound_to_its_audience": replaced(
            token_cache, "_key", lambda token, _: (token.encode(), ())
        ),
        "test_caller_cannot_choose_audience": replaced(authenticator, "location_from_request", _url_from_headers),
        "test_proxy_headers_do_not_change_audience": replaced(
            authenticator, "location_from_request", _url_from_headers
        ),
        "test_public_url_overrides_proxy_headers": replaced(
            authenticator, "location_from_public_url", _without_audience
        ),
        "test_invented_tokens_cause_bounded_requests": replaced(IssuerRequests, "verify", _always_introspect),
        "test_repeated_invented_token_is_one_request": replaced(IssuerRequests, "verify", _always_introspect),
        "test_slow_issuer_has_bounded_queue": replaced(IssuerRequests, "verify", _always_introspect),
        "test_wildcard_host_needs_public_url": replaced(
            ResourceServer, "within", lambda self, path, **_: TokenAuthenticator(self, path)
        ),
        "test_token_is_refused_outside_its_validity": replaced(claims, "_check_times", lambda *_: None),
        "test_token_for_another_purpose_is_refused": replaced(claims, "_check_type", lambda *_: None),
        "test_token_without_subject_is_refused": _without("sub", sub="everybody"),
        "test_token_in_url_is_refused": replaced(authenticator, "has_query_token", lambda _: False),
        "test_bound_token_without_key_is_refused": replaced(claims, "_read_bound_key", lambda _: None),
        "test_proof_is_bound_to_request_key_and_token": replaced(ProofVerifier, "check", _any_proof),
        "test_caller_cannot_inject_headers": replaced(challenge, "_escape_quoted", lambda text: text),
    },
}
