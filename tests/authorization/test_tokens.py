"""Expired and revoked tokens, and rotated keys: users log in again only when necessary."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tests.authorization.notes_server import INTROSPECTOR, NEARLY_OVER, REVISIONS, AdvancedClock, notes, oauth, serving
from tests.authorization.oauth_steps import exchanged, logged_in
from tests.authorization.provider import BrowserUser, Provider, run

from trunkline import Client
from trunkline.auth import FileTokens, Introspection, Jwt
from trunkline.errors import AuthorizationFailed

RESTARTED = Path(__file__).with_name("restarted_program.py")


@pytest.fixture
async def asking_url(provider: Provider) -> AsyncIterator[str]:
    """Our server, which introspects each token on each request."""
    async with serving(notes(Introspection(provider.issuer, keep=0, **INTROSPECTOR)), "/opaque/mcp") as address:
        yield address


@pytest.mark.row("AUT-26")
async def test_token_is_renewed_before_expiry(url: str, provider: Provider, user: BrowserUser) -> None:
    provider.set(lifetime=NEARLY_OVER)
    async with Client(url, auth=oauth(user)) as client:
        for _ in range(3):
            await client.call_tool("whoami")
    refreshed = provider.take_requests("/token", grant_type="refresh_token")

    assert len(refreshed) >= 3
    assert {(one["status"], one["resource"]) for one in refreshed} == {(200, url)}
    assert len(user.opened) == 1


async def test_token_that_server_calls_expired_is_renewed(url: str, provider: Provider, user: BrowserUser) -> None:
    provider.set(clock=-7200)  # tokens for an hour expired an hour ago
    auth = oauth(user)
    with pytest.raises(AuthorizationFailed):
        async with Client(url, auth=auth):
            pass
    provider.set()
    async with Client(url, auth=auth) as client:
        assert (await client.call_tool("whoami")).text.startswith("ada by ")

    assert len(user.opened) == 1
    assert len(provider.take_requests("/token", grant_type="refresh_token", status=200)) >= 1


@pytest.mark.row("PROMISE-11")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_refresh_token_survives_restart(
    revision: str, url: str, provider: Provider, user: BrowserUser, tmp_path: Path
) -> None:
    provider.set(lifetime=NEARLY_OVER)
    async with Client(url, auth=oauth(user, store=FileTokens(tmp_path)), revision=revision) as client:
        said = (await client.call_tool("whoami")).text
    provider.set()
    provider.take_requests()
    again = await run(sys.executable, RESTARTED, url, tmp_path, "{}", revision)

    assert again == f"{said}\n"
    assert [one["grant_type"] for one in provider.take_requests("/token")] == ["refresh_token"]


async def test_processes_use_a_refresh_token_once(
    url: str, provider: Provider, user: BrowserUser, tmp_path: Path
) -> None:
    provider.set(lifetime=NEARLY_OVER)
    async with Client(url, auth=oauth(user, store=FileTokens(tmp_path))) as client:
        await client.ping()
    provider.set()
    provider.take_requests()
    program = (sys.executable, RESTARTED, url, tmp_path, "{}", "2026-07-28")
    said = await asyncio.gather(run(*program), run(*program))

    assert said[0].startswith("ada by ")
    assert said[0] == said[1]
    assert [one["status"] for one in provider.take_requests("/token")] == [200]


async def test_revoked_grant_needs_new_login(asking_url: str, provider: Provider, user: BrowserUser) -> None:
    async with Client(asking_url, auth=oauth(user)) as client:
        before = (await client.call_tool("whoami")).text
        provider.revoke("ada")
        after = (await client.call_tool("whoami")).text

    assert before == after
    assert len(user.opened) == 2
    assert {one["status"] for one in provider.take_requests("/token/introspection")} == {200}


async def test_concurrent_expiry_uses_refresh_token_once(provider: Provider, user: BrowserUser) -> None:
    server = notes(Jwt(provider.issuer), now=(clock := AdvancedClock()))
    async with serving(server) as url, Client(url, auth=oauth(user)) as client:
        await client.ping()
        clock.seconds = 4000
        provider.set(lifetime=7200)
        provider.take_requests()
        said = await asyncio.gather(*(client.call_tool("whoami") for _ in range(20)))

    assert len({result.text for result in said}) == 1
    assert [(one["grant_type"], one["status"]) for one in provider.take_requests("/token")] == [("refresh_token", 200)]
    assert len(user.opened) == 1


async def test_refused_websocket_is_opened_with_new_token(provider: Provider, user: BrowserUser) -> None:
    clock, auth = AdvancedClock(), oauth(user)
    async with serving(notes(Jwt(provider.issuer), now=clock)) as url:
        address = url.replace("http:", "ws:")
        async with Client(address, auth=auth) as client:
            await client.call_tool("whoami")
        clock.seconds = 4000
        provider.set(lifetime=7200)
        async with Client(address, auth=auth) as client:
            await client.call_tool("whoami")

    assert len(provider.take_requests("/token", grant_type="refresh_token", status=200)) == 1
    assert len(user.opened) == 1


# --- accepted tokens -----------------------------------------------------------------------------------------


async def test_old_signatures_are_valid_after_rotation(provider: Provider, user: BrowserUser) -> None:
    clock = AdvancedClock()
    server = notes(Jwt(provider.issuer), now=clock)
    async with serving(server) as url, Client(url, auth=oauth(user)) as first:
        before = (await first.call_tool("whoami")).text
        provider.rotate()
        clock.seconds = 60  # keys are not fetched on every request
        async with Client(url, auth=oauth(BrowserUser("bob"))) as second:
            assert (await second.call_tool("whoami")).text.startswith("bob by ")
        provider.take_requests()
        assert (await first.call_tool("whoami")).text == before

    assert provider.take_requests() == []


async def test_token_of_withdrawn_key_is_refused_and_renewed(provider: Provider, user: BrowserUser) -> None:
    clock = AdvancedClock()
    server = notes(Jwt(provider.issuer), now=clock)
    async with serving(server) as url, Client(url, auth=oauth(user)) as first:
        await first.call_tool("whoami")
        provider.rotate(forget=True)
        provider.take_requests()
        clock.seconds = 60
        async with Client(url, auth=oauth(BrowserUser("bob"))) as second:
            await second.call_tool("whoami")
        assert (await first.call_tool("whoami")).text.startswith("ada by ")

    assert [one["status"] for one in provider.take_requests("/token", grant_type="refresh_token")] == [200]
    assert len(user.opened) == 1


@pytest.mark.row("AUT-23", "SEC-01")
async def test_token_for_another_server_is_refused(url: str, provider: Provider, user: BrowserUser) -> None:
    elsewhere = url.replace("/mcp", "/another")
    ours, theirs = [
        (await exchanged(provider, await logged_in(provider, user, resource), resource=resource))["access_token"]
        for resource in (url, elsewhere)
    ]
    async with Client(url, auth=ours) as client:
        assert (await client.call_tool("whoami")).text == "ada by desk"
    headers = {"Authorization": f"Bearer {theirs}"}
    async with aiohttp.ClientSession() as session, session.post(url, json={}, headers=headers) as answer:
        assert answer.status == 401
        assert "another audience" in answer.headers["www-authenticate"]
    with pytest.raises(AuthorizationFailed) as failed:
        async with Client(url, auth=theirs):
            pass

    assert failed.value.hop == "server"
