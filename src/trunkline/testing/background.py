"""A server that listens in the background of a test, on an event loop of its own."""

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager

from trunkline.event_loop import find_loop_factory
from trunkline.server.server import Server

__all__ = ["serve_http"]


@contextmanager
def serve_http(server: Server, *, path: str = "/mcp") -> Generator[str]:
    """Serve over HTTP on a free port of this machine until the block ends; yield the URL.

    The server runs on a thread with an event loop of its own, so the block may be in a plain or an async test, and any
    client can connect. The server must not serve elsewhere meanwhile.
    """
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    ended: Future[None] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        try:
            listener = await server.listen(f"http://127.0.0.1:0/{path.lstrip('/')}")
            started.set_result((listener.address, asyncio.get_running_loop(), stop))
            await stop.wait()
        finally:
            await server.aclose()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=find_loop_factory()) as runner:
                runner.run(serve())
        except BaseException as error:  # noqa: BLE001 - raised in the test
            (ended if started.done() else started).set_exception(error)
        else:
            ended.set_result(None)

    thread = threading.Thread(target=run, name="trunkline-test-server", daemon=True)
    thread.start()
    url, loop, stop = started.result()
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
    ended.result()
