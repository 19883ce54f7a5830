"""Tools that are generators: what they yield is content, piece by piece, or tells of progress."""

import inspect
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from trunkline.errors import RegistrationError
from trunkline.registry.handlers import Handler, Start
from trunkline.registry.signatures import called

__all__ = ["Pieces", "Progress", "gathering"]


class Progress(Struct, frozen=True):
    """How far a tool has come; yielded by a generator, it is reported to the caller."""

    progress: float
    total: float | None = None
    message: str | None = None


class Pieces(list[Any]):
    """What a generator yielded, in order; each is a piece of content."""


def gathering(handler: Handler) -> Handler:
    """The handler itself; or, of a generator, one that runs it to its end and gives its pieces."""
    bind = handler.bind

    async def gather(arguments: Any, context: Any) -> Pieces:
        pieces = Pieces()
        yielded: AsyncGenerator[Any, None] = bind(arguments, context if wanted else None)
        async with aclosing(yielded):  # at once, if the call is cancelled
            async for item in yielded:
                if _is_content(item, context):
                    pieces.append(item)
        return pieces

    def gather_plain(arguments: Any, context: Any) -> Pieces:
        yielded: Iterator[Any] = bind(arguments, context if wanted else None)
        return Pieces(item for item in yielded if _is_content(item, context))

    wanted = handler.wants_context
    run: Callable[[Any, Any], Any]
    if inspect.isasyncgenfunction(called(handler.function)):
        start, run = Start.ASYNC, gather
    elif inspect.isgeneratorfunction(called(handler.function)):
        start, run = handler.start, gather_plain
    else:
        return handler
    if handler.plan is not None:
        raise RegistrationError(f"{handler.name}: a generator cannot have dependencies; return its content instead")
    return replace(handler, start=start, bind=run, wants_context=True, returns=UNSET)


def _is_content(item: Any, context: Any) -> bool:
    if not isinstance(item, Progress):
        return True
    context.progress(item.progress, item.total, item.message)
    return False
