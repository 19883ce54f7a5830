"""Resources: listed, read and watched."""

from msgspec import UNSET, Raw

from trunkline.conversation.dispatch import Feature
from trunkline.conversation.drive import Work
from trunkline.errors import ResourceNotFound
from trunkline.facts import SubscriptionStep
from trunkline.protocol.inflight import Running
from trunkline.protocol.meta import progress_token
from trunkline.protocol.stateless import CacheHint
from trunkline.protocol.types import (
    Empty,
    PaginatedParams,
    ReadResourceParams,
    SubscribeParams,
    UnsubscribeParams,
)
from trunkline.registry.resources import check_uri
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.listing import list_with_templates
from trunkline.server.rounds import begin

__all__ = ["FEATURE"]


def _list(connection: Connection, call: Running, params: PaginatedParams) -> Work:
    if connection.offer.listing_templates():
        call.hint = connection.offer.hint("resources", shared=False)
        return list_with_templates(connection, call, params)
    spoken, now = connection.session.revision_of(call), connection.now()
    return connection.offer.list_resources(spoken, params.cursor, params.limit, now)


def _list_templates(connection: Connection, call: Running, params: PaginatedParams) -> Raw:
    spoken, now = connection.session.revision_of(call), connection.now()
    return connection.offer.list_templates(spoken, params.cursor, params.limit, now)


def _read(connection: Connection, call: Running, params: ReadResourceParams) -> Work:
    offer, uri = connection.offer, params.uri
    if params.meta is not None:
        call.token = progress_token(params.meta)
    if call.envelope is not None:
        begin(connection, call, params)
    entry = offer.resources.live.get(uri)
    if entry is not None:
        call.hint = CacheHint(entry.ttl, "public" if entry.public else "private")
        return entry.run(entry.arguments, Context(connection, call) if entry.wants_context else None, uri)
    if len(uri) <= connection.settings.max_uri:
        for template in offer.templates:
            if (arguments := template.arguments(uri)) is not UNSET:
                call.hint = CacheHint(template.ttl, "public" if template.public else "private")
                return template.run(arguments, Context(connection, call) if template.wants_context else None, uri)
    raise ResourceNotFound(check_uri(uri, connection.settings))


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
