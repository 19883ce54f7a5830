"""Stacks of calls: where the coroutine or the thread of a handler is.

A stack is a list of places, the outermost first, without source lines or values of variables.
"""

import asyncio
import sys
from types import FrameType
from typing import Any, Final

from trunkline.rpc.run_handler import running_thread

__all__ = ["stack_of_call", "stack_of_thread"]

_MAX_DEPTH: Final = 100  # of a stack; coroutines may await each other in a circle


def stack_of_call(work: Any) -> list[str]:
    """Return the stack of a call's work: that of its thread if it runs on one, otherwise that of its coroutine."""
    thread = running_thread(work)
    if thread is not None:
        return stack_of_thread(thread)
    return _stack_of_coroutine(work.get_coro()) if isinstance(work, asyncio.Task) else []


def stack_of_thread(thread: int) -> list[str]:
    """Return the stack of a thread; empty if it has ended."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage] - documented
    places: list[str] = []
    while frame is not None and len(places) < _MAX_DEPTH:
        places.append(_describe(frame, frame.f_lineno))
        frame = frame.f_back
    return places[::-1]


def _stack_of_coroutine(waiting: Any) -> list[str]:
    """Return the frames of a coroutine and of those that it awaits."""
    places: list[str] = []
    while waiting is not None and len(places) < _MAX_DEPTH:
        for kind in ("cr", "gi", "ag"):
            frame: FrameType | None = getattr(waiting, f"{kind}_frame", None)
            if frame is not None:
                places.append(_describe(frame, frame.f_lineno))
                waiting = getattr(waiting, f"{kind}_await" if kind != "gi" else "gi_yieldfrom", None)
                break
        else:
            break
    return places


def _describe(frame: FrameType, line: int) -> str:
    return f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}"
