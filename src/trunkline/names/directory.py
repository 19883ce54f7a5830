"""Directory: names of the servers, transports and clients of a process, and one listener for several servers.

A name is removed when its registration is closed, when the server that it names shuts down, or when the task that owns
it ends. All methods belong to the event loop.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from trunkline.config import CertificateFiles, Settings
from trunkline.errors import Refusal, RefusalCode
from trunkline.names.table import NameChange, NameEntry, NameKind, NameTable, unroutable
from trunkline.server.server import Server
from trunkline.transports.channel import Channel
from trunkline.wire.messages import Message

if TYPE_CHECKING:
    from ssl import SSLContext

    from trunkline.names.shared_listener import SharedListener

__all__ = ["Directory", "Registration"]

_MAX_UNREAD: Final = 10_000  # changes that one watcher has not read yet; it then ends


class Registration:
    """A registered name; closing it removes the name. Also a context manager, plain and async."""

    def __init__(self, entry: NameEntry, remove: Callable[[], None]) -> None:
        self.name = entry.name
        self._remove = remove

    def close(self) -> None:
        """Remove the name; do nothing if it is gone already."""
        self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Directory:
    """Names of servers, transports and clients."""

    def __init__(self) -> None:
        self._table = NameTable()
        self._callbacks: list[Callable[[NameChange], None]] = []

    # --- names -------------------------------------------------------------------------------------

    def register(
        self,
        name: str,
        target: Any,
        *,
        kind: NameKind | None = None,
        owner: "asyncio.Task[Any] | None" = None,
        server: str | None = None,
    ) -> Registration:
        """Give something a name. A `Server` is a server, a channel is a transport, anything else a client, unless
        `kind` says otherwise. The name goes when the registration is closed, the server shuts down, or the task `owner`
        ends. A transport may be bound to a `server` at once. Raises `DuplicateEntry` if the name is taken."""
        if kind is None:
            kind = "server" if isinstance(target, Server) else "transport" if hasattr(target, "send") else "client"
        entry = NameEntry(kind, name, owner if owner is not None else id(target), target)
        changes = self._table.register(entry)
        registration = Registration(entry, partial(self._unregister, entry))
        if server is not None:
            try:
                self._table.bind(name, server)
            except BaseException:
                self._table.unregister(kind, name, entry.owner)
                raise
        if changes and isinstance(target, Server):
            target.on_stopping(registration.close)
        if changes and owner is not None:
            owner.add_done_callback(lambda task: self._notify(self._table.drop_owner(task)))
        self._notify(changes)
        return registration

    def _unregister(self, entry: NameEntry) -> None:
        if self._table.find(entry.kind, entry.name) is entry:
            self._notify(self._table.unregister(entry.kind, entry.name, entry.owner))

    def find(self, name: str, kind: NameKind = "server") -> Any:
        """Return the server, transport or client with a name; None if there is none."""
        entry = self._table.find(kind, name)
        return None if entry is None else entry.target

    def names(self, kind: NameKind = "server") -> list[str]:
        """Return the names of a kind, in the order of their registration."""
        return [entry.name for entry in self._table.entries(kind)]

    def route(self, name: str) -> Server:
        """Return the server with a name; refuse the request with code 1078 if there is none."""
        found = self.find(name)
        if found is None:
            raise unroutable(name, self.names())
        return found

    # --- bindings ----------------------------------------------------------------------------------

    def bind(self, transport: str, server: str) -> None:
        """Bind a transport to a server. Raises `NotRegistered` if one of the names is unknown."""
        self._table.bind(transport, server)

    def unbind(self, transport: str) -> None:
        """Remove the binding of a transport, if it has one."""
        self._table.unbind(transport)

    def server_of(self, transport: str) -> Server:
        """Return the server that a transport is bound to; refuse the request with code 1078 if there is none."""
        entry = self._table.server_of(transport)
        if entry is None:
            raise unroutable(f"of {transport}", ())
        return entry.target

    def broadcast(self, server: str, message: Message) -> int:
        """Send a message over all transports that are bound to a server; return their number."""
        bound: list[Channel] = [entry.target for entry in self._table.transports_of(server)]
        for channel in bound:
            channel.send(message)
        return len(bound)

    # --- changes -----------------------------------------------------------------------------------

    def on_change(self, callback: Callable[[NameChange], None]) -> Callable[[], None]:
        """Call a function with each change, at once; return a function that ends that."""
        self._callbacks.append(callback)
        return partial(self._callbacks.remove, callback)

    async def watch(self) -> AsyncGenerator[NameChange]:
        """Yield each name that is there already as added, then each change. A reader that falls far behind gets a
        `Refusal` and has to watch again."""
        unread, wake = deque[NameChange](), asyncio.Event()
        for kind in ("server", "transport", "client"):
            unread.extend(NameChange("added", entry) for entry in self._table.entries(kind))

        def note(change: NameChange) -> None:
            unread.append(change)
            wake.set()

        end = self.on_change(note)
        try:
            while True:
                while unread:
                    if len(unread) > _MAX_UNREAD:
                        raise Refusal(RefusalCode.SERVICE_UNAVAILABLE, "too many unread changes; watch again")
                    yield unread.popleft()
                wake.clear()
                await wake.wait()
        finally:
            end()

    def _notify(self, changes: Iterable[NameChange]) -> None:
        for change in changes:
            for callback in list(self._callbacks):
                callback(change)

    # --- one listener for several servers ------------------------------------------------------------

    async def listen(
        self,
        address: str,
        *,
        tls: "SSLContext | CertificateFiles | None" = None,
        settings: Settings | None = None,
    ) -> "SharedListener":
        """Serve all servers of this directory at one HTTP address, each at the path `/name/mcp`, or with the path of
        the address in place of `/mcp`. Servers that are registered later are served from then on, and a request to any
        other path is answered with 404 at once. `settings` are those of the connections."""
        from trunkline.names.shared_listener import open_shared_listener

        return await open_shared_listener(self, address, tls, settings or Settings())

    def servers(self) -> list[tuple[str, Server]]:
        """Return the servers with their names."""
        return [(entry.name, entry.target) for entry in self._table.entries("server")]
