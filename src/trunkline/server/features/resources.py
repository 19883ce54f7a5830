"""Resources: list, read and subscribe."""

from functools import partial
from typing import Any, Final

from msgspec import UNSET

from trunkline.errors import ResourceNotFound
from trunkline.facts import SubscriptionStep
from trunkline.protocol.inflight import IncomingRequest
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
from trunkline.server.access.enforcement import ProtectedTarget, run_if_authorized, visible_keys
from trunkline.server.access.filtered_lists import list_page, list_resources_with_templates
from trunkline.server.catalog import ServerCatalog
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.input.multi_round import begin_round

__all__ = ["FEATURE", "find_protected"]

ReadableEntry = ResourceEntry | TemplateEntry
"""Entry that can be read by URI."""

_MAX_URI_IN_MESSAGE: Final = 200  # characters of a URI in an error message


def _list(connection: Connection, call: IncomingRequest, params: PaginatedParams) -> Work:
    if connection.catalog.templates_with_lister():
        call.hint = connection.catalog.cache_hint("resources", public=False)
        return list_resources_with_templates(connection, call, params)
    return list_page(connection, call, params, connection.catalog.resources)


def _list_templates(connection: Connection, call: IncomingRequest, params: PaginatedParams) -> Work:
    return list_page(connection, call, params, connection.catalog.templates)


def find_protected(catalog: ServerCatalog, params: ReadResourceParams | SubscribeParams) -> ProtectedTarget | None:
    """Return the resource or template of a request if it has an access rule."""
    if catalog.access_rule_of(params.uri) is None:
        return None
    entry = catalog.resolve_uri(params.uri)
    return None if entry is None else _protected(entry, params.uri)


def _protected(entry: ReadableEntry, uri: str) -> ProtectedTarget | None:
    return ProtectedTarget.for_entry(entry, f"resource {uri[:_MAX_URI_IN_MESSAGE]!r}")


def _read(connection: Connection, call: IncomingRequest, params: ReadResourceParams) -> Work:
    catalog, uri = connection.catalog, params.uri
    entry = catalog.resources.live.get(uri)
    if entry is not None:
        if entry.access is not None and (asked := _protected(entry, uri)) is not None:
            return run_if_authorized(
                connection, call, asked, partial(_admit, entry, entry.arguments, connection, call, params)
            )
        return _admit(entry, entry.arguments, connection, call, params)
    if len(uri) <= connection.settings.max_uri:
        for template in catalog.templates:
            if template.access is not None and template.template.match(uri) is not None:
                work = partial(_run_template, template, connection, call, params)
                asked = _protected(template, uri)
                return work() if asked is None else run_if_authorized(connection, call, asked, work)
            if (arguments := template.arguments(uri)) is not UNSET:
                return _admit(template, arguments, connection, call, params)
    if catalog.other_resources is not None:
        return _admit(catalog.other_resources, None, connection, call, params)
    known = visible_keys(connection, call, catalog.resources)
    raise ResourceNotFound(check_uri(uri, connection.settings), known)


def _run_template(
    entry: TemplateEntry, connection: Connection, call: IncomingRequest, params: ReadResourceParams
) -> Work:
    return _admit(entry, entry.arguments(params.uri), connection, call, params)


def _admit(
    entry: ReadableEntry, arguments: Any, connection: Connection, call: IncomingRequest, params: ReadResourceParams
) -> Work:
    if entry.rate is None:
        return _run(entry, arguments, connection, call, params)
    start, limits = partial(_run, entry, arguments, connection, call, params), connection.shared.get_rate_limits()
    return limits.run_within("resource", entry.key, entry.rate, start, connection.threads)


def _run(
    entry: ReadableEntry, arguments: Any, connection: Connection, call: IncomingRequest, params: ReadResourceParams
) -> Work:
    if params.meta is not None:
        call.token = progress_token(params.meta)
        connection.shorten_deadline(call, params.meta)
    if entry.forward is not None:
        return entry.forward(connection, call, params, params.uri)
    if call.envelope is not None:
        begin_round(connection, call, params)
        call.hint = CacheHint(entry.ttl, "public" if entry.public else "private")
    return entry.run(arguments, Context(connection, call) if entry.wants_context else None, params.uri)


def _subscribe(connection: Connection, call: IncomingRequest, params: SubscribeParams) -> Work:
    uri = check_uri(params.uri, connection.settings)
    connection.last_call = call
    asked = find_protected(connection.catalog, params)
    if asked is None:
        return _add_subscription(connection, uri)
    connection.follow_caller()  # a later caller may have fewer rights
    return run_if_authorized(connection, call, asked, partial(_add_subscription, connection, uri))


async def _add_subscription(connection: Connection, uri: str) -> Empty:
    _report_step(connection, "RegisterSubscription", uri)
    _report_step(connection, "SetupWatcher", uri)
    watchers = connection.shared.subscription_hooks
    subscribe = partial(watchers.subscribe, uri, connection, connection.settings.max_subscriptions)
    if connection.durable_session is None:
        await subscribe()
    else:
        await connection.durable_session.change(subscribe, partial(watchers.unsubscribe, uri, connection))
    _report_step(connection, "ConfirmSubscription", uri)
    return Empty()


async def _unsubscribe(connection: Connection, call: IncomingRequest, params: UnsubscribeParams) -> Empty:  # noqa: ARG001
    unsubscribe = partial(connection.shared.subscription_hooks.unsubscribe, params.uri, connection)
    if connection.durable_session is None:
        await unsubscribe()
    else:
        await connection.durable_session.unsubscribe(params.uri, unsubscribe)
    return Empty()


def _report_step(connection: Connection, step: str, uri: str) -> None:
    connection.facts.emit(SubscriptionStep, step=step, uri=uri)


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
