"""The clock of a connection: what time it is, and what to do later.

Everything that waits takes its time from here, so a test can hand in a clock that it moves by hand.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "LoopClock", "Timer", "WallClock"]


class Timer(Protocol):
    """Something that will happen, unless it is called off."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Tells the time in seconds and calls back at a given one."""

    def now(self) -> float: ...

    def call_at(self, when: float, action: Callable[[], None]) -> Timer: ...


class LoopClock:
    """The clock of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = loop.time

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        """Calls back when the time has come."""
        return self._loop.call_at(when, action)


class WallClock:
    """The time of day, which processes share and which goes on while none runs; in seconds since 1970."""

    now = staticmethod(time.time)

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        """Calls back on the running loop when the time has come, as far as that can be told now."""
        return asyncio.get_running_loop().call_later(when - time.time(), action)
