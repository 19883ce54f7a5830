"""Signal handlers of a serving process: Ctrl+C, SIGTERM and SIGHUP."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Generator
from typing import Any

__all__ = ["on_signals"]


@contextlib.contextmanager
def on_signals(
    loop: asyncio.AbstractEventLoop, on_signal: Callable[[], object], on_hangup: Callable[[], object] | None = None
) -> Generator[None]:
    """Call a function on the loop at the first Ctrl+C or SIGTERM; at the second one exit at once, even if the loop is
    blocked. Call `on_hangup` at each SIGHUP; without it, SIGHUP keeps its disposition. Has no effect outside the main
    thread."""
    caught: list[int] = []

    def handle(number: int, _: Any) -> None:
        if caught:
            os._exit(128 + number)
        caught.append(number)
        loop.call_soon_threadsafe(on_signal)

    def hang_up(_: int, __: Any) -> None:
        if on_hangup is not None:
            loop.call_soon_threadsafe(on_hangup)

    handlers: dict[int, Any] = {signal.SIGINT: handle, signal.SIGTERM: handle}
    if on_hangup is not None and hasattr(signal, "SIGHUP"):
        handlers[signal.SIGHUP] = hang_up
    before: dict[int, Any] = {}
    try:
        for number, handler in handlers.items():
            with contextlib.suppress(ValueError):  # not the main thread
                before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
