"""A server with a tool that calls another server, one for each session, as a gateway does: `relay.py http PORT`. A call
costs a server call and a client call.
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

from trunkline import Client, Context, Server

SERVER = Path(__file__).with_name("server.py")


class Clients:
    """A client for each session, and one for all requests without a session."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.by_session: dict[int | None, Client] = {}
        self._stack = stack
        self._locks: defaultdict[int | None, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def open(self, session: int | None) -> Client:
        """Return the client of a session, once it is connected."""
        async with self._locks[session]:
            if session not in self.by_session:
                client = Client([sys.executable, str(SERVER), "stdio"])
                self.by_session[session] = await self._stack.enter_async_context(client)
        return self.by_session[session]


async def connect(_server: Server) -> AsyncGenerator[Clients]:
    """Keep the clients until the end."""
    async with AsyncExitStack() as stack:
        yield Clients(stack)


server = Server("relay", lifespan=connect)


@server.tool
async def echo(text: str, ctx: Context[Clients]) -> str:
    """Pass a text on."""
    clients, session = ctx.lifespan, ctx.session_id
    client = clients.by_session.get(session) or await clients.open(session)
    return (await client.call_tool("echo", {"text": text})).data


server.run("http", port=int(sys.argv[2]))
