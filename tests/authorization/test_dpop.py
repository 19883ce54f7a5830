"""DPoP-bound tokens, between our client and our server."""

import sys
from pathlib import Path

import aiohttp
import pytest
from tests.authorization.notes_server import NEARLY_OVER, REVISIONS, notes, oauth, serving
from tests.authorization.provider import BrowserUser, Provider, run

from trunkline import Client, Settings
from trunkline.auth import FileTokens, Jwt

RESTARTED = Path(__file__).with_name("restarted_program.py")


@pytest.mark.parametrize("scheme", ["http", "ws"])
@pytest.mark.parametrize("revision", REVISIONS)
async def test_every_request_has_a_proof(revision: str, scheme: str, provider: Provider, user: BrowserUser) -> None:
    provider.set(nonces=True)
    server = notes(Jwt(provider.issuer), dpop=True, dpop_nonces=True)
    async with (
        serving(server) as url,
        Client(url.replace("http", scheme), auth=oauth(user), revision=revision) as client,
    ):
        for _ in range(3):
            assert (await client.call_tool("whoami")).text.startswith("ada by ")

    assert len(user.opened) == 1


async def test_bound_token_is_useless_without_key(provider: Provider, user: BrowserUser) -> None:
    provider.set(nonces=True)
    server = notes(Jwt(provider.issuer), dpop=True, dpop_nonces=True)
    auth = oauth(user)
    async with serving(server) as url, aiohttp.ClientSession() as thief, Client(url, auth=auth) as client:
        for _ in range(3):
            assert (await client.call_tool("whoami")).text.startswith("ada by ")
        spied = await auth.credentials(url, settings=Settings()).headers("POST", url)
        bare = {"Authorization": spied["Authorization"].replace("DPoP", "Bearer")}
        for headers in (bare, {**spied, "DPoP": ""}):
            async with thief.post(url, json={}, headers=headers) as answer:
                assert answer.status == 401

    assert len(user.opened) == 1
    assert spied["Authorization"].startswith("DPoP ")


async def test_bound_token_is_renewed_with_same_key_after_restart(
    provider: Provider, user: BrowserUser, tmp_path: Path
) -> None:
    provider.set(nonces=True, lifetime=NEARLY_OVER)
    async with serving(notes(Jwt(provider.issuer), dpop=True)) as url:
        async with Client(url, auth=oauth(user, store=FileTokens(tmp_path))) as client:
            said = (await client.call_tool("whoami")).text
        again = await run(sys.executable, RESTARTED, url, tmp_path, "{}", "2026-07-28")

    assert again == f"{said}\n"
    assert len(user.opened) == 1
