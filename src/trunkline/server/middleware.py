"""Middleware around every request that runs a handler.

Adding a middleware builds the chain once per method. A server without middleware has no chain and no extra cost.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.methods import find_method
from trunkline.protocol.types import CallToolParams, CallToolResult, CreateTaskResult
from trunkline.protocol.types.tasks_extension import TaskCreated
from trunkline.protocol.types.tools import ToolResult
from trunkline.registry.handlers import exit_error
from trunkline.registry.results import BadResult, without_raw_text
from trunkline.rpc.dispatch import MethodHandler
from trunkline.rpc.run_handler import Work, run_work
from trunkline.server.access.enforcement import ProtectedTarget, run_if_authorized
from trunkline.server.catalog import ServerCatalog
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.features import completion, prompts, resources, tasks, tools
from trunkline.wire.codec import original_json

__all__ = ["WRAPPED_METHODS", "Call", "Middleware", "Next", "wrap_with_middleware"]

WRAPPED_METHODS: Final[Mapping[str, Callable[[ServerCatalog, Any], ProtectedTarget | None]]] = {
    "tools/call": tools.find_protected,
    "tasks/create": tasks.find_protected,
    "resources/read": resources.find_protected,
    "prompts/get": prompts.find_protected,
    "completion/complete": completion.find_protected,
}
"""Methods that run handlers, each with the function that finds the protected entry of a request."""


class Call(Struct, frozen=True):
    """A request before its handler runs, as middleware sees it."""

    method: str
    name: str  # of the tool or prompt, the URI of a resource, or the reference of a completion
    params: Any  # in the type of the method; replace them to pass on others
    context: Context


class Next(Protocol):
    """The rest of the chain: `await next(call)` returns the result in the type of the method.

    It raises the exceptions of the handler.
    """

    def __call__(self, call: Call, /) -> Awaitable[Any]: ...


class Middleware(Protocol):
    """An async function around every call: returns the result of `next`, a changed one, or one of its own."""

    def __call__(self, call: Call, next: Next, /) -> Awaitable[Any]: ...  # noqa: A002 - the documented name


def wrap_with_middleware(method: str, handler: MethodHandler, middlewares: Sequence[Middleware]) -> MethodHandler:
    """Wrap the handler of a method in middleware; the first is outermost."""
    row = find_method(method)
    expected: Any = None if row is None else row.result

    def run(connection: Connection, running: IncomingRequest, params: Any) -> Work:
        asked = WRAPPED_METHODS[method](connection.catalog, params)
        work = partial(inside, connection, running, params)
        return work() if asked is None else run_if_authorized(connection, running, asked, work)

    async def inside(connection: Connection, running: IncomingRequest, params: Any) -> Any:
        async def innermost(call: Call) -> Any:
            result = await run_work(handler(connection, running, call.params), connection.threads)
            return without_raw_text(result) if isinstance(result, CallToolResult) else result

        step: Next = innermost
        for middleware in reversed(middlewares):
            step = partial(_call_middleware, middleware, step)
        if isinstance(params, CallToolParams):
            params = replace(params, arguments=original_json(params.arguments))
        try:
            result = await step(Call(method, running.target or "", params, Context(connection, running)))
        except SystemExit as error:
            raise exit_error(error) from error
        if isinstance(result, ToolResult):
            result = result.as_sent()
        if not isinstance(result, (expected, CreateTaskResult, TaskCreated)):
            made = type(result).__name__
            raise BadResult(f"middleware answered {method} with {made}; {expected.__name__} is needed")
        return result

    return run


async def _call_middleware(middleware: Middleware, next_step: Next, call: Call) -> Any:
    return await middleware(call, next_step)
