"""Pages of items that lie in many homes, in the order of their keys.

The keys of a home do not always stand together: `a/b!` comes between `a/b` and `a/b/c`, and belongs to another home. So
the index has two places for each home, where its own key stands and where all others do; between one place and the next
nothing of anybody else can come. Places are taken in order, some at a time. Each of their homes is read once for a
page, so what the page has of it is of one moment.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from trunkline.stores.store import Item, home

__all__ = ["Bounds", "bounds_within_home", "scan_homes"]

AFTER_ALL: Final = "\U0010ffff"  # no key has it, so it comes after all that start with the same text
_FIRST_BATCH: Final = 4  # places at first; if what lies there is too little, twice as many

Bounds = tuple[str, str]
"""From where to where, as Redis wants it: `[` with that text, `(` without it."""


def bounds_within_home(home_key: str, prefix: str, after: str) -> Bounds | None:
    """Which part of a home starts with a text and comes after a key; None if no part does."""
    inner = prefix.startswith(home_key)
    start, upto = (f"[{prefix[len(home_key) :]}", f"({prefix[len(home_key) :]}{AFTER_ALL}") if inner else ("-", "+")
    if after < prefix or after < home_key:
        return start, upto
    return (f"({after[len(home_key) :]}", upto) if after.startswith(home_key) else None


def _index_bounds(prefix: str, after: str) -> Bounds:
    """Which places of the index have keys that start with a text and come after a key."""
    if after < prefix or not after:
        return f"[{prefix}", f"({prefix}{AFTER_ALL}"
    at = home(after)
    return (f"({after}" if at == after else f"[{at}/"), f"({prefix}{AFTER_ALL}"


async def scan_homes(
    prefix: str,
    after: str,
    limit: int,
    *,
    read_index: Callable[[Bounds, int], Awaitable[Sequence[str]]],
    read_homes: Callable[[Sequence[tuple[str, Bounds]]], Awaitable[Sequence[Sequence[Item]]]],
) -> Sequence[Item]:
    """A page of items of many homes. `places` gives places of the index, `read` what there is within homes."""
    found: dict[str, Sequence[Item]] = {}
    page: list[Item] = []
    start, upto = _index_bounds(prefix, after)
    most = _FIRST_BATCH
    while len(page) < limit:
        here = await read_index((start, upto), most)
        wanted = {at: bounds_within_home(at, prefix, after) for place in here if (at := home(place)) not in found}
        asked = [(at, bounds) for at, bounds in wanted.items() if bounds is not None]
        found.update(zip([at for at, _ in asked], await read_homes(asked), strict=True))
        page += [item for place in here for item in found.get(home(place), ()) if _belongs_to(place, item.key)]
        if len(here) < most:
            break
        start, most = f"({here[-1]}", 2 * most
    return page[:limit]


def _belongs_to(place: str, key: str) -> bool:
    return key.startswith(place) if place.endswith("/") else key == place
