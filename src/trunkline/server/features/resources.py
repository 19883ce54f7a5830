"""Resources: listed, read and watched."""

from functools import partial
from typing import Any, Final

from msgspec import UNSET

from trunkline.errors import ResourceNotFound
from trunkline.facts import SubscriptionStep
from trunkline.protocol.inflight import Running
from trunkline.protocol.meta import progress_token
from trunkline.protocol.modern import CacheHint
from trunkline.protocol.types import (
    Empty,
    PaginatedParams,
    ReadResourceParams,
    SubscribeParams,
    UnsubscribeParams,
)
from trunkline.registry.resources import ResourceEntry, TemplateEntry, check_uri
from trunkline.rpc.dispatch import Feature
from trunkline.rpc.run_handler import Work
from trunkline.server.access.enforcement import Wanted, admitted, visible
from trunkline.server.access.filtered_lists import listed, listed_with_templates
from trunkline.server.catalog import Offer
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.input.multi_round import begin

__all__ = ["FEATURE", "wanted"]

Entry = ResourceEntry | TemplateEntry
"""Whatever reads a URI."""

_SAID: Final = 200  # characters of a URI that are repeated in a sentence


def _list(connection: Connection, call: Running, params: PaginatedParams) -> Work:
    if connection.offer.listing_templates():
        call.hint = connection.offer.hint("resources", shared=False)
        return listed_with_templates(connection, call, params)
    return listed(connection, call, params, connection.offer.resources)


def _list_templates(connection: Connection, call: Running, params: PaginatedParams) -> Work:
    return listed(connection, call, params, connection.offer.templates)


def wanted(offer: Offer, params: ReadResourceParams | SubscribeParams) -> Wanted | None:
    """The resource or template that a request is about, if not everybody may read it."""
    if offer.rule_of(params.uri) is None:
        return None
    entry = offer.reader(params.uri)
    return None if entry is None else _wanted(entry, params.uri)


def _wanted(entry: Entry, uri: str) -> Wanted | None:
    return Wanted.of(entry, f"resource {uri[:_SAID]!r}")


def _read(connection: Connection, call: Running, params: ReadResourceParams) -> Work:
    offer, uri = connection.offer, params.uri
    entry = offer.resources.live.get(uri)
    if entry is not None:
        if entry.access is not None and (asked := _wanted(entry, uri)) is not None:
            return admitted(connection, call, asked, partial(_run, entry, entry.arguments, connection, call, params))
        return _run(entry, entry.arguments, connection, call, params)
    if len(uri) <= connection.settings.max_uri:
        for template in offer.templates:
            if template.access is not None and template.template.match(uri) is not None:
                work = partial(_run_template, template, connection, call, params)
                asked = _wanted(template, uri)
                return work() if asked is None else admitted(connection, call, asked, work)
            if (arguments := template.arguments(uri)) is not UNSET:
                return _run(template, arguments, connection, call, params)
    known = visible(connection, call, offer.resources)
    raise ResourceNotFound(check_uri(uri, connection.settings), known)


def _run_template(entry: TemplateEntry, connection: Connection, call: Running, params: ReadResourceParams) -> Work:
    return _run(entry, entry.arguments(params.uri), connection, call, params)


def _run(entry: Entry, arguments: Any, connection: Connection, call: Running, params: ReadResourceParams) -> Work:
    if params.meta is not None:
        call.token = progress_token(params.meta)
    if call.envelope is not None:
        begin(connection, call, params)
    call.hint = CacheHint(entry.ttl, "public" if entry.public else "private")
    return entry.run(arguments, Context(connection, call) if entry.wants_context else None, params.uri)


def _subscribe(connection: Connection, call: Running, params: SubscribeParams) -> Work:
    uri = check_uri(params.uri, connection.settings)
    connection.last_call = call
    asked = wanted(connection.offer, params)
    if asked is None:
        return _subscribed(connection, uri)
    connection.mark_calls()  # who calls later may be somebody with less rights
    return admitted(connection, call, asked, partial(_subscribed, connection, uri))


async def _subscribed(connection: Connection, uri: str) -> Empty:
    _step(connection, "RegisterSubscription", uri)
    _step(connection, "SetupWatcher", uri)
    watchers = connection.shared.watchers
    subscribe = partial(watchers.started, uri, connection, connection.settings.max_subscriptions)
    if connection.kept is None:
        await subscribe()
    else:
        await connection.kept.change(subscribe, partial(watchers.stopped, uri, connection))
    _step(connection, "ConfirmSubscription", uri)
    return Empty()


async def _unsubscribe(connection: Connection, call: Running, params: UnsubscribeParams) -> Empty:  # noqa: ARG001
    unsubscribe = partial(connection.shared.watchers.stopped, params.uri, connection)
    if connection.kept is None:
        await unsubscribe()
    else:
        await connection.kept.unsubscribe(params.uri, unsubscribe)
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
