"""Sampling with tools: offered tools, tool calls of the model, and their results."""

from typing import Any

import pytest

from trunkline import CallToolResult, Context, ImageContent, SamplingMessage, Server, TextContent, ToolResult
from trunkline.errors import MisuseError
from trunkline.protocol.types import Tool, ToolResultContent, ToolUseContent
from trunkline.testing import RawPeer

WITH_TOOLS = {"sampling": {"tools": {}}}
USE = ToolUseContent("u1", "add", {"a": 1, "b": 2})
OTHER = ToolUseContent("u2", "add", {"a": 3, "b": 4})


def said(role: Any, *blocks: Any) -> SamplingMessage:
    return SamplingMessage(role, list(blocks))


@pytest.mark.row("SMP-02", "SMP-06", "S01")
async def test_model_uses_server_tools_until_done() -> None:
    server, replies = Server("t"), []

    @server.tool
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    @server.tool
    async def chat(ctx: Context) -> str:
        messages: list[Any] = ["What is 1 + 2?"]
        reply = await ctx.sample(messages, tools=["add", Tool(name="other", input_schema={"type": "object"})])
        while reply.tool_uses:
            results = [use.result(add(**use.input)) for use in reply.tool_uses]
            messages += [reply.message, SamplingMessage.of_results(results)]
            reply = await ctx.sample(messages, tools=["add"], tool_choice="none")
        replies.append(reply)
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=WITH_TOOLS)
        call = peer.call("tools/call", {"name": "chat"})
        first = await peer.receive()
        assert [tool["name"] for tool in first["params"]["tools"]] == ["add", "other"]
        assert first["params"]["tools"][0]["inputSchema"]["required"] == ["a", "b"]
        use = {"type": "tool_use", "id": "u1", "name": "add", "input": {"a": 1, "b": 2}}
        peer.reply(first, {"role": "assistant", "content": use, "model": "m", "stopReason": "toolUse"})
        second = await peer.receive()
        assert second["params"]["toolChoice"] == {"mode": "none"}
        assert second["params"]["messages"][1] == {"role": "assistant", "content": use}
        answer = {"type": "tool_result", "toolUseId": "u1", "content": [{"type": "text", "text": "3"}]}
        assert second["params"]["messages"][2] == {"role": "user", "content": [answer]}
        peer.reply(second, {"role": "assistant", "content": {"type": "text", "text": "3"}, "model": "m"})
        await peer.answer_to(call)
    assert replies[0].message == SamplingMessage("assistant", TextContent("3"))


@pytest.mark.row("SMP-06")
@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([said("assistant", USE)], "'u1' has no result"),
        (
            [said("assistant", USE), said("user", TextContent("hm"))],
            "message 2 must contain the result of the tool use 'u1'",
        ),
        (
            [said("assistant", USE, OTHER), said("user", USE.result(3))],
            "message 2 must contain the result of the tool use 'u2'",
        ),
        ([said("assistant", USE), said("user", USE.result(3), TextContent("hm"))], "must have only those"),
        ([said("user", USE.result(3))], "'u1', which is not in the message before"),
        ([said("assistant", USE), said("assistant", USE.result(3))], "only the user may"),
        ([said("user", USE), said("user", USE.result(3))], "only the assistant may"),
    ],
)
async def test_mismatched_tool_uses_and_results_are_not_sent(messages: Any, why: str) -> None:
    server, outcome = Server("t"), []

    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(MisuseError) as error:
            await ctx.sample(["hello", *messages])
        outcome.append(str(error.value))
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=WITH_TOOLS)
        await peer.result("tools/call", {"name": "ask"})
        assert [message for message in peer.transcript.said_by("server") if "method" in message] == []
    assert why.replace("message 2", "message 3") in outcome[0]


@pytest.mark.row("SMP-02")
async def test_unknown_tool_cannot_be_offered() -> None:
    server, outcome = Server("t"), []

    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(MisuseError) as error:
            await ctx.sample("hello", tools=["nothing"])
        outcome.append(str(error.value))
        return "done"

    async with RawPeer(server) as peer:
        await peer.initialize(capabilities=WITH_TOOLS)
        await peer.result("tools/call", {"name": "ask"})
    assert "no tool named 'nothing'" in outcome[0]


PICTURE = ImageContent("aGk=", "image/png")


@pytest.mark.row("SMP-03")
@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("text", ToolResultContent("u1", [TextContent("text")])),
        ({"a": [1]}, ToolResultContent("u1", [TextContent('{"a":[1]}')])),
        ([], ToolResultContent("u1", [TextContent("[]")])),
        (PICTURE, ToolResultContent("u1", [PICTURE])),
        ([PICTURE, TextContent("x")], ToolResultContent("u1", [PICTURE, TextContent("x")])),
        (CallToolResult([PICTURE], {"a": 1}, True), ToolResultContent("u1", [PICTURE], {"a": 1}, True)),
        (ToolResult([PICTURE], None, {"a": 1}, True), ToolResultContent("u1", [PICTURE], {"a": 1}, True)),
    ],
)
def test_any_tool_value_becomes_a_tool_result(value: Any, result: ToolResultContent) -> None:
    assert USE.result(value) == result


@pytest.mark.row("SMP-03")
def test_failed_tool_result_is_marked() -> None:
    assert USE.result("no", is_error=True).is_error
