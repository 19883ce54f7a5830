"""Registry: entries with unique keys, in a stable order, with pagination.

Entries are immutable; a change replaces the entry and notifies the owner. Entries keep their order of registration, and
each has a number that is never reused. A cursor contains the last number of a page, so that iteration sees every entry
once, whatever is added or removed meanwhile.

An entry is registered here, or a provider offers it, such as a mounted server. A provider replaces what it offers as a
whole. An entry of a provider is enabled if it is enabled on both sides.
"""

import threading
import warnings
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from msgspec import Struct

from trunkline.config import OnDuplicate
from trunkline.errors import DuplicateEntry, InvalidPageSize, MisuseError, NameClash, NotRegistered, PageSizeTooLarge
from trunkline.registry.cursors import Cursors
from trunkline.registry.stack_level import level_outside

__all__ = ["Entry", "Offered", "Page", "Registry", "VersionRule"]


class Entry(Protocol):
    """Entry protocol: anything with a key."""

    @property
    def key(self) -> str: ...


E = TypeVar("E", bound=Entry)

_SHOWN: Final = 10  # keys in a repr


class Offered(Struct, Generic[E], frozen=True):
    """An entry that a provider offers, whether it is enabled there, and its versions, if it has any."""

    entry: E
    enabled: bool = True
    versions: Mapping[str, E] = {}


class _Slot(Struct):
    number: int
    entry: Any
    switched_on: bool = True
    provider: object = None  # None: registered here
    offered: bool = True  # False: disabled by its provider
    versions: Mapping[str, Any] = {}  # entries by version; `entry` is the highest

    @property
    def enabled(self) -> bool:
        return self.switched_on and self.offered


class _Snapshot(Struct, frozen=True):
    """The enabled entries, in order, as of a version."""

    version: int
    slots: list[_Slot]
    entries: list[Any]


class Page(Struct, Generic[E], frozen=True):
    """Some entries in order, and the cursor of the next page."""

    entries: list[E]
    next_cursor: str | None


