"""How a registered function is called: with its arguments, its context, in the way that was decided for it."""

from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from typing import Any

from trunkline.registry.handlers import Handler, Start
from trunkline.server.context import Context
from trunkline.server.drive import OnThread, Work

__all__ = ["invoke"]


def invoke(handler: Handler, arguments: Any, context: Context | None, finish: Callable[[Any], Any]) -> Work:
    """The call, to be driven; `finish` makes the answer of the value it gives."""
    if handler.start is Start.ASYNC:
        return _finished(handler.bind(arguments, context), finish)
    if handler.start is Start.THREAD:
        return OnThread(partial(handler.bind, arguments, context), finish)
    value = handler.bind(arguments, context)
    return _finished(value, finish) if isawaitable(value) else finish(value)


async def _finished(value: Any, finish: Callable[[Any], Any]) -> Any:
    try:
        return finish(await value)
    except SystemExit as error:  # one handler's sys.exit() is no reason to end everybody's server
        raise RuntimeError(f"a handler called sys.exit({error.code!r})") from error
