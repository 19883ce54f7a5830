"""Servers on an event loop of their own, which runs while a test waits for something."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import uvloop

from trunkline import Server, Settings
from trunkline.testing import ManualClock
from trunkline.transports.addresses import parse_address

__all__ = ["LOOPS", "Served", "serving"]

T = TypeVar("T")

LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}
SETTINGS: Final = Settings(
    http_sessions=False,  # every request is independent, so the corpus can be written down
    max_header_bytes=8 << 10,
    http_body_size_limit=64 << 10,
    drain_timeout=0.2,
)


class Served:
    """A server that listens, and its event loop."""

    def __init__(self, runner: asyncio.Runner, port: int) -> None:
        self._runner = runner
        self.port = port

    def run(self, work: "Coroutine[Any, Any, T]") -> T:
        """Run a coroutine of the client's on the loop of the server."""
        return self._runner.run(work)


def make_server() -> Server:
    """Return a server whose clock stands still: no time limit ends a connection."""
    server = Server("http1", settings=SETTINGS, clock=ManualClock(), observers=[])

    @server.tool
    async def later(text: str) -> str:
        """Answer after some turns of the event loop."""
        for _ in range(10):
            await asyncio.sleep(0)
        return text

    @server.tool
    def echo(text: str) -> str:
        """Answer at once."""
        return text

    return server


async def _listen(server: Server) -> int:
    return parse_address((await server.listen("http://127.0.0.1:0/mcp")).address).port


@contextmanager
def serving(loop: str) -> Iterator[Served]:
    """Run a server on one of the loops."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        server = make_server()
        port = runner.run(_listen(server))
        try:
            yield Served(runner, port)
        finally:
            runner.run(server.aclose())
