"""Logins of our client to our server, by a third-party authorization server."""

import asyncio
import sys
from pathlib import Path

import pytest
from tests.authorization.notes_server import READS, REVISIONS, notes, oauth, serving
from tests.authorization.oauth_steps import registered
from tests.authorization.provider import BrowserUser, Provider
from tests.processes import nothing_left

from trunkline import Client
from trunkline.auth import ClientCredentials, Jwt, LoopbackBrowser, MemoryTokens, OAuth, Redirected, SigningKey
from trunkline.errors import AuthorizationFailed, PeerError
from trunkline.testing import ManualClock

HERE = Path(__file__).parent


@pytest.mark.row("AUT-17", "AUT-18")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_login_happens_once_and_requests_name_the_resource(
    revision: str, url: str, provider: Provider, user: BrowserUser
) -> None:
    async with Client(url, auth=oauth(user), revision=revision) as client:
        assert client.revision == revision
        for _ in range(3):
            assert (await client.call_tool("whoami")).text.startswith("ada by ")
    told = provider.take_requests()
    page, exchange = (next(one for one in told if one["path"] == path) for path in ("/auth", "/token"))

    assert len(user.opened) == 1
    assert page["resource"] == exchange["resource"] == url
    assert page["scope"] == READS


@pytest.mark.row("AUT-11", "AUT-12")
async def test_client_id_is_the_metadata_url(url: str, provider: Provider, user: BrowserUser) -> None:
    document = "https://app.example.com/client.json"
    known = {"client_id": document, "client_name": "Notes", "redirect_uris": [user.redirect_uri]}
    kind = {"application_type": "native", "grant_types": ["authorization_code", "refresh_token"]}
    provider.publish(document, {**known, **kind, "token_endpoint_auth_method": "none"})
    async with Client(url, auth=oauth(user, client_metadata_url=document)) as client:
        assert (await client.call_tool("whoami")).text == f"ada by {document}"

    assert provider.take_requests("/reg") == []


@pytest.mark.row("AUT-11")
async def test_configured_client_does_not_register(url: str, provider: Provider, user: BrowserUser) -> None:
    async with Client(url, auth=oauth(user, client_id="desk")) as client:
        assert (await client.call_tool("whoami")).text == "ada by desk"

    assert provider.take_requests("/reg") == []


@pytest.mark.row("AUT-14")
async def test_unknown_client_registers_as_native(url: str, provider: Provider, user: BrowserUser) -> None:
    async with Client(url, auth=oauth(user)) as client:
        await client.ping()

    assert len(provider.take_requests("/reg", status=201)) == 1


async def test_denied_login_is_not_repeated(url: str) -> None:
    nobody = BrowserUser("nobody")
    with pytest.raises(AuthorizationFailed, match="access_denied") as failed:
        async with Client(url, auth=oauth(nobody)):
            pass

    assert (failed.value.hop, len(nobody.opened)) == ("authorization", 1)


@pytest.mark.row("AUT-25")
@pytest.mark.parametrize("change", [("iss=http", "iss=https"), ("&iss=", "&other=")], ids=["another", "none"])
async def test_code_of_another_issuer_is_refused(
    change: tuple[str, str], url: str, provider: Provider, user: BrowserUser
) -> None:
    async def mixed_up(page: str) -> str:
        return (await user(page)).replace(*change)

    with pytest.raises(AuthorizationFailed) as failed:
        async with Client(url, auth=oauth(user, interaction=Redirected(user.redirect_uri, mixed_up))):
            pass

    assert (failed.value.hop, failed.value.clause) == ("authorization", "RFC 9207, section 2.4")
    assert provider.take_requests("/token") == []


