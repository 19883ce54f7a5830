"""Signal handlers of a serving process: Ctrl+C and SIGTERM."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Generator
from typing import Any

__all__ = ["on_signals"]


@contextlib.contextmanager
def on_signals(loop: asyncio.AbstractEventLoop, on_signal: Callable[[], object]) -> Generator[None]:
    """Call a function on the loop at the first Ctrl+C or SIGTERM; at the second one exit at once, even if the loop is
    blocked. Has no effect outside the main thread."""
    caught: list[int] = []

    def handle(number: int, _: Any) -> None:
        if caught:
            os._exit(128 + number)
        caught.append(number)
        loop.call_soon_threadsafe(on_signal)

    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread
                before[number] = signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
