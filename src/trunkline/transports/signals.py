"""What ends a serving process from outside: Ctrl+C and SIGTERM."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

__all__ = ["on_signals"]


def on_signals(loop: asyncio.AbstractEventLoop, end: Callable[[str], None]) -> None:
    """The first Ctrl+C or SIGTERM ends in good order; a second one does not wait for it."""
    caught: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if caught:
            os._exit(128 + number)
        caught.append(number)
        end(number.name)

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
            loop.add_signal_handler(number, stop, number)  # until the loop closes: also while draining
