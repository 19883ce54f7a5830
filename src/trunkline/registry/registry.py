"""Registry: entries with unique keys, in a stable order, with pagination.

Entries are immutable; a change replaces the entry and notifies the owner. Entries keep their order of registration, and
each has a number that is never reused. A cursor contains the last number of a page, so that iteration sees every entry
once, whatever is added or removed meanwhile.
"""

import threading
import warnings
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from trunkline.config import OnDuplicate
from trunkline.errors import DuplicateEntry, InvalidPageSize, NotRegistered, PageSizeTooLarge
from trunkline.registry.cursors import Cursors
from trunkline.registry.stack_level import level_outside

__all__ = ["Entry", "Page", "Registry"]


class Entry(Protocol):
    """Entry protocol: anything with a key."""

    @property
    def key(self) -> str: ...


E = TypeVar("E", bound=Entry)

_SHOWN: Final = 10  # keys in a repr


class _Slot(Struct):
    number: int
    entry: Any
    enabled: bool = True


class _Snapshot(Struct, frozen=True):
    """The enabled entries, in order, as of a version."""

    version: int
    slots: list[_Slot]
    entries: list[Any]


class Page(Struct, Generic[E], frozen=True):
    """Some entries in order, and the cursor of the next page."""

    entries: list[E]
    next_cursor: str | None


class Registry(Generic[E]):
    """The entries of one kind. Thread-safe."""

    def __init__(
        self,
        kind: str,
        *,
        cursors: Cursors | None = None,
        page_size: int = 1000,
        max_page_size: int = 1000,
        on_duplicate: OnDuplicate = "error",
        on_change: Callable[[str], None] = lambda _kind: None,
    ) -> None:
        self.kind = kind
        self.version = 0  # incremented by every change, so that derived data can be cached
        self.live: dict[str, E] = {}  # the enabled entries by key, for lookups; unordered
        self._lock = threading.Lock()  # synchronous handlers run on threads, and may change entries
        self._slots: dict[str, _Slot] = {}
        self._numbers = 0
        self._cursors = cursors or Cursors()
        self._page_size = page_size
        self._max_page_size = max_page_size
        self._on_duplicate = on_duplicate
        self._on_change = on_change
        self._snapshot = _Snapshot(-1, [], [])

    def __repr__(self) -> str:
        keys = [entry.key for entry in self.all()]
        shown = ", ".join(map(repr, keys[:_SHOWN])) + (f", … ({len(keys)} in all)" if len(keys) > _SHOWN else "")
        return f"<Registry of kind {self.kind!r}: {shown or 'empty'}>"

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: object) -> bool:
        return key in self._slots

    def __iter__(self) -> Iterator[E]:
        """Iterate over the enabled entries, in order."""
        return iter(self._enabled_snapshot().entries)

    # --- looking up ----------------------------------------------------------------------------

    def get(self, key: str) -> E | None:
        """Return the entry with a key, enabled or not; None if there is none."""
        slot = self._slots.get(key)
        return None if slot is None else slot.entry

    def enabled(self, key: str) -> bool:
        """Return whether an enabled entry has this key."""
        slot = self._slots.get(key)
        return slot is not None and slot.enabled

    def all(self) -> list[E]:
        """Return every entry, enabled or not, in order."""
        with self._lock:
            return [slot.entry for slot in self._slots.values()]

    def page(
        self,
        cursor: str | None = None,
        limit: object = None,
        *,
        now: float = 0.0,
        without: Container[str] = (),
        whose: str = "",
    ) -> Page[E]:
        """Return the entries after a cursor, or the first ones; raise for an invalid cursor or limit.

        `without` are the keys of entries to skip, and `whose` identifies the viewer of such a filtered list.
        """
        size = self.size_of(limit)
        after = 0 if cursor is None else self._cursors.open(self.kind, cursor, now, whose)
        slots = self._enabled_snapshot().slots
        if without:
            slots = [slot for slot in slots if slot.entry.key not in without]
        start = bisect_right(slots, after, key=lambda slot: slot.number)
        taken = slots[start : start + size]
        more = start + size < len(slots)
        next_cursor = self._cursors.seal(self.kind, taken[-1].number, now, whose) if more else None
        return Page([slot.entry for slot in taken], next_cursor)

    def size_of(self, limit: object) -> int:
        """Return the page size for a requested limit; raise for an invalid limit."""
        if limit is None:
            return self._page_size
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise InvalidPageSize(limit)
        if limit > self._max_page_size:
            raise PageSizeTooLarge(limit, self._max_page_size)
        return limit

    def _enabled_snapshot(self) -> _Snapshot:
        visible = self._snapshot
        if visible.version != self.version:
            with self._lock:
                slots = [slot for slot in self._slots.values() if slot.enabled]
                visible = self._snapshot = _Snapshot(self.version, slots, [slot.entry for slot in slots])
        return visible

    # --- changing ------------------------------------------------------------------------------

    def add(self, entry: E, *, enabled: bool = True) -> None:
        """Add an entry. One with the same key is refused or replaced, as configured by `on_duplicate`."""
        with self._lock:
            slot = self._slots.get(entry.key)
            if slot is None:
                self._numbers += 1
                slot = self._slots[entry.key] = _Slot(self._numbers, entry)
            elif self._on_duplicate == "error":
                raise DuplicateEntry(self.kind, entry.key)
            elif self._on_duplicate == "warn":
                message = f"{self.kind} {entry.key!r} was registered before and is replaced"
                warnings.warn(message, stacklevel=level_outside())
            slot.entry = entry
            if not enabled:
                slot.enabled = False
                self.live.pop(entry.key, None)
            if slot.enabled:  # a disabled entry stays disabled
                self.live[entry.key] = entry
            self.version += 1
        self._on_change(self.kind)

    def remove(self, key: str) -> None:
        """Remove an entry."""
        with self._lock:
            if self._slots.pop(key, None) is None:
                raise NotRegistered(self.kind, key, self._slots)
            self.live.pop(key, None)
            self.version += 1
        self._on_change(self.kind)

    def enable(self, key: str) -> None:
        """Enable an entry again."""
        self._switch(key, on=True)

    def disable(self, key: str) -> None:
        """Disable an entry: it stays registered, but is neither listed nor callable."""
        self._switch(key, on=False)

    def _switch(self, key: str, *, on: bool) -> None:
        with self._lock:
            slot = self._slots.get(key)
            if slot is None:
                raise NotRegistered(self.kind, key, self._slots)
            if slot.enabled is on:
                return
            slot.enabled = on
            if on:
                self.live[key] = slot.entry
            else:
                del self.live[key]
            self.version += 1
        self._on_change(self.kind)
