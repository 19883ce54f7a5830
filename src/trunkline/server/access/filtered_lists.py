"""Lists that depend on the caller, or on listers of resource templates: computed for every list request.

A list of resources begins with the registered ones, page by page; the resources that templates list follow. The server
does not cache those: the lister knows best what to cache and for how long. Their cursor is a position, so a list that
changes between two pages may repeat or skip a resource.
"""

from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Raw

from trunkline.errors import InvalidCursor
from trunkline.protocol import types as t
from trunkline.protocol.inflight import IncomingRequest
from trunkline.protocol.types.pagination import PaginatedParams
from trunkline.registry.handlers import Handler
from trunkline.registry.registry import Registry
from trunkline.rpc.run_handler import Work, run_work
from trunkline.server.access.enforcement import evaluate_predicates
from trunkline.server.access.owner_id import principal_name
from trunkline.server.access.rules import Viewer, scopes_of
from trunkline.server.catalog import ServerCatalog
from trunkline.server.connection import Connection
from trunkline.server.context import Context

if TYPE_CHECKING:
    from trunkline.registry.resources import TemplateEntry

__all__ = ["list_page", "list_resources_with_templates"]

_CURSOR_KIND: Final = "listed_resource"


def list_page(connection: Connection, call: IncomingRequest, params: PaginatedParams, registry: Registry[Any]) -> Work:
    """Return a page of the entries that the caller may access. A predicate that raises hides its entry."""
    catalog = connection.catalog
    rules = catalog.access_rules[registry.kind]
    if not rules:
        session = connection.session
        return catalog.get_encoded_page(
            registry,
            session.revision_of(call),
            params.cursor,
            params.limit,
            now=connection.shared.wall_clock.now(),
            profile=session.profile,
        )
    viewer = _viewer_of(connection, call)
    make = _list_after_predicates if rules.predicates(viewer.scopes) else _list_for_viewer
    return make(viewer, connection, call, params, registry)


def _viewer_of(connection: Connection, call: IncomingRequest) -> Viewer:
    principal = call.origin.principal
    return Viewer(scopes_of(principal, local=connection.channel.info.local), principal_name(principal))


def _list_for_viewer(
    viewer: Viewer, connection: Connection, call: IncomingRequest, params: PaginatedParams, registry: Registry[Any]
) -> Raw:
    session = connection.session
    return connection.catalog.get_encoded_page(
        registry,
        session.revision_of(call),
        params.cursor,
        params.limit,
        now=connection.shared.wall_clock.now(),
        viewer=viewer,
        profile=session.profile,
    )


async def _list_after_predicates(
    viewer: Viewer, connection: Connection, call: IncomingRequest, params: PaginatedParams, registry: Registry[Any]
) -> Raw:
    predicates = connection.catalog.access_rules[registry.kind].predicates(viewer.scopes)
    viewer = Viewer(viewer.scopes, viewer.principal_name, await evaluate_predicates(connection, call, predicates))
    return _list_for_viewer(viewer, connection, call, params, registry)


async def list_resources_with_templates(
    connection: Connection, call: IncomingRequest, params: PaginatedParams
) -> "t.ListResourcesResult":
    """Return a page of all resources that the caller may access, including those that templates list."""
    catalog, now = connection.catalog, connection.shared.wall_clock.now()
    room = catalog.resources.size_of(params.limit)
    viewer = await _resource_viewer(connection, call)
    start = _template_position(catalog, params.cursor, now, viewer.principal_name)
    shown: list[t.Resource] = []
    if start is None:
        page = catalog.get_visible_page(catalog.resources, params.cursor, params.limit, now=now, viewer=viewer)
        shown = [entry.definition for entry in page.entries]
        if page.next_cursor is not None:
            return t.ListResourcesResult(shown, next_cursor=page.next_cursor, meta=catalog.list_meta)
        room, start = room - len(shown), 0
    found = await _template_resources(connection, call, catalog.access_rules["resource_template"].hidden_keys(viewer))
    rest = list(found.values())[start : start + room]
    more = start + room < len(found)
    cursor = catalog.cursors.seal(_CURSOR_KIND, start + room, now, viewer.principal_name) if more else None
    return t.ListResourcesResult([*shown, *rest], next_cursor=cursor, meta=catalog.list_meta)


async def _resource_viewer(connection: Connection, call: IncomingRequest) -> Viewer:
    viewer, rules = _viewer_of(connection, call), connection.catalog.access_rules
    kinds = [rules[kind] for kind in ("resource", "resource_template") if rules[kind]]
    predicates = dict.fromkeys(predicate for each in kinds for predicate in each.predicates(viewer.scopes))
    if not predicates:
        return viewer
    return Viewer(viewer.scopes, viewer.principal_name, await evaluate_predicates(connection, call, predicates))


async def _template_resources(
    connection: Connection, call: IncomingRequest, hidden: frozenset[str]
) -> "dict[str, t.Resource]":
    """Return the resources that templates list, by URI; without registered ones and those of hidden templates."""
    catalog, found = connection.catalog, dict[str, t.Resource]()
    for template in catalog.templates_with_lister():
        if template.key in hidden:
            continue
        for resource in await _run_lister(connection, call, template):
            if resource.uri in catalog.resources.live:
                continue
            reader = catalog.resolve_uri(resource.uri) if hidden else None
            if reader is None or reader.key not in hidden:
                found.setdefault(resource.uri, resource)
    return found


def _template_position(catalog: ServerCatalog, cursor: str | None, now: float, principal_name: str) -> int | None:
    """Return the position of a cursor among the resources of templates; None if it is another kind of cursor."""
    if cursor is None:
        return None
    try:
        return catalog.cursors.open(_CURSOR_KIND, cursor, now, principal_name)
    except InvalidCursor:
        return None


async def _run_lister(connection: Connection, call: IncomingRequest, template: "TemplateEntry") -> "list[t.Resource]":
    lister = cast("Handler", template.lister)  # templates_with_lister yields only templates that have one
    context = Context(connection, call) if lister.wants_context else None
    return await run_work(template.run_lister(lister.convert({}), context, None), connection.threads)
