"""A server for tests that kill, disconnect and stop it: as a program, and as an ASGI application.

    python -m tests.faults.order_server PORT EFFECTS
    uvicorn tests.faults.order_server:app

Its tools record their effects in a file outside of the server. Settings come from the environment.
"""

import asyncio
import os
import sys
from pathlib import Path

from trunkline import Context, Server, Settings, TaskPolicy
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Store

EFFECTS = Path(os.environ.get("SHOP_EFFECTS", os.devnull))


def store_at(where: str | None) -> Store | None:
    """The store at a path or a URL."""
    if where is None:
        return None
    return RedisStore(where) if where.startswith("redis:") else SqliteStore(where)


server = Server("shop", settings=Settings.load(), store=store_at(os.environ.get("SHOP_STORE")))


def note(what: str) -> None:
    """Record an effect before the response."""
    with EFFECTS.open("a") as file:
        file.write(f"{what}\n")


@server.tool(annotations={"readOnlyHint": True})
def look(what: str) -> str:
    """Have no effect."""
    return f"{what} of {os.getpid()}"


@server.tool
async def order(what: str) -> str:
    """Record an effect and delay the response: a process killed meanwhile has had the effect."""
    note(what)
    await asyncio.sleep(0.02)
    return f"ordered {what}"


@server.tool
async def wait(file: str, ctx: Context) -> str:
    """Record the start, and return once a file exists."""
    await ctx.progress(1)
    while not Path(file).exists():
        await asyncio.sleep(0.005)
    return "waited"


@server.tool(task=TaskPolicy(support="optional", recovery="resume"))
async def mend(ctx: Context) -> str:
    """Complete in the second process that runs it."""
    if ctx.resumed_from is not None:
        note("mended")
        return "mended"
    await ctx.checkpoint({"screws": 3})
    note("mending")
    await asyncio.Event().wait()
    return "never"


@server.resource("shop://price")
def price() -> str:
    """The price."""
    return "7"


@server.tool
def reprice() -> str:
    """Change the price and notify subscribers."""
    server.notify_updated("shop://price")
    return "told"


app = server.asgi(path="/mcp")

if __name__ == "__main__":
    server.run("http", port=int(sys.argv[1]))
