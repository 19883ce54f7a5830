"""Connections of a server, and the pauses of all or of one of them.

A connection stays paused until every pause that applies to it has ended: that of the server, and its own. The first
one decides whether its requests are queued or refused.
"""

from collections.abc import Iterator
from typing import Literal

from trunkline.server.connection import Connection

__all__ = ["ConnectionSet"]


class ConnectionSet:
    """Open connections of a server; applies a pause to all of them, and to new ones."""

    def __init__(self) -> None:
        self._connections: dict[Connection, None] = {}
        self._paused: Literal["wait", "refuse"] | None = None  # all connections
        self._paused_alone: set[Connection] = set()

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
        self._paused_alone.discard(connection)

    def pause(self, *, wait: bool) -> None:
        """Pause all connections; no effect on a paused server."""
        if self._paused is None:
            self._paused = "wait" if wait else "refuse"
            for connection in self._paused_by_server():
                connection.pause(wait=wait)

    def resume(self) -> None:
        """Resume all connections that are not paused alone; queued requests start first."""
        if self._paused is not None:
            self._paused = None
            for connection in self._paused_by_server():
                connection.resume()

    def _paused_by_server(self) -> list[Connection]:
        return [connection for connection in self if connection not in self._paused_alone]

    def pause_session(self, number: int, *, wait: bool) -> None:
        """Pause the connection with this number; no effect if it is closed or paused alone."""
        connection = self._find(number)
        if connection is not None and connection not in self._paused_alone:
            self._paused_alone.add(connection)
            if self._paused is None:
                connection.pause(wait=wait)

    def resume_session(self, number: int) -> None:
        """Undo `pause_session`; a pause of the server goes on."""
        connection = self._find(number)
        if connection is not None and connection in self._paused_alone:
            self._paused_alone.discard(connection)
            if self._paused is None:
                connection.resume()

    def _find(self, number: int) -> Connection | None:
        return next((connection for connection in self if connection.session_id == number), None)

    @property
    def paused(self) -> bool:
        """Whether the server is paused."""
        return self._paused is not None

    def clear_pause(self) -> None:
        """Forget the pause at shutdown; connections opened later are not paused."""
        self._paused = None