class VersionRule(Struct, Generic[E], frozen=True):
    """How a registry finds the versions of its entries; see `versions.py`."""

    version: Callable[[E], str | None]
    key: Callable[[E], str | None]  # the key of this one version; None if it cannot have one
    renamed: Callable[[E, str], E]


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
        before_add: Callable[[str, Any], None] = lambda _kind, _entry: None,
        starts_disabled: Callable[[Any], bool] = lambda _entry: False,
        versions: VersionRule[E] | None = None,
    ) -> None:
        """`before_add` raises to refuse an entry. `starts_disabled` tells whether a new entry is disabled at first.
        With `versions`, entries of one key may differ by their version."""
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
        self._before_add = before_add
        self._starts_disabled = starts_disabled
        self._versions = versions
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

    def offers(self) -> list[Offered[E]]:
        """Return every entry, in order, with whether it is enabled."""
        with self._lock:
            return [Offered(slot.entry, slot.enabled, slot.versions) for slot in self._slots.values()]

    def provider_of(self, key: str) -> object:
        """Return the provider of an entry; None if it is registered here, or does not exist."""
        slot = self._slots.get(key)
        return None if slot is None else slot.provider

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
        """Add an entry. One with the same key is refused or replaced, as configured by `on_duplicate`; one of a
        provider is never replaced."""
        self._before_add(self.kind, entry)
        version = None if self._versions is None else self._versions.version(entry)
        with self._lock:
            slot = self._slots.get(entry.key)
            if slot is None:
                self._check_version_key(entry)
                self._numbers += 1
                slot = self._slots[entry.key] = _Slot(self._numbers, entry, not self._starts_disabled(entry))
            elif slot.provider is not None:
                raise NameClash(self.kind, entry.key, "a new one", str(slot.provider))
            elif version is not None and slot.versions and version not in slot.versions:
                self._check_version_key(entry)  # one more version
            elif self._on_duplicate == "error":
                raise DuplicateEntry(self.kind, entry.key)
            elif self._on_duplicate == "warn":
                message = f"{self.kind} {entry.key!r} was registered before and is replaced"
                warnings.warn(message, stacklevel=level_outside())
            if version is None:
                self._withdraw(slot)
                slot.entry, slot.versions = entry, {}
            else:
                from trunkline.registry.versions import highest_version  # imported here: few entries have a version

                slot.versions = {**slot.versions, version: entry}
                slot.entry = highest_version(slot.versions)
            if not enabled:
                slot.switched_on = False
            self._publish(slot)  # a disabled entry stays disabled
            self.version += 1
        self._on_change(self.kind)

    def _publish(self, slot: _Slot) -> None:
        """Make an entry callable, or not, as its slot says. Called with the lock held."""
        if slot.enabled:
            self.live.update(self._callable(slot))
        else:
            self._withdraw(slot)

    def _withdraw(self, slot: _Slot) -> None:
        for key in self._callable(slot):
            self.live.pop(key, None)

    def _callable(self, slot: _Slot) -> dict[str, Any]:
        """Return an entry by its key, and its versions by the keys that these have."""
        found = {slot.entry.key: slot.entry}
        for entry in slot.versions.values():
            rule = cast("VersionRule[Any]", self._versions)
            key = rule.key(entry)
            if key is not None:
                found[key] = rule.renamed(entry, key)
        return found

    def _check_version_key(self, entry: E) -> None:
        """Raise `NameClash` if the key of an entry is that of a version of another one, or the other way round."""
        if self._versions is None:
            return
        if entry.key in self.live and entry.key not in self._slots:
            raise NameClash(self.kind, entry.key, "a new one", "a version of another one")
        if self._versions.version(entry) is not None and (key := self._versions.key(entry)) in self._slots:
            raise NameClash(self.kind, str(key), f"a version of {entry.key!r}", _origin(self._slots[str(key)]))

    def remove(self, key: str) -> None:
        """Remove an entry."""
        with self._lock:
            slot = self._slots.get(key)
            if slot is None:
                raise NotRegistered(self.kind, key, self._slots)
            if slot.provider is not None:
                raise MisuseError(f"{self.kind} {key!r} is not registered here: it comes from {slot.provider}")
            del self._slots[key]
            self._withdraw(slot)
            self.version += 1
        self._on_change(self.kind)

    def replace_all(self, other: "Registry[E]") -> None:
        """Replace all entries that are registered here by those of another registry. An entry keeps its place in the
        order if its key stays."""
        with other._lock:
            theirs = [slot for slot in other._slots.values() if slot.provider is None]
        for slot in theirs:
            self._before_add(self.kind, slot.entry)
        with self._lock:
            slots = [slot for slot in self._slots.values() if slot.provider is not None]
            if not theirs and len(slots) == len(self._slots):
                return
            for slot in theirs:
                known = self._slots.get(slot.entry.key)
                if known is None:
                    self._numbers += 1
                elif known.provider is not None:
                    raise NameClash(self.kind, slot.entry.key, "a new one", str(known.provider))
                number = self._numbers if known is None else known.number
                slots.append(_Slot(number, slot.entry, slot.switched_on, versions=slot.versions))
            self._replace_slots(slots)
        self._on_change(self.kind)

    def _replace_slots(self, slots: list[_Slot]) -> None:
        """Replace all slots. Called with the lock held."""
        slots.sort(key=lambda slot: slot.number)
        self._slots = {slot.entry.key: slot for slot in slots}
        live: dict[str, Any] = {}
        for slot in slots:
            if slot.enabled:
                live.update(self._callable(slot))
        self.live.update(live)
        for key in [key for key in self.live if key not in live]:
            del self.live[key]
        self.version += 1

    # --- entries of providers ------------------------------------------------------------------

    def check_offer(self, provider: object, entries: Iterable[E]) -> None:
        """Raise `NameClash` if a provider cannot offer these entries, because of others with the same keys."""
        seen: set[str] = set()
        for entry in entries:
            slot = self._slots.get(entry.key)
            if entry.key in seen:
                raise NameClash(self.kind, entry.key, str(provider), "the same server")
            if slot is not None and slot.provider is not provider:
                raise NameClash(self.kind, entry.key, str(provider), _origin(slot))
            seen.add(entry.key)
            self._before_add(self.kind, entry)

    def offer(self, provider: object, offered: Iterable[Offered[E]]) -> None:
        """Replace the entries of a provider; none removes it. Does nothing if they are the same as before. Raises
        `NameClash`, before anything is changed."""
        offered = list(offered)
        self.check_offer(provider, (each.entry for each in offered))
        with self._lock:
            known = {key: slot for key, slot in self._slots.items() if slot.provider is provider}
            before = {_identity(slot.entry, slot.versions): slot.offered for slot in known.values()}
            if before == {_identity(each.entry, each.versions): each.enabled for each in offered}:
                return
            slots = [slot for slot in self._slots.values() if slot.provider is not provider]
            for each in offered:
                slot = known.get(each.entry.key)
                if slot is None:
                    self._numbers += 1
                    on = not self._starts_disabled(each.entry)
                    slot = _Slot(self._numbers, each.entry, on, provider)
                slot.entry, slot.offered, slot.versions = each.entry, each.enabled, each.versions
                slots.append(slot)
            self._replace_slots(slots)
        self._on_change(self.kind)

    # --- enabling ------------------------------------------------------------------------------

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
            if slot.switched_on is on:
                return
            slot.switched_on = on
            self._publish(slot)
            self.version += 1
        self._on_change(self.kind)

    def switch_where(self, matches: Callable[[E], bool], *, on: bool) -> None:
        """Enable or disable every entry that a predicate accepts."""
        with self._lock:
            changed = [slot for slot in self._slots.values() if slot.switched_on is not on and matches(slot.entry)]
            for slot in changed:
                slot.switched_on = on
                self._publish(slot)
            self.version += bool(changed)
        if changed:
            self._on_change(self.kind)


def _identity(entry: Any, versions: Mapping[str, Any]) -> tuple[int, ...]:
    return (id(entry), *map(id, versions.values()))


def _origin(slot: _Slot) -> str:
    return "this server" if slot.provider is None else str(slot.provider)
