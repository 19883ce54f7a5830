"""A server to be killed, cut off and told to stop: as a program, and as the application of another one.

    python -m tests.faults.shop PORT EFFECTS
    uvicorn tests.faults.shop:app

What it does is written to a file, since only what is outside of it can judge. Settings come from the environment.
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


def kept(where: str | None) -> Store | None:
    """The store at a path or an address."""
    if where is None:
        return None
    return RedisStore(where) if where.startswith("redis:") else SqliteStore(where)


server = Server("shop", settings=Settings.load(), store=kept(os.environ.get("SHOP_STORE")))


def note(what: str) -> None:
    """Writes down what was done, before it is answered."""
    with EFFECTS.open("a") as file:
        file.write(f"{what}\n")


@server.tool(annotations={"readOnlyHint": True})
def look(what: str) -> str:
    """Changes nothing."""
    return f"{what} of {os.getpid()}"


@server.tool
async def order(what: str) -> str:
    """Has an effect, and takes its time to say so: whoever is killed meanwhile has done it."""
    note(what)
    await asyncio.sleep(0.02)
    return f"ordered {what}"


@server.tool
async def wait(file: str, ctx: Context) -> str:
    """Says that it has begun, and ends when there is a file."""
    await ctx.progress(1)
    while not Path(file).exists():
        await asyncio.sleep(0.005)
    return "waited"


@server.tool(task=TaskPolicy(support="optional", recovery="resume"))
async def mend(ctx: Context) -> str:
    """Comes to an end in the second process that works on it."""
    if ctx.resumed_from is not None:
        note("mended")
        return "mended"
    await ctx.checkpoint({"screws": 3})
    note("mending")
    await asyncio.Event().wait()
    return "never"


@server.resource("shop://price")
def price() -> str:
    """What it costs."""
    return "7"


@server.tool
def reprice() -> str:
    """Tells whoever wants to know that the price has changed."""
    server.notify_updated("shop://price")
    return "told"


app = server.asgi(path="/mcp")

if __name__ == "__main__":
    server.run("http", port=int(sys.argv[1]))
