"""Tools: listed and called."""

from functools import partial

from msgspec import Raw

from trunkline.conversation.dispatch import Feature
from trunkline.conversation.drive import Work
from trunkline.errors import InternalError, ToolNotFound
from trunkline.protocol.inflight import Running
from trunkline.protocol.meta import progress_token
from trunkline.protocol.types import NO_ARGUMENTS, CallToolParams, PaginatedParams
from trunkline.registry.tools import ToolEntry
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.limits import Guard
from trunkline.wire.codec import DecodeError

__all__ = ["FEATURE"]


class ToolDisabled(InternalError):
    """A call of a tool that is switched off."""

    kind = "tool_is_disabled"

    def __init__(self, name: str) -> None:
        super().__init__(f"tool {name!r} is disabled", data={"name": name})


def _list(connection: Connection, call: Running, params: PaginatedParams) -> Raw:  # noqa: ARG001
    return connection.offer.list_tools(connection.session.spoken, params.cursor, params.limit)


def _call(connection: Connection, call: Running, params: CallToolParams) -> Work:
    tools = connection.offer.tools
    entry = tools.live.get(params.name)
    if entry is None:
        raise ToolDisabled(params.name) if params.name in tools else ToolNotFound(params.name)
    try:
        arguments = entry.decode(params.arguments)
    except (DecodeError, RecursionError) as error:
        missing = bytes(params.arguments) == b"null"  # which some clients send for no arguments at all
        arguments = _without_arguments(entry) if missing else entry.reread(params.arguments, error)
    if params.meta is not None:
        call.token = progress_token(params.meta)
    if entry.timeout is not None:
        connection.limit(call, entry.timeout)
    if entry.guard is not None:
        guard: Guard = entry.guard
        context = Context(connection, call)
        return guard.run(context, partial(entry.run, arguments, context, None), connection.threads)
    return entry.run(arguments, Context(connection, call) if entry.handler.wants_context else None, None)


def _without_arguments(entry: ToolEntry) -> object:
    try:
        return entry.decode(NO_ARGUMENTS)
    except DecodeError as error:
        raise entry.refusal(NO_ARGUMENTS, error) from None


FEATURE = Feature("tools", {"tools/list": _list, "tools/call": _call})
