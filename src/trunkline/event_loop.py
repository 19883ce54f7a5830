"""The event loop of programs that use Trunkline: uvloop's if it is installed, which halves the cost of its work."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["find_loop_factory", "run"]

T = TypeVar("T")


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
