"""One stream of events, across as many connections as it takes to read it to its end."""

from collections.abc import Iterable
from typing import Final

from trunkline.config import Settings
from trunkline.wire import codec
from trunkline.wire.framing import TooLarge
from trunkline.wire.messages import Incoming
from trunkline.wire.sse import Event, EventDecoder

__all__ = ["EventStream", "messages_in"]

_MOST_SEEN: Final = 1000  # positions; a server that repeats itself repeats what it said last


class EventStream:
    """Where a stream stands: what comes after it is asked for, and what came before it is not taken twice."""

    def __init__(self, settings: Settings) -> None:
        self.position: str | None = None  # to go on from
        self.opened = False
        self.too_large: TooLarge | None = None  # an event that was lost for that reason
        self._limit = settings.sse_event_size_limit
        self._retry = settings.stream_retry
        self._longest = settings.backoff_longest
        self._seen: dict[str, None] = {}
        self._before: str | None = None  # the position that the last event of this connection told
        self.begin()

    def begin(self) -> None:
        """A new connection: what the last one left unfinished is forgotten."""
        self._decoder = EventDecoder(self._limit)
        self._before = None

    def feed(self, data: bytes) -> list[Incoming]:
        """Takes what has arrived; gives the messages in it that are new."""
        events = self._decoder.feed(data)
        if self._decoder.retry is not None:
            self._retry = self._decoder.retry / 1000
        if self._decoder.last_id is not None:
            self.position = self._decoder.last_id or None  # an empty one takes the position back
        return [codec.decode_strict(frame) for event in events if (frame := self._frame(event))]

    def _frame(self, event: Event | TooLarge) -> bytes | TooLarge | None:
        if isinstance(event, TooLarge):
            self.too_large = event
            return event
        new = self._is_new(event)
        return event.data if new and event.kind == "message" else None

    def _is_new(self, event: Event) -> bool:
        """An event has the position of the one before it, unless it tells its own: only that can have been seen."""
        told, self._before = event.id != self._before, event.id
        if not event.id or not told:
            return True
        if event.id in self._seen:
            return False
        self._seen[event.id] = None
        if len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        return True

    def wait(self, failures: int) -> float:
        """How long to wait before it is opened again, in seconds: as the server says, and longer each time that has
        failed."""
        return max(self._retry, min(self._retry * 2**failures, self._longest))


def messages_in(events: Iterable[Event | TooLarge]) -> list[Incoming]:
    """The messages that events bring."""
    return [
        codec.decode_strict(event if isinstance(event, TooLarge) else event.data)
        for event in events
        if isinstance(event, TooLarge) or (event.kind == "message" and event.data)
    ]
