"""Lists of resources to which templates add their own: what a template lists is computed whenever a list is asked for.

What was registered comes first, page by page; what templates list follows. Nothing of the latter is kept: whoever
computes it knows best what can be kept and for how long. A cursor there is a position, so that a list that changes
between two pages may show something twice or not at all.
"""

from inspect import isawaitable
from typing import Any, Final

from trunkline.errors import InvalidCursor
from trunkline.protocol.inflight import Running
from trunkline.protocol.types import ListResourcesResult, PaginatedParams, Resource
from trunkline.registry.handlers import OnThread
from trunkline.registry.resources import TemplateEntry
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.offer import Offer

__all__ = ["list_with_templates"]

_CURSOR: Final = "listed_resource"


async def list_with_templates(connection: Connection, call: Running, params: PaginatedParams) -> ListResourcesResult:
    """A page of all resources, those that templates list among them."""
    offer = connection.offer
    room = offer.resources.size_of(params.limit)
    start = _position(offer, params.cursor)
    shown: list[Resource] = []
    if start is None:
        page = offer.resources.page(params.cursor, params.limit)
        shown = [entry.definition for entry in page.entries]
        if page.next_cursor is not None:
            return ListResourcesResult(shown, next_cursor=page.next_cursor)
        room, start = room - len(shown), 0
    found: dict[str, Resource] = {}
    for template in offer.listing_templates():
        for resource in await _listed(connection, call, template):
            if resource.uri not in offer.resources.live:
                found.setdefault(resource.uri, resource)
    rest = list(found.values())[start : start + room]
    more = start + room < len(found)
    cursor = offer.cursors.seal(_CURSOR, start + room) if more else None
    return ListResourcesResult([*shown, *rest], next_cursor=cursor)


def _position(offer: Offer, cursor: str | None) -> int | None:
    """Where in what templates list a cursor points to; None if it is not one of those."""
    if cursor is None:
        return None
    try:
        return offer.cursors.open(_CURSOR, cursor)
    except InvalidCursor:
        return None


async def _listed(connection: Connection, call: Running, template: TemplateEntry) -> list[Resource]:
    lister = template.lister
    if lister is None:
        return []
    context = Context(connection, call) if lister.wants_context else None
    work: Any = template.run_lister(lister.convert({}), context, None)
    if isinstance(work, OnThread):
        value = await connection.threads.run(work.function)
        return work.finish(await value if isawaitable(value) else value)
    return await work if isawaitable(work) else work
