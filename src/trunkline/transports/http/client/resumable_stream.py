"""One stream of events, across as many connections as it takes to read it to its end."""

from collections.abc import Iterable
from typing import Final

from trunkline.config import Settings
from trunkline.wire import codec
from trunkline.wire.framing import TooLarge
from trunkline.wire.messages import Incoming, Malformed
from trunkline.wire.sse import SseDecoder, SseEvent

__all__ = ["ResumableStream", "decode_events", "find_unusable_reason"]

_MAX_SEEN_IDS: Final = 1000  # positions; a server that repeats itself repeats what it said last
_MIN_RETRY: Final = 0.5  # seconds, whatever a server says: `retry: 0` would be a flood of requests
_MAX_RETRY: Final = 300.0  # seconds, whatever a server says
_HEALTHY_DURATION: Final = 5.0  # seconds after which a connection that ends was one, though it brought nothing
_MAX_DOUBLINGS: Final = 16


class ResumableStream:
    """Where a stream stands: what comes after it is asked for, and what came before it is not taken twice."""

    def __init__(self, settings: Settings) -> None:
        self.last_event_id: str | None = None  # to go on from
        self.opened = False
        self.unusable_reason: str | None = None  # why an event was lost that may have been the answer
        self._limit = settings.sse_event_size_limit
        self._retry = settings.stream_retry
        self._min_retry = min(_MIN_RETRY, settings.stream_retry)
        self._max_backoff = settings.backoff_longest
        self._empty_connections = 0  # connections in a row that brought nothing
        self._received_data = False  # whether this one has
        self._seen_ids: dict[str, None] = {}
        self._previous_id: str | None = None  # the position that the last event of this connection told
        self.begin_connection()

    def begin_connection(self) -> None:
        """A new connection: what the last one left unfinished is forgotten."""
        self._decoder = SseDecoder(self._limit)
        self._previous_id = None
        self._received_data = False

    def end_connection(self, duration: float) -> None:
        """Take note of a connection that has ended after so many seconds. A server that ends one after the other at
        once, with nothing in them, is asked less and less often."""
        self._empty_connections = (
            0 if self._received_data or duration >= _HEALTHY_DURATION else self._empty_connections + 1
        )

    def feed(self, data: bytes) -> list[Incoming]:
        """Takes what has arrived; gives the messages in it that are new."""
        events = self._decoder.feed(data)
        if self._decoder.retry is not None:
            self._retry = min(max(self._decoder.retry / 1000, self._min_retry), _MAX_RETRY)
        before = self.last_event_id
        if self._decoder.last_id is not None:
            self.last_event_id = self._decoder.last_id or None  # an empty one takes the position back
        if self.last_event_id != before or any(isinstance(event, TooLarge) or event.data for event in events):
            self._received_data = True
        messages = [codec.decode_strict(frame) for event in events if (frame := self._frame(event))]
        self.unusable_reason = find_unusable_reason(messages) or self.unusable_reason
        return messages

    def _frame(self, event: SseEvent | TooLarge) -> bytes | TooLarge | None:
        if isinstance(event, TooLarge):
            return event
        new = self._is_new(event)
        return event.data if new and event.kind == "message" else None

    def _is_new(self, event: SseEvent) -> bool:
        """An event has the position of the one before it, unless it tells its own: only that can have been seen."""
        told, self._previous_id = event.id != self._previous_id, event.id
        if not event.id or not told:
            return True
        if event.id in self._seen_ids:
            return False
        self._seen_ids[event.id] = None
        if len(self._seen_ids) > _MAX_SEEN_IDS:
            del self._seen_ids[next(iter(self._seen_ids))]
        return True

    def retry_delay(self, failures: int) -> float:
        """How long to wait before it is opened again, in seconds: as the server says, within reason, and twice as long
        each time that has failed or brought nothing."""
        doublings = min(failures + self._empty_connections, _MAX_DOUBLINGS)
        return max(self._retry, min(self._retry * 2**doublings, self._max_backoff))


def find_unusable_reason(messages: Iterable[Incoming]) -> str | None:
    """What is wrong with a message that cannot be read and may be an answer, if there is one among them."""
    return next(
        (message.why for message in messages if isinstance(message, Malformed) and _is_possible_answer(message)), None
    )


def _is_possible_answer(message: Malformed) -> bool:
    return (message.is_reply or message.lacks_method) and not message.is_notification


def decode_events(events: Iterable[SseEvent | TooLarge]) -> list[Incoming]:
    """The messages that events bring."""
    return [
        codec.decode_strict(event if isinstance(event, TooLarge) else event.data)
        for event in events
        if isinstance(event, TooLarge) or (event.kind == "message" and event.data)
    ]
