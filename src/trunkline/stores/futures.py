"""Futures of store operations."""

import asyncio
from typing import Any

__all__ = ["failed_future", "ignore_error"]


def failed_future(error: Exception) -> asyncio.Future[Any]:
    """Return a future with an exception, so that errors are raised where the caller awaits."""
    future = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


def ignore_error(done: asyncio.Future[Any]) -> None:
    """Mark the error of a future as retrieved, for operations that will be repeated."""
    if not done.cancelled():
        done.exception()
