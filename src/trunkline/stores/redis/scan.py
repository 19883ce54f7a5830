"""Pages of items across homes, in key order.

The keys of a home are not always contiguous: `a/b!` sorts between `a/b` and `a/b/c`, and belongs to another home. So
the index has two entries per home, one for its own key and one for all longer keys; no key of another home sorts within
an entry's range. The scan reads entries in order, in batches. It reads each home once per page, so the page has a
consistent snapshot of that home.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from trunkline.stores.store import Item, home
from trunkline.stores.validation import AFTER_ALL

__all__ = ["Bounds", "bounds_within_home", "scan_homes"]

_FIRST_BATCH: Final = 4  # index entries in the first batch; doubled until the page is full

Bounds = tuple[str, str]
"""Range of ZRANGEBYLEX: `[` is inclusive, `(` exclusive."""


def bounds_within_home(home_key: str, prefix: str, after: str) -> Bounds | None:
    """Return the range of a home's keys that start with a prefix and follow a key, or None if it is empty."""
    inner = prefix.startswith(home_key)
    start, upto = (f"[{prefix[len(home_key) :]}", f"({prefix[len(home_key) :]}{AFTER_ALL}") if inner else ("-", "+")
    if after < prefix or after < home_key:
        return start, upto
    return (f"({after[len(home_key) :]}", upto) if after.startswith(home_key) else None


def _index_bounds(prefix: str, after: str) -> Bounds:
    """Return the range of index entries whose keys may start with a prefix and follow a key."""
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
    """Return a page of items of many homes. `read_index` returns index entries, `read_homes` the items of homes."""
    found: dict[str, Sequence[Item]] = {}
    page: list[Item] = []
    start, upto = _index_bounds(prefix, after)
    most = _FIRST_BATCH
    while len(page) < limit:
        here = await read_index((start, upto), most)
        wanted = {at: bounds_within_home(at, prefix, after) for entry in here if (at := home(entry)) not in found}
        asked = [(at, bounds) for at, bounds in wanted.items() if bounds is not None]
        found.update(zip([at for at, _ in asked], await read_homes(asked), strict=True))
        page += [item for entry in here for item in found.get(home(entry), ()) if _belongs_to(entry, item.key)]
        if len(here) < most:
            break
        start, most = f"({here[-1]}", 2 * most
    return page[:limit]


def _belongs_to(place: str, key: str) -> bool:
    return key.startswith(place) if place.endswith("/") else key == place
