"""Controls of OAuth clients and their token stores."""

import os
import re
import sys
from typing import Any
from urllib.parse import parse_qs, urljoin

import pytest
from msgspec import Struct
from msgspec.structs import replace
from tests.attacks.patches import Rows, both, replaced

from trunkline.auth import discovery, fetch, metadata
from trunkline.auth.client import (
    authorization_code,
    browser,
    interaction,
    loopback,
    registration,
    terminal_login,
    token_provider,
    token_store,
)
from trunkline.auth.client.grant import IssuerBinding
from trunkline.auth.client.token_provider import TokenProvider
from trunkline.auth.client.tokens import StoredToken
from trunkline.auth.server import static_tokens
from trunkline.auth.ssrf import EgressPolicy, Target
from trunkline.errors import AuthorizationFailed
from trunkline.transports.http.client import url as client_url

ENDLESS = 1 << 40


def _check_names_only(patch: pytest.MonkeyPatch) -> None:
    """Check host names only, and each name once."""
    fine: set[str] = set()
    original = EgressPolicy.denial_reason

    def vet(self: EgressPolicy, there: Target, address: str) -> str | None:
        why = None if there.host in fine else original(self, there, address)
        if why is None:
            fine.add(there.host)
        return why

    patch.setattr(EgressPolicy, "denial_reason", vet)


def _only_when_resolved(patch: pytest.MonkeyPatch) -> None:
    from trunkline.transports.http.client import dial

    original = dial._connect
    patch.setattr(dial, "_connect", lambda address, _: original(address, None))


def _follow_redirects(patch: pytest.MonkeyPatch, most: int = 3) -> None:
    """Follow all redirects."""
    original = fetch.Egress._fetch_within_timeout

    async def within(self: Any, errand: Any, url: str) -> Any:
        kind = type(errand)
        return await original(self, kind(errand.hop, errand.method, errand.headers, errand.body, most), url)

    patch.setattr(fetch.Egress, "_fetch_within_timeout", within)


def _without_deadlines(patch: pytest.MonkeyPatch) -> None:
    """Fetch without deadlines."""
    original = fetch.Egress.__init__

    def init(self: Any, *args: Any, **given: Any) -> None:
        original(self, *args, **given)
        self._settings = replace(self._settings, egress_timeout=None)

    patch.setattr(fetch.Egress, "__init__", init)


def _all_of(read_body: Any) -> Any:
    return lambda reply, _: read_body(reply, ENDLESS)


def _unchecked_code(returned: str, _: Any) -> str:
    """Accept the authorization code from any sender."""
    return re.findall(r"[?&#]code=([^&]*)", returned)[0]


def _errors_first(patch: pytest.MonkeyPatch) -> None:
    """Report an error before checking its issuer."""
    original = authorization_code.read_code

    def code_in(returned: str, sent: Any) -> str:
        if said := parse_qs(returned.partition("?")[2]).get("error_description"):
            raise AuthorizationFailed(f"the authorization server answers {said[0]}", hop="authorization")
        return original(returned, sent)

    patch.setattr(authorization_code, "read_code", code_in)


def _any_issuer(body: bytes, *_: str) -> Any:
    return metadata._decode_server(body)


