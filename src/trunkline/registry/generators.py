"""Tools that are generators: what they yield is content, piece by piece, or tells of progress.

What a generator depends on is there until it has yielded its last piece.
"""

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing
from typing import Any, Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from trunkline.registry.handlers import Handler, StartMode
from trunkline.registry.signatures import underlying_function

__all__ = ["Pieces", "Progress", "wrap_generator"]

_CONTEXT: Final = "(context)"  # under which a plan gives the context; no parameter has such a name


class Progress(Struct, frozen=True):
    """How far a tool has come; yielded by a generator, it is reported to the caller."""

    progress: float
    total: float | None = None
    message: str | None = None


class Pieces(list[Any]):
    """What a generator yielded, in order; each is a piece of content."""


def wrap_generator(handler: Handler) -> Handler:
    """The handler itself; or, of a generator, one that runs it to its end and gives its pieces."""
    function = underlying_function(handler.function)
    if inspect.isasyncgenfunction(function):
        return _wrap(handler, StartMode.ASYNC, _collect_async)
    if inspect.isgeneratorfunction(function):
        return _wrap(handler, handler.start, _collect)
    return handler


def _wrap(handler: Handler, start: StartMode, gather: Callable[[Any, Any], Any]) -> Handler:
    plan = handler.plan
    if plan is not None:
        plan = replace(plan, contexts=(*plan.contexts, _CONTEXT))
        if start is StartMode.ASYNC:  # there is no thread for anything to run on beside it
            plan = replace(plan, before=(*plan.before, *plan.on_thread), on_thread=())

    def bind(arguments: Any, given: Any) -> Any:
        return gather(handler.bind(arguments, given), given if plan is None else given[_CONTEXT])

    return replace(handler, start=start, bind=bind, plan=plan, wants_context=True, returns=UNSET)


async def _collect_async(yielded: AsyncGenerator[Any, None], context: Any) -> Pieces:
    pieces = Pieces()
    async with aclosing(yielded):  # at once, if the call is cancelled
        async for item in yielded:
            if _is_content(item, context):
                pieces.append(item)
    return pieces


def _collect(yielded: Generator[Any, None, None], context: Any) -> Pieces:
    pieces = Pieces()
    with closing(yielded):
        for item in yielded:
            context.raise_if_cancelled()  # a thread cannot be stopped, but it can be let go between two pieces
            if _is_content(item, context):
                pieces.append(item)
    return pieces


def _is_content(item: Any, context: Any) -> bool:
    if not isinstance(item, Progress):
        return True
    context.progress(item.progress, item.total, item.message)
    return False
