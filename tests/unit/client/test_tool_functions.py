"""Tools as functions: `client.tools.add(a=1)`."""

import copy

import pytest

from trunkline import BlockingClient, Client, Server, ToolFunctions
from trunkline.errors import ToolError, ToolFailed


def make_server() -> Server:
    server = Server("calculator")

    @server.tool
    def add(a: int, b: int = 1) -> int:
        return a + b

    @server.tool(name="read-file")
    def read_file(name: str, self: str = "") -> str:
        return name + self

    @server.tool
    def fail() -> str:
        raise ToolError("no")

    return server


async def test_attribute_calls_the_tool() -> None:
    async with Client(make_server()) as client:
        assert await client.tools.add(a=1, b=2) == 3
        assert await client.tools.add(a=1) == 2


async def test_item_calls_a_tool_whose_name_is_no_identifier() -> None:
    async with Client(make_server()) as client:
        assert await client.tools["read-file"](name="a", self="b") == "ab"


async def test_call_yields_the_definitions() -> None:
    async with Client(make_server()) as client:
        assert [tool.name async for tool in client.tools()] == ["add", "read-file", "fail"]
        assert [tool.name async for tool in client.iterate_tools()] == ["add", "read-file", "fail"]


async def test_failure_of_a_tool_is_raised() -> None:
    async with Client(make_server()) as client:
        with pytest.raises(ToolFailed):
            await client.tools.fail()


def test_protocols_of_python_find_no_tools() -> None:
    tools = Client(make_server()).tools
    assert isinstance(tools, ToolFunctions)
    with pytest.raises(AttributeError):
        tools._repr_html_  # noqa: B018
    assert not hasattr(tools, "__wrapped__")
    assert copy.copy(tools)._client is tools._client


def test_blocking_client_has_functions_too() -> None:
    with BlockingClient(make_server()) as client:
        assert client.tools.add(a=1, b=2) == 3
        assert client.tools["read-file"](name="a") == "a"
        assert [tool.name for tool in client.tools()] == ["add", "read-file", "fail"]
        assert not hasattr(client.tools, "_repr_html_")
