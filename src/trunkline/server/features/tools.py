"""Tools: listed and called."""

from msgspec import Raw

from trunkline.errors import InternalError, ToolNotFound
from trunkline.protocol.inflight import Running
from trunkline.protocol.meta import progress_token
from trunkline.protocol.types import CallToolParams, PaginatedParams
from trunkline.server.calls import invoke
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.dispatch import Feature
from trunkline.server.drive import Work

__all__ = ["FEATURE"]


class ToolDisabled(InternalError):
    """A call of a tool that is switched off."""

    kind = "tool_is_disabled"


def _list(connection: Connection, call: Running, params: PaginatedParams) -> Raw:  # noqa: ARG001
    return connection.offer.list_tools(connection.session.spoken, params.cursor, params.limit)


def _call(connection: Connection, call: Running, params: CallToolParams) -> Work:
    tools = connection.offer.tools
    entry = tools.get(params.name)
    if entry is None:
        raise ToolNotFound(params.name)
    if not tools.enabled(params.name):
        raise ToolDisabled(f"tool {params.name!r} is disabled")
    arguments = entry.decode(params.arguments)
    if params.meta is not None:
        call.token = progress_token(params.meta)
    if entry.timeout is not None:
        connection.limit(call, entry.timeout)
    handler = entry.handler
    context = Context(connection, call) if handler.wants_context else None
    return invoke(handler, arguments, context, entry.output.convert)


FEATURE = Feature("tools", {"tools/list": _list, "tools/call": _call})
