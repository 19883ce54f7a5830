"""Lists that are not the same for everybody, or not always: who may see what is found out, and what templates list is
computed, whenever a list is asked for.

Of resources, what was registered comes first, page by page; what templates list follows. Nothing of the latter is
kept: whoever computes it knows best what can be kept and for how long. A cursor there is a position, so that a list
that changes between two pages may show something twice or not at all.
"""

from typing import Any, Final, cast

from msgspec import Raw

from trunkline.errors import InvalidCursor
from trunkline.protocol.inflight import Running
from trunkline.protocol.types import ListResourcesResult, PaginatedParams, Resource
from trunkline.registry.handlers import Handler
from trunkline.registry.registry import Registry
from trunkline.registry.resources import TemplateEntry
from trunkline.rpc.run_handler import Work, perform
from trunkline.server.access.enforcement import answers
from trunkline.server.access.rules import Viewer, held_by
from trunkline.server.catalog import Offer
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.input.multi_round import named

__all__ = ["listed", "listed_with_templates"]

_CURSOR: Final = "listed_resource"


def listed(connection: Connection, call: Running, params: PaginatedParams, registry: Registry[Any]) -> Work:
    """A page of what whoever asks may have. Of what that cannot be told it may not."""
    offer = connection.offer
    rules = offer.rules[registry.kind]
    if not rules:
        spoken = connection.session.revision_of(call)
        return offer.listed(registry, spoken, params.cursor, params.limit, now=connection.shared.wall.now())
    viewer = _viewer(connection, call)
    make = _listed_after_asking if rules.predicates(viewer.held) else _listed_for
    return make(viewer, connection, call, params, registry)


def _viewer(connection: Connection, call: Running) -> Viewer:
    principal = call.origin.principal
    return Viewer(held_by(principal, local=connection.channel.info.local), named(principal))


def _listed_for(
    viewer: Viewer, connection: Connection, call: Running, params: PaginatedParams, registry: Registry[Any]
) -> Raw:
    spoken, now = connection.session.revision_of(call), connection.shared.wall.now()
    return connection.offer.listed(registry, spoken, params.cursor, params.limit, now=now, viewer=viewer)


async def _listed_after_asking(
    viewer: Viewer, connection: Connection, call: Running, params: PaginatedParams, registry: Registry[Any]
) -> Raw:
    predicates = connection.offer.rules[registry.kind].predicates(viewer.held)
    viewer = Viewer(viewer.held, viewer.whose, await answers(connection, call, predicates))
    return _listed_for(viewer, connection, call, params, registry)


async def listed_with_templates(connection: Connection, call: Running, params: PaginatedParams) -> ListResourcesResult:
    """A page of all resources that whoever asks may have, those that templates list among them."""
    offer, now = connection.offer, connection.shared.wall.now()
    room = offer.resources.size_of(params.limit)
    viewer = await _asked_about_resources(connection, call)
    start = _position(offer, params.cursor, now, viewer.whose)
    shown: list[Resource] = []
    if start is None:
        page = offer.shown(offer.resources, params.cursor, params.limit, now=now, viewer=viewer)
        shown = [entry.definition for entry in page.entries]
        if page.next_cursor is not None:
            return ListResourcesResult(shown, next_cursor=page.next_cursor)
        room, start = room - len(shown), 0
    found = await _found(connection, call, offer.rules["resource_template"].hidden(viewer))
    rest = list(found.values())[start : start + room]
    more = start + room < len(found)
    cursor = offer.cursors.seal(_CURSOR, start + room, now, viewer.whose) if more else None
    return ListResourcesResult([*shown, *rest], next_cursor=cursor)


async def _asked_about_resources(connection: Connection, call: Running) -> Viewer:
    viewer, rules = _viewer(connection, call), connection.offer.rules
    kinds = [rules[kind] for kind in ("resource", "resource_template") if rules[kind]]
    predicates = dict.fromkeys(predicate for each in kinds for predicate in each.predicates(viewer.held))
    if not predicates:
        return viewer
    return Viewer(viewer.held, viewer.whose, await answers(connection, call, predicates))


async def _found(connection: Connection, call: Running, hidden: frozenset[str]) -> dict[str, Resource]:
    """What templates list, by its URI; without what is registered, and without what a hidden template would read."""
    offer, found = connection.offer, dict[str, Resource]()
    for template in offer.listing_templates():
        if template.key in hidden:
            continue
        for resource in await _listed_by(connection, call, template):
            if resource.uri in offer.resources.live:
                continue
            reader = offer.reader(resource.uri) if hidden else None
            if reader is None or reader.key not in hidden:
                found.setdefault(resource.uri, resource)
    return found


def _position(offer: Offer, cursor: str | None, now: float, whose: str) -> int | None:
    """Where in what templates list a cursor points to; None if it is not one of those."""
    if cursor is None:
        return None
    try:
        return offer.cursors.open(_CURSOR, cursor, now, whose)
    except InvalidCursor:
        return None


async def _listed_by(connection: Connection, call: Running, template: TemplateEntry) -> list[Resource]:
    lister = cast("Handler", template.lister)  # it is one of those that have one
    context = Context(connection, call) if lister.wants_context else None
    return await perform(template.run_lister(lister.convert({}), context, None), connection.threads)