async def test_browser_login_returns_to_loopback_port(
    url: str, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER", f"{sys.executable} {HERE / 'peers/minimal_browser.py'} %s")
    async with Client(url, auth=OAuth(interaction=LoopbackBrowser(), store=MemoryTokens())) as client:
        assert (await client.call_tool("whoami")).text.startswith("ada by ")

    assert len(provider.take_requests("/token", grant_type="authorization_code", status=200)) == 1


async def test_login_leaves_nothing_behind(provider: Provider, user: BrowserUser) -> None:
    with nothing_left():
        async with serving(notes(Jwt(provider.issuer))) as url, Client(url, auth=oauth(user)) as client:
            await client.call_tool("write")

    assert len(user.opened) == 2


async def test_concurrent_requests_cause_one_login(url: str, user: BrowserUser) -> None:
    auth = oauth(user)
    async with Client(url, auth=auth) as client, Client(url, auth=auth) as another:
        calls = [one.call_tool("whoami") for one in (client, another) for _ in range(5)]
        said = await asyncio.gather(*calls)

    assert len({result.text for result in said}) == 1
    assert len(user.opened) == 1


@pytest.mark.parametrize("scheme", ["http", "ws"])
@pytest.mark.parametrize("revision", REVISIONS)
async def test_requests_do_not_time_out_during_login(revision: str, scheme: str, url: str, user: BrowserUser) -> None:
    clock = ManualClock()

    async def after_lunch(page: str) -> str:
        clock.advance(1800)
        return await user(page)

    auth = oauth(user, interaction=Redirected(user.redirect_uri, after_lunch))
    async with Client(url.replace("http", scheme), auth=auth, revision=revision, clock=clock) as client:
        assert (await client.call_tool("whoami")).text.startswith("ada by ")


async def test_websocket_is_opened_with_the_token(url: str, provider: Provider, user: BrowserUser) -> None:
    async with Client(url.replace("http:", "ws:"), auth=oauth(user)) as client:
        assert (await client.call_tool("whoami")).text.startswith("ada by ")
    [page] = provider.take_requests("/auth")

    assert page["resource"] == url
    assert len(user.opened) == 1


@pytest.mark.row("AUT-20", "AUT-21")
async def test_step_up_requests_more_scopes(url: str, provider: Provider, user: BrowserUser) -> None:
    async with Client(url, auth=oauth(user)) as client:
        await client.call_tool("whoami")
        assert (await client.call_tool("write")).text == "written"
        await client.call_tool("whoami")
    pages = provider.take_requests("/auth")

    assert [set(one["scope"].split()) for one in pages] == [set(READS.split()), {*READS.split(), "notes:write"}]
    assert len(user.opened) == 2


async def test_concurrent_step_ups_share_one_login(url: str, user: BrowserUser) -> None:
    async with Client(url, auth=oauth(user)) as client:
        await client.ping()
        said = await asyncio.gather(*(client.call_tool("write") for _ in range(10)))

    assert {result.text for result in said} == {"written"}
    assert len(user.opened) == 2


async def test_websocket_reports_missing_scopes(url: str, user: BrowserUser) -> None:
    async with Client(url.replace("http:", "ws:"), auth=oauth(user)) as client:
        with pytest.raises(PeerError, match="needs the scope 'notes:write'"):
            await client.call_tool("write")


# --- unattended programs -------------------------------------------------------------------------------------


@pytest.mark.row("AUT-29")
async def test_client_secret_authenticates(url: str) -> None:
    async with Client(url, auth=ClientCredentials("robot", secret="told-to-the-robot")) as client:
        assert (await client.call_tool("whoami")).text == "robot by robot"


@pytest.mark.row("AUT-29")
async def test_client_key_authenticates(url: str, provider: Provider) -> None:
    key = SigningKey.generate()
    ident = await registered(
        provider,
        redirect_uris=[],
        response_types=[],
        grant_types=["client_credentials"],
        token_endpoint_auth_method="private_key_jwt",
        jwks={"keys": [key.public]},
    )
    async with Client(url, auth=ClientCredentials(ident, key=key)) as client:
        assert (await client.call_tool("whoami")).text == f"{ident} by {ident}"


async def test_client_credentials_step_up(url: str) -> None:
    async with Client(url, auth=ClientCredentials("robot", secret="told-to-the-robot")) as client:
        await client.call_tool("whoami")
        assert (await client.call_tool("write")).text == "written"
