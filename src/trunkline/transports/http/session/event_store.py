"""Event store protocol and its in-memory implementation, for resuming streams with `Last-Event-ID`.

A session has a standalone stream, and one stream for each POST that is answered with events. Each is a log of limited
size. An event id names the stream and the position in it, so a client never receives events of another request.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from trunkline.wire.messages import RequestId

__all__ = ["EventStore", "MemoryEventStore", "StreamEvents", "format_event_id", "parse_event_id"]


class EventStore(Protocol):
    """Stores the events of a session's streams. Numbers grow by one with each event of a stream. An event becomes
    readable once it is committed; a callback reports that to the owner of the streams."""

    commits_at_once: ClassVar[bool]  # whether every event is committed when `append` returns

    def on_committed(self, callback: Callable[[int], None]) -> None:
        """Set the callback that receives the number of a stream when more of its events are readable."""
        ...

    def begin(self, stream: int, requests: Sequence[RequestId]) -> None:
        """Record a new stream and the requests that are answered on it."""
        ...

    def append(self, stream: int, frame: bytes, last_read: int | None) -> int:
        """Append an event; return its number. Events after `last_read` must not be trimmed, since a reader is attached
        or expected; None if there is none."""
        ...

    def is_committed(self, stream: int) -> bool:
        """Return whether all appended events are readable."""
        ...

    def read_after(self, stream: int, number: int) -> Sequence[tuple[int, bytes]] | None:
        """Return the readable events after a number; None if some of them were trimmed."""
        ...

    def size(self, stream: int) -> int:
        """Return the bytes of a stream in this process's memory."""
        ...

    def mark_delivered(self, stream: int, number: int) -> None:
        """Record that a reader took all events up to a number."""
        ...

    def end(self, stream: int) -> None:
        """Record that the requests of a stream were answered: no events follow."""
        ...

    async def load_stream(self, stream: int) -> None:
        """Load the events that an earlier process stored for a stream."""
        ...

    def drop(self, stream: int) -> None:
        """Delete a stream."""
        ...


class StreamEvents:
    """The retained events of one stream."""

    __slots__ = ("frames", "last", "size")

    def __init__(self, frames: deque[bytes], last: int = 0, size: int = 0) -> None:
        self.frames = frames
        self.last = last  # the number of the newest
        self.size = size  # bytes


class MemoryEventStore:
    """Event store in memory that retains the newest events of each stream, up to a number of events and bytes."""

    __slots__ = ("_max_bytes", "_max_events", "_streams")

    commits_at_once: ClassVar[bool] = True

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._streams: dict[int, StreamEvents] = {}

    def on_committed(self, callback: Callable[[int], None]) -> None:
        """Do nothing: events are readable at once."""

    def begin(self, stream: int, requests: Sequence[RequestId]) -> None:
        """Do nothing: a log is created with its first event."""

    def end(self, stream: int) -> None:
        """Do nothing: the log stays available for replay."""

    def mark_delivered(self, stream: int, number: int) -> None:
        """Do nothing: the stream itself knows its position."""

    async def load_stream(self, stream: int) -> None:
        """Do nothing: there is no earlier process."""

    def is_committed(self, stream: int) -> bool:  # noqa: ARG002 - the protocol's
        """Return True: an event in memory is committed at once."""
        return True

    def restore(self, stream: int, before: int, frames: Sequence[bytes]) -> None:
        """Replace a stream's events by those of an earlier process; `before` is the number before the oldest one."""
        self._streams[stream] = StreamEvents(deque(frames), before + len(frames), sum(map(len, frames)))

    def bounds(self, stream: int) -> tuple[int, int]:
        """Return the number before the oldest retained event, and that of the newest."""
        log = self._streams.get(stream)
        return (0, 0) if log is None else (log.last - len(log.frames), log.last)

    def append(self, stream: int, frame: bytes, last_read: int | None) -> int:
        """Append an event and trim the oldest ones."""
        log = self._streams.get(stream)
        if log is None:
            log = self._streams[stream] = StreamEvents(deque())
        frames = log.frames
        frames.append(frame)
        number = log.last = log.last + 1
        size = log.size = log.size + len(frame)
        if len(frames) > self._max_events or size > self._max_bytes:
            self._trim(log, 1 if last_read is None else max(number - last_read, 1))
        return number

    def _trim(self, log: StreamEvents, retained: int) -> None:
        """Remove the oldest events of a stream until it is within the limits, but not the newest `retained` ones."""
        while len(log.frames) > retained and (len(log.frames) > self._max_events or log.size > self._max_bytes):
            log.size -= len(log.frames.popleft())

    def read_after(self, stream: int, number: int) -> Sequence[tuple[int, bytes]] | None:
        """Return the events after a number; None if some were trimmed, or never existed."""
        log = self._streams.get(stream)
        if log is None:
            return [] if number == 0 else None
        first = log.last - len(log.frames)  # the number before the oldest
        if not first <= number <= log.last:
            return None
        unread = log.last - number  # counted from the newest: a deque is fast at its ends
        return [(log.last - back, log.frames[-1 - back]) for back in range(unread - 1, -1, -1)]

    def size(self, stream: int) -> int:
        """Return the bytes of a stream."""
        log = self._streams.get(stream)
        return 0 if log is None else log.size

    def drop(self, stream: int) -> None:
        """Delete a stream."""
        self._streams.pop(stream, None)


def format_event_id(stream: int, number: int) -> str:
    """Return the id of an event."""
    return f"{stream}-{number}"


def parse_event_id(text: str) -> tuple[int, int] | None:
    """Return the stream and number of an event id; None if this server cannot have sent it."""
    stream, _, number = text.partition("-")
    if stream.isdecimal() and number.isdecimal() and len(text) < 40:  # noqa: PLR2004 - longer than any valid id
        return int(stream), int(number)
    return None
