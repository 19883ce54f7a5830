"""Importing a program for the servers that it has, without serving: `Server.run` returns at once meanwhile.

Servers that the program makes get the settings and the store of the command line, in place of their own.
"""

import contextlib
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from trunkline.config import Settings

if TYPE_CHECKING:
    from trunkline.facts import Observer
    from trunkline.server.server import Server
    from trunkline.stores.store import Store

__all__ = ["Overrides", "additional_observers", "apply_overrides", "collect_servers", "note_run"]


class Overrides(Struct, frozen=True):
    """Options of the servers that a program makes, which take precedence over its own."""

    settings: Mapping[str, Any] = {}
    make_store: "Callable[[], Store] | None" = None
    observers: "tuple[Observer, ...]" = ()  # besides its own


class _Collection:
    current: "list[Server] | None" = None
    overrides = Overrides()


@contextlib.contextmanager
def collect_servers(overrides: Overrides = Overrides()) -> "Generator[list[Server]]":  # noqa: B008 - frozen
    """Collect the servers that the code in this block runs, instead of running them."""
    before = _Collection.current, _Collection.overrides
    _Collection.current, _Collection.overrides = [], overrides
    try:
        yield _Collection.current
    finally:
        _Collection.current, _Collection.overrides = before


def note_run(server: "Server") -> bool:
    """Note that a server was to run; return whether servers are only collected at the moment."""
    if _Collection.current is None:
        return False
    _Collection.current.append(server)
    return True


def apply_overrides(settings: Settings | None, store: "Store | None") -> "tuple[Settings | None, Store | None]":
    """Return the settings and the store for a server that is made now."""
    overrides = _Collection.overrides
    if overrides.settings:
        settings = replace(settings or Settings(), **overrides.settings)
    return settings, store if overrides.make_store is None else overrides.make_store()


def additional_observers() -> "tuple[Observer, ...]":
    """Return the observers to add to those of a server that is made now."""
    return _Collection.overrides.observers
