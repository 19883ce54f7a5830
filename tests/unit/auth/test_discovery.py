"""Discovery of the authorization server: locations, their order, and rejected documents."""

import pytest
from tests.unit.auth.auth_servers import AuthServers, servers
from tests.unit.auth.auth_setup import OPENID, RESOURCE, RESOURCE_AT_THE_ROOT, SERVER, Page

from trunkline.auth.discovery import DiscoveryResult, discover
from trunkline.auth.fetch import Egress
from trunkline.auth.metadata import AssumedMetadata
from trunkline.auth.ssrf import EgressPolicy
from trunkline.config import Settings
from trunkline.errors import AuthorizationFailed

ROOT = "GET /.well-known/oauth-authorization-server"
OPENID_INSERTED = "GET /.well-known/openid-configuration/login"


async def found(there: AuthServers, hint: str | None = None) -> DiscoveryResult:
    egress = Egress(EgressPolicy.for_url(there.url, Settings()))
    return await discover(egress, there.url, hint)


def looked(there: AuthServers) -> list[str]:
    return [asked.what for asked in there.world.asked]


@pytest.mark.row("AUT-06")
async def test_metadata_url_of_challenge_comes_first() -> None:
    async with servers() as there:
        there.world.pages["GET /elsewhere"] = there.world.pages.pop(RESOURCE)
        result = await found(there, f"{there.world.origin}/elsewhere")
        assert looked(there) == ["GET /elsewhere", SERVER]
        assert result.resource_metadata_url == f"{there.world.origin}/elsewhere"


@pytest.mark.row("AUT-06")
async def test_path_url_precedes_root_url() -> None:
    async with servers() as there:
        there.world.pages[RESOURCE_AT_THE_ROOT] = there.world.pages.pop(RESOURCE)
        result = await found(there)
        assert looked(there) == [RESOURCE, RESOURCE_AT_THE_ROOT, SERVER]
        assert (result.resource, result.scopes, result.dpop_required) == (there.url, ("notes",), False)


async def test_html_page_is_no_metadata() -> None:
    async with servers() as there:
        there.world.pages[RESOURCE_AT_THE_ROOT] = there.world.pages[RESOURCE]
        there.world.pages[RESOURCE] = Page(200, "<h1>an application of one page</h1>")
        assert (await found(there)).authorization_server.issuer == there.issuer


@pytest.mark.row("AUT-07")
async def test_metadata_url_on_another_origin_is_refused() -> None:
    async with servers() as there:
        for hint in ("https://evil.example/x", there.world.at(RESOURCE).replace("127.0.0.1", "localhost"), "file:///x"):
            with pytest.raises(AuthorizationFailed, match="not on the MCP server itself") as failed:
                await found(there, hint)
            assert failed.value.hop == "server"
        assert looked(there) == []


async def test_missing_metadata_at_named_url_is_reported() -> None:
    async with servers() as there:
        del there.world.pages[RESOURCE]
        with pytest.raises(AuthorizationFailed, match="there is no metadata") as failed:
            await found(there, f"{there.world.origin}/nothing")
        assert failed.value.hop == "resource-metadata"


async def test_server_error_is_not_missing_metadata() -> None:
    async with servers() as there:
        there.world.pages[RESOURCE] = Page(503)
        with pytest.raises(AuthorizationFailed) as failed:
            await found(there)
        assert (failed.value.hop, failed.value.passing) == ("resource-metadata", True)


@pytest.mark.row("AUT-09")
async def test_all_urls_of_issuer_with_path_are_tried() -> None:
    async with servers() as there:
        there.world.pages[OPENID] = there.world.pages.pop(SERVER)
        await found(there)
        assert looked(there) == [RESOURCE, SERVER, OPENID_INSERTED, OPENID]
        assert ROOT not in looked(there)


@pytest.mark.row("AUT-09")
async def test_issuer_without_metadata_is_reported() -> None:
    async with servers() as there:
        del there.world.pages[SERVER]
        with pytest.raises(AuthorizationFailed, match="publishes no metadata") as failed:
            await found(there)
        assert failed.value.hop == "authorization-server-metadata"


@pytest.mark.row("AUT-10")
async def test_metadata_of_another_issuer_is_refused() -> None:
    async with servers() as there:
        there.world.pages[SERVER] = Page(200, {**there.world.server, "issuer": "https://honest.example"})
        with pytest.raises(AuthorizationFailed, match="and not of"):
            await found(there)
        there.world.pages[OPENID] = Page(200, there.world.server)
        assert (await found(there)).authorization_server.issuer == there.issuer


@pytest.mark.row("AUT-02")
async def test_2025_03_26_server_is_its_own_issuer() -> None:
    async with servers() as there:
        del there.world.pages[RESOURCE]
        there.world.pages[ROOT] = Page(200, {**there.world.server, "issuer": there.world.origin})
        result = await found(there)
        assert (result.authorization_server.issuer, result.resource) == (there.world.origin, there.url)
        assert looked(there) == [RESOURCE, RESOURCE_AT_THE_ROOT, ROOT]
        assert all("mcp-protocol-version" in asked.headers for asked in there.world.asked)


@pytest.mark.row("AUT-02")
async def test_2025_03_26_defaults_without_metadata() -> None:
    async with servers() as there:
        del there.world.pages[RESOURCE]
        result = await found(there)
        assert isinstance(result.authorization_server, AssumedMetadata)
        assert result.authorization_server.token_endpoint == f"{there.world.origin}/token"


async def test_metadata_requires_bound_tokens() -> None:
    async with servers() as there:
        there.world.resource["dpop_bound_access_tokens_required"] = True
        assert (await found(there)).dpop_required
