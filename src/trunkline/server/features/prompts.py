"""Prompts: listed and rendered."""

from msgspec import Raw

from trunkline.conversation.dispatch import Feature
from trunkline.conversation.drive import Work
from trunkline.errors import PromptNotFound
from trunkline.protocol.inflight import Running
from trunkline.protocol.meta import progress_token
from trunkline.protocol.types import GetPromptParams, PaginatedParams
from trunkline.server.connection import Connection
from trunkline.server.context import Context

__all__ = ["FEATURE"]


def _list(connection: Connection, call: Running, params: PaginatedParams) -> Raw:  # noqa: ARG001
    return connection.offer.list_prompts(connection.session.spoken, params.cursor, params.limit)


def _get(connection: Connection, call: Running, params: GetPromptParams) -> Work:
    entry = connection.offer.prompts.live.get(params.name)
    if entry is None:
        raise PromptNotFound(params.name)
    call.token = progress_token(params.meta)
    arguments = entry.arguments(params.arguments or {})
    return entry.run(arguments, Context(connection, call) if entry.wants_context else None, None)


FEATURE = Feature("prompts", {"prompts/list": _list, "prompts/get": _get})
