"""Hearing early that the process is about to stop.

An ASGI server that is told to stop waits for its responses to end before it tells the application, and a stream of
events has no end of its own: so both would wait for each other. Whoever runs us has its signal handlers in place when
the application starts; ours goes in front of them and passes everything on.
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
    """Calls a function on the running loop when the process is told to stop; does nothing outside the main thread, or
    where nobody else has asked to be told."""
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
    def told(number: int, frame: FrameType | None) -> Any:
        if not loop.is_closed():
            loop.call_soon_threadsafe(callback)
        return previous(number, frame)

    return told
