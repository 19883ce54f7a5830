"""Time limits of the tests.

A wait ends with an event. Its limit only turns a hang into a failure, so it is long enough for a machine that is busy with
other work. A test that measures time is a matter of chance: it is marked `long`, and judges the fastest of several attempts,
because other work on the machine can only add to a duration.
"""

from collections.abc import Awaitable, Callable

PATIENCE = 60.0
"""Seconds that a test waits for an event."""

ATTEMPTS = 10


async def soon(attempt: Callable[[], Awaitable[float]], limit: float) -> None:
    """Assert that one of several attempts takes less than a limit, in seconds."""
    took: list[float] = []
    while not took or took[-1] >= limit:
        assert len(took) < ATTEMPTS, f"no attempt took less than {limit} s: {[round(each, 3) for each in took]}"
        took.append(await attempt())
