"""Prompts: listed and rendered."""

from typing import Any

from msgspec import Raw

from trunkline.errors import PromptNotFound
from trunkline.protocol.inflight import Running
from trunkline.protocol.meta import progress_token
from trunkline.protocol.types import GetPromptParams, PaginatedParams
from trunkline.registry.prompts import TextPrompt
from trunkline.server.calls import invoke
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.dispatch import Feature
from trunkline.server.drive import Work

__all__ = ["FEATURE"]


def _list(connection: Connection, call: Running, params: PaginatedParams) -> Raw:  # noqa: ARG001
    return connection.offer.list_prompts(connection.session.spoken, params.cursor, params.limit)


def _get(connection: Connection, call: Running, params: GetPromptParams) -> Work:
    prompts = connection.offer.prompts
    entry = prompts.get(params.name)
    if entry is None or not prompts.enabled(params.name):
        raise PromptNotFound(params.name)
    arguments: Any = entry.arguments(params.arguments or {})
    if isinstance(entry.source, TextPrompt):
        return entry.result(entry.source.render(arguments))
    call.token = progress_token(params.meta)
    context = Context(connection, call) if entry.source.wants_context else None
    return invoke(entry.source, arguments, context, entry.result)


FEATURE = Feature("prompts", {"prompts/list": _list, "prompts/get": _get})
