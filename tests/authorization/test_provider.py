"""The authorization server behaves as the other tests require."""

import asyncio
from typing import Any

import aiohttp
from tests import official
from tests.authorization.oauth_steps import RESOURCE, claims_of, exchanged, logged_in, posted
from tests.authorization.provider import BrowserUser, Provider
from tests.processes import command, eventually, gone


async def test_login_issues_signed_token_and_iss(provider: Provider, user: BrowserUser) -> None:
    back = await logged_in(provider, user)
    answer = await exchanged(provider, back)
    claims = claims_of(answer["access_token"])

    assert back["iss"] == provider.issuer
    assert (claims["aud"], claims["iss"], claims["sub"]) == (RESOURCE, provider.issuer, "ada")
    assert (claims["scope"], answer["expires_in"]) == ("notes:read", 3600)


async def test_pkce_is_enforced(provider: Provider, user: BrowserUser) -> None:
    without = await logged_in(provider, user, code_challenge="", code_challenge_method="")
    wrong = await exchanged(provider, await logged_in(provider, user), code_verifier="w" * 43)

    assert without["error"] == "invalid_request"
    assert wrong["error"] == "invalid_grant"


async def test_refresh_token_is_used_once(provider: Provider, user: BrowserUser) -> None:
    first = await exchanged(provider, await logged_in(provider, user))
    refreshing = {"grant_type": "refresh_token", "refresh_token": first["refresh_token"]}
    second = await posted(provider, **refreshing)
    third = await posted(provider, **refreshing)

    assert second["refresh_token"] != first["refresh_token"]
    assert third["error"] == "invalid_grant"


async def test_offline_access_needs_consent(provider: Provider, user: BrowserUser) -> None:
    answer = await exchanged(provider, await logged_in(provider, user, prompt=""))

    assert "refresh_token" not in answer


async def test_denied_consent_is_reported(provider: Provider) -> None:
    back = await logged_in(provider, BrowserUser("nobody"))

    assert (back["error"], back["iss"]) == ("access_denied", provider.issuer)


async def test_unknown_resource_is_refused(provider: Provider, user: BrowserUser) -> None:
    back = await logged_in(provider, user, "https://elsewhere.example.com/mcp")

    assert back["error"] == "invalid_target"


async def test_both_metadata_documents_are_equal(provider: Provider) -> None:
    found: list[Any] = []
    async with aiohttp.ClientSession() as session:
        for kind in ("oauth-authorization-server", "openid-configuration"):
            async with session.get(f"{provider.issuer}/.well-known/{kind}") as answer:
                found.append(await answer.json())

    assert found[0] == found[1]
    assert found[0]["authorization_response_iss_parameter_supported"] is True
    assert found[0]["client_id_metadata_document_supported"] is True


async def test_provider_exits_with_its_parent() -> None:
    script = """
        import os, signal
        from tests.authorization.provider import Provider
        print(Provider().pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    process = await asyncio.create_subprocess_exec(*command(script), stdout=asyncio.subprocess.PIPE, cwd=official.ROOT)
    said, _ = await process.communicate()

    eventually(lambda: gone(int(said)))
