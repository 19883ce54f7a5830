"""Resources: listed, read and watched."""

from msgspec import UNSET, Raw

from trunkline.conversation.dispatch import Feature
from trunkline.conversation.drive import Work
from trunkline.errors import ResourceNotFound
from trunkline.facts import SubscriptionStep
from trunkline.protocol.inflight import Running
from trunkline.protocol.meta import progress_token
from trunkline.protocol.types import (
    Empty,
    PaginatedParams,
    ReadResourceParams,
    SubscribeParams,
    UnsubscribeParams,
)
from trunkline.registry.handlers import Handler
from trunkline.registry.resources import check_uri
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.listing import list_with_templates

__all__ = ["FEATURE"]


def _list(connection: Connection, call: Running, params: PaginatedParams) -> Work:
    if connection.offer.listing_templates():
        return list_with_templates(connection, call, params)
    return connection.offer.list_resources(connection.session.spoken, params.cursor, params.limit)


def _list_templates(connection: Connection, call: Running, params: PaginatedParams) -> Raw:  # noqa: ARG001
    return connection.offer.list_templates(connection.session.spoken, params.cursor, params.limit)


def _read(connection: Connection, call: Running, params: ReadResourceParams) -> Work:
    offer, uri = connection.offer, params.uri
    call.token = progress_token(params.meta)
    entry = offer.resources.live.get(uri)
    if entry is not None:
        return entry.run(entry.arguments, _context(connection, call, entry.handler), uri)
    check_uri(uri, connection.settings)
    for template in offer.templates:
        if (arguments := template.arguments(uri)) is not UNSET:
            return template.run(arguments, _context(connection, call, template.handler), uri)
    raise ResourceNotFound(uri)


def _context(connection: Connection, call: Running, handler: Handler | None) -> Context | None:
    return Context(connection, call) if handler is not None and handler.wants_context else None


async def _subscribe(connection: Connection, call: Running, params: SubscribeParams) -> Empty:  # noqa: ARG001
    uri = check_uri(params.uri, connection.settings)
    _step(connection, "RegisterSubscription", uri)
    _step(connection, "SetupWatcher", uri)
    await connection.shared.watchers.started(uri, connection)
    _step(connection, "ConfirmSubscription", uri)
    return Empty()


async def _unsubscribe(connection: Connection, call: Running, params: UnsubscribeParams) -> Empty:  # noqa: ARG001
    await connection.shared.watchers.stopped(params.uri, connection)
    return Empty()


def _step(connection: Connection, step: str, uri: str) -> None:
    connection.tell(SubscriptionStep, step=step, uri=uri)


FEATURE = Feature(
    "resources",
    {
        "resources/list": _list,
        "resources/templates/list": _list_templates,
        "resources/read": _read,
        "resources/subscribe": _subscribe,
        "resources/unsubscribe": _unsubscribe,
    },
)
