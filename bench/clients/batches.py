"""What every client of the benchmark does: asks as often as it is told, checks the answers, and says what that cost.

A line on stdin says how many calls, and how many of them at once; a line on stdout answers with the CPU time of this
process per call, in microseconds.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

Echo = Callable[[str], Awaitable[str]]


async def obey(echo: Echo) -> None:
    """Runs batches until stdin ends."""
    loop = asyncio.get_running_loop()
    number = 0
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        count, window = map(int, line.split())
        before = time.process_time_ns()
        share = count // window
        await asyncio.gather(*(_calls(echo, number + one * share, share) for one in range(window)))
        spent = time.process_time_ns() - before
        number += count
        print(spent / (share * window) / 1000, flush=True)


async def _calls(echo: Echo, first: int, count: int) -> None:
    for number in range(first, first + count):
        text = f"hello {number}"
        if await echo(text) != text:
            raise SystemExit(f"a wrong answer to {text!r}")
