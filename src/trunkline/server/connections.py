"""Connections of a server, and the pause that holds back their new requests."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from trunkline.protocol.inflight import IncomingRequest

if TYPE_CHECKING:
    from trunkline.server.connection import Connection

__all__ = ["ConnectionSet", "PauseQueue"]


class PauseQueue:
    """Requests that a paused connection holds back until `resume()`."""

    def __init__(self, since: float, max_queued: int) -> None:
        """`since` is the time of the pause; at most `max_queued` calls wait."""
        self.since = since
        self._max_queued = max_queued
        self._queued: list[tuple[IncomingRequest, Any]] = []

    def enqueue(self, call: IncomingRequest, params: Any) -> bool:
        """Queue a call; return False if the queue is full."""
        if len(self._queued) >= self._max_queued:
            self._queued = self.pending
        if len(self._queued) >= self._max_queued:
            return False
        call.queued = True
        self._queued.append((call, params))
        return True

    @property
    def pending(self) -> list[tuple[IncomingRequest, Any]]:
        """Queued calls that are not cancelled, with their params, in order of arrival."""
        return [(call, params) for call, params in self._queued if not call.done]


class ConnectionSet:
    """Open connections of a server; applies a pause to all of them, and to new ones."""

    def __init__(self) -> None:
        self._connections: dict[Connection, None] = {}
        self._paused: Literal["wait", "refuse"] | None = None

    def __iter__(self) -> "Iterator[Connection]":
        """Iterate over a copy: connections may open and close meanwhile."""
        return iter(list(self._connections))

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: "Connection") -> None:
        """Add a connection; pause it if the server is paused."""
        self._connections[connection] = None
        if self._paused is not None:
            connection.pause(wait=self._paused == "wait")

    def discard(self, connection: "Connection") -> None:
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
