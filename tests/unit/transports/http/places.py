"""Servers on one file, each behind an application of its own, on the loop of the test: as if each were a process."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.unit.transports.http.asgi import Answer, Host

from trunkline import Context, Server, Settings
from trunkline.stores.sqlite.store import SqliteStore

ORIGIN = "https://page.example"


class Place(Host):
    """One process, or what stands for it."""

    def __init__(self, path: Path, **settings: Any) -> None:
        given: dict[str, Any] = {"stream_retry": 0.05, "allowed_origins": (ORIGIN,), **settings}
        self.store = SqliteStore(path)
        super().__init__(Server("t", store=self.store, settings=Settings(**given)))
        self.path = path
        self.said = 0  # by the tool that says much
        self.waiting = 0  # calls of the tool that says nothing
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.app = self.server.asgi(identify=lambda _: self.principal)
        self._offer()

    def _offer(self) -> None:
        server = self.server

        @server.tool
        async def echo(text: str) -> str:
            return text

        @server.tool
        async def who(ctx: Context) -> str:
            return f"{ctx.principal!r} {sorted(getattr(ctx.principal, 'scopes', ()))}"

        @server.tool
        async def much(ctx: Context, count: int, size: int) -> str:
            await ctx.progress(0)
            await self.go.wait()
            for number in range(1, count):
                await ctx.progress(number, message="x" * size)
                self.said += 1
            return "done"

        @server.tool
        async def waits(ctx: Context) -> str:
            await ctx.progress(1)
            self.begun.set()
            await self.go.wait()
            return "done"

        @server.tool
        async def quietly() -> str:
            self.waiting += 1
            self.begun.set()
            await self.go.wait()
            return "done"

        @server.tool(scopes=("much",))
        async def scoped() -> str:
            return "allowed"

        @server.resource("note://one")
        def one() -> str:
            return "1"

        @server.tool
        async def change() -> None:
            server.notify_updated("note://one")


@asynccontextmanager
async def places(path: Path, count: int = 2, **settings: Any) -> AsyncIterator[list[Place]]:
    """So many, which have met."""
    async with AsyncExitStack() as stack:
        made = [Place(path / "shared", **settings) for _ in range(count)]
        for place in made:
            await place.server.start()
            stack.push_async_callback(place.app.aclose)
        yield made


def text_of(answer: Answer) -> str:
    return answer.json["result"]["content"][0]["text"]


async def rest(answer: Answer) -> list[Any]:
    """The messages of a stream until its end, which has to come."""
    await answer.finished()
    found: list[Any] = []
    while answer.unread:
        event = answer.unread.pop(0)
        if event.data:
            found.append(json.loads(event.data))
    return found
