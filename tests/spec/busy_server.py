"""A server with a tool that blocks, one that returns at once, and a resource."""

import asyncio
from typing import Any

from trunkline import Server, Settings
from trunkline.stores.store import Store


class BusyServer:
    """The server, and the events that control its blocking tool."""

    def __init__(self, store: Store | None = None, *, settings: dict[str, Any], **options: Any) -> None:
        self.server = Server("t", settings=Settings(**settings), store=store, **options)
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

        @self.server.tool
        async def waits() -> str:
            self.begun.set()
            await self.go.wait()
            return "done"

        @self.server.tool
        async def quick() -> str:
            return "quick"

        @self.server.resource("memo://one")
        def one() -> str:
            return "1"
