"""The event loop of programs that use Trunkline: uvloop's if it is installed, which halves the cost of its work."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

__all__ = ["EAGER_START", "find_loop_factory", "run"]

T = TypeVar("T")

EAGER_START: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}
"""Lets a task run its coroutine at once until it first waits. Before 3.12 it starts on the next turn of the loop."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, as `asyncio.run` does, on the fastest event loop that is installed."""
    with asyncio.Runner(loop_factory=find_loop_factory()) as runner:
        return runner.run(main)


def find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the function that makes event loops: uvloop's if it is installed, otherwise that of asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Any = uvloop.new_event_loop
    return factory
