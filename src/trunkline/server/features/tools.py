"""Tools: list and call."""

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct

from trunkline.errors import (
    HeaderMismatch,
    InternalError,
    InvalidArguments,
    InvalidParams,
    MissingCapability,
    ToolNotFound,
)
from trunkline.protocol.capabilities import is_declared
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.meta import IDEMPOTENCY_KEY, PROGRESS_TOKEN, TIMEOUT_MS, progress_token
from trunkline.protocol.types import NO_ARGUMENTS, CallToolParams, PaginatedParams
from trunkline.registry.handlers import Forward, Run
from trunkline.registry.tools import ToolEntry
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.run_handler import Work
from trunkline.server.access.enforcement import ProtectedTarget, run_if_authorized, visible_keys
from trunkline.server.access.filtered_lists import list_page
from trunkline.server.access.owner_id import owner_of
from trunkline.server.catalog import ServerCatalog
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.wire.codec import DecodeError, decoder, original_json

if TYPE_CHECKING:
    from trunkline.protocol.envelope import Envelope
    from trunkline.protocol.task_dialects import Dialect
    from trunkline.server.runtime_services import RuntimeServices
    from trunkline.server.tasks.service import WorkFactory

__all__ = [
    "FEATURE",
    "ForwardedRequest",
    "ToolDisabled",
    "decode_arguments",
    "find_protected",
    "prepare_run",
    "run_within_rate",
]


_decode_object = decoder(dict[str, Any])

StartTool = Callable[[ToolEntry, Connection, IncomingRequest, Any], Work]
"""Starts a call of a tool; the last argument are its params."""


class ForwardedRequest(Struct, frozen=True, eq=False):
    """The request of a task whose tool is one of another server."""

    meta: dict[str, Any] | None = None
    session: Connection | None = None  # of the client, if it has a session, and this process has received the request


class ToolDisabled(InternalError):
    """A call of a disabled tool."""

    kind = "tool_is_disabled"

    def __init__(self, name: str, because: str = "") -> None:
        super().__init__(f"tool {name!r} is disabled{because and f': {because}'}", data={"name": name})


def _list(connection: Connection, call: IncomingRequest, params: PaginatedParams) -> Work:
    return list_page(connection, call, params, connection.catalog.tools)


def find_protected(catalog: ServerCatalog, params: CallToolParams) -> ProtectedTarget | None:
    """Return the tool of a call if it has an access rule."""
    entry = catalog.tools.live.get(params.name)
    return None if entry is None else _protected(entry)


def _protected(entry: ToolEntry) -> ProtectedTarget | None:
    return ProtectedTarget.for_entry(entry, f"tool {entry.name!r}")


def _call(connection: Connection, call: IncomingRequest, params: CallToolParams) -> Work:
    tools = connection.catalog.tools
    entry = tools.live.get(params.name)
    if entry is None:
        if (disabled := tools.get(params.name)) is not None:
            raise ToolDisabled(params.name, disabled.disabled_because)
        raise ToolNotFound(params.name, visible_keys(connection, call, tools))
    if entry.plain and params.meta is None and params.task is None:  # most calls; an envelope would be metadata
        given = params.arguments
        try:  # as `decode_arguments` does, with a call less
            arguments = entry.decode(given) if type(given) is Raw else entry.decode_plain(given)
        except (DecodeError, RecursionError) as error:
            arguments = _decode_leniently(entry, given, error)
        return entry.run(arguments, Context(connection, call) if entry.handler.wants_context else None, None)
    if entry.timeout is not None:
        connection.set_call_timeout(call, entry.timeout)
    if entry.access is not None and (asked := _protected(entry)) is not None:
        return run_if_authorized(
            connection, call, asked, partial(run_within_rate, _run, entry, connection, call, params)
        )
    if entry.rate is not None:
        return run_within_rate(_run, entry, connection, call, params)
    return _run(entry, connection, call, params)


def run_within_rate(
    start: StartTool, entry: ToolEntry, connection: Connection, call: IncomingRequest, params: Any
) -> Work:
    """Start a call, unless its tool is above its rate. Raises `RateLimited`, at once or in the work."""
    if entry.rate is not None:
        limits = connection.shared.get_rate_limits()
        undecided = limits.take("tool", entry.name, entry.rate)
        if undecided is not None:
            work = partial(start, entry, connection, call, params)
            return limits.run_when_admitted(undecided, work, connection.threads)
    return start(entry, connection, call, params)


