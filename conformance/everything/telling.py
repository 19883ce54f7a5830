"""Tools that tell the client something while they are at work, one that lets it go meanwhile, and two that change what
is listed."""

import asyncio

from everything.server import server
from trunkline import Context

A_MOMENT = 0.05  # seconds: the suite wants to hear the parts one by one


@server.tool(structured=False)
async def test_tool_with_progress(ctx: Context) -> str:
    """Reports progress three times."""
    for done in (0, 50, 100):
        await ctx.progress(done, total=100, message=f"Completed step {done} of 100")
        await asyncio.sleep(A_MOMENT)
    return "Tool with progress executed successfully"


@server.tool(structured=False)
async def test_tool_with_logging(ctx: Context) -> str:
    """Logs three messages to the client."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(message)
        await asyncio.sleep(A_MOMENT)
    return "Tool with logging executed successfully"


@server.tool(structured=False)
async def test_reconnection(ctx: Context) -> str:
    """Closes the stream of its call, whose result waits for the client to come back."""
    ctx.close_stream()
    await asyncio.sleep(A_MOMENT)
    return "Reconnection test completed successfully"


@server.tool(structured=False)
async def test_logging_tool(ctx: Context) -> str:
    """Logs, which only those hear who want to."""
    await ctx.info("Tool execution started")
    await ctx.error("Nothing is wrong")
    return "Logged"


@server.tool(structured=False)
async def test_trigger_tool_change() -> str:
    """Adds a tool and takes it away again."""
    server.add_tool(_passing, name="test_passing_tool", description="Is there for a moment")
    server.remove_tool("test_passing_tool")
    return "The list of tools has changed"


@server.tool(structured=False)
async def test_trigger_prompt_change() -> str:
    """Adds a prompt and takes it away again."""
    server.add_prompt(_passing, name="test_passing_prompt", description="Is there for a moment")
    server.remove_prompt("test_passing_prompt")
    return "The list of prompts has changed"


async def _passing() -> str:
    return "gone"
