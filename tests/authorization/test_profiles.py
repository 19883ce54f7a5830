"""Profiles of eight known authorization servers: their metadata and peculiarities (`profiles/`).

A login works where the rules allow it, and otherwise the error says why not. After a restart, with an expired access
token and a valid refresh token, no login page opens (promise: OAuth that survives Tuesday).
"""

import json
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.authorization.notes_server import NEARLY_OVER, AdvancedClock, notes, oauth, serving
from tests.authorization.provider import BrowserUser, run
from tests.authorization.replay import NAMES, Replayed, replayed

from trunkline import Client
from trunkline.auth import FileTokens, Jwt, OAuth, Principal
from trunkline.auth.server.verifiers import BadToken, Verified, Verifier
from trunkline.errors import AuthorizationFailed

RESTARTED = Path(__file__).with_name("restarted_program.py")
UNTOLD = ("cognito", "entra")  # that they support PKCE
ENDLESS = ("github",)
CLOSED = tuple(name for name in NAMES if name not in ("auth0", "keycloak"))


class Opaque(Verifier):
    """A verifier of opaque tokens that reads the authorization server's table."""

    def __init__(self, server: Replayed) -> None:
        self.issuer = server.issuer
        self._server = server

    def verify(self, token: str, audiences: Collection[str], now: float) -> Verified:
        until, grant = self._server.known.get(token, (0.0, {}))
        if now >= until:
            raise BadToken("the token is not known, or not any more", "token_expired")
        scopes = frozenset({"notes:read"})
        return Verified(Principal("ada", issuer=self.issuer or "", client=grant["client_id"], scopes=scopes), until)


def verifier_for(server: Replayed) -> Verifier:
    """The verifier of our server: with the accepted clients, if tokens have no audience."""
    if server.record["claims"] is None:
        return Opaque(server)
    known = server.record["client"]
    return Jwt(server.issuer, clients=[] if "aud" in server.record["claims"] else [known["id"]])


def options_for(server: Replayed, **more: Any) -> dict[str, Any]:
    """The options of `OAuth` for this authorization server."""
    client = server.record["client"]
    options = {} if client is None else {"client_id": client["id"], "client_secret": client["secret"]}
    asked = {name: value for name, value in (server.record["refresh_with"] or {}).items() if name != "scope"}
    if asked:
        options["parameters"] = asked
    if server.record["name"].lower() in UNTOLD:
        options["assume_pkce"] = True
    return {**options, **more}


@asynccontextmanager
async def protected(name: str, clock: AdvancedClock | None = None) -> AsyncIterator[tuple[Replayed, str]]:
    """An authorization server, and the address of a server of ours that trusts it and has a separate clock."""
    async with replayed(name) as server, serving(notes(verifier_for(server), now=clock or AdvancedClock())) as url:
        yield server, url


async def asked_once(url: str, auth: OAuth, revision: str = "2026-07-28") -> str:
    async with Client(url, auth=auth, revision=revision) as client:
        return (await client.call_tool("whoami")).text


@pytest.mark.row("PROMISE-11")
@pytest.mark.parametrize("name", NAMES)
async def test_login_survives_restart(name: str, user: BrowserUser, tmp_path: Path) -> None:
    clock = AdvancedClock()
    async with protected(name, clock) as (server, url):
        options = options_for(server)
        said = await asked_once(url, oauth(user, store=FileTokens(tmp_path), **options))
        clock.seconds, server.lifetime = 4000, 7200  # a token for an hour has expired for the server
        again = await run(sys.executable, RESTARTED, url, tmp_path, json.dumps(options), "2026-07-28")

    assert again == f"{said}\n"
    assert len(user.opened) == 1
    assert server.refreshed == (0 if name in ENDLESS else 1)


@pytest.mark.row("PROMISE-11")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ENDLESS])
async def test_refreshed_token_can_be_refreshed(name: str, user: BrowserUser, tmp_path: Path) -> None:
    async with protected(name) as (server, url):
        server.lifetime = NEARLY_OVER
        auth = oauth(user, store=FileTokens(tmp_path), **options_for(server))
        async with Client(url, auth=auth) as client:
            for _ in range(3):
                await client.call_tool("whoami")

    assert len(user.opened) == 1
    assert server.refreshed >= 3


@pytest.mark.row("PROMISE-11")
@pytest.mark.parametrize("name", ["auth0", "google"])
async def test_failing_issuer_keeps_the_login(name: str, user: BrowserUser, tmp_path: Path) -> None:
    async with protected(name, clock := AdvancedClock()) as (server, url):
        options = {**options_for(server), "store": FileTokens(tmp_path)}
        said = await asked_once(url, oauth(user, **options))
        clock.seconds, server.lifetime, server.failing = 4000, 7200, True
        with pytest.raises(AuthorizationFailed) as failed:
            await asked_once(url, oauth(user, **options))
        server.failing = False
        again = await asked_once(url, oauth(user, **options))

    assert (failed.value.hop, failed.value.passing) == ("refresh", True)
    assert again == said
    assert len(user.opened) == 1


@pytest.mark.row("AUT-16")
@pytest.mark.parametrize("name", UNTOLD)
async def test_provider_without_pkce_is_refused(name: str, user: BrowserUser, tmp_path: Path) -> None:
    async with protected(name) as (server, url):
        options = options_for(server)
        assert options.pop("assume_pkce")
        with pytest.raises(AuthorizationFailed) as failed:
            await asked_once(url, oauth(user, store=FileTokens(tmp_path), **options))

    assert (failed.value.hop, user.opened) == ("authorization-server-metadata", [])
    assert failed.value.clause == "authorization, Authorization Code Protection"


@pytest.mark.row("AUT-11")
@pytest.mark.parametrize("name", CLOSED)
async def test_provider_without_registration_needs_client_id(name: str, user: BrowserUser, tmp_path: Path) -> None:
    async with protected(name) as (server, url):
        options = options_for(server)
        del options["client_id"], options["client_secret"]
        with pytest.raises(AuthorizationFailed) as failed:
            await asked_once(url, oauth(user, store=FileTokens(tmp_path), **options))

    assert (failed.value.hop, user.opened) == ("registration", [])
    assert "client_id" in str(failed.value)


@pytest.mark.parametrize("name", ["github-app", "google", "hubspot"])
async def test_revoked_refresh_token_needs_new_login(name: str, user: BrowserUser, tmp_path: Path) -> None:
    async with protected(name) as (server, url):
        auth = oauth(user, store=FileTokens(tmp_path), **options_for(server))
        server.lifetime = NEARLY_OVER
        await asked_once(url, auth)
        server.revoke_all()
        server.lifetime = 3600
        await asked_once(url, oauth(user, store=FileTokens(tmp_path), **options_for(server)))

    assert len(user.opened) == 2
