"""What was sent on a stream, kept for a while, so that a peer who lost the line can read on where it stopped.

A session has several streams: one for each request that is answered by events, and one for everything else. Each is a
log with a limit. A position names the stream and the place in it, so nobody is ever given what belongs to another.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

__all__ = ["EventLog", "EventStore", "MemoryEvents", "position", "read_position"]


class EventStore(Protocol):
    """Keeps what was sent. Numbers grow by one with every event of a stream."""

    def append(self, stream: int, frame: bytes, read: int | None) -> int:
        """Keeps one more, and gives its number. What comes after `read` must be kept: somebody is about to read it.
        None if nobody is."""
        ...

    def after(self, stream: int, number: int) -> Sequence[tuple[int, bytes]] | None:
        """What came after a number, with its numbers; None if that is no longer known."""
        ...

    def drop(self, stream: int) -> None:
        """Forgets a stream."""
        ...


class EventLog(Struct):
    """The events of one stream that are still known."""

    frames: deque[bytes]
    last: int = 0  # the number of the newest
    size: int = 0  # bytes


class MemoryEvents:
    """Keeps events in memory: of each stream the newest, up to a number of events and of bytes."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._logs: dict[int, EventLog] = {}

    def append(self, stream: int, frame: bytes, read: int | None) -> int:
        """Keeps one more, and lets the oldest go."""
        log = self._logs.get(stream)
        if log is None:
            log = self._logs[stream] = EventLog(deque())
        log.frames.append(frame)
        log.size += len(frame)
        log.last += 1
        unread = 1 if read is None else log.last - read  # the newest is kept in any case
        while len(log.frames) > max(unread, 1) and (len(log.frames) > self._most or log.size > self._most_bytes):
            log.size -= len(log.frames.popleft())
        return log.last

    def after(self, stream: int, number: int) -> Sequence[tuple[int, bytes]] | None:
        """What came after a number; None if some of it is gone, or has never been."""
        log = self._logs.get(stream)
        if log is None:
            return [] if number == 0 else None
        first = log.last - len(log.frames)  # the number before the oldest
        if not first <= number <= log.last:
            return None
        unread = log.last - number  # counted from the newest, which is where a deque is quick to look
        return [(log.last - back, log.frames[-1 - back]) for back in range(unread - 1, -1, -1)]

    def drop(self, stream: int) -> None:
        """Forgets a stream."""
        self._logs.pop(stream, None)


def position(stream: int, number: int) -> str:
    """The id of an event."""
    return f"{stream}-{number}"


def read_position(text: str) -> tuple[int, int] | None:
    """The stream and the number that an id names; None for what is none of ours."""
    stream, _, number = text.partition("-")
    if stream.isdecimal() and number.isdecimal() and len(text) < 40:  # noqa: PLR2004 - longer than any of ours
        return int(stream), int(number)
    return None
