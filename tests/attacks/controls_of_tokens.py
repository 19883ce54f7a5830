"""What holds off attacks with tokens, and on those who have some: the side of servers."""

import base64
import json
from typing import Any

import pytest
from tests.attacks.ways import Patch, Rows, both, forced, replaced

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
from trunkline.transports.http.app import AppState
from trunkline.transports.http.authenticator import Admitted
from trunkline.transports.http.session.sessions import SessionTable


def _part(text: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def _believed(self: KeySet, token: str, _: Any = ()) -> SignedToken:
    """What a token says, whoever has signed it."""
    header, body, *_ = token.split(".")
    return SignedToken(_part(header), _part(body))


def _without(name: str, **instead: Any) -> Patch:
    """Tokens whose claim of a name is not looked at: it is as if it said what it should."""
    original = claims.validate_claims

    def judged(header: Any, said: Any, rules: Any, now: float) -> Verified:
        usual = {"aud": next(iter(rules.audiences)), "iss": rules.issuer} | instead
        return original(header, {**said, name: usual[name]}, rules, now)

    def apply(patch: pytest.MonkeyPatch) -> None:
        from trunkline.auth.server import jwt

        patch.setattr(jwt, "validate_claims", judged)

    return apply


def _first_verifier(patch: pytest.MonkeyPatch) -> None:
    """Every verifier's keys are good for every issuer's tokens."""
    seen: list[KeySet] = []
    original_init, original = KeySet.__init__, KeySet.verify

    def init(self: KeySet, jwks: bytes) -> None:
        original_init(self, jwks)
        seen.append(self)
        for one in seen:
            one._keys = [key for each in seen for key in each._keys]

    patch.setattr(KeySet, "__init__", init)
    patch.setattr(KeySet, "verify", original)


def _by_what_is_said(scope: Any, headers: Any, path: str) -> ResourceLocation:
    """Where a request came to, by the headers that anybody can write."""
    said = {name.decode(): value.decode() for name, value in headers.items()}
    host, port = said.get("x-forwarded-host", said["host"]), said.get("x-forwarded-port")
    scheme = said.get("x-forwarded-proto", scope.get("scheme", "http"))
    base = f"{scheme}://{host}{f':{port}' if port else ''}{said.get('x-forwarded-prefix', '')}"
    return ResourceLocation(f"{base}{path}", frozenset({f"{base}{path}"}), base, base)


def _everywhere(public: str, main: str, path: str) -> ResourceLocation:
    """A public address that tokens need not be for."""
    return ResourceLocation(public, frozenset({public, "https://mcp.example/mcp"}), public, public)


async def _each_asked(_: IssuerRequests, token: str, audiences: Any, ask: Any, **__: Any) -> Verified:
    """What the issuer says, whatever has been asked before and by whom."""
    return await ask()


def _any_proof(*_: Any, **__: Any) -> None:
    return None


def _known_by(*names: str) -> Patch:
    """Principals that are told apart by less than all of what they are."""

    def identity(self: Principal) -> tuple[str, ...]:
        return tuple(getattr(self, name) for name in names)

    return both(
        replaced(Principal, "__eq__", lambda self, other: identity(self) == identity(other)),
        replaced(Principal, "__hash__", lambda self: hash(identity(self))),
        replaced(Principal, "__repr__", lambda self: repr(identity(self))),
    )


def _let_in_by_session(patch: pytest.MonkeyPatch) -> None:
    """Whoever has the id of a session is whoever opened it."""
    add, admit = SessionTable.add, TokenAuthenticator.authenticate
    owners: dict[bytes, Any] = {}

    def added(self: SessionTable, made: Any, principal: Any) -> Any:
        session = add(self, made, principal)
        owners[session.id.encode()] = principal
        return session

    def admitted(self: TokenAuthenticator, scope: Any, headers: Any, path: str) -> Any:
        owner = owners.get(headers.get(b"mcp-session-id"))
        return admit(self, scope, headers, path) if owner is None else Admitted(owner)

    patch.setattr(SessionTable, "add", added)
    patch.setattr(TokenAuthenticator, "authenticate", admitted)


def _open_websocket(patch: pytest.MonkeyPatch) -> None:
    """The other transport, which was forgotten."""
    called = AppState.handle_websocket

    async def open_(self: AppState, *args: Any) -> None:
        gate, self._authenticator = self._authenticator, None
        try:
            await called(self, *args)
        finally:
            self._authenticator = gate

    patch.setattr(AppState, "handle_websocket", open_)


ALL_USERS_OF_A_CLIENT_ARE_ONE = _known_by("issuer", "client")
COVERED = replaced(Access, "is_covered_by", lambda *_: True)

ROWS: Rows = {
    "test_tenants": {
        "test_two_users_of_one_client_do_not_share_a_session": ALL_USERS_OF_A_CLIENT_ARE_ONE,
        "test_somebody_of_the_same_name_at_another_issuer_is_somebody_else": _known_by("client", "subject"),
        "test_the_same_person_by_another_client_has_other_sessions": _known_by("issuer", "subject"),
        "test_the_address_of_a_stream_is_of_no_use_to_another_user_of_the_same_client": ALL_USERS_OF_A_CLIENT_ARE_ONE,
        "test_a_session_is_no_proof_of_who_comes_with_it": _let_in_by_session,
        "test_a_websocket_is_opened_with_a_token_for_it_or_not_at_all": _open_websocket,
        "test_whatever_stays_open_ends_with_the_token_that_opened_it": replaced(
            AppState, "_auth_expiry", lambda *_: None
        ),
        "test_a_state_of_one_user_is_nothing_to_another_of_the_same_client": ALL_USERS_OF_A_CLIENT_ARE_ONE,
        "test_a_cursor_of_one_user_is_nothing_to_another_of_the_same_client": ALL_USERS_OF_A_CLIENT_ARE_ONE,
        "test_lists_that_not_everybody_sees_alike_are_kept_by_nobody_for_others": replaced(
            ServerCatalog, "cache_hint", lambda self, what, **_: CacheHint(60.0, "public")
        ),
        "test_nobody_is_shown_what_it_cannot_call": replaced(ServerRules, "hidden_keys", lambda *_: frozenset()),
        "test_a_session_gives_nobody_what_the_token_of_this_very_request_does_not": COVERED,
        "test_nobody_hears_of_what_it_may_not_read": COVERED,
        "test_who_comes_back_with_less_hears_no_more_of_what_it_may_not_read": COVERED,
        "test_a_strict_server_does_not_start_with_something_of_which_nobody_said_who_may_have_it": forced(
            ResourceServer, strict=False
        ),
        "test_what_needs_scopes_is_not_served_where_nobody_can_show_any": replaced(
            process, "_check_no_scopes", lambda _: None
        ),
    },
    "test_oauth_server": {
        "test_a_token_that_its_issuer_has_not_signed_opens_nothing": replaced(KeySet, "verify", _believed),
        "test_tokens_with_keys_that_do_not_exist_make_us_ask_for_keys_only_so_often": replaced(
            IssuerKeys, "_may_fetch", lambda *_: True
        ),
        "test_a_token_for_another_audience_opens_nothing": _without("aud"),
        "test_a_token_of_another_issuer_opens_nothing": _without("iss"),
        "test_of_two_issuers_neither_speaks_for_the_other": _first_verifier,
        "test_what_was_verified_for_one_address_is_not_good_for_another": replaced(
            token_cache, "_key", lambda token, _: (token.encode(), ())
        ),
        "test_whoever_calls_does_not_choose_whom_tokens_are_for": replaced(
            authenticator, "location_from_request", _by_what_is_said
        ),
        "test_a_trusted_proxy_passing_on_headers_does_not_change_the_audience": replaced(
            authenticator, "location_from_request", _by_what_is_said
        ),
        "test_public_url_is_the_audience_whatever_a_trusted_proxy_says": replaced(
            authenticator, "location_from_public_url", _everywhere
        ),
        "test_made_up_tokens_are_not_passed_on_to_the_issuer_without_limit": replaced(
            IssuerRequests, "verify", _each_asked
        ),
        "test_one_made_up_token_is_one_request_however_often_it_comes": replaced(IssuerRequests, "verify", _each_asked),
        "test_requests_to_a_slow_issuer_are_bounded_and_callers_beyond_that_come_back_later": replaced(
            IssuerRequests, "verify", _each_asked
        ),
        "test_a_server_that_answers_to_any_name_does_not_start_without_one_of_its_own": replaced(
            ResourceServer, "within", lambda self, path, **_: TokenAuthenticator(self, path)
        ),
        "test_a_token_opens_nothing_before_and_after_its_time": replaced(claims, "_check_times", lambda *_: None),
        "test_what_an_issuer_signs_for_other_ends_is_no_access_token": replaced(claims, "_check_type", lambda *_: None),
        "test_a_token_without_a_subject_opens_nothing": _without("sub", sub="everybody"),
        "test_a_token_in_an_address_opens_nothing": replaced(authenticator, "has_query_token", lambda _: False),
        "test_a_token_that_is_bound_to_a_key_is_nothing_to_whoever_has_only_the_token": replaced(
            claims, "_read_bound_key", lambda _: None
        ),
        "test_a_proof_is_good_for_one_request_of_one_key_and_token": replaced(ProofVerifier, "check", _any_proof),
        "test_nothing_that_a_caller_says_becomes_a_header_of_ours": replaced(
            challenge, "_escape_quoted", lambda text: text
        ),
    },
}
