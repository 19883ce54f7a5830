"""Functions for processes of tools."""

import atexit
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from opentelemetry import baggage, trace
from opentelemetry.trace import format_span_id, format_trace_id

from trunkline import Context, Depends, ToolError


@dataclass
class Point:
    x: int
    y: int = 0


class Odd(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} {second}")


def add(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b


def move(point: Point, *, by: int) -> Point:
    return Point(point.x + by, point.y)


def ident() -> int:
    return os.getpid()


def spin(path: str) -> None:
    """Computes for ever; writes its process id first."""
    Path(path).write_text(f"{os.getpid()}\n")
    while True:
        pass


def crash(code: int) -> None:
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def fail(kind: str) -> Any:
    match kind:
        case "tool":
            raise ToolError("as expected")
        case "odd":
            raise Odd(1, 2)
        case "exit":
            sys.exit(3)
        case _:
            return threading.Lock()


def find_span() -> list[str]:
    """The current trace, its span, and a value of its baggage."""
    span = trace.get_current_span().get_span_context()
    return [format_trace_id(span.trace_id), format_span_id(span.span_id), str(baggage.get_baggage("tenant"))]


def leave(path: str) -> None:
    """Write a file when the process ends."""
    atexit.register(Path(path).touch)


def chat(text: str) -> str:
    print(text)
    return text


async def own_process(ctx: Context) -> str:
    """Is made in the server's process."""
    return f"{os.getpid()} {ctx.method} "


def use(source: Annotated[str, Depends(own_process)], text: str = "") -> str:
    return f"{source}{text}"


def lock() -> Any:
    return threading.Lock()


def unpicklable(source: Annotated[Any, Depends(lock)]) -> None: ...
