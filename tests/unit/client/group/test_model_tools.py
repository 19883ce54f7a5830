"""Tools in the shapes of providers, and their calls."""

import asyncio
import json
from typing import Any

import pytest

from trunkline import Client, ClientGroup, Image, PinStore, Server, ToolError, run_tool_call, tools_for
from trunkline.errors import MisuseError
from trunkline.testing import ScriptedServer

PIXEL = b"\x89PNG\r\n\x1a\n"


def make_server() -> Server:
    server = Server("s")

    @server.tool(name="math.add")
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    @server.tool
    def draw() -> list[str | Image]:
        """Draws."""
        return ["see", Image(PIXEL, "image/png")]

    @server.tool
    def fail() -> None:
        """Fails."""
        raise ToolError("no luck")

    return server


CALLS = {
    "openai": lambda name, args: {
        "id": "1",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(args)},
    },
    "openai-responses": lambda name, args: {
        "type": "function_call",
        "id": "fc",
        "call_id": "1",
        "name": name,
        "arguments": json.dumps(args),
    },
    "anthropic": lambda name, args: {"type": "tool_use", "id": "1", "name": name, "input": args},
    "langchain": lambda name, args: {"type": "tool_call", "id": "1", "name": name, "args": args},
}
REPLIES = {
    "openai": {"role": "tool", "tool_call_id": "1", "content": "3"},
    "openai-responses": {"type": "function_call_output", "call_id": "1", "output": "3"},
    "anthropic": {
        "type": "tool_result",
        "tool_use_id": "1",
        "content": [{"type": "text", "text": "3"}],
        "is_error": False,
    },
    "langchain": {"role": "tool", "tool_call_id": "1", "content": "3", "status": "success"},
}


def name_in(definition: dict[str, Any]) -> str:
    return definition.get("function", definition)["name"]


@pytest.mark.parametrize("style", CALLS)
@pytest.mark.parametrize("grouped", [True, False], ids=["group", "client"])
async def test_definition_leads_to_a_call(style: Any, grouped: bool) -> None:
    source = ClientGroup({"calc": make_server()}) if grouped else Client(make_server())
    async with source:
        definition = (await tools_for(source, style))[0]
        name = name_in(definition)
        assert "math_add-" in name
        reply = await run_tool_call(source, CALLS[style](name, {"a": 1, "b": 2}))
    expected = {**REPLIES[style], "name": name} if style == "langchain" else REPLIES[style]
    assert reply == expected


async def test_shapes_of_definitions() -> None:
    async with Client(make_server()) as client:
        tools = {style: (await tools_for(client, style))[1] for style in ("openai", "openai-responses", "anthropic")}
    schema = tools["anthropic"]["input_schema"]
    assert (schema["type"], schema["properties"]) == ("object", {})
    assert tools["anthropic"] == {"name": "draw", "description": "Draws.", "input_schema": schema}
    function = {"name": "draw", "description": "Draws.", "parameters": schema}
    assert tools["openai"] == {"type": "function", "function": function}
    assert tools["openai-responses"] == {"type": "function", **function, "strict": False}


async def test_definition_for_langchain_has_a_function() -> None:
    async with Client(make_server()) as client:
        tool = (await tools_for(client, "langchain"))[0]
        assert tool.keys() == {"name", "description", "args_schema", "coroutine"}
        assert await tool["coroutine"](a=1, b=2) == "3"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (CALLS["anthropic"]("calc__fail", {}), "no luck"),
        (CALLS["anthropic"]("calc__nothing", {}), "nothing"),
        (CALLS["anthropic"]("nothing", {}), "not registered"),
        (CALLS["anthropic"]("calc__x-00000000", {}), "not registered"),
    ],
    ids=["fails", "unknown tool", "unknown prefix", "unknown altered name"],
)
async def test_error_is_a_result_for_the_model(call: Any, text: str) -> None:
    async with ClientGroup({"calc": make_server()}) as group:
        reply = await run_tool_call(group, call)
    assert reply["is_error"]
    assert text in reply["content"][0]["text"]


async def test_unknown_altered_name_of_a_client_is_a_result() -> None:
    async with Client(make_server()) as client:
        reply = await run_tool_call(client, CALLS["langchain"]("x-00000000", {}))
    assert reply["status"] == "error"


@pytest.mark.parametrize(("arguments", "failed"), [("{", True), ("", False)])
async def test_arguments_of_openai_are_json(arguments: str, failed: bool) -> None:
    async with Client(make_server()) as client:
        call = {"id": "1", "function": {"name": "draw", "arguments": arguments}}
        content = (await run_tool_call(client, call))["content"]
    assert ("not JSON" in content) is failed


async def test_image_reaches_anthropic_as_an_image_and_others_as_a_note() -> None:
    async with Client(make_server()) as client:
        reply = await run_tool_call(client, CALLS["anthropic"]("draw", {}))
        assert [block["type"] for block in reply["content"]] == ["text", "image"]
        assert reply["content"][1]["source"]["media_type"] == "image/png"
        assert (await run_tool_call(client, CALLS["openai"]("draw", {})))["content"] == "see\n[image/png]"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [], "structuredContent": {"a": 1}}, '{"a":1}'),
        ({"content": [{"type": "resource_link", "uri": "file:///a", "name": "a"}]}, "[a: file:///a]"),
        ({"content": [{"type": "audio", "data": "AA==", "mimeType": "audio/wav"}]}, "[audio/wav]"),
        ({"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "words"}}]}, "words"),
        ({"content": [{"type": "resource", "resource": {"uri": "file:///a", "blob": "AA=="}}]}, "[data: file:///a]"),
    ],
    ids=["structured", "link", "audio", "text resource", "binary resource"],
)
async def test_other_content_becomes_text(result: Any, text: str) -> None:
    server = ScriptedServer(tools=[{"name": "x", "inputSchema": {"type": "object"}}])
    async with Client(server) as client:
        running = asyncio.ensure_future(run_tool_call(client, CALLS["openai"]("x", {})))
        server.line.reply(await server.line.request("tools/call"), result)
        assert (await running)["content"] == text


async def test_object_of_a_package_is_a_call() -> None:
    class Call:
        def model_dump(self) -> dict[str, Any]:
            return CALLS["anthropic"]("draw", {})

    async with Client(make_server()) as client:
        assert not (await run_tool_call(client, Call()))["is_error"]


async def test_other_shapes_and_styles_are_refused() -> None:
    async with Client(make_server()) as client:
        with pytest.raises(MisuseError, match="no tool call"):
            await run_tool_call(client, {"name": "draw"})
        with pytest.raises(MisuseError, match="style must be one of openai"):
            await tools_for(client, "gemini")  # pyright: ignore[reportArgumentType]


async def test_model_does_not_read_the_changes_of_a_blocked_tool(tmp_path: Any) -> None:
    pins = PinStore(tmp_path / "pins.json")
    for description in ("Good.", "Evil words."):
        server = Server("s")
        server.add_tool(lambda: 1, name="one", description=description)
        async with ClientGroup({"s": server}, pins=pins) as group:
            await group.list_tools()
            reply = await run_tool_call(group, CALLS["openai"]("s__one", {}))
    assert "blocked" in reply["content"]
    assert "Evil" not in reply["content"]
