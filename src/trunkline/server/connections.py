"""Connections of a server, and the pause that applies to all of them."""

from collections.abc import Iterator
from typing import Literal

from trunkline.server.connection import Connection

__all__ = ["ConnectionSet"]


class ConnectionSet:
    """Open connections of a server; applies a pause to all of them, and to new ones."""

    def __init__(self) -> None:
        self._connections: dict[Connection, None] = {}
        self._paused: Literal["wait", "refuse"] | None = None

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over a copy: connections may open and close meanwhile."""
        return iter(list(self._connections))

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: Connection) -> None:
        """Add a connection; pause it if the server is paused."""
        self._connections[connection] = None
        if self._paused is not None:
            connection.pause(wait=self._paused == "wait")

    def discard(self, connection: Connection) -> None:
        """Remove a connection."""
        self._connections.pop(connection, None)

    def pause(self, *, wait: bool) -> None:
        """Pause all connections; no effect on a paused server."""
        if self._paused is None:
            self._paused = "wait" if wait else "refuse"
            for connection in self:
                connection.pause(wait=wait)

    def resume(self) -> None:
        """Resume all connections; queued requests start first."""
        if self._paused is not None:
            self._paused = None
            for connection in self:
                connection.resume()

    @property
    def paused(self) -> bool:
        """Whether the server is paused."""
        return self._paused is not None

    def clear_pause(self) -> None:
        """Forget the pause at shutdown; connections opened later are not paused."""
        self._paused = None
