"""Streams of one session: where a message goes, and who is reading.

A stream is a log with at most one reader. Whoever answers writes to the log; the reader, an HTTP response, writes out
what it finds there. When the line breaks, the reader goes and the log stays, until somebody reads on or the session
ends.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from trunkline.transports.http.session.event_store import EventStore, format_event_id
from trunkline.wire import sse

__all__ = ["STANDALONE", "Stream"]

STANDALONE = 0
"""The number of the stream for what belongs to no request."""

_MAX_NON_EVENT_BYTES: Final = 40  # bytes, of what is none: a comment, the first position; an event is longer


class Stream:
    """One stream of events."""

    __slots__ = (
        "_change_waiter",
        "_drain_waiter",
        "_events",
        "_moved",
        "_reader",
        "_reader_expected",
        "_refuse_next_reader",
        "_taken_bytes",
        "ended",
        "has_event_ids",
        "last_read",
        "number",
        "push",
        "unread_bytes",
    )

    def __init__(self, number: int, events: EventStore, *, has_event_ids: bool = True) -> None:
        self.number = number
        self.has_event_ids = has_event_ids  # whether events say where they stand, for a peer who comes back
        self.ended = False  # nothing more will be written
        self.last_read = 0  # the number of the last event that was given to a reader
        self.unread_bytes = 0  # bytes that wait for the reader that is there or expected, or else for the event store
        self.push: Callable[[bytes], bool] | None = None  # writes at once for a reader who waits, if it can
        self._events = events
        self._reader: object = None
        self._taken_bytes = 0  # bytes of `unread` that the reader is writing out
        self._reader_expected = number != STANDALONE or not has_event_ids  # somebody reads, or is about to
        self._refuse_next_reader = False  # the next who comes to read
        self._moved = False  # another process goes on with it
        self._change_waiter: asyncio.Future[None] | None = None
        self._drain_waiter: asyncio.Future[None] | None = None

    def write(self, frame: bytes) -> None:
        """One more message."""
        number = self._events.append(self.number, frame, self.last_read if self._reader_expected else None)
        settled = self._events.is_committed(self.number)
        if (
            settled
            and self.push is not None
            and self._reader_waits_for(number)
            and self.push(self._encode_event(number, frame))
        ):
            self.last_read = number
            return
        self.unread_bytes += len(frame)
        if settled:
            self.wake_reader()

    def _reader_waits_for(self, number: int) -> bool:
        """Whether the reader has all that came before, and does nothing but wait for more."""
        return self.last_read == number - 1 and self._change_waiter is not None and not self._change_waiter.done()

    def _encode_event(self, number: int, frame: bytes) -> bytes:
        return sse.encode_event(
            frame, kind="message", id=format_event_id(self.number, number) if self.has_event_ids else None
        )

    def complete(self) -> None:
        """All that it was for has been written, or is no longer wanted."""
        self._events.end(self.number)
        self.end()

    def end(self) -> None:
        """Nothing more will be written here."""
        self.ended = True
        self.wake_reader()
        self._wake_drain()

    @property
    def exhausted(self) -> bool:
        """Whether nothing more will be there to be read than there is now."""
        return self.ended and self._events.is_committed(self.number)

    async def wait_committed(self, reader: object) -> bool:
        """Waits until a reader can be told where the stream stands, and come back for the rest; False if it cannot,
        since somebody else reads it now."""
        while not self._events.is_committed(self.number) and self._reader in {reader, None} and not self._moved:
            await self.wait_for_change()
        return self._events.is_committed(self.number)

    def wake_reader(self) -> None:
        """There is something to look at."""
        if self._change_waiter is not None and not self._change_waiter.done():
            self._change_waiter.set_result(None)
        if not self._reader_expected and self.unread_bytes and self._events.is_committed(self.number):
            self.unread_bytes = 0  # the event store holds it for a later reader, within its own limits
            self._wake_drain()

    # --- reading -------------------------------------------------------------------------------

    def attach(self, after: int | None = None) -> object:
        """A new reader, who takes the place of any other; it reads on after a number, or where the last one stopped."""
        reader = object()
        if self._refuse_next_reader or self._moved:
            self._refuse_next_reader = False
            return reader
        if after is not None:
            self.last_read = after
        if after is not None or not self._reader_expected:
            self.unread_bytes = sum(
                len(frame) for _, frame in self._events.read_after(self.number, self.last_read) or ()
            )
        self._taken_bytes = 0
        self.push = None
        self._reader = reader
        self._reader_expected = True
        self.wake_reader()
        return reader

    def detach(self) -> None:
        """Lets the reader go; what is written from now on waits for the next one."""
        self._reader = self.push = None
        self._reader_expected = False
        self._taken_bytes = self.unread_bytes = 0
        self.wake_reader()
        self._wake_drain()

    def detach_reader(self, reader: object) -> None:
        """Lets a reader go, if it is still the one who reads."""
        if self._reader is reader:
            self.detach()

    def rewind(self, reader: object, unacknowledged: int) -> None:
        """So many bytes that a reader has taken did not get to it. Of the stream that anybody may come to without a
        position, they are for whoever comes next."""
        while self.number == STANDALONE and self._reader is reader and unacknowledged > _MAX_NON_EVENT_BYTES:
            found = self._events.read_after(self.number, self.last_read - 1)
            if not found:
                return
            unacknowledged -= len(self._encode_event(*found[0]))
            self.last_read -= 1

    def disconnect_reader(self) -> None:
        """Has whoever reads, or is about to, go and come back later."""
        self._refuse_next_reader = self._reader is None
        self.detach()

    def mark_moved(self) -> None:
        """Another process goes on with it: whoever reads, or comes to, reads on there."""
        self.ended = self._moved = True
        self.detach()

    @property
    def attached(self) -> bool:
        """Whether somebody reads."""
        return self._reader is not None

    def is_current_reader(self, reader: object) -> bool:
        """Whether that is still the one who reads."""
        return self._reader is reader

    async def can_resume_after(self, number: int) -> bool:
        """Whether everything after a number is still known, if need be from an earlier process."""
        await self._events.load_stream(self.number)
        return self._events.read_after(self.number, number) is not None

    def take(self) -> bytes:
        """The events that are there to be read, as they go out."""
        found = self._events.read_after(self.number, self.last_read)
        if not found:
            return b""
        self.last_read = found[-1][0]
        self._taken_bytes = sum(len(frame) for _, frame in found)
        self._events.mark_delivered(self.number, self.last_read)
        return b"".join([self._encode_event(number, frame) for number, frame in found])

    def confirm_written(self) -> None:
        """What was taken is on its way to the peer."""
        self.unread_bytes = max(0, self.unread_bytes - self._taken_bytes)
        self._taken_bytes = 0
        self._wake_drain()

    def _wake_drain(self) -> None:
        if self._drain_waiter is not None and not self._drain_waiter.done():
            self._drain_waiter.set_result(None)

    async def wait_drained(self, limit: int) -> None:
        """Wait while more than `most` bytes are unread. A stream that a reader is about to attach to waits for it; one
        without a reader waits only until the event store has kept what was written."""
        while self.unread_bytes > limit and not self.ended:
            await self._wait_written()

    async def _wait_written(self) -> None:
        """Wait until the reader has written out what it took, or has gone."""
        if self._drain_waiter is None or self._drain_waiter.done():
            self._drain_waiter = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._drain_waiter)

    def wait_for_change(self) -> "asyncio.Future[None]":
        """Done when there is something to look at."""
        if self._change_waiter is None or self._change_waiter.done():
            self._change_waiter = asyncio.get_running_loop().create_future()
        return self._change_waiter
