"""Streams of a session: an event log with at most one reader each.

The channel writes messages to the log; the reader, an HTTP response, writes them out as events. When a connection
breaks, the reader detaches and the log stays until a client resumes the stream or the session ends.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from trunkline.transports.http.session.event_store import EventStore
from trunkline.wire import sse

__all__ = ["STANDALONE", "Stream"]

STANDALONE = 0
"""Number of the standalone stream, for messages that belong to no request."""

_MAX_NON_EVENT_BYTES: Final = 40  # size of a comment or of the priming event at most; other events are longer


class Stream:
    """One event stream: its position in the event store, its reader and its back pressure."""

    __slots__ = (
        "_change_waiter",
        "_drain_waiter",
        "_encode_event",
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
        self.has_event_ids = has_event_ids  # events carry ids, so that a client can resume
        self.ended = False  # no more writes follow
        self.last_read = 0  # number of the last event that a reader took
        self.unread_bytes = 0  # waiting for the reader, or without one for the store's commit
        self.push: Callable[[bytes], bool] | None = (
            None  # writes at once for a waiting reader; returns False if it cannot
        )
        self._events = events
        self._encode_event = sse.encode_numbered_message if has_event_ids else sse.encode_unnumbered_message
        self._reader: object = None
        self._taken_bytes = 0  # part of `unread_bytes` that the reader is writing
        self._reader_expected = number != STANDALONE or not has_event_ids  # a reader is attached or about to attach
        self._refuse_next_reader = False  # set by `disconnect_reader` without a reader
        self._moved = False  # another process continues the stream
        self._change_waiter: asyncio.Future[None] | None = None
        self._drain_waiter: asyncio.Future[None] | None = None

    def write(self, frame: bytes) -> int:
        """Append a message; send it at once if the reader is waiting for it and the store has committed it. Return the
        bytes that wait for the reader."""
        events = self._events
        number = events.append(self.number, frame, self.last_read if self._reader_expected else None)
        settled = events.commits_at_once or events.is_committed(self.number)
        if (
            settled
            and self.push is not None
            and self.last_read == number - 1  # the reader has read everything before this event …
            and self._change_waiter is not None  # … and waits for more
            and self.push(self._encode_event(frame, self.number, number))
        ):
            self.last_read = number
            return self.unread_bytes
        self.unread_bytes += len(frame)
        if settled:
            self.wake_reader()
        return self.unread_bytes

    def complete(self) -> None:
        """End the stream because all its replies were written or cancelled, and record that in the store."""
        self._events.end(self.number)
        self.end()

    def end(self) -> None:
        """Expect no more writes."""
        self.ended = True
        self.wake_reader()
        self._wake_drain()

    @property
    def exhausted(self) -> bool:
        """Whether no more events will become readable than there are now."""
        return self.ended and self._events.is_committed(self.number)

    async def wait_committed(self, reader: object) -> bool:
        """Wait until the store has committed the stream, so that a client can resume it; return False if another reader
        took over before."""
        while not self._events.is_committed(self.number) and self._reader in {reader, None} and not self._moved:
            await self.wait_for_change()
        return self._events.is_committed(self.number)

    def wake_reader(self) -> None:
        """Wake the reader: events, the end or another reader may be there. Without a reader, release the writers that
        wait for one."""
        waiter, self._change_waiter = self._change_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if not self._reader_expected and self.unread_bytes and self._events.is_committed(self.number):
            self.unread_bytes = 0  # the event store retains it for a later reader, within its own limits
            self._wake_drain()

    # --- reading -------------------------------------------------------------------------------

    def attach(self, after: int | None = None) -> object:
        """Return a new reader, which replaces the current one. It continues after event `after`, or where the last one
        stopped."""
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
        """Detach the reader; later events wait for the next one."""
        self._reader = self.push = None
        self._reader_expected = False
        self._taken_bytes = self.unread_bytes = 0
        self.wake_reader()
        self._wake_drain()

    def detach_reader(self, reader: object) -> None:
        """Detach a reader if it is still the current one."""
        if self._reader is reader:
            self.detach()

    def rewind(self, reader: object, unacknowledged: int) -> None:
        """Make events readable again that a reader took but did not deliver, by their size in bytes. Only for the
        standalone stream, which a client may open without a position: the next reader gets them."""
        while self.number == STANDALONE and self._reader is reader and unacknowledged > _MAX_NON_EVENT_BYTES:
            events = self._events.read_after(self.number, self.last_read - 1)
            if not events:
                return
            number, frame = events[0]
            unacknowledged -= len(self._encode_event(frame, self.number, number))
            self.last_read -= 1

    def disconnect_reader(self) -> None:
        """Disconnect the reader, or refuse the next one if none is attached; the client comes back later."""
        self._refuse_next_reader = self._reader is None
        self.detach()

    def mark_moved(self) -> None:
        """Detach the reader for good: another process continues the stream, and clients resume it there."""
        self.ended = self._moved = True
        self.detach()

    @property
    def attached(self) -> bool:
        """Whether a reader is attached."""
        return self._reader is not None

    def is_current_reader(self, reader: object) -> bool:
        """Return whether a reader is still the current one."""
        return self._reader is reader

    async def can_resume_after(self, number: int) -> bool:
        """Return whether every event after a number is available, loading those of an earlier process if necessary."""
        await self._events.load_stream(self.number)
        return self._events.read_after(self.number, number) is not None

    def take(self) -> bytes:
        """Return the readable events, encoded; empty if there are none."""
        events = self._events.read_after(self.number, self.last_read)
        if not events:
            return b""
        self.last_read = events[-1][0]
        self._taken_bytes = sum(len(frame) for _, frame in events)
        self._events.mark_delivered(self.number, self.last_read)
        return b"".join([self._encode_event(frame, self.number, number) for number, frame in events])

    def confirm_written(self) -> None:
        """Note that the events of the last `take` were written to the connection."""
        self.unread_bytes = max(0, self.unread_bytes - self._taken_bytes)
        self._taken_bytes = 0
        self._wake_drain()

    def _wake_drain(self) -> None:
        if self._drain_waiter is not None and not self._drain_waiter.done():
            self._drain_waiter.set_result(None)

    async def wait_drained(self, limit: int) -> None:
        """Wait while more than `limit` bytes are unread. A stream whose reader is attached or expected waits for the
        reader; any other waits only until the store has committed its events."""
        while self.unread_bytes > limit and not self.ended:
            await self._wait_written()

    async def _wait_written(self) -> None:
        """Wait until the reader has written what it took, or has detached."""
        if self._drain_waiter is None or self._drain_waiter.done():
            self._drain_waiter = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._drain_waiter)

    def wait_for_change(self) -> "asyncio.Future[None]":
        """Return a future that is done when `wake_reader` is called."""
        if self._change_waiter is None or self._change_waiter.done():  # done if the one who waited was cancelled
            self._change_waiter = asyncio.get_running_loop().create_future()
        return self._change_waiter
