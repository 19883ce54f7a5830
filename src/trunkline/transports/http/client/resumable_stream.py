"""Position of one event stream across several connections, for resumption with `Last-Event-ID`."""

from collections.abc import Iterable
from typing import Final

from trunkline.config import Settings
from trunkline.wire import codec
from trunkline.wire.framing import TooLarge
from trunkline.wire.messages import Incoming, Malformed
from trunkline.wire.sse import SseDecoder, SseEvent

__all__ = ["ResumableStream", "decode_events", "find_unusable_reason"]

_MAX_SEEN_IDS: Final = 1000  # event ids; a server repeats only recent events
_MIN_RETRY: Final = 0.5  # seconds; a server's `retry: 0` would cause a flood of requests
_MAX_RETRY: Final = 300.0  # seconds, as a limit for the server's value
_HEALTHY_DURATION: Final = 5.0  # seconds; a longer connection counts as healthy even without events
_MAX_DOUBLINGS: Final = 16


class ResumableStream:
    """The last event id, the ids seen, and the retry delay of a stream."""

    def __init__(self, settings: Settings) -> None:
        self.last_event_id: str | None = None  # sent as Last-Event-ID
        self.opened = False
        self.unusable_reason: str | None = None  # why a message that may have been the response is unusable
        self._limit = settings.sse_event_size_limit
        self._retry = settings.stream_retry
        self._min_retry = min(_MIN_RETRY, settings.stream_retry)
        self._max_backoff = settings.backoff_longest
        self._empty_connections = 0  # consecutive connections without data
        self._received_data = False  # whether the current connection had data
        self._seen_ids: dict[str, None] = {}
        self._previous_id: str | None = None  # the id of the last event of this connection
        self.begin_connection()

    def begin_connection(self) -> None:
        """Start a new connection, discarding an incomplete event of the last one."""
        self._decoder = SseDecoder(self._limit)
        self._previous_id = None
        self._received_data = False

    def end_connection(self, duration: float) -> None:
        """Record the end of a connection after `duration` seconds. Empty, short connections increase the retry
        delay."""
        self._empty_connections = (
            0 if self._received_data or duration >= _HEALTHY_DURATION else self._empty_connections + 1
        )

    def feed(self, data: bytes) -> list[Incoming]:
        """Decode bytes and return the new messages."""
        events = self._decoder.feed(data)
        if self._decoder.retry is not None:
            self._retry = min(max(self._decoder.retry / 1000, self._min_retry), _MAX_RETRY)
        previous = self.last_event_id
        if self._decoder.last_id is not None:
            self.last_event_id = self._decoder.last_id or None  # an empty id resets the position
        if self.last_event_id != previous or any(isinstance(event, TooLarge) or event.data for event in events):
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
        """Return whether an event is no repetition. An event without an id of its own has the id of its predecessor
        and counts as new."""
        has_own_id, self._previous_id = event.id != self._previous_id, event.id
        if not event.id or not has_own_id:
            return True
        if event.id in self._seen_ids:
            return False
        self._seen_ids[event.id] = None
        if len(self._seen_ids) > _MAX_SEEN_IDS:
            del self._seen_ids[next(iter(self._seen_ids))]
        return True

    def retry_delay(self, failures: int) -> float:
        """Return the seconds to wait before reconnecting: the server's value within limits, doubled after each
        failed or empty attempt."""
        doublings = min(failures + self._empty_connections, _MAX_DOUBLINGS)
        return max(self._retry, min(self._retry * 2**doublings, self._max_backoff))


def find_unusable_reason(messages: Iterable[Incoming]) -> str | None:
    """Return what is wrong with the first malformed message that may be a response; None if there is none."""
    return next(
        (message.why for message in messages if isinstance(message, Malformed) and _is_possible_answer(message)), None
    )


def _is_possible_answer(message: Malformed) -> bool:
    return (message.is_reply or message.lacks_method) and not message.is_notification


def decode_events(events: Iterable[SseEvent | TooLarge]) -> list[Incoming]:
    """Decode the messages of events."""
    return [
        codec.decode_strict(event if isinstance(event, TooLarge) else event.data)
        for event in events
        if isinstance(event, TooLarge) or (event.kind == "message" and event.data)
    ]
