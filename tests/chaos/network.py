"""The network of a deployment, in a separate process, so that busy clients do not slow it down: the load balancer in
front of its processes, and the proxy between them and their store.

    python -m tests.chaos.network STORE PORT…       STORE is the port of the store, 0 for no proxy

It prints its two ports, and then "done" after each command: `cut` and `mend`, `stall` and `flow` control the proxy
to the store; `avoid PORT` makes the load balancer skip a server, `meet` ends that.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tests.chaos.forwarder import Forwarder, forwarded
from tests.faults.proxy import Proxy, proxied

__all__ = ["Network", "open_network"]


class Network:
    """The network of one deployment."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._turn = asyncio.Lock()
        self.forwarder = self.proxy = 0

    async def find(self) -> None:
        """Read the ports."""
        self.forwarder, self.proxy = map(int, (await self._said()).split())

    async def _said(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    async def say(self, word: str) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        async with self._turn:
            self._process.stdin.write(f"{word}\n".encode())
            assert await self._said() == b"done\n"


@asynccontextmanager
async def open_network(store: int, *ports: int) -> AsyncIterator[Network]:
    """A network in front of some ports, and of a store."""
    command = [sys.executable, "-m", __name__, *map(str, (store, *ports))]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        lines = Network(process)
        await lines.find()
        yield lines
    finally:
        process.kill()
        await process.communicate()


def _do(word: str, forwarder: Forwarder, proxy: Proxy | None) -> None:
    match word.split():
        case ["avoid", port]:
            forwarder.avoided.add(int(port))
        case ["meet"]:
            forwarder.avoided.clear()
        case [what] if proxy is not None:
            _disturb(what, proxy)
        case _:
            raise ValueError(word)


def _disturb(what: str, proxy: Proxy) -> None:
    match what:
        case "cut":
            proxy.refusing = True
            proxy.reset()
        case "mend":
            proxy.refusing = False
        case "stall":
            proxy.stall()
        case "flow":
            proxy.go_on()
        case _:
            raise ValueError(what)


async def _serve(store: int, *ports: int) -> None:
    """Serve until the other side closes."""
    async with AsyncExitStack() as stack:
        forwarder = await stack.enter_async_context(forwarded(*ports))
        proxy = await stack.enter_async_context(proxied(store)) if store else None
        print(forwarder.port, 0 if proxy is None else proxy.port, flush=True)
        while word := await asyncio.to_thread(sys.stdin.readline):
            _do(word, forwarder, proxy)
            print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(*map(int, sys.argv[1:])))
