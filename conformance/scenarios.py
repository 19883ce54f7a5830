"""What the client does in each scenario of the conformance suite, whose mock server is at the URL."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from trunkline import Client

__all__ = ["SCENARIOS"]


async def initialize(url: str) -> None:
    """Shakes hands, and sees that the other side is there."""
    async with Client(url, name="trunkline-conformance", version="1.0") as client:
        await client.ping()


async def call_a_tool(url: str) -> None:
    """Finds a tool and calls it."""
    async with Client(url) as client:
        [tool] = [tool async for tool in client.tools()]
        await client.call_tool(tool.name, {"a": 5, "b": 3})


async def accept_defaults(url: str) -> None:
    """Calls a tool that asks, and accepts the form as it is: what is left out is filled in by the defaults."""

    async def accept(_form: Any) -> dict[str, Any]:
        return {}

    async with Client(url, elicitation=accept) as client:
        await client.call_tool("test_client_elicitation_defaults")


async def come_back(url: str) -> None:
    """Calls a tool whose stream is closed before its result: the client comes back for it by itself, when told to."""
    async with Client(url) as client:
        await client.call_tool("test_reconnection")


async def return_a_schema(url: str) -> None:
    """Sends a tool's input schema back as it was listed."""
    async with Client(url) as client:
        tools = {tool.name: tool async for tool in client.tools()}
        schema = tools["json_schema_2020_12_tool"].input_schema
        await client.call_tool("json_schema_echo", {"schema": schema})


SCENARIOS: Final[Mapping[str, Callable[[str], Awaitable[None]]]] = {
    "initialize": initialize,
    "tools_call": call_a_tool,
    "elicitation-sep1034-client-defaults": accept_defaults,
    "sse-retry": come_back,
    "json-schema-2020-12-preservation": return_a_schema,
}
