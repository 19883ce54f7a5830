"""Futures of store operations."""

import asyncio
from typing import Any

__all__ = ["failed_future"]


def failed_future(error: Exception) -> asyncio.Future[Any]:
    """Return a future with an exception, so that errors are raised where the caller awaits."""
    future = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future
