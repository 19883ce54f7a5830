"""Streams of one session: where a message goes, and who is reading.

A stream is a log with at most one reader. Whoever answers writes to the log; the reader, an HTTP response, writes out
what it finds there. When the line breaks, the reader goes and the log stays, until somebody reads on or the session
ends.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from trunkline.transports.http.session.event_store import EventStore, position
from trunkline.wire import sse

__all__ = ["STANDALONE", "Stream"]

STANDALONE = 0
"""The number of the stream for what belongs to no request."""

_NO_EVENT: Final = 40  # bytes, of what is none: a comment, the first position; an event is longer


class Stream:
    """One stream of events."""

    __slots__ = (
        *("_awaited", "_drained", "_events", "_moved", "_reader", "_taken", "_unwanted", "_wake", "ended", "ids"),
        *("number", "push", "read", "unread"),
    )

    def __init__(self, number: int, events: EventStore, *, ids: bool = True) -> None:
        self.number = number
        self.ids = ids  # whether events say where they stand, for a peer who comes back
        self.ended = False  # nothing more will be written
        self.read = 0  # the number of the last event that was given to a reader
        self.unread = 0  # bytes that wait for the reader that is there or expected, or else for the event store
        self.push: Callable[[bytes], bool] | None = None  # writes at once for a reader who waits, if it can
        self._events = events
        self._reader: object = None
        self._taken = 0  # bytes of `unread` that the reader is writing out
        self._awaited = number != STANDALONE or not ids  # somebody reads, or is about to
        self._unwanted = False  # the next who comes to read
        self._moved = False  # another process goes on with it
        self._wake: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    def write(self, frame: bytes) -> None:
        """One more message."""
        number = self._events.append(self.number, frame, self.read if self._awaited else None)
        settled = self._events.settled(self.number)
        if settled and self.push is not None and self._waited_for(number) and self.push(self._event(number, frame)):
            self.read = number
            return
        self.unread += len(frame)
        if settled:
            self.rouse()

    def _waited_for(self, number: int) -> bool:
        """Whether the reader has all that came before, and does nothing but wait for more."""
        return self.read == number - 1 and self._wake is not None and not self._wake.done()

    def _event(self, number: int, frame: bytes) -> bytes:
        return sse.encode(frame, kind="message", id=position(self.number, number) if self.ids else None)

    def conclude(self) -> None:
        """All that it was for has been written, or is no longer wanted."""
        self._events.end(self.number)
        self.end()

    def end(self) -> None:
        """Nothing more will be written here."""
        self.ended = True
        self.rouse()
        self._relax()

    @property
    def over(self) -> bool:
        """Whether nothing more will be there to be read than there is now."""
        return self.ended and self._events.settled(self.number)

    async def begun(self, reader: object) -> bool:
        """Waits until a reader can be told where the stream stands, and come back for the rest; False if it cannot,
        since somebody else reads it now."""
        while not self._events.settled(self.number) and self._reader in {reader, None} and not self._moved:
            await self.wake()
        return self._events.settled(self.number)

    def rouse(self) -> None:
        """There is something to look at."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        if not self._awaited and self.unread and self._events.settled(self.number):
            self.unread = 0  # the event store holds it for a later reader, within its own limits
            self._relax()

    # --- reading -------------------------------------------------------------------------------

    def attach(self, after: int | None = None) -> object:
        """A new reader, who takes the place of any other; it reads on after a number, or where the last one stopped."""
        reader = object()
        if self._unwanted or self._moved:
            self._unwanted = False
            return reader
        if after is not None:
            self.read = after
        if after is not None or not self._awaited:
            self.unread = sum(len(frame) for _, frame in self._events.after(self.number, self.read) or ())
        self._taken = 0
        self.push = None
        self._reader = reader
        self._awaited = True
        self.rouse()
        return reader

    def detach(self) -> None:
        """Lets the reader go; what is written from now on waits for the next one."""
        self._reader = self.push = None
        self._awaited = False
        self._taken = self.unread = 0
        self.rouse()
        self._relax()

    def leave(self, reader: object) -> None:
        """Lets a reader go, if it is still the one who reads."""
        if self._reader is reader:
            self.detach()

    def give_back(self, reader: object, size: int) -> None:
        """So many bytes that a reader has taken did not get to it. Of the stream that anybody may come to without a
        position, they are for whoever comes next."""
        while self.number == STANDALONE and self._reader is reader and size > _NO_EVENT:
            found = self._events.after(self.number, self.read - 1)
            if not found:
                return
            size -= len(self._event(*found[0]))
            self.read -= 1

    def release(self) -> None:
        """Has whoever reads, or is about to, go and come back later."""
        self._unwanted = self._reader is None
        self.detach()

    def move(self) -> None:
        """Another process goes on with it: whoever reads, or comes to, reads on there."""
        self.ended = self._moved = True
        self.detach()

    @property
    def attached(self) -> bool:
        """Whether somebody reads."""
        return self._reader is not None

    def reads(self, reader: object) -> bool:
        """Whether that is still the one who reads."""
        return self._reader is reader

    async def recalls(self, number: int) -> bool:
        """Whether everything after a number is still known, if need be from an earlier process."""
        await self._events.recall(self.number)
        return self._events.after(self.number, number) is not None

    def take(self) -> bytes:
        """The events that are there to be read, as they go out."""
        found = self._events.after(self.number, self.read)
        if not found:
            return b""
        self.read = found[-1][0]
        self._taken = sum(len(frame) for _, frame in found)
        self._events.given(self.number, self.read)
        return b"".join([self._event(number, frame) for number, frame in found])

    def written(self) -> None:
        """What was taken is on its way to the peer."""
        self.unread = max(0, self.unread - self._taken)
        self._taken = 0
        self._relax()

    def _relax(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def drained(self, most: int) -> None:
        """Wait while more than `most` bytes are unread. A stream that a reader is about to attach to waits for it; one
        without a reader waits only until the event store has kept what was written."""
        while self.unread > most and not self.ended:
            await self._given()

    async def _given(self) -> None:
        """Wait until the reader has written out what it took, or has gone."""
        if self._drained is None or self._drained.done():
            self._drained = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._drained)

    def wake(self) -> "asyncio.Future[None]":
        """Done when there is something to look at."""
        if self._wake is None or self._wake.done():
            self._wake = asyncio.get_running_loop().create_future()
        return self._wake
