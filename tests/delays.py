"""Plugin that delays callbacks, timers and threads at random, as a busy machine does: `make test-delays`.

It makes unlikely orders likely, so that a test which only passes in the usual order fails now and then.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

LONGEST = 0.03  # seconds
CALLBACKS, THREADS, TIMERS = 0.01, 0.5, 0.3  # probability of a delay
LATENESS = 0.2  # of a timer, as a fraction of its interval: timers with clearly different intervals keep their order


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the seed."""
    parser.addoption("--delays", type=int, default=0, metavar="SEED", help="seed of the random delays")


def pytest_configure(config: pytest.Config) -> None:
    """Delay everything from now on. Workers of xdist have different delays."""
    worker = getattr(config, "workerinput", {"workerid": ""})["workerid"]
    add_delays(random.Random(f"{config.getoption('--delays')} {worker}"))


def pytest_report_header(config: pytest.Config) -> str:
    """Print the seed."""
    return f"delays: {config.getoption('--delays')}"


def add_delays(choices: random.Random) -> None:
    """Replace the methods that start callbacks, timers and threads by ones that wait sometimes."""

    def wait_sometimes(probability: float) -> None:
        if choices.random() < probability:
            time.sleep(LONGEST * choices.random() ** 3)  # mostly short

    def wait_before(owner: type, name: str, probability: float) -> None:
        method = getattr(owner, name)

        def delayed(self: Any, *args: Any, **options: Any) -> Any:
            wait_sometimes(probability)
            return method(self, *args, **options)

        setattr(owner, name, delayed)

    wait_before(asyncio.BaseEventLoop, "call_soon", CALLBACKS)
    wait_before(threading.Thread, "run", THREADS)

    submit = ThreadPoolExecutor.submit
    call_at, call_soon_threadsafe = asyncio.BaseEventLoop.call_at, asyncio.BaseEventLoop.call_soon_threadsafe

    def submit_delayed(
        self: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **options: Any
    ) -> Future[Any]:
        def run() -> Any:
            wait_sometimes(THREADS)
            return function(*args, **options)

        return submit(self, run)

    def call_late(self: asyncio.BaseEventLoop, when: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
        if choices.random() < TIMERS:
            when += min(max(when - self.time(), 0.0) * LATENESS, LONGEST) * choices.random()
        return call_at(self, when, *args, **options)

    def call_soon_from_thread(self: asyncio.BaseEventLoop, *args: Any, **options: Any) -> asyncio.Handle:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # another thread
            wait_sometimes(THREADS)
        return call_soon_threadsafe(self, *args, **options)

    ThreadPoolExecutor.submit = submit_delayed
    asyncio.BaseEventLoop.call_at = call_late
    asyncio.BaseEventLoop.call_soon_threadsafe = call_soon_from_thread
