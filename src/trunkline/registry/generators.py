"""Tools that are generators: they yield content piece by piece, or report progress.

Their dependencies stay open until the last piece.
"""

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing
from typing import Any, Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from trunkline.registry.dependencies import DependencyPlan, Replacements
from trunkline.registry.handlers import Handler, StartMode
from trunkline.registry.results import Pieces
from trunkline.registry.signatures import underlying_function

__all__ = ["Progress", "wrap_generator"]

_CONTEXT: Final = "(context)"  # key of the context in a plan's values; no parameter can have this name


class Progress(Struct, frozen=True):
    """Progress of a tool; a generator yields it to report it to the caller."""

    progress: float
    total: float | None = None
    message: str | None = None


def wrap_generator(handler: Handler) -> Handler:
    """Return the handler of a generator that runs it to its end and returns its pieces."""
    if inspect.isasyncgenfunction(underlying_function(handler.function)):
        return _wrap(handler, StartMode.ASYNC, _collect_async)
    return _wrap(handler, handler.start, _collect)


def _wrap(handler: Handler, start: StartMode, gather: Callable[[Any, Any], Any]) -> Handler:
    def adapt(plan: DependencyPlan) -> DependencyPlan:
        make = plan.remake

        def remake(replaced: Replacements) -> DependencyPlan:
            return adapt(make(replaced))

        plan = replace(plan, contexts=(*plan.contexts, _CONTEXT), remake=remake)
        if start is StartMode.ASYNC:  # an async handler has no thread for dependencies
            plan = replace(plan, before=(*plan.before, *plan.on_thread), on_thread=())
        return plan

    plan = None if handler.plan is None else adapt(handler.plan)

    def bind(arguments: Any, injected: Any) -> Any:
        return gather(handler.bind(arguments, injected), injected if plan is None else injected[_CONTEXT])

    return replace(handler, start=start, bind=bind, plan=plan, wants_context=True, returns=UNSET)


async def _collect_async(yielded: AsyncGenerator[Any, None], context: Any) -> Pieces:
    pieces = Pieces()
    async with aclosing(yielded):  # closed at once if the call is cancelled
        async for item in yielded:
            if _is_content(item, context):
                pieces.append(item)
    return pieces


def _collect(yielded: Generator[Any, None, None], context: Any) -> Pieces:
    pieces = Pieces()
    with closing(yielded):
        for item in yielded:
            context.raise_if_cancelled()  # a thread cannot be stopped, except between two pieces
            if _is_content(item, context):
                pieces.append(item)
    return pieces


def _is_content(item: Any, context: Any) -> bool:
    if not isinstance(item, Progress):
        return True
    context.progress(item.progress, item.total, item.message)
    return False
