"""Lists that a server sends in pages."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from msgspec import UnsetType
from msgspec.structs import replace

from trunkline.config import Settings
from trunkline.errors import BadAnswer

__all__ = ["Cursor", "fetch_all_pages", "iterate_pages"]

P = TypeVar("P")
Cursor = str | None | UnsetType
"""The page of a list to request: that of a cursor, None for the first page, or all pages if it is UNSET."""

_LIST_FIELDS: Final = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resource_templates",
    "prompts/list": "prompts",
}  # the field of the result that holds the list, by method


async def iterate_pages(fetch: Callable[[str | None], Awaitable[P]]) -> AsyncIterator[P]:
    """Yield page after page. Raises `BadAnswer` if a cursor repeats, which would never end."""
    seen: set[str] = set()
    cursor: str | None = None
    while True:
        page: Any = await fetch(cursor)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return
        if cursor in seen:
            raise BadAnswer("a list", f"the cursor {cursor!r} leads back to a page that was read already")
        seen.add(cursor)


async def fetch_all_pages(method: str, fetch: Callable[[str | None], Awaitable[P]], settings: Settings) -> P:
    """Return all pages of a list as one. Raises `BadAnswer` above `max_list_pages` or `max_list_items`."""
    field, count = _LIST_FIELDS[method], 0
    items: list[Any] = []
    first: Any = None
    async for page in iterate_pages(fetch):
        first, count = first or page, count + 1
        items += getattr(page, field)
        more = cast("Any", page).next_cursor is not None
        if len(items) > settings.max_list_items:
            raise BadAnswer(method, f"it has more than {settings.max_list_items} items (max_list_items)")
        if more and count >= settings.max_list_pages:
            raise BadAnswer(method, f"it has more than {settings.max_list_pages} pages (max_list_pages)")
    return replace(first, **{field: items}, next_cursor=None)
