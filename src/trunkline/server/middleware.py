"""Middleware around every request that runs a handler.

Adding a middleware builds the chain once per method. A server without middleware has no chain and no extra cost.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from msgspec import Raw, Struct
from msgspec.structs import replace

from trunkline.protocol.client_envelope import read_result_header
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
from trunkline.server.context import Context, threads_of
from trunkline.server.features import completion, custom, prompts, resources, tasks, tools
from trunkline.wire.codec import DecodeError, json_decoder, original_json

_decode_object: Final = json_decoder(dict[str, Any])
_COMPLETE: Final = "complete"

__all__ = ["WRAPPED_METHODS", "Call", "Middleware", "Next", "run_within_middleware", "wrap_with_middleware"]

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

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a tool or prompt by name, not validated yet; empty for a method without them."""
        action = getattr(self.params, "action", None)  # of `tasks/create`
        given: Any = getattr(self.params, "arguments", None) if action is None else action.parameters
        try:
            return _decode_object(given) if isinstance(given, Raw) else given or {}
        except DecodeError:  # the handler refuses them
            return {}


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
    expected: Any = dict if row is None else row.result  # None: a method outside of the specification

    def run(connection: Connection, running: IncomingRequest, params: Any) -> Work:
        find = WRAPPED_METHODS.get(method)
        asked = custom.find_protected(connection.catalog, method) if find is None else find(connection.catalog, params)
        work = partial(inside, connection, running, params)
        return work() if asked is None else run_if_authorized(connection, running, asked, work)

    async def inside(connection: Connection, running: IncomingRequest, params: Any) -> Any:
        def start(call: Call) -> Work:
            return handler(connection, running, call.params)

        if isinstance(params, CallToolParams):
            params = replace(params, arguments=original_json(params.arguments))
        call = Call(method, running.target or "", params, Context(connection, running))
        return await run_within_middleware(call, start, middlewares, expected)

    return run


async def run_within_middleware(
    call: Call, start: Callable[[Call], Work], middlewares: Sequence[Middleware], expected: Any
) -> Any:
    """Run a call within middleware; the first is outermost. `start` returns the work of the call, `expected` is the
    type of its result."""
    forwarded: dict[int, tuple[Any, Raw]] = {}  # results of another server, decoded and as received

    async def innermost(call: Call) -> Any:
        result = await run_work(start(call), threads_of(call.context))
        if type(result) is Raw:
            decoded = decode_forwarded(expected, result)
            forwarded[id(decoded)] = (decoded, result)
            return decoded
        return without_raw_text(result) if isinstance(result, CallToolResult) else result

    step: Next = innermost
    for middleware in reversed(middlewares):
        step = partial(_call_middleware, middleware, step)
    try:
        result = await step(call)
    except SystemExit as error:
        raise exit_error(error) from error
    if id(result) in forwarded:
        return forwarded[id(result)][1]
    if isinstance(result, ToolResult):
        result = result.as_sent()
    if not isinstance(result, (expected, CreateTaskResult, TaskCreated)):
        made = type(result).__name__
        raise BadResult(f"middleware answered {call.method} with {made}; {expected.__name__} is needed")
    return result


def decode_forwarded(expected: Any, result: Raw) -> Any:
    """Return a result of another server in the type of its method. One with content that we do not know stays encoded,
    and so does one that asks questions or describes a task."""
    if read_result_header(result).result_type != _COMPLETE:
        return result
    try:
        return json_decoder(expected)(result)
    except (DecodeError, RecursionError):
        return result


async def _call_middleware(middleware: Middleware, next_step: Next, call: Call) -> Any:
    return await middleware(call, next_step)
