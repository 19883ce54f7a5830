"""The clock of a connection: what time it is, and what to do later.

Everything that waits takes its time from here, so a test can hand in a clock that it moves by hand.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "LoopClock", "Timer"]


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
