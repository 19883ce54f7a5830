"""Tools: listed and called."""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Raw

from trunkline.errors import (
    HeaderMismatch,
    InternalError,
    InvalidArguments,
    InvalidParams,
    MissingCapability,
    ToolNotFound,
)
from trunkline.protocol.capabilities import declared
from trunkline.protocol.envelope import Envelope
from trunkline.protocol.headers import param_mismatch
from trunkline.protocol.inflight import Running
from trunkline.protocol.meta import IDEMPOTENCY_KEY, progress_token
from trunkline.protocol.task_dialects import Dialect
from trunkline.protocol.types import NO_ARGUMENTS, CallToolParams, PaginatedParams
from trunkline.registry.handlers import Run
from trunkline.registry.tools import ToolEntry
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.run_handler import Work
from trunkline.server.access.enforcement import Wanted, admitted, visible
from trunkline.server.access.filtered_lists import listed
from trunkline.server.access.owner_id import owner_of
from trunkline.server.catalog import Offer
from trunkline.server.connection import Connection, Shared
from trunkline.server.context import Context
from trunkline.server.input.multi_round import begin
from trunkline.server.limits.tool_limits import Guard
from trunkline.server.tasks.create import Making, become_task, runs_as, start_task
from trunkline.server.tasks.service import Begin
from trunkline.wire.codec import DecodeError, as_written, decoder

__all__ = ["FEATURE", "wanted", "work_of"]


read_object = decoder(dict[str, Any])


class ToolDisabled(InternalError):
    """A call of a tool that is switched off."""

    kind = "tool_is_disabled"

    def __init__(self, name: str) -> None:
        super().__init__(f"tool {name!r} is disabled", data={"name": name})


def _list(connection: Connection, call: Running, params: PaginatedParams) -> Work:
    return listed(connection, call, params, connection.offer.tools)


def wanted(offer: Offer, params: CallToolParams) -> Wanted | None:
    """The tool that a call is about, if not everybody may call it."""
    entry = offer.tools.live.get(params.name)
    return None if entry is None else _wanted(entry)


def _wanted(entry: ToolEntry) -> Wanted | None:
    return Wanted.of(entry, f"tool {entry.name!r}")


def _call(connection: Connection, call: Running, params: CallToolParams) -> Work:
    tools = connection.offer.tools
    entry = tools.live.get(params.name)
    if entry is None:
        if params.name in tools:
            raise ToolDisabled(params.name)
        raise ToolNotFound(params.name, visible(connection, call, tools))
    if entry.timeout is not None:
        connection.limit(call, entry.timeout)
    if entry.access is not None and (asked := _wanted(entry)) is not None:
        return admitted(connection, call, asked, partial(_run, entry, connection, call, params))
    return _run(entry, connection, call, params)


def _run(entry: ToolEntry, connection: Connection, call: Running, params: CallToolParams) -> Work:
    meta = params.meta
    if meta is not None:
        call.token = progress_token(meta)
    if call.envelope is not None:
        _begin(entry, connection, call, params, call.envelope)
    if entry.task is not None or params.task is not None:
        dialect = runs_as(entry, connection, call, params)
        if dialect is not None:
            return _run_as_task(dialect, entry, connection, call, params)
    arguments = _arguments(entry, params)
    context = Context(connection, call) if entry.handler.wants_context else None
    if meta is not None and IDEMPOTENCY_KEY in meta:
        from trunkline.server.idempotency.tool_calls import run_once

        return run_once(entry, connection, call, params, partial(_noted, entry, connection, arguments, context))
    if entry.guard is None:
        return entry.run(arguments, context, None)
    call.queued = True  # until it has its turn
    return _guarded(entry, connection.shared, arguments, partial(_dequeued, entry, call), context)


def _guarded(entry: ToolEntry, shared: Shared, arguments: Any, run: Run, context: Context | None) -> Work:
    """A call that may have to wait, or be refused."""
    if entry.guard is None:
        return run(arguments, context, None)
    guard: Guard = entry.guard
    return guard.run(arguments, lambda read: run(read, context, None), shared)


