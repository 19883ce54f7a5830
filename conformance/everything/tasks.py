"""Tools that run as tasks, under names that the suite knows."""

import asyncio
from dataclasses import dataclass

from everything.server import server
from trunkline import Context, ProtocolError, TaskPolicy, ToolError


@dataclass
class Confirmed:
    """Whether the user agrees."""

    confirm: bool


@dataclass
class Named:
    """What the user is called."""

    name: str


@server.tool(structured=False)
async def greet(name: str) -> str:
    """Is done at once."""
    return f"Hello, {name}!"


@server.tool(task="optional", structured=False)
async def slow_compute(seconds: float = 1.0, label: str = "") -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return f"{label} took {seconds:g} s"


@server.tool(task="required", structured=False)
async def failing_job() -> str:
    """Fails, after a while."""
    await asyncio.sleep(0.5)
    raise ToolError("This job always fails")


@server.tool(task="required", structured=False)
async def protocol_error_job() -> str:
    """Comes to an error instead of a result."""
    await asyncio.sleep(0.1)
    raise ProtocolError("This job ends with an error", code=1)


@server.tool(task="optional", structured=False)
async def confirm_delete(filename: str, ctx: Context) -> str:
    """Asks before it does anything."""
    answer = await ctx.elicit(f"Delete {filename}?", Confirmed)
    return f"{filename} is deleted" if answer.data and answer.data.confirm else f"{filename} is kept"


@server.tool(task="optional", structured=False)
async def multi_input(ctx: Context) -> str:
    """Asks two things at once."""
    name, sure = await asyncio.gather(ctx.elicit("Who are you?", Named), ctx.elicit("Are you sure?", Confirmed))
    return f"{name.action} {sure.action}"


@server.tool(task=TaskPolicy(support="required", asks_first=True), structured=False)
async def test_tool_with_task(ctx: Context) -> str:
    """Asks for a name, and then goes on as a task."""
    answer = await ctx.elicit("What is your name?", Named, key="user_name")
    await ctx.begin_task()
    await asyncio.sleep(0.1)
    return f"Hello, {answer.data.name if answer.data else 'stranger'}!"
