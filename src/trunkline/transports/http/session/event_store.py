"""What was sent on a stream, kept for a while, so that a peer who lost the line can read on where it stopped.

A session has several streams: one for each request that is answered by events, and one for everything else. Each is a
log with a limit. A position names the stream and the place in it, so nobody is ever given what belongs to another.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from trunkline.wire.messages import RequestId

__all__ = ["EventStore", "MemoryEventStore", "StreamEvents", "format_event_id", "parse_event_id"]


class EventStore(Protocol):
    """Keeps what is sent. Numbers grow by one with every event of a stream. What has to be brought to safety first is
    not there to be read until then; whoever owns the streams is told when it is."""

    def on_committed(self, callback: Callable[[int], None]) -> None:
        """Names who is told of streams of which more is there to be read now."""
        ...

    def begin(self, stream: int, requests: Sequence[RequestId]) -> None:
        """A stream begins, on which some requests are answered."""
        ...

    def append(self, stream: int, frame: bytes, last_read: int | None) -> int:
        """Keeps one more, and gives its number. What comes after `read` must be kept: somebody is about to read it.
        None if nobody is."""
        ...

    def is_committed(self, stream: int) -> bool:
        """Whether all that was appended is there to be read."""
        ...

    def read_after(self, stream: int, number: int) -> Sequence[tuple[int, bytes]] | None:
        """What came after a number and is there to be read, with its numbers; None if that is no longer known."""
        ...

    def size(self, stream: int) -> int:
        """Bytes of a stream that this process holds in memory."""
        ...

    def mark_delivered(self, stream: int, number: int) -> None:
        """A reader has been given all up to a number."""
        ...

    def end(self, stream: int) -> None:
        """The requests of a stream have been answered: nothing more will be appended."""
        ...

    async def load_stream(self, stream: int) -> None:
        """Gets what an earlier process has kept of a stream, so that it is there to be read."""
        ...

    def drop(self, stream: int) -> None:
        """Forgets a stream."""
        ...


class StreamEvents(Struct):
    """The events of one stream that are still known."""

    frames: deque[bytes]
    last: int = 0  # the number of the newest
    size: int = 0  # bytes


class MemoryEventStore:
    """Keeps events in memory: of each stream the newest, up to a number of events and of bytes."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._streams: dict[int, StreamEvents] = {}

    def on_committed(self, callback: Callable[[int], None]) -> None:
        """Nothing to be done: what is appended is there at once."""

    def begin(self, stream: int, requests: Sequence[RequestId]) -> None:
        """Nothing to be done: there is a log as soon as there is something in it."""

    def end(self, stream: int) -> None:
        """Nothing to be done: the log is kept."""

    def mark_delivered(self, stream: int, number: int) -> None:
        """Nothing to be done: the stream knows."""

    async def load_stream(self, stream: int) -> None:
        """Nothing to be done: there was no process before."""

    def is_committed(self, stream: int) -> bool:  # noqa: ARG002 - the seam's
        """It always is: what is in memory is as safe as it will be."""
        return True

    def restore(self, stream: int, before: int, frames: Sequence[bytes]) -> None:
        """Takes what is known of a stream from elsewhere; `first` is the number before the oldest."""
        self._streams[stream] = StreamEvents(deque(frames), before + len(frames), sum(map(len, frames)))

    def bounds(self, stream: int) -> tuple[int, int]:
        """The number before the oldest event that is known, and that of the newest."""
        log = self._streams.get(stream)
        return (0, 0) if log is None else (log.last - len(log.frames), log.last)

    def append(self, stream: int, frame: bytes, last_read: int | None) -> int:
        """Keeps one more, and lets the oldest go."""
        log = self._streams.get(stream)
        if log is None:
            log = self._streams[stream] = StreamEvents(deque())
        log.frames.append(frame)
        log.size += len(frame)
        log.last += 1
        unread = 1 if last_read is None else log.last - last_read  # the newest is kept in any case
        while len(log.frames) > max(unread, 1) and (len(log.frames) > self._max_events or log.size > self._max_bytes):
            log.size -= len(log.frames.popleft())
        return log.last

    def read_after(self, stream: int, number: int) -> Sequence[tuple[int, bytes]] | None:
        """What came after a number; None if some of it is gone, or has never been."""
        log = self._streams.get(stream)
        if log is None:
            return [] if number == 0 else None
        first = log.last - len(log.frames)  # the number before the oldest
        if not first <= number <= log.last:
            return None
        unread = log.last - number  # counted from the newest, which is where a deque is quick to look
        return [(log.last - back, log.frames[-1 - back]) for back in range(unread - 1, -1, -1)]

    def size(self, stream: int) -> int:
        """Bytes of a stream."""
        log = self._streams.get(stream)
        return 0 if log is None else log.size

    def drop(self, stream: int) -> None:
        """Forgets a stream."""
        self._streams.pop(stream, None)


def format_event_id(stream: int, number: int) -> str:
    """The id of an event."""
    return f"{stream}-{number}"


def parse_event_id(text: str) -> tuple[int, int] | None:
    """The stream and the number that an id names; None for what is none of ours."""
    stream, _, number = text.partition("-")
    if stream.isdecimal() and number.isdecimal() and len(text) < 40:  # noqa: PLR2004 - longer than any of ours
        return int(stream), int(number)
    return None
