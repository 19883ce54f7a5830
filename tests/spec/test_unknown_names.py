"""Names that do not exist are answered with the name that was probably meant, if the caller may see it."""

from typing import Annotated, Any

import pytest

from trunkline import Client, Context, Depends, PeerError, Server
from trunkline.auth.principal import Principal
from trunkline.errors import ToolFailed
from trunkline.testing import RawPeer


def celsius() -> str:
    return "C"


def make_server() -> Server:
    server = Server("s", observers=[])

    @server.tool
    async def weather(city: str, ctx: Context, unit: Annotated[str, Depends(celsius)]) -> str:
        return city

    @server.tool
    async def anything(city: str, ctx: Context, **more: Any) -> str:
        return city

    @server.tool(allow=lambda _: False)
    async def salaries() -> str:
        return ""

    @server.tool(scopes=["admin"])
    async def shutdown_all() -> str:
        return ""

    @server.prompt
    async def greeting(name: str = "") -> str:
        return name

    @server.prompt(allow=lambda _: False)
    async def farewell() -> str:
        return ""

    @server.resource("notes://today")
    async def today() -> str:
        return ""

    @server.resource("files://payroll", allow=lambda _: False)
    async def payroll() -> str:
        return ""

    server.add_completion(["Al"], prompt="greeting", argument="name")
    return server


async def refusal(method: str, params: dict[str, Any], principal: Principal | None = None) -> str:
    async with RawPeer(make_server(), principal=principal) as peer:
        await peer.initialize()
        return (await peer.error(method, params))["message"]


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("tools/call", {"name": "wether"}, "there is no tool named 'wether'. Did you mean \"weather\"?"),
        ("tools/call", {"name": "dance"}, "there is no tool named 'dance'"),
        ("tools/call", {"name": "salarie"}, "there is no tool named 'salarie'"),
        ("prompts/get", {"name": "greting"}, "there is no prompt named 'greting'. Did you mean \"greeting\"?"),
        ("prompts/get", {"name": "farewel"}, "there is no prompt named 'farewel'"),
        (
            "prompts/get",
            {"name": "greeting", "arguments": {"nam": "x"}},
            "prompt 'greeting' has no argument 'nam'. Did you mean \"name\"?",
        ),
        (
            "resources/read",
            {"uri": "notes://tody"},
            "there is no resource at 'notes://tody'. Did you mean \"notes://today\"?",
        ),
        ("resources/read", {"uri": "files://payrol"}, "there is no resource at 'files://payrol'"),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "greeting"}, "argument": {"name": "nme", "value": ""}},
            "'greeting' has no argument 'nme'. Did you mean \"name\"?",
        ),
    ],
)
async def test_most_similar_name_is_suggested(method: str, params: Any, message: str) -> None:
    assert await refusal(method, params) == message


async def test_suggestions_respect_scopes() -> None:
    """A local connection has no token, and holds all scopes."""
    misspelt, unknown = {"name": "shutdown_al"}, "there is no tool named 'shutdown_al'"
    suggested = f'{unknown}. Did you mean "shutdown_all"?'
    assert await refusal("tools/call", misspelt) == suggested
    assert await refusal("tools/call", misspelt, Principal("ann", scopes=("admin",))) == suggested
    assert await refusal("tools/call", misspelt, Principal("bob")) == unknown


@pytest.mark.parametrize(
    ("name", "arguments", "hint"),
    [
        ("weather", {"citty": "Oslo"}, 'Did you mean "city"?'),
        ("weather", {"city": "Oslo", "ctx": 1}, "The server provides 'ctx' itself: omit it."),
        ("weather", {"city": "Oslo", "unit": "C"}, "The server provides 'unit' itself: omit it."),
        ("anything", {"city": "Oslo", "ctx": 1}, "The server provides 'ctx' itself: omit it."),
        ("weather", {"city": "Oslo", "planet": 1}, "('planet' was unexpected)"),
        ("anything", {"city": 1, "citty": 1}, 'string"'),
    ],
)
async def test_unknown_argument_error_has_hint(name: str, arguments: Any, hint: str) -> None:
    async with Client(make_server()) as client:
        with pytest.raises(ToolFailed) as raised:
            await client.call_tool(name, arguments)
    assert str(raised.value).endswith(hint)


async def test_client_error_has_suggestion() -> None:
    async with Client(make_server()) as client:
        with pytest.raises(PeerError, match='Did you mean "weather"'):
            await client.call_tool("Weather!")
