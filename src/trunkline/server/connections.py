"""Those who are on the line with a server, which may rest: it takes nothing new for a while, and finishes what it has
begun."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from trunkline.protocol.inflight import IncomingRequest

if TYPE_CHECKING:
    from trunkline.server.connection import Connection

__all__ = ["ConnectionSet", "PauseQueue"]


class PauseQueue:
    """A connection that takes nothing new, and what waits until it does."""

    def __init__(self, since: float, max_queued: int) -> None:
        """`most` calls may wait."""
        self.since = since
        self._max_queued = max_queued
        self._queued: list[tuple[IncomingRequest, Any]] = []

    def enqueue(self, call: IncomingRequest, params: Any) -> bool:
        """Whether a call may wait; it does, then."""
        if len(self._queued) >= self._max_queued:
            self._queued = self.pending
        if len(self._queued) >= self._max_queued:
            return False
        call.queued = True
        self._queued.append((call, params))
        return True

    @property
    def pending(self) -> list[tuple[IncomingRequest, Any]]:
        """Those that somebody still waits for, with their params, in the order in which they came."""
        return [(call, params) for call, params in self._queued if not call.done]


class ConnectionSet:
    """The connections of a server, and whether it takes their requests."""

    def __init__(self) -> None:
        self._connections: dict[Connection, None] = {}
        self._paused: Literal["wait", "refuse"] | None = None

    def __iter__(self) -> "Iterator[Connection]":
        """Those that are there now, whoever comes and goes meanwhile."""
        return iter(list(self._connections))

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: "Connection") -> None:
        """A peer is on the line."""
        self._connections[connection] = None
        if self._paused is not None:
            connection.pause(wait=self._paused == "wait")

    def discard(self, connection: "Connection") -> None:
        """It has gone."""
        self._connections.pop(connection, None)

    def pause(self, *, wait: bool) -> None:
        """Takes no new requests; once is enough."""
        if self._paused is None:
            self._paused = "wait" if wait else "refuse"
            for connection in self:
                connection.pause(wait=wait)

    def resume(self) -> None:
        """Takes requests again, those that have waited first."""
        if self._paused is not None:
            self._paused = None
            for connection in self:
                connection.resume()

    @property
    def paused(self) -> bool:
        """Whether no new requests are taken."""
        return self._paused is not None

    def clear_pause(self) -> None:
        """Whoever comes from now on finds a server that rests no more."""
        self._paused = None
