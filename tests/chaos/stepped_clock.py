"""A wall clock that steps, as if an operator had set the time: SIGUSR1 sets it forward, SIGUSR2 sets it back."""

import signal
import time

from trunkline.clock import WallClock

__all__ = ["BACK", "FORWARD", "STEP", "install"]

STEP = 30.0  # seconds: many leases
FORWARD = signal.SIGUSR1
BACK = signal.SIGUSR2


def install() -> None:
    """Replace the wall clock of this process, and of those that it forks. The monotonic clock is as it was."""
    real, steps = time.time, 0

    def step(number: int, _: object) -> None:
        nonlocal steps
        steps += 1 if number == FORWARD else -1

    def now() -> float:
        return real() + steps * STEP

    time.time, time.time_ns = now, lambda: int(now() * 1e9)
    WallClock.now = staticmethod(now)
    for number in (FORWARD, BACK):
        signal.signal(number, step)
