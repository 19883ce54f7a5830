"""Switches: enable or disable entries by tag or name, now and when such an entry is added later."""

from collections.abc import Collection, Iterable
from typing import Protocol

from msgspec import Struct

from trunkline.errors import MisuseError

__all__ = ["Switch", "Tagged", "is_switched_off", "make_switch"]


class Tagged(Protocol):
    """An entry with a key and tags."""

    @property
    def key(self) -> str: ...
    @property
    def tags(self) -> frozenset[str]: ...


class Switch(Struct, frozen=True):
    """Enables or disables the entries that have one of the tags or one of the names."""

    on: bool
    tags: frozenset[str]
    names: frozenset[str]

    def matches(self, entry: Tagged) -> bool:
        """Return whether the switch applies to an entry."""
        return entry.key in self.names or not self.tags.isdisjoint(entry.tags)


def make_switch(tags: Collection[str], names: Collection[str], *, on: bool) -> Switch:
    """Return a switch. Raise `MisuseError` for one that can never match."""
    for option, values in (("tags", tags), ("names", names)):
        if isinstance(values, str):
            raise MisuseError(f"{option}= is a set of texts; write {option}={{{values!r}}}")
    if not tags and not names:
        raise MisuseError(f"{'enable' if on else 'disable'}() needs tags= or names=")
    return Switch(on, frozenset(tags), frozenset(names))


def is_switched_off(entry: Tagged, switches: Iterable[Switch]) -> bool:
    """Return whether the last switch that applies to an entry disables it."""
    off = False
    for switch in switches:
        if switch.matches(entry):
            off = not switch.on
    return off