def _dequeued(entry: ToolEntry, call: Running, *given: Any) -> Work:
    """Start a call whose turn has come."""
    call.queued = False
    return entry.run(*given)


def _noted(
    entry: ToolEntry, connection: Connection, arguments: Any, context: Context | None, begun: Callable[[], None]
) -> Work:
    """A call that says when the tool itself begins."""

    def run(*given: Any) -> Work:
        begun()
        return entry.run(*given)

    return _guarded(entry, connection.shared, arguments, run, context)


def work_of(entry: ToolEntry, shared: Shared, params: CallToolParams) -> Begin:
    """What runs a tool for a context that is yet to be made. Raises for arguments that do not fit."""
    return partial(_guarded, entry, shared, _arguments(entry, params), entry.run)


def _run_as_task(
    dialect: Dialect, entry: ToolEntry, connection: Connection, call: Running, params: CallToolParams
) -> Work:
    try:
        work = work_of(entry, connection.shared, params)
    except InvalidArguments as error:  # a result is what a task comes to, and there is none
        raise InvalidParams(error.message, data=error.data) from None
    making = Making(entry, connection, call, work)
    asks_first = entry.task is not None and entry.task.asks_first and dialect is Dialect.EXTENSION
    if params.meta is not None and IDEMPOTENCY_KEY in params.meta:
        from trunkline.server.idempotency.tool_calls import become_task_once, start_task_once

        if not asks_first:
            return start_task_once(making, params)
        return become_task_once(making, params, partial(_begun_in_room, entry, connection, call, params))
    _make_room(connection, call)
    if asks_first:
        call.task = partial(become_task, making, params)
        return work(Context(connection, call) if entry.handler.wants_context else None)
    return start_task(making, params)


def _begun_in_room(
    entry: ToolEntry, connection: Connection, call: Running, params: CallToolParams, begun: Callable[[], None]
) -> Work:
    """A call that says when the tool itself begins, if there is room for the task that it may become."""
    _make_room(connection, call)
    context = Context(connection, call) if entry.handler.wants_context else None
    return _noted(entry, connection, _arguments(entry, params), context, begun)


def _make_room(connection: Connection, call: Running) -> None:
    connection.shared.tasks.make_room(owner_of(call.origin.principal))


def _begin(entry: ToolEntry, connection: Connection, call: Running, params: CallToolParams, said: Envelope) -> None:
    """What is looked at before a call of the modern era: the headers that repeat its arguments, what its client can
    be asked, and what it has been asked already."""
    if call.origin.named is not None and entry.mirrors:  # it came with headers of its own
        why = param_mismatch(entry.mirrors, _object(params), call.origin.headers)
        if why is not None:
            raise HeaderMismatch(why)
    for capability in entry.asks:
        if not declared(said.capabilities, capability):
            raise MissingCapability(capability)
    begin(connection, call, params)
    call.natural = entry.output.wraps


def _object(params: CallToolParams) -> dict[str, Any]:
    """The arguments by name; none if they are no object, which is told of later."""
    try:
        return read_object(as_written(params.arguments))
    except DecodeError:
        return {}


def _arguments(entry: ToolEntry, params: CallToolParams) -> Any:
    given = params.arguments
    try:
        return entry.decode(given) if type(given) is Raw else entry.decode_plain(given)
    except (DecodeError, RecursionError) as error:
        given = as_written(given)
        missing = bytes(given) == b"null"  # which some clients send for no arguments at all
        return _without_arguments(entry) if missing else entry.reread(given, error)


def _without_arguments(entry: ToolEntry) -> object:
    try:
        return entry.decode(NO_ARGUMENTS)
    except DecodeError as error:
        raise entry.refusal(NO_ARGUMENTS, error) from None


FEATURE = Feature("tools", {"tools/list": _list, "tools/call": _call})
