"""What every client of the benchmark does: asks as often as it is told, and checks the answers.

A line on stdin says how many calls, and how many of them at once; a line on stdout says that they are done.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

Echo = Callable[[str], Awaitable[str]]


async def obey(echo: Echo) -> None:
    """Runs batches until stdin ends."""
    loop = asyncio.get_running_loop()
    number = 0
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        count, window = map(int, line.split())
        share = count // window
        await asyncio.gather(*(_calls(echo, number + one * share, share) for one in range(window)))
        number += count
        print("done", flush=True)


async def _calls(echo: Echo, first: int, count: int) -> None:
    for number in range(first, first + count):
        text = f"hello {number}"
        if await echo(text) != text:
            raise SystemExit(f"a wrong answer to {text!r}")
