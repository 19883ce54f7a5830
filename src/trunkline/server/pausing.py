"""A server that rests: it takes nothing new for a while, and finishes what it has begun."""

from typing import Literal

from trunkline.facts import Observers
from trunkline.server.connection import Connection
from trunkline.server.offer import Offer
from trunkline.server.shutdown import Ending

__all__ = ["Pausing"]


class Pausing(Ending):
    """A server, as far as its peers are on the line and it takes their requests."""

    def __init__(self, offer: Offer, observers: Observers) -> None:
        super().__init__(offer, observers)
        self._connections: dict[Connection, None] = {}
        self._paused: Literal["wait", "refuse"] | None = None

    @property
    def connections(self) -> list[Connection]:
        """The peers that are on the line."""
        return list(self._connections)

    def pause(self, *, wait: bool = False) -> None:
        """Takes no new requests until `resume()`: they are refused with 1008, or wait. What is under way goes on, and a
        ping is answered. Callable on the loop only."""
        if self._paused is None:
            self._paused = "wait" if wait else "refuse"
            for connection in self._connections:
                connection.pause(wait=wait)

    def resume(self) -> None:
        """Takes requests again, those that have waited first. Callable on the loop only."""
        if self._paused is not None:
            self._paused = None
            for connection in self.connections:
                connection.resume()

    def _arrived(self, connection: Connection) -> None:
        """A peer is on the line."""
        self._connections[connection] = None
        if self._paused is not None:
            connection.pause(wait=self._paused == "wait")
