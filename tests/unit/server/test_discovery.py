"""server/discover, and the cache lifetime of lists."""

from typing import Any

import pytest
from tests.modern import PREFIX, enveloped

from trunkline import Context, Server, Settings
from trunkline.errors import ConfigError, RegistrationError
from trunkline.testing import RawPeer


async def thing() -> str:
    return "thing"


async def kept(server: Server, method: str, **params: Any) -> tuple[int, str]:
    async with RawPeer(server) as peer:
        result = await peer.result(method, enveloped(**params))
        return result["ttlMs"], result["cacheScope"]


@pytest.mark.row("VER-07")
async def test_discover_returns_revisions_and_capabilities() -> None:
    server = Server("s", version="2", instructions="Be kind.", extensions={"x.example/thing": {"a": 1}})
    server.add_tool(thing)
    async with RawPeer(server) as peer:
        result = await peer.result("server/discover", enveloped())
        assert result["supportedVersions"][-1] == "2026-07-28" or result["supportedVersions"][0] == "2026-07-28"
        assert result["capabilities"] == {
            "tools": {"listChanged": True},
            "logging": {},
            "extensions": {"x.example/thing": {"a": 1}},
        }
        assert result["instructions"] == "Be kind."
        assert result["_meta"] == {f"{PREFIX}serverInfo": {"name": "s", "version": "2"}}


@pytest.mark.row("VER-01")
async def test_discover_is_optional_and_up_to_date() -> None:
    server = Server("s")
    async with RawPeer(server) as peer:
        assert "tools" not in (await peer.result("server/discover", enveloped()))["capabilities"]
        assert (await peer.error("tools/list", enveloped()))["code"] == -32601
        server.add_tool(thing)
        assert (await peer.result("tools/list", enveloped()))["tools"][0]["name"] == "thing"


async def test_handshake_and_modern_requests_share_a_connection() -> None:
    server = Server("s")
    server.add_tool(thing)
    async with RawPeer(server) as peer:
        assert (await peer.result("tools/call", enveloped(name="thing")))["resultType"] == "complete"
        await peer.initialize()
        assert "resultType" not in await peer.result("tools/call", {"name": "thing"})
        assert (await peer.result("tools/call", enveloped(name="thing")))["resultType"] == "complete"


@pytest.mark.row("CCH-01")
@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("server/discover", "discover"),
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resource_templates"),
    ],
)
async def test_public_lists_have_the_configured_ttl(method: str, what: str) -> None:
    for cache, ttl in (({}, 0), ({what: 1.5}, 1500)):
        server = Server("s", cache=cache)
        server.add_tool(thing)
        server.add_prompt("text", name="a_prompt")
        server.add_resource("x:a", "text")
        assert await kept(server, method) == (ttl, "public")


@pytest.mark.row("CCH-02")
async def test_filtered_list_is_private_on_every_page() -> None:
    server = Server("s", cache={"tools": 60}, settings=Settings(page_size=1))
    server.add_tool(thing, name="first")
    server.add_tool(thing, name="second", allow=lambda ctx: True)
    async with RawPeer(server) as peer:
        first = await peer.result("tools/list", enveloped())
        second = await peer.result("tools/list", enveloped(cursor=first["nextCursor"]))
        assert [(page["ttlMs"], page["cacheScope"]) for page in (first, second)] == [(60_000, "private")] * 2

    server = Server("s")

    async def listed(ctx: Context) -> list[str]:
        return [f"x:{ctx.principal}"]

    @server.resource("x:{name}", list=listed)
    async def read(name: str) -> str:
        return name

    assert await kept(server, "resources/list") == (0, "private")


@pytest.mark.row("CCH-01")
async def test_resource_contents_have_their_own_cache_hint() -> None:
    server = Server("s")
    server.add_resource("x:constant", "text", ttl=2)
    server.add_resource("x:secret", "text", public=False)

    @server.resource("y:one")
    async def one() -> str:
        return "one"

    @server.resource("z:{name}", ttl=1, public=True)
    async def many(name: str) -> str:
        return name

    found = [await kept(server, "resources/read", uri=uri) for uri in ("x:constant", "x:secret", "y:one", "z:a")]
    assert found == [(2000, "public"), (0, "private"), (0, "private"), (1000, "public")]


@pytest.mark.row("CCH-01")
async def test_middleware_result_has_a_cache_hint() -> None:
    server = Server("s")
    server.add_resource("x:a", "text", ttl=2)
    kept_result: list[Any] = []

    @server.middleware
    async def remember(call: Any, following: Any) -> Any:
        if not kept_result:
            kept_result.append(await following(call))
        return kept_result[0]

    assert await kept(server, "resources/read", uri="x:a") == (2000, "public")
    assert await kept(server, "resources/read", uri="x:a") == (0, "private")


def test_unknown_cache_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="'tolls'"):
        Server("s", cache={"tolls": 1})
    with pytest.raises(ConfigError, match="'tools'"):
        Server("s", cache={"tools": -1})
    with pytest.raises(RegistrationError, match="ttl"):
        Server("s").add_resource("x:a", "text", ttl=-1)


async def test_list_order_is_stable() -> None:
    server = Server("s")
    for number in range(20):
        server.add_tool(thing, name=f"tool{number * 7 % 20}")
    names = []
    for _ in range(2):
        async with RawPeer(server) as peer:
            for _ in range(2):
                names.append([tool["name"] for tool in (await peer.result("tools/list", enveloped()))["tools"]])
    assert names == [names[0]] * 4
