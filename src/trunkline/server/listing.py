"""Lists that are not the same for everybody, or not always: who may see a tool is asked, and what templates list is
computed, whenever a list is asked for.

Of resources, what was registered comes first, page by page; what templates list follows. Nothing of the latter is
kept: whoever computes it knows best what can be kept and for how long. A cursor there is a position, so that a list
that changes between two pages may show something twice or not at all.
"""

from typing import Final, cast

from msgspec import Raw

from trunkline.conversation.perform import perform
from trunkline.errors import InvalidCursor
from trunkline.protocol.inflight import Running
from trunkline.protocol.types import ListResourcesResult, PaginatedParams, Resource
from trunkline.registry.handlers import Handler
from trunkline.registry.resources import TemplateEntry
from trunkline.server.connection import Connection
from trunkline.server.context import Context
from trunkline.server.limits import Guard
from trunkline.server.offer import Offer
from trunkline.server.options import Allow
from trunkline.server.rounds import named

__all__ = ["list_allowed", "list_with_templates"]

_CURSOR: Final = "listed_resource"


async def list_allowed(connection: Connection, call: Running, params: PaginatedParams) -> Raw:
    """A page of the tools that this session may call. Those of which that cannot be told are not among them."""
    offer = connection.offer
    context = Context(connection, call)
    answers: dict[Allow | None, bool] = {}  # many tools may have the same predicate
    guarded = offer.guarded_tools()
    for entry in guarded:
        guard: Guard = entry.guard
        if guard.allow not in answers:
            answers[guard.allow] = await _allowed(guard, context, connection, call)
    hidden = frozenset(entry.name for entry in guarded if not answers[entry.guard.allow])
    revision, whose = connection.session.revision_of(call), named(call.origin.principal)
    return offer.list_tools(revision, params.cursor, params.limit, connection.now(), hidden=hidden, whose=whose)


async def _allowed(guard: Guard, context: Context, connection: Connection, call: Running) -> bool:
    try:
        return await guard.allows(context)
    except Exception as error:  # noqa: BLE001 - a call would fail, too
        connection.report_failure(call, "-", error)
        return False


async def list_with_templates(connection: Connection, call: Running, params: PaginatedParams) -> ListResourcesResult:
    """A page of all resources, those that templates list among them."""
    offer, now = connection.offer, connection.now()
    room = offer.resources.size_of(params.limit)
    whose = named(call.origin.principal)
    start = _position(offer, params.cursor, now, whose)
    shown: list[Resource] = []
    if start is None:
        page = offer.resources.page(params.cursor, params.limit, now=now, whose=whose)
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
    cursor = offer.cursors.seal(_CURSOR, start + room, now, whose) if more else None
    return ListResourcesResult([*shown, *rest], next_cursor=cursor)


def _position(offer: Offer, cursor: str | None, now: float, whose: str) -> int | None:
    """Where in what templates list a cursor points to; None if it is not one of those."""
    if cursor is None:
        return None
    try:
        return offer.cursors.open(_CURSOR, cursor, now, whose)
    except InvalidCursor:
        return None


async def _listed(connection: Connection, call: Running, template: TemplateEntry) -> list[Resource]:
    lister = cast("Handler", template.lister)  # it is one of those that have one
    context = Context(connection, call) if lister.wants_context else None
    return await perform(template.run_lister(lister.convert({}), context, None), connection.threads)
