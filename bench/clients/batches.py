"""Shared code of the benchmark's clients: runs batches of calls on command, and checks the responses.

A line on stdin has the number of calls and how many of them at once; a line on stdout reports that they are done.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

Echo = Callable[[str], Awaitable[str]]


async def obey(echo: Echo) -> None:
    """Run batches until stdin ends."""
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
