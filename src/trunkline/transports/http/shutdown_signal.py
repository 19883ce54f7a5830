"""Early notice of SIGINT and SIGTERM under a foreign ASGI server.

An ASGI server that receives a stop signal waits for its responses to end before it sends the lifespan shutdown event,
and an event stream does not end by itself: they would wait for each other. The ASGI server's signal handlers are in
place when the application starts, so a handler of ours runs first and then calls the previous one.
"""

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

__all__ = ["on_shutdown_signal"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def on_shutdown_signal(callback: Callable[[], None]) -> None:
    """Call a function on the running loop when the process receives SIGINT or SIGTERM.

    Does nothing outside the main thread, or for signals without a handler to chain to.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        before = signal.getsignal(number)
        if callable(before) and before is not signal.default_int_handler:
            signal.signal(number, _chain_handler(before, loop, callback))


def _chain_handler(
    previous: Callable[[int, FrameType | None], Any], loop: asyncio.AbstractEventLoop, callback: Callable[[], None]
) -> Callable[[int, FrameType | None], Any]:
    def handler(number: int, frame: FrameType | None) -> Any:
        if not loop.is_closed():
            loop.call_soon_threadsafe(callback)
        return previous(number, frame)

    return handler
