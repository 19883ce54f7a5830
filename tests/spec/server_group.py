"""Several servers on one store, each on its own port, and a round-robin proxy in front of them."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from tests.contract.valkey import valkey

from trunkline import Context, Server, Settings
from trunkline.stores.redis.store import RedisStore
from trunkline.stores.sqlite.store import SqliteStore
from trunkline.stores.store import Store

DROPPED = frozenset({"host", "connection", "transfer-encoding", "content-length", "content-encoding"})


class Sure(msgspec.Struct):
    sure: bool


class GroupServer:
    """One of the servers."""

    def __init__(self, store: Store, **settings: Any) -> None:
        self.server = Server("many", store=store, settings=Settings(stream_retry=0.05, **settings))
        self.calls = 0  # calls that ran here
        self.begun, self.go, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.url = ""
        self._offer(self.server)

    def _offer(self, server: Server) -> None:
        @server.tool
        async def add(a: int, b: int) -> int:
            self.calls += 1
            return a + b

        @server.tool
        async def steps(ctx: Context) -> str:
            for step in (1, 2, 3):
                await ctx.progress(step)
            return "done"

        @server.tool
        async def waits(ctx: Context) -> str:
            await ctx.progress(1)
            self.begun.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "done"

        @server.tool
        async def confirm(ctx: Context) -> str:
            answer = await ctx.elicit("Sure?", Sure)
            return f"{answer.action} {answer.data and answer.data.sure}"

        @server.tool
        async def think(ctx: Context) -> str:
            answer: Any = await ctx.sample("and?")
            return answer.content.text

        @server.tool(task="optional")
        async def later(text: str) -> str:
            self.calls += 1
            return text

        @server.tool
        def change(uri: str) -> None:
            server.notify_updated(uri)

        @server.resource("note://{name}")
        def note(name: str) -> str:
            return name


@asynccontextmanager
async def server_group(kind: str, folder: Path, count: int = 3, **settings: Any) -> AsyncIterator[list[GroupServer]]:
    """Start that many servers on one SQLite file or one Valkey."""
    prefix = uuid.uuid4().hex
    async with AsyncExitStack() as stack:
        made: list[GroupServer] = []
        for _ in range(count):
            store = SqliteStore(folder / "many") if kind == "sqlite" else RedisStore(valkey().url, prefix=f"{prefix}:")
            server = GroupServer(store, **settings)
            stack.push_async_callback(server.server.aclose)
            server.url = (await server.server.listen("http://127.0.0.1:0/mcp")).address
            made.append(server)
        yield made


class RoundRobin:
    """Forward each request to the next server, and stream its response back."""

    def __init__(self, urls: list[str]) -> None:
        self.url = ""
        self._bases = cycle([url.removesuffix("/mcp") for url in urls])
        self._http: aiohttp.ClientSession | None = None

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        assert self._http is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in DROPPED}
        where, body = next(self._bases) + request.path_qs, await request.read()
        async with self._http.request(request.method, where, headers=headers, data=body) as found:
            kept = {name: value for name, value in found.headers.items() if name.lower() not in DROPPED}
            answer = web.StreamResponse(status=found.status, headers=kept)
            await answer.prepare(request)
            async for data in found.content.iter_any():
                await answer.write(data)
            await answer.write_eof()
            return answer

    @asynccontextmanager
    async def open(self) -> AsyncIterator["RoundRobin"]:
        app = web.Application(client_max_size=1 << 25)
        app.router.add_route("*", "/{rest:.*}", self._pass_on)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as self._http:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
            try:
                yield self
            finally:
                await runner.cleanup()
