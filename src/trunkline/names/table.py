"""Table of names: which owner has which name, and which transport is bound to which server. Pure.

Servers, transports and clients have names of their own kind, so a server and a client may have the same name. A name
belongs to an owner, and goes with it, together with its bindings. Every operation costs the same for any number of
names, except those that return several.

Invariants, which the tests check: a name has one owner; both ends of a binding exist; an owner that was dropped has no
names.
"""

from collections.abc import Hashable, Iterable
from typing import Any, Final, Literal

from msgspec import Struct

from trunkline.errors import DuplicateEntry, MisuseError, NotRegistered, Refusal, RefusalCode
from trunkline.errors.suggestions import did_you_mean

__all__ = ["NameChange", "NameEntry", "NameKind", "NameTable", "check_name", "unroutable"]

NameKind = Literal["server", "transport", "client"]
_MAX_NAME: Final = 255  # characters


class NameEntry(Struct, frozen=True):
    """A registered name."""

    kind: NameKind
    name: str
    owner: Hashable
    target: Any = None


class NameChange(Struct, frozen=True):
    """A name that was added or removed."""

    change: Literal["added", "removed"]
    entry: NameEntry


def check_name(name: Any) -> None:
    """Raise `MisuseError` for a text that cannot be a name, which is also a part of a path."""
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= _MAX_NAME
        or name in {".", ".."}
        or not name.isprintable()
        or set(name) & set("/?#%\\ ")
    ):
        raise MisuseError(
            f"a name has 1 to {_MAX_NAME} printable characters, and none of / ? # % \\ and space, not {name!r}"
        )


def unroutable(name: str, known: Iterable[str]) -> Refusal:
    """Return the refusal of a request to a name that does not exist."""
    why = f"there is no server {name!r} in the directory.{did_you_mean(name, known)}"
    return Refusal(RefusalCode.SERVICE_UNAVAILABLE, why)


class NameTable:
    """Names, their owners and their bindings. Methods that change it return the changes."""

    def __init__(self) -> None:
        self._entries: dict[tuple[NameKind, str], NameEntry] = {}
        self._of_owner: dict[Hashable, dict[tuple[NameKind, str], None]] = {}
        self._server_of: dict[str, str] = {}  # transport: server
        self._transports_of: dict[str, dict[str, None]] = {}  # server: transports

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, kind: NameKind, name: str) -> NameEntry | None:
        """Return the entry of a name; None if there is none."""
        return self._entries.get((kind, name))

    def entries(self, kind: NameKind) -> list[NameEntry]:
        """Return the entries of a kind, in the order of their registration."""
        return [entry for entry in self._entries.values() if entry.kind == kind]

    def register(self, entry: NameEntry) -> list[NameChange]:
        """Add a name. The same owner may register the same target again, which changes nothing; otherwise raise
        `DuplicateEntry`."""
        check_name(entry.name)
        key = (entry.kind, entry.name)
        known = self._entries.get(key)
        if known is not None:
            if known.owner == entry.owner and known.target is entry.target:
                return []
            raise DuplicateEntry(entry.kind, entry.name)
        self._entries[key] = entry
        self._of_owner.setdefault(entry.owner, {})[key] = None
        return [NameChange("added", entry)]

    def unregister(self, kind: NameKind, name: str, owner: Hashable) -> list[NameChange]:
        """Remove a name and its bindings, if it belongs to this owner."""
        entry = self._entries.get((kind, name))
        if entry is None or entry.owner != owner:
            return []
        self._remove_bindings(entry)
        del self._entries[kind, name]
        names = self._of_owner[owner]
        del names[kind, name]
        if not names:
            del self._of_owner[owner]
        return [NameChange("removed", entry)]

    def drop_owner(self, owner: Hashable) -> list[NameChange]:
        """Remove all names of an owner that has ended."""
        return [
            change
            for kind, name in list(self._of_owner.get(owner, ()))
            for change in self.unregister(kind, name, owner)
        ]

    # --- bindings ----------------------------------------------------------------------------------

    def bind(self, transport: str, server: str) -> None:
        """Bind a transport to a server, instead of the one that it was bound to."""
        self._require("transport", transport)
        self._require("server", server)
        self.unbind(transport)
        self._server_of[transport] = server
        self._transports_of.setdefault(server, {})[transport] = None

    def unbind(self, transport: str) -> None:
        """Remove the binding of a transport, if it has one."""
        server = self._server_of.pop(transport, None)
        if server is not None:
            del self._transports_of[server][transport]
            if not self._transports_of[server]:
                del self._transports_of[server]

    def server_of(self, transport: str) -> NameEntry | None:
        """Return the server that a transport is bound to; None if there is none."""
        server = self._server_of.get(transport)
        return None if server is None else self._entries["server", server]

    def transports_of(self, server: str) -> list[NameEntry]:
        """Return the transports that are bound to a server."""
        return [self._entries["transport", name] for name in self._transports_of.get(server, ())]

    def _require(self, kind: NameKind, name: str) -> None:
        if (kind, name) not in self._entries:
            raise NotRegistered(kind, name, [entry.name for entry in self.entries(kind)])

    def _remove_bindings(self, entry: NameEntry) -> None:
        if entry.kind == "transport":
            self.unbind(entry.name)
        elif entry.kind == "server":
            for transport in list(self._transports_of.get(entry.name, ())):
                self.unbind(transport)
