"""Clocks: the current time, and callbacks at a later time.

Everything that waits uses the clock of its connection, so a test can pass a clock that it advances by hand.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "LoopClock", "Timer", "WallClock"]


class Timer(Protocol):
    """A scheduled callback that can be cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Clock protocol: the time in seconds, and callbacks at a given time."""

    def now(self) -> float: ...

    def call_at(self, when: float, action: Callable[[], None]) -> Timer: ...


class LoopClock:
    """The monotonic clock of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # asyncio's own loops return this clock; reading it directly saves a call.
        self.now = time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        """Schedule `action` on the loop at the time `when`."""
        return self._loop.call_at(when, action)


class WallClock:
    """The time of day in seconds since 1970: shared by all processes, and valid across restarts."""

    now = staticmethod(time.time)

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        """Schedule `action` on the running loop at the time `when`, as the wall clock predicts it now."""
        return asyncio.get_running_loop().call_later(when - time.time(), action)
