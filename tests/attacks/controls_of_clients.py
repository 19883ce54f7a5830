"""What holds off attacks on those who log in, and on what they keep."""

import os
import re
import sys
from typing import Any
from urllib.parse import parse_qs, urljoin

import pytest
from msgspec import Struct
from msgspec.structs import replace
from tests.attacks.ways import Rows, both, replaced

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


def _looked_at_once(patch: pytest.MonkeyPatch) -> None:
    """Only names are looked at, and a name that was fine is fine."""
    fine: set[str] = set()
    original = EgressPolicy.denial_reason

    def vet(self: EgressPolicy, there: Target, address: str) -> str | None:
        why = None if there.host in fine else original(self, there, address)
        if why is None:
            fine.add(there.host)
        return why

    patch.setattr(EgressPolicy, "denial_reason", vet)


def _only_when_resolved(patch: pytest.MonkeyPatch) -> None:
    from trunkline.transports.http.client import aiohttp_backend

    original = aiohttp_backend._open_keepalive_socket
    patch.setattr(aiohttp_backend, "_open_keepalive_socket", lambda _, address: original(None, address))


def _followed(patch: pytest.MonkeyPatch, most: int = 3) -> None:
    """Everything follows redirects."""
    original = fetch.Egress._fetch_within_timeout

    async def within(self: Any, errand: Any, url: str) -> Any:
        kind = type(errand)
        return await original(self, kind(errand.hop, errand.method, errand.headers, errand.body, most), url)

    patch.setattr(fetch.Egress, "_fetch_within_timeout", within)


def _without_time(patch: pytest.MonkeyPatch) -> None:
    """An egress that waits for as long as it takes."""
    original = fetch.Egress.__init__

    def init(self: Any, *args: Any, **given: Any) -> None:
        original(self, *args, **given)
        self._settings = replace(self._settings, egress_timeout=None)

    patch.setattr(fetch.Egress, "__init__", init)


def _all_of(read_body: Any) -> Any:
    return lambda reply, _: read_body(reply, ENDLESS)


def _plain_code(returned: str, _: Any) -> str:
    """The code, whoever sends it."""
    return re.findall(r"[?&#]code=([^&]*)", returned)[0]


def _errors_first(patch: pytest.MonkeyPatch) -> None:
    """An error is told before it is looked at who says so."""
    original = authorization_code.read_code

    def code_in(returned: str, sent: Any) -> str:
        if said := parse_qs(returned.partition("?")[2]).get("error_description"):
            raise AuthorizationFailed(f"the authorization server answers {said[0]}", hop="authorization")
        return original(returned, sent)

    patch.setattr(authorization_code, "read_code", code_in)


def _any_issuer(body: bytes, *_: str) -> Any:
    return metadata._decode_server(body)


