"""What ends a serving process from outside: Ctrl+C and SIGTERM."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Generator
from typing import Any

__all__ = ["on_signals"]


@contextlib.contextmanager
def on_signals(loop: asyncio.AbstractEventLoop, on_signal: Callable[[], object]) -> Generator[None]:
    """The first Ctrl+C or SIGTERM calls a function on the loop; a second one ends the process at once, even if the loop
    is stuck. Outside of the main thread nothing is heard of either."""
    caught: list[int] = []

    def told(number: int, _: Any) -> None:
        if caught:
            os._exit(128 + number)
        caught.append(number)
        loop.call_soon_threadsafe(on_signal)

    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread
                before[number] = signal.signal(number, told)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
