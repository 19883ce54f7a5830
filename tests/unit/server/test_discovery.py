"""What a server says of itself to clients that do not greet, and how long what it lists may be kept."""

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
async def test_discovery_says_what_is_spoken_and_offered() -> None:
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
async def test_discovery_is_not_needed_and_says_what_is_offered_now() -> None:
    server = Server("s")
    async with RawPeer(server) as peer:
        assert "tools" not in (await peer.result("server/discover", enveloped()))["capabilities"]
        assert (await peer.error("tools/list", enveloped()))["code"] == -32601
        server.add_tool(thing)
        assert (await peer.result("tools/list", enveloped()))["tools"][0]["name"] == "thing"


async def test_a_client_may_greet_and_another_not_on_the_same_line() -> None:
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
async def test_lists_are_the_same_for_everybody_and_kept_as_long_as_the_server_says(method: str, what: str) -> None:
    for cache, ttl in (({}, 0), ({what: 1.5}, 1500)):
        server = Server("s", cache=cache)
        server.add_tool(thing)
        server.add_prompt("text", name="a_prompt")
        server.add_resource("x:a", "text")
        assert await kept(server, method) == (ttl, "public")


@pytest.mark.row("CCH-02")
async def test_a_list_that_not_everybody_sees_alike_is_private_on_every_page() -> None:
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
async def test_each_resource_says_how_long_it_may_be_kept_and_is_private_unless_it_is_a_constant() -> None:
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
async def test_an_answer_of_middleware_says_it_as_well() -> None:
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


def test_what_cannot_be_kept_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="'tolls'"):
        Server("s", cache={"tolls": 1})
    with pytest.raises(ConfigError, match="'tools'"):
        Server("s", cache={"tools": -1})
    with pytest.raises(RegistrationError, match="ttl"):
        Server("s").add_resource("x:a", "text", ttl=-1)


async def test_lists_have_the_same_order_each_time_and_for_everybody() -> None:
    server = Server("s")
    for number in range(20):
        server.add_tool(thing, name=f"tool{number * 7 % 20}")
    names = []
    for _ in range(2):
        async with RawPeer(server) as peer:
            for _ in range(2):
                names.append([tool["name"] for tool in (await peer.result("tools/list", enveloped()))["tools"]])
    assert names == [names[0]] * 4