class _Anything(str):
    """A name that is that of everybody."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def _tokens_of_anybody(patch: pytest.MonkeyPatch) -> None:
    original = TokenProvider._adopt

    def take(self: TokenProvider, kept: Any, source: Any) -> None:
        original(self, None if kept is None else replace(kept, issuer=_Anything(kept.issuer)), source)

    patch.setattr(TokenProvider, "_adopt", take)


def _points_anywhere(self: client_url.HttpUrl, reference: str) -> client_url.HttpUrl:
    return client_url.parse_url(urljoin(self.url, reference))


async def _unbound(*_: Any) -> None:
    """Credentials go wherever a server points."""


def _without_proof(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(authorization_code.AuthorizationRequest, "challenge", property(lambda self: self.verifier))


def _taken_from_anybody(self: Any, head: bytes) -> tuple[int, str, str | None]:
    asked = head.decode("latin-1").split(" ")[1]
    return 200, "Thank you.", asked if "code=" in asked else None


def _as_it_was_said(patch: pytest.MonkeyPatch) -> None:
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


def _as_the_system_likes(patch: pytest.MonkeyPatch) -> None:
    """Files and folders as they are made by default."""
    made, opened = os.mkdir, os.open
    patch.setattr(os, "mkdir", lambda path, _=0: made(path))
    patch.setattr(os, "open", lambda path, flags, _=0, **given: opened(path, flags, **given))
    patch.setattr(token_store, "_require_private", lambda *_: None)


def _first_come(patch: pytest.MonkeyPatch) -> None:
    """Whoever comes when all places are taken is turned away."""
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
        "test_no_private_address_is_gone_to_however_it_is_spelt": ANYWHERE,
        "test_a_name_that_leads_to_a_private_address_is_not_followed": ANYWHERE,
        "test_a_name_that_changes_its_address_meanwhile_is_not_followed": _looked_at_once,
        "test_a_socket_is_opened_to_nothing_but_what_was_looked_at": _only_when_resolved,
        "test_what_our_own_user_named_opens_no_way_to_its_neighbours": ANYWHERE,
        "test_a_redirect_leads_to_no_place_that_one_may_not_go_to": ANYWHERE,
        "test_what_is_secret_does_not_follow_a_redirect": _followed,
        "test_a_redirect_is_followed_only_so_often": replaced(fetch, "_MAX_REDIRECTS", 20),
        "test_of_an_answer_without_end_only_so_much_is_read": replaced(fetch, "read_body", _all_of(fetch.read_body)),
        "test_an_answer_that_does_not_come_is_not_waited_for": _without_time,
        "test_nothing_is_unpacked": replaced(fetch, "_require_uncompressed", lambda _: None),
        "test_the_metadata_of_a_server_is_on_the_server_itself": replaced(discovery, "origin_of", lambda _: None),
        "test_an_authorization_server_that_a_peer_names_is_not_looked_for_in_private": ANYWHERE,
        "test_a_document_that_points_elsewhere_leads_nowhere_private": ANYWHERE,
        "test_the_keys_of_an_issuer_are_not_looked_for_in_private": ANYWHERE,
    },
    "test_oauth_client": {
        "test_a_code_that_somebody_else_sends_is_not_used": replaced(authorization_code, "read_code", _plain_code),
        "test_what_another_issuer_says_is_not_shown": _errors_first,
        "test_metadata_of_another_issuer_is_not_used": replaced(discovery, "read_server_metadata", _any_issuer),
        "test_metadata_of_another_resource_is_not_used": replaced(metadata, "covers", lambda *_: True),
        "test_a_token_is_asked_for_this_server_and_with_a_proof_that_cannot_be_stolen": _without_proof,
        "test_nobody_logs_in_where_codes_can_be_stolen": replaced(authorization_code, "require_pkce", lambda _: None),
        "test_no_endpoint_that_an_authorization_server_names_is_gone_to_in_private": ANYWHERE,
        "test_a_client_secret_is_not_posted_to_where_a_token_endpoint_points": both(ANYWHERE, _followed),
        "test_a_secret_is_not_told_to_another_authorization_server": UNBOUND,
        "test_a_secret_that_one_server_led_to_is_not_told_where_another_server_leads": UNBOUND,
        "test_a_refresh_token_is_not_told_to_another_authorization_server": both(_tokens_of_anybody, KNOWN_EVERYWHERE),
        "test_what_was_registered_with_one_authorization_server_is_not_shown_to_another": KNOWN_EVERYWHERE,
        "test_a_token_is_shown_to_no_other_origin": replaced(token_provider, "origin_of", lambda _: "the same"),
        "test_a_token_does_not_follow_a_server_that_points_elsewhere": replaced(
            client_url.HttpUrl, "resolve", _points_anywhere
        ),
    },
    "test_challenges": {
        "test_a_server_that_challenges_for_ever_has_a_person_asked_only_so_often": replaced(
            TokenProvider, "_stop_if_futile", lambda *_: None
        ),
        "test_asking_for_more_gives_up_nothing_of_what_there_was": replaced(TokenProvider, "_scopes_for", _as_wanted),
        "test_nothing_in_a_challenge_becomes_a_parameter_of_the_page": replaced(
            authorization_code, "urlencode", _joined
        ),
        "test_what_peers_say_can_be_shown_to_a_person": _as_it_was_said,
    },
    "test_browser_opening": {
        "test_a_page_that_a_peer_made_up_reaches_neither_a_browser_nor_a_program": _any_page,
        "test_whatever_a_page_is_called_it_is_one_argument_of_the_browser": _any_page,
        "test_only_the_person_who_was_sent_away_comes_back": replaced(
            loopback._CallbackServer, "_check_request", _taken_from_anybody
        ),
        "test_a_page_that_asks_very_much_is_not_read_to_the_end": replaced(loopback, "_MAX_HEAD_BYTES", ENDLESS),
        "test_a_page_that_keeps_every_place_does_not_keep_the_person_away": _first_come,
        "test_whoever_waits_is_not_found_from_outside": replaced(loopback, "_LOOPBACK", "0.0.0.0"),
    },
    "test_secrets": {
        "test_nothing_secret_is_shown_by_what_holds_it": replaced(StoredToken, "__repr__", Struct.__repr__),
        "test_nothing_secret_is_told_by_a_client_whether_it_fares_well_or_not": replaced(
            StoredToken, "__repr__", Struct.__repr__
        ),
        "test_nothing_secret_is_told_by_a_server_whether_it_lets_in_or_not": replaced(
            static_tokens, "_digest", lambda token: token
        ),
        "test_tokens_are_kept_where_nobody_else_can_read_them": _as_the_system_likes,
        "test_what_others_may_have_read_or_written_is_not_used": replaced(
            token_store, "_require_private", lambda *_: None
        ),
        "test_a_link_in_the_way_is_not_followed": replaced(token_store, "_CREATE_FLAGS", os.O_CREAT),
    },
}
