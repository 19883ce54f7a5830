"""Event-loop lag: how late timers fire, because something else occupied the loop."""

import asyncio
from collections import deque
from typing import Final

__all__ = ["LoopLag"]

_INTERVAL: Final = 0.5  # seconds between two measurements
_WINDOW: Final = 20  # measurements that `worst` covers


class LoopLag:
    """Measures the lag of the running loop."""

    def __init__(self) -> None:
        self._measured: deque[float] = deque(maxlen=_WINDOW)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def worst(self) -> float:
        """The largest lag of the last seconds."""
        return max(self._measured, default=0.0)

    def start(self) -> None:
        """Measure from now on."""
        loop = asyncio.get_running_loop()
        self._schedule(loop, loop.time() + _INTERVAL)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._timer = loop.call_at(due, self._measure, loop, due)

    def _measure(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        self._measured.append(max(now - due, 0.0))
        self._schedule(loop, now + _INTERVAL)