def _run(entry: ToolEntry, connection: Connection, call: IncomingRequest, params: CallToolParams) -> Work:
    meta = params.meta
    if meta is not None:
        if PROGRESS_TOKEN in meta:
            call.token = progress_token(meta)
        if TIMEOUT_MS in meta:
            connection.shorten_deadline(call, meta)
    if entry.forward is not None:
        return _forward(entry, connection, call, params, entry.forward)
    if call.envelope is not None:
        _prepare_modern_call(entry, connection, call, params, call.envelope)
    if entry.task is not None or params.task is not None:
        from trunkline.server.tasks.create import choose_dialect

        dialect = choose_dialect(entry, connection, call, params)
        if dialect is not None:
            return _run_as_task(dialect, entry, connection, call, params)
    arguments = decode_arguments(entry, params)
    context = Context(connection, call) if entry.handler.wants_context else None
    if meta is not None and IDEMPOTENCY_KEY in meta:
        from trunkline.server.idempotency.tool_calls import run_once

        start = partial(_run_reporting_start, entry, connection, arguments, context, call=call)
        return run_once(entry, connection, call, params, start)
    limiter = entry.limiter
    if limiter is None:
        return entry.run(arguments, context, None)
    if not limiter.waits:
        return limiter.run(entry.run, arguments, context, connection.shared, call)
    call.queued = True  # until it has a permit
    return limiter.run(partial(_run_dequeued, entry, call), arguments, context, connection.shared, call)


def _forward(
    entry: ToolEntry, connection: Connection, call: IncomingRequest, params: CallToolParams, forward: Forward
) -> Work:
    """Let another server answer a call, within the limits of the entry. That server checks the arguments, and its
    questions pass unchanged. If the call runs as a task, it is a task of this server, whose work is the call there."""
    _check_mirrored_arguments(entry, call, params)
    if entry.task is not None or params.task is not None:
        from trunkline.server.tasks.create import choose_dialect

        dialect = choose_dialect(entry, connection, call, params)
        if dialect is not None and not _asks_first(entry, dialect):
            return _run_as_task(dialect, entry, connection, call, params)
    arguments = decode_arguments(entry, params)
    if entry.limiter is None:
        return forward(connection, call, params, arguments)
    call.queued = True  # until it has a permit

    def run(arguments: Any, _context: Context | None, _subject: Any) -> Work:
        call.queued = False
        return forward(connection, call, params, arguments)

    return entry.limiter.run(run, arguments, None, connection.shared, call)


def _run_guarded(
    entry: ToolEntry,
    shared: "RuntimeServices",
    arguments: Any,
    run: Run,
    context: Context | None,
    *,
    call: IncomingRequest | None = None,
) -> Work:
    """Run a tool under its limits: the call may wait, or fail. `call` is None for a task."""
    if entry.limiter is None:
        return run(arguments, context, None)
    return entry.limiter.run(run, arguments, context, shared, call)


def _run_dequeued(entry: ToolEntry, call: IncomingRequest, *given: Any) -> Work:
    """Start a call that has acquired its permit."""
    call.queued = False
    return entry.run(*given)


def _run_reporting_start(
    entry: ToolEntry,
    connection: Connection,
    arguments: Any,
    context: Context | None,
    on_start: Callable[[], None],
    *,
    call: IncomingRequest,
) -> Work:
    """Run a tool and call `on_start` when the tool itself begins."""

    def run(*given: Any) -> Work:
        on_start()
        return entry.run(*given)

    return _run_guarded(entry, connection.shared, arguments, run, context, call=call)


def prepare_run(
    entry: ToolEntry, shared: "RuntimeServices", params: CallToolParams, session: Connection | None = None
) -> "WorkFactory":
    """Return a function that runs a tool for a context that does not exist yet. Raises for invalid arguments.
    `session` is the connection of the client's session, if it has one in this process."""
    arguments, run = decode_arguments(entry, params), entry.run
    if entry.forward is not None:
        request = ForwardedRequest(params.meta, session)
        return partial(_run_guarded, entry, shared, arguments, lambda given, context, _: run(given, context, request))
    return partial(_run_guarded, entry, shared, arguments, run)


def _asks_first(entry: ToolEntry, dialect: "Dialect") -> bool:
    """Return whether a call is an ordinary one until its handler, or another server, makes it a task."""
    from trunkline.protocol.task_dialects import Dialect

    return entry.task is not None and entry.task.asks_first and dialect is Dialect.EXTENSION


