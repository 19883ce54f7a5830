"""What the client does in each scenario of the conformance suite, whose mock server is at the URL."""

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from logins import LOGINS

from trunkline import Client

__all__ = ["SCENARIOS"]

# The suite names the revision that it plays, except for an older one that knew of no later revision than this.
spoken = partial(Client, revision=os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "2025-11-25"))


async def accept(_form: Any) -> dict[str, Any]:
    """Accepts a form as it is: what is left out is filled in by the defaults."""
    return {}


async def confirm(_form: Any) -> dict[str, Any]:
    """Says yes."""
    return {"confirmed": True}


async def initialize(url: str) -> None:
    """Begins a conversation, and sees that the other side is there."""
    async with spoken(url, name="trunkline-conformance", version="1.0") as client:
        await client.ping()


async def call_a_tool(url: str) -> None:
    """Finds a tool and calls it."""
    async with spoken(url) as client:
        [tool] = [tool async for tool in client.tools()]
        await client.call_tool(tool.name, {"a": 5, "b": 3})


async def accept_defaults(url: str) -> None:
    """Calls a tool that asks."""
    async with spoken(url, elicitation=accept) as client:
        await client.call_tool("test_client_elicitation_defaults")


async def come_back(url: str) -> None:
    """Calls a tool whose stream is closed before its result: the client comes back for it by itself, when told to."""
    async with spoken(url) as client:
        await client.call_tool("test_reconnection")


async def return_a_schema(url: str) -> None:
    """Sends a tool's input schema back as it was listed."""
    async with spoken(url) as client:
        tools = {tool.name: tool async for tool in client.tools()}
        schema = tools["json_schema_2020_12_tool"].input_schema
        await client.call_tool("json_schema_echo", {"schema": schema})


async def say_who_asks(url: str) -> None:
    """Asks for a sign of life as a client that can do everything, of a server that refuses its first request."""
    async with spoken(url, sampling=accept, elicitation=accept, roots=[]) as client:
        await client.ping()
        await client.ping()


async def carry_states(url: str) -> None:
    """Calls tools that ask, each with a state of its own or with none."""
    async with spoken(url, elicitation=confirm) as client:
        for name in ("echo_state", "unrelated", "no_state", "no_result_type"):
            await client.call_tool(f"test_mrtr_{name}")


async def use_all(url: str) -> None:
    """Uses one of everything that the server lists."""
    async with spoken(url) as client:
        async for tool in client.tools():
            await client.call_tool(tool.name)
        async for resource in client.resources():
            await client.read_resource(resource.uri)
        async for prompt in client.prompts():
            await client.get_prompt(prompt.name)


async def call_as_told(url: str) -> None:
    """Makes the calls that the suite names."""
    told = json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])
    async with spoken(url) as client:
        await client.list_tools()
        for call in told["toolCalls"]:
            await client.call_tool(call["name"], call["arguments"])


async def call_all(url: str) -> None:
    """Calls every tool that is listed; those that could not be are not."""
    async with spoken(url) as client:
        async for tool in client.tools():
            await client.call_tool(tool.name, {"region": "eu"})


async def list_only(url: str) -> None:
    """Lists tools, and fetches nothing that their schemas refer to."""
    async with spoken(url) as client:
        await client.list_tools()


async def use_with(login: Callable[[], Any], url: str) -> None:
    """Uses a server that wants to know who calls."""
    async with spoken(url, auth=login()) as client:
        [tool] = [tool async for tool in client.tools()]
        await client.call_tool(tool.name)


SCENARIOS: Final[Mapping[str, Callable[[str], Awaitable[None]]]] = {
    "initialize": initialize,
    "tools_call": call_a_tool,
    "elicitation-sep1034-client-defaults": accept_defaults,
    "sse-retry": come_back,
    "json-schema-2020-12-preservation": return_a_schema,
    "request-metadata": say_who_asks,
    "sep-2322-client-request-state": carry_states,
    "http-standard-headers": use_all,
    "http-custom-headers": call_as_told,
    "http-invalid-tool-headers": call_all,
    "json-schema-ref-no-deref": list_only,
    **{name: partial(use_with, login) for name, login in LOGINS.items()},
}
