"""One stream of events, across as many connections as it takes to read it to its end."""

from collections.abc import Iterable
from typing import Final

from trunkline.config import Settings
from trunkline.wire import codec
from trunkline.wire.framing import TooLarge
from trunkline.wire.messages import Incoming, Malformed
from trunkline.wire.sse import Event, EventDecoder

__all__ = ["EventStream", "messages_in", "why_unusable"]

_MOST_SEEN: Final = 1000  # positions; a server that repeats itself repeats what it said last
_SHORTEST_RETRY: Final = 0.5  # seconds, whatever a server says: `retry: 0` would be a flood of requests
_LONGEST_RETRY: Final = 300.0  # seconds, whatever a server says
_LASTED: Final = 5.0  # seconds after which a connection that ends was one, though it brought nothing
_MOST_DOUBLINGS: Final = 16


class EventStream:
    """Where a stream stands: what comes after it is asked for, and what came before it is not taken twice."""

    def __init__(self, settings: Settings) -> None:
        self.position: str | None = None  # to go on from
        self.opened = False
        self.unusable: str | None = None  # why an event was lost that may have been the answer
        self._limit = settings.sse_event_size_limit
        self._retry = settings.stream_retry
        self._shortest = min(_SHORTEST_RETRY, settings.stream_retry)
        self._longest = settings.backoff_longest
        self._empty = 0  # connections in a row that brought nothing
        self._brought = False  # whether this one has
        self._seen: dict[str, None] = {}
        self._before: str | None = None  # the position that the last event of this connection told
        self.begin()

    def begin(self) -> None:
        """A new connection: what the last one left unfinished is forgotten."""
        self._decoder = EventDecoder(self._limit)
        self._before = None
        self._brought = False

    def ended(self, lasted: float) -> None:
        """Take note of a connection that has ended after so many seconds. A server that ends one after the other at
        once, with nothing in them, is asked less and less often."""
        self._empty = 0 if self._brought or lasted >= _LASTED else self._empty + 1

    def feed(self, data: bytes) -> list[Incoming]:
        """Takes what has arrived; gives the messages in it that are new."""
        events = self._decoder.feed(data)
        if self._decoder.retry is not None:
            self._retry = min(max(self._decoder.retry / 1000, self._shortest), _LONGEST_RETRY)
        before = self.position
        if self._decoder.last_id is not None:
            self.position = self._decoder.last_id or None  # an empty one takes the position back
        if self.position != before or any(isinstance(event, TooLarge) or event.data for event in events):
            self._brought = True
        messages = [codec.decode_strict(frame) for event in events if (frame := self._frame(event))]
        self.unusable = why_unusable(messages) or self.unusable
        return messages

    def _frame(self, event: Event | TooLarge) -> bytes | TooLarge | None:
        if isinstance(event, TooLarge):
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
        """How long to wait before it is opened again, in seconds: as the server says, within reason, and twice as long
        each time that has failed or brought nothing."""
        doublings = min(failures + self._empty, _MOST_DOUBLINGS)
        return max(self._retry, min(self._retry * 2**doublings, self._longest))


def why_unusable(messages: Iterable[Incoming]) -> str | None:
    """What is wrong with a message that cannot be read and may be an answer, if there is one among them."""
    return next((message.why for message in messages if isinstance(message, Malformed) and _may_answer(message)), None)


def _may_answer(message: Malformed) -> bool:
    return (message.is_reply or message.lacks_method) and not message.is_notification


def messages_in(events: Iterable[Event | TooLarge]) -> list[Incoming]:
    """The messages that events bring."""
    return [
        codec.decode_strict(event if isinstance(event, TooLarge) else event.data)
        for event in events
        if isinstance(event, TooLarge) or (event.kind == "message" and event.data)
    ]