def _run_as_task(
    dialect: "Dialect", entry: ToolEntry, connection: Connection, call: IncomingRequest, params: CallToolParams
) -> Work:
    try:
        session = connection if call.envelope is None else None
        work = prepare_run(entry, connection.shared, params, session)
    except InvalidArguments as error:  # without a task there is no result to carry the error
        raise InvalidParams(error.message, data=error.data) from None
    from trunkline.server.tasks.create import NewTask, convert_to_task, start_task

    making = NewTask(entry, connection, call, work)
    asks_first = _asks_first(entry, dialect)
    if params.meta is not None and IDEMPOTENCY_KEY in params.meta:
        from trunkline.server.idempotency.tool_calls import become_task_once, start_task_once

        if not asks_first:
            return start_task_once(making, params)
        return become_task_once(making, params, partial(_run_with_task_capacity, entry, connection, call, params))
    _check_task_capacity(connection, call)
    if asks_first:
        call.task = partial(convert_to_task, making, params)
        return work(Context(connection, call) if entry.handler.wants_context else None)
    return start_task(making, params)


def _run_with_task_capacity(
    entry: ToolEntry,
    connection: Connection,
    call: IncomingRequest,
    params: CallToolParams,
    on_start: Callable[[], None],
) -> Work:
    """Run a tool that may become a task, if the caller may have another task; call `on_start` when it begins."""
    _check_task_capacity(connection, call)
    context = Context(connection, call) if entry.handler.wants_context else None
    return _run_reporting_start(entry, connection, decode_arguments(entry, params), context, on_start, call=call)


def _check_task_capacity(connection: Connection, call: IncomingRequest) -> None:
    connection.shared.tasks.check_limits(owner_of(call.origin.principal))


def _prepare_modern_call(
    entry: ToolEntry, connection: Connection, call: IncomingRequest, params: CallToolParams, envelope: "Envelope"
) -> None:
    """Check a call of the modern era: the headers that mirror its arguments and the required client capabilities; then
    load the answers of earlier rounds."""
    _check_mirrored_arguments(entry, call, params)
    for capability in entry.asks:
        if not is_declared(envelope.capabilities, capability) and not _has_fallback(connection, capability):
            raise MissingCapability(capability)
    _load_begin_round()(connection, call, params)
    if entry.output.wraps:
        call.unwrapped = True


def _check_mirrored_arguments(entry: ToolEntry, call: IncomingRequest, params: CallToolParams) -> None:
    """Raise `HeaderMismatch` for a call of the modern era over HTTP whose headers contradict its arguments."""
    if call.envelope is not None and call.origin.original_id is not None and entry.mirrored_arguments:
        from trunkline.protocol.headers import find_param_mismatch

        why = find_param_mismatch(entry.mirrored_arguments, _arguments_object(params), call.origin.headers)
        if why is not None:
            raise HeaderMismatch(why)


def _has_fallback(connection: Connection, capability: str) -> bool:
    """Return whether the server itself can do what a client cannot."""
    return connection.catalog.sampling is not None and capability.partition(".")[0] == "sampling"


@cache
def _load_begin_round() -> "Callable[[Connection, IncomingRequest, CallToolParams], None]":
    from trunkline.server.input.multi_round import begin_round  # imported here: for the modern era only

    return begin_round


def _arguments_object(params: CallToolParams) -> dict[str, Any]:
    """Return the arguments by name; empty if they are not an object, which decoding reports later."""
    try:
        return _decode_object(original_json(params.arguments))
    except DecodeError:
        return {}


def decode_arguments(entry: ToolEntry, params: CallToolParams) -> Any:
    """Decode and validate the arguments of a call. Raises `InvalidArguments`."""
    given = params.arguments
    try:
        return entry.decode(given) if type(given) is Raw else entry.decode_plain(given)
    except (DecodeError, RecursionError) as error:
        return _decode_leniently(entry, given, error)


def _decode_leniently(entry: ToolEntry, given: Any, error: Exception) -> Any:
    raw = original_json(given)
    missing = bytes(raw) == b"null"  # some clients send it for no arguments
    return _decode_no_arguments(entry) if missing else entry.decode_leniently(raw, error)


def _decode_no_arguments(entry: ToolEntry) -> object:
    try:
        return entry.decode(NO_ARGUMENTS)
    except DecodeError as error:
        raise entry.arguments_error(NO_ARGUMENTS, error) from None


FEATURE = Feature("tools", {"tools/list": _list, "tools/call": _call})
