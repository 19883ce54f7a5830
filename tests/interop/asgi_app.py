"""A server for other ASGI servers to run, in several processes at once: STORE names the file that they share."""

import os
from dataclasses import dataclass

from trunkline import Context, Server, SqliteStore

server = Server("library", store=SqliteStore(os.environ["STORE"]))


@dataclass
class Sure:
    """What is asked."""

    sure: bool


@server.tool
async def served_by() -> int:
    """The process that answers."""
    return os.getpid()


@server.tool
async def ask(ctx: Context) -> str:
    """Has to ask first."""
    await ctx.progress(1)
    return (await ctx.elicit("Sure?", Sure)).action


@server.tool
async def touch() -> None:
    """The shelf changes."""
    server.notify_updated("library://shelf")


@server.resource("library://shelf")
async def shelf() -> str:
    """What there is."""
    return "books"


app = server.asgi()
