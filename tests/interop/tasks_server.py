"""A server whose tools run as tasks, for clients of every dialect: python tasks_server.py <file of its store> [workers]"""

import asyncio
import sys
from dataclasses import dataclass

from trunkline import Context, ProtocolError, Server, Settings, TaskPolicy, ToolError
from trunkline.stores.sqlite.store import SqliteStore

settings = Settings(task_poll_interval=0.02, page_size=50)
server = Server("tasks", store=SqliteStore(sys.argv[1]), settings=settings, observers=[])


@dataclass
class Sure:
    """The form."""

    sure: bool


@server.tool(task=TaskPolicy(support="required"))
async def operation_name(key: str, ctx: Context) -> str:
    """Named as in the founding documents."""
    ctx.progress(1, 2, "half")
    await asyncio.sleep(0)
    ctx.progress(2, 2)
    return key


@server.tool(task=True)
async def waits() -> None:
    """Never completes."""
    await asyncio.Event().wait()


@server.tool(task=True)
async def asks(ctx: Context) -> str:
    """Requests input first."""
    answer = await ctx.elicit("Sure?", Sure)
    return f"{answer.action} {answer.data and answer.data.sure}"


@server.tool(task=True)
async def fails() -> None:
    """Returns a failed result."""
    raise ToolError("it is broken")


@server.tool(task=True)
async def errs() -> None:
    """Raises an error."""
    raise ProtocolError("it went wrong", code=7)


@server.tool
async def plain() -> str:
    """Never a task."""
    return "at once"


server.run("http", port=0, workers=int(sys.argv[2]) if len(sys.argv) > 2 else None)