class _EqualToAll(str):
    """A name that equals every other one."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def _tokens_of_any_issuer(patch: pytest.MonkeyPatch) -> None:
    original = TokenProvider._adopt

    def take(self: TokenProvider, kept: Any, source: Any) -> None:
        original(self, None if kept is None else replace(kept, issuer=_EqualToAll(kept.issuer)), source)

    patch.setattr(TokenProvider, "_adopt", take)


def _points_anywhere(self: client_url.HttpUrl, reference: str) -> client_url.HttpUrl:
    return client_url.parse_url(urljoin(self.url, reference))


async def _unbound(*_: Any) -> None:
    """Send credentials wherever a server points."""


def _without_proof(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(authorization_code.AuthorizationRequest, "challenge", property(lambda self: self.verifier))


def _accept_from_any_sender(self: Any, head: bytes) -> tuple[int, str, str | None]:
    asked = head.decode("latin-1").split(" ")[1]
    return 200, "Thank you.", asked if "code=" in asked else None


def _unescaped(patch: pytest.MonkeyPatch) -> None:
    for name, module in sys.modules.copy().items():
        if name.startswith("trunkline.auth") and hasattr(module, "safe_text"):
            patch.setattr(module, "safe_text", lambda text: text)


def _any_page(patch: pytest.MonkeyPatch) -> None:
    async def permit(*_: Any, **__: Any) -> None:
        return None

    patch.setattr(metadata, "require_secure_url", lambda url, *_, **__: url)
    patch.setattr(fetch.Egress, "check_page", permit)
    for module in (browser, terminal_login, interaction, loopback):
        patch.setattr(module, "check_login_url", lambda url: url)


def _default_permissions(patch: pytest.MonkeyPatch) -> None:
    """Create files and folders with default permissions."""
    made, opened = os.mkdir, os.open
    patch.setattr(os, "mkdir", lambda path, _=0: made(path))
    patch.setattr(os, "open", lambda path, flags, _=0, **given: opened(path, flags, **given))
    patch.setattr(token_store, "_require_private", lambda *_: None)


def _reject_when_full(patch: pytest.MonkeyPatch) -> None:
    """Reject new connections when all slots are in use."""
    original = loopback._CallbackServer._accept

    def begin(self: Any, reader: Any, writer: Any) -> None:
        if len(self._tasks) == loopback._MAX_CONNECTIONS:
            writer.close()
        else:
            original(self, reader, writer)

    patch.setattr(loopback._CallbackServer, "_accept", begin)


def _joined(fields: Any) -> str:
    return "&".join(f"{name}={value}" for name, value in fields.items())


def _as_wanted(self: TokenProvider, wanted: Any, _: Any) -> Any:
    return wanted.scopes or ()


KNOWN_EVERYWHERE = replaced(registration, "_store_key", lambda _: "client")
UNBOUND = replaced(IssuerBinding, "check", _unbound)
ANYWHERE = both(
    replaced(EgressPolicy, "denial_reason", lambda *_: None), replaced(EgressPolicy, "check", lambda *_: None)
)

ROWS: Rows = {
    "test_egress": {
        "test_private_addresses_are_denied_in_any_spelling": ANYWHERE,
        "test_name_with_private_address_is_denied": ANYWHERE,
        "test_dns_rebinding_is_denied": _check_names_only,
        "test_socket_connects_only_to_checked_address": _only_when_resolved,
        "test_configured_url_does_not_open_its_network": ANYWHERE,
        "test_redirect_to_denied_target_is_refused": ANYWHERE,
        "test_secrets_do_not_follow_redirects": _follow_redirects,
        "test_number_of_redirects_is_bounded": replaced(fetch, "_MAX_REDIRECTS", 20),
        "test_endless_response_is_bounded": replaced(fetch, "read_body", _all_of(fetch.read_body)),
        "test_missing_response_times_out": _without_deadlines,
        "test_compressed_response_is_refused": replaced(fetch, "_require_uncompressed", lambda _: None),
        "test_resource_metadata_must_be_on_the_server": replaced(discovery, "origin_of", lambda _: None),
        "test_private_issuer_of_peer_is_denied": ANYWHERE,
        "test_redirected_document_cannot_reach_private_hosts": ANYWHERE,
        "test_private_jwks_uri_is_denied": ANYWHERE,
    },
    "test_oauth_client": {
        "test_injected_code_is_not_used": replaced(authorization_code, "read_code", _unchecked_code),
        "test_text_of_another_issuer_is_not_shown": _errors_first,
        "test_metadata_of_another_issuer_is_not_used": replaced(discovery, "read_server_metadata", _any_issuer),
        "test_metadata_of_another_resource_is_not_used": replaced(metadata, "covers", lambda *_: True),
        "test_token_request_names_resource_and_uses_pkce": _without_proof,
        "test_login_without_pkce_is_refused": replaced(authorization_code, "require_pkce", lambda _: None),
        "test_private_endpoints_of_issuer_are_denied": ANYWHERE,
        "test_client_secret_does_not_follow_redirect": both(ANYWHERE, _follow_redirects),
        "test_secret_is_not_sent_to_another_issuer": UNBOUND,
        "test_secret_stays_with_issuer_of_first_server": UNBOUND,
        "test_refresh_token_is_not_sent_to_another_issuer": both(_tokens_of_any_issuer, KNOWN_EVERYWHERE),
        "test_registration_is_not_sent_to_another_issuer": KNOWN_EVERYWHERE,
        "test_token_is_not_sent_to_another_origin": replaced(token_provider, "origin_of", lambda _: "the same"),
        "test_token_does_not_follow_redirect": replaced(client_url.HttpUrl, "resolve", _points_anywhere),
    },
    "test_challenges": {
        "test_endless_challenges_cause_bounded_logins": replaced(TokenProvider, "_stop_if_futile", lambda *_: None),
        "test_step_up_keeps_earlier_scopes": replaced(TokenProvider, "_scopes_for", _as_wanted),
        "test_challenge_cannot_inject_page_parameters": replaced(authorization_code, "urlencode", _joined),
        "test_peer_text_is_escaped_before_display": _unescaped,
    },
    "test_browser_opening": {
        "test_forged_page_reaches_no_browser": _any_page,
        "test_page_url_is_one_argument": _any_page,
        "test_only_the_matching_callback_counts": replaced(
            loopback._CallbackServer, "_check_request", _accept_from_any_sender
        ),
        "test_oversized_callback_is_not_read": replaced(loopback, "_MAX_HEAD_BYTES", ENDLESS),
        "test_connection_flood_does_not_block_callback": _reject_when_full,
        "test_callback_server_is_not_reachable_from_outside": replaced(loopback, "_LOOPBACK", "0.0.0.0"),
    },
    "test_secrets": {
        "test_reprs_have_no_secrets": replaced(StoredToken, "__repr__", Struct.__repr__),
        "test_client_errors_and_logs_have_no_secrets": replaced(StoredToken, "__repr__", Struct.__repr__),
        "test_server_errors_and_logs_have_no_secrets": replaced(static_tokens, "_digest", lambda token: token),
        "test_stored_tokens_are_private": _default_permissions,
        "test_accessible_token_files_are_refused": replaced(token_store, "_require_private", lambda *_: None),
        "test_symlink_is_not_followed": replaced(token_store, "_CREATE_FLAGS", os.O_CREAT),
    },
}
