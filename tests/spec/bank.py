"""A server that counts its effects, for tests of idempotent calls."""

import asyncio
from typing import Any

from trunkline import Server, ToolError
from trunkline.protocol.types import ToolAnnotations
from trunkline.testing import RawPeer, RecordingObserver

KEY = "trunkline/idempotency-key"
Params = dict[str, Any]


def call(name: str, key: str, **arguments: Any) -> Params:
    return {"name": name, "arguments": arguments, "_meta": {KEY: key}}


class Bank:
    """A server whose tools count how often they ran."""

    def __init__(self, **options: Any) -> None:
        self.runs: list[int] = []
        self.go = asyncio.Event()
        self.go.set()
        self.begun = asyncio.Event()
        self.stopped = asyncio.Event()
        self.told = RecordingObserver()
        self.server = Server("bank", observers=[self.told], **options)

        async def work(amount: int) -> int:
            self.runs.append(amount)
            self.begun.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.stopped.set()
                raise
            if amount < 0:
                raise ToolError("a negative amount")
            return len(self.runs)

        self.server.add_tool(work, name="pay")
        self.server.add_tool(work, name="put", annotations=ToolAnnotations(idempotent_hint=True))
        self.server.add_tool(work, name="order", task=True)
        self.server.add_tool(work, name="book", task="required", annotations=ToolAnnotations(idempotent_hint=True))

        @self.server.tool
        def plain(amount: int) -> int:
            self.runs.append(amount)
            return len(self.runs)


async def paid(peer: RawPeer, key: str, amount: int, name: str = "pay") -> Any:
    return (await peer.result("tools/call", call(name, key, amount=amount)))["structuredContent"]["result"]
