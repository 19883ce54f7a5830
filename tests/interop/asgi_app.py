"""A server for third-party ASGI servers, in several processes at once: STORE names the file that they share."""

import os
from dataclasses import dataclass

from trunkline import Context, Server, SqliteStore

server = Server("library", store=SqliteStore(os.environ["STORE"]))


@dataclass
class Sure:
    """The form."""

    sure: bool


@server.tool
async def served_by() -> int:
    """The process that answers."""
    return os.getpid()


@server.tool
async def ask(ctx: Context) -> str:
    """Request input first."""
    await ctx.progress(1)
    return (await ctx.elicit("Sure?", Sure)).action


@server.tool
async def touch() -> None:
    """Change the shelf."""
    server.notify_updated("library://shelf")


@server.resource("library://shelf")
async def shelf() -> str:
    """The shelf."""
    return "books"


app = server.asgi()
