"""What goes around every request that runs a handler.

The chain is put together when a middleware is added, for each method once; a server without any has none, and answers
as if this module did not exist.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from trunkline.protocol.inflight import Running
from trunkline.protocol.methods import find
from trunkline.protocol.types import CallToolParams, CallToolResult, CreateTaskResult
from trunkline.protocol.types.tasks_extension import TaskCreated
from trunkline.protocol.types.tools import ToolResult
from trunkline.registry.handlers import exited
from trunkline.registry.results import BadResult, unspliced
from trunkline.rpc.dispatch import Answer
from trunkline.rpc.run_handler import Work, perform
from trunkline.server.access.enforcement import Wanted, admitted
from trunkline.server.catalog import Offer
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.features import completion, prompts, resources, tasks, tools
from trunkline.wire.codec import as_written

__all__ = ["AROUND", "Call", "Middleware", "Next", "surrounded"]

AROUND: Final[Mapping[str, Callable[[Offer, Any], Wanted | None]]] = {
    "tools/call": tools.wanted,
    "tasks/create": tasks.wanted,
    "resources/read": resources.wanted,
    "prompts/get": prompts.wanted,
    "completion/complete": completion.wanted,
}
"""The methods that run handlers, and what a request for one is about, if that is not for everybody."""


class Call(Struct, frozen=True):
    """A request on its way to a handler, as middleware sees it."""

    method: str
    name: str  # of the tool or prompt, the URI of a resource; of a completion, what is being completed
    params: Any  # in the type of the method; replace them to hand on others
    context: Context


class Next(Protocol):
    """The rest of the chain: `await next(call)` gives the result, in the type of the method.

    It raises what the handler raises.
    """

    def __call__(self, call: Call, /) -> Awaitable[Any]: ...


class Middleware(Protocol):
    """An async function around every call: gives the result of `next`, a changed one, or one of its own."""

    def __call__(self, call: Call, next: Next, /) -> Awaitable[Any]: ...  # noqa: A002 - the name in the manual


def surrounded(method: str, answer: Answer, around: Sequence[Middleware]) -> Answer:
    """An answer with middleware around it, the first outermost."""
    row = find(method)
    expected: Any = None if row is None else row.result

    def run(connection: Connection, running: Running, params: Any) -> Work:
        asked = AROUND[method](connection.offer, params)
        work = partial(inside, connection, running, params)
        return work() if asked is None else admitted(connection, running, asked, work)

    async def inside(connection: Connection, running: Running, params: Any) -> Any:
        async def innermost(call: Call) -> Any:
            result = await perform(answer(connection, running, call.params), connection.threads)
            return unspliced(result) if isinstance(result, CallToolResult) else result

        step: Next = innermost
        for middleware in reversed(around):
            step = partial(_through, middleware, step)
        if isinstance(params, CallToolParams):
            params = replace(params, arguments=as_written(params.arguments))
        try:
            result = await step(Call(method, running.target or "", params, Context(connection, running)))
        except SystemExit as error:
            raise exited(error) from error
        if isinstance(result, ToolResult):
            result = result.as_sent()
        if not isinstance(result, (expected, CreateTaskResult, TaskCreated)):
            made = type(result).__name__
            raise BadResult(f"middleware answered {method} with {made}; {expected.__name__} is needed")
        return result

    return run


async def _through(middleware: Middleware, following: Next, call: Call) -> Any:
    return await middleware(call, following)
