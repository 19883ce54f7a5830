"""The benchmark's server on Trunkline, with its defaults: `server.py stdio`, or `server.py http PORT`."""

import os
import sys
from typing import Any

from peers.handlers import add, echo, echo_sync, extra, extra_names, greet, item, static
from trunkline import Context, Server, Settings

GUARDS: dict[str, Any] = {
    "": {},
    "rate": {"rate": "1000000/s"},
    "breaker": {"breaker": True},
    "overload": {"rate": "100/s"},
}

if os.environ.get("BENCH_VERIFIED"):
    from authentication import auth

    server = Server("bench", auth=auth())
elif place := os.environ.get("BENCH_STORE"):
    if place.startswith("redis:"):
        from trunkline.stores.redis.store import RedisStore as Kept
    else:
        from trunkline.stores.sqlite.store import SqliteStore as Kept

    server = Server("bench", store=Kept(place))
elif rate := os.environ.get("BENCH_HTTP_RATE"):
    server = Server("bench", settings=Settings(http_rate=rate))
else:
    server = Server("bench")
for tool in (echo, echo_sync, add):
    server.add_tool(tool, **GUARDS[os.environ.get("BENCH_GUARD", "")])
server.add_tool(echo, name="echo_task", task=True)


@server.tool
async def steps(text: str, ctx: Context) -> str:
    """Report progress, then answer with the text."""
    await ctx.progress(1, 2)
    return text


@server.tool
async def touch(text: str) -> str:
    """Tell the subscribers of a resource that it has changed."""
    server.notify_updated(text)
    return "ok"


@server.tool
async def burn(text: str) -> str:
    """Work for 1 to 2 ms, then answer with the text."""
    sum(range(60_000))
    return text


for name in extra_names(own=7):
    server.add_tool(extra, name=name)
server.resource("bench://static")(static)
server.resource("bench://item/{id}")(item)
server.prompt(greet)

if sys.argv[1] == "stdio":
    server.run("stdio")
elif workers := int(os.environ.get("BENCH_WORKERS", "0")):
    server.run("http", port=int(sys.argv[2]), workers=workers)
else:
    server.run("http", port=int(sys.argv[2]))
