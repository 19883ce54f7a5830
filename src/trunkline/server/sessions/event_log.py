"""What is sent in a session, kept in a store before it is sent, so that another process can send it again.

What a process has sent itself it has at hand too, up to the same limits: the store is read only by whoever comes after
it. Of each stream it is written down which requests are answered there, and when they have been. Of the stream of what
belongs to no request it is also known what somebody has been given: whoever comes without a position gets the rest.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from trunkline.config import Settings
from trunkline.errors import StoreError
from trunkline.server.sessions.lease import SessionLease
from trunkline.server.sessions.record import StreamRecord, read_number, read_stream
from trunkline.server.sessions.write_batcher import WriteBatcher
from trunkline.stores.store import Item
from trunkline.transports.http.session.event_store import MemoryEventStore
from trunkline.wire import codec
from trunkline.wire.messages import RequestId

__all__ = ["DurableEventLog"]

STANDALONE: Final = 0
_PAGE_SIZE: Final = 500
_ENDED_STREAM: Final = codec.to_json(StreamRecord(()))


class _WriteProgress(Struct):
    """How far a stream is kept."""

    last_written: int  # the number of the last event that is
    pending_writes: int = 0  # that were asked for since all of it was


class DurableEventLog:
    """The streams of one session."""

    def __init__(
        self,
        lease: SessionLease,
        batcher: WriteBatcher,
        settings: Settings,
        expires_at: Callable[[], float | None],
    ) -> None:
        self._lease = lease
        self._key_prefix = lease.key
        self._store = lease.store
        self._batcher = batcher
        self._expires_at = expires_at
        self._memory = MemoryEventStore(settings.replay_events, settings.replay_bytes)
        self._trimmed_to: dict[int, int] = {}  # by stream, the number before the oldest event that is kept
        self._unwritten: dict[int, _WriteProgress] = {}  # streams of which not all is kept
        self._unloaded: set[int] = set()  # streams whose events are in the store alone
        self._drop_tasks: set[asyncio.Task[None]] = set()
        self._delivered = 0  # up to where what belongs to no request was given to somebody, as it is written down
        self._last_delivered_live = 0  # the last of it that somebody was there for when it came
        self._on_written: Callable[[int], None] | None = None
        self._batch_done: asyncio.Future[None] | None = None  # the last that something was added to
        self._batch_streams: dict[
            int, tuple[int, int]
        ] = {}  # of each stream in it, the newest event and how many writes
        self._closed = False
        self._fenced = False  # another process goes on
        self.newest_stream = 0  # the highest number of a stream

    def on_committed(self, callback: Callable[[int], None]) -> None:
        """Names who is told of streams of which more is kept now."""
        self._on_written = callback

    @property
    def last_event(self) -> int:
        """The number of the newest event that belongs to no request."""
        return self._memory.bounds(STANDALONE)[1]

    # --- writing -------------------------------------------------------------------------------

    def begin(self, stream: int, requests: Sequence[RequestId]) -> None:
        """A stream begins, on which some requests are answered."""
        self.newest_stream = max(self.newest_stream, stream)
        self._write(f"{self._key_prefix}/streams/{stream:08}", codec.to_json(StreamRecord(requests)), stream, 0)

    def append(self, stream: int, frame: bytes, last_read: int | None) -> int:
        """Keeps one more, and lets the oldest go."""
        number = self._memory.append(stream, frame, last_read)
        self._write(self._event_key(stream, number), frame, stream, number)
        oldest, _ = self._memory.bounds(stream)
        for gone in range(self._trimmed_to.get(stream, 0) + 1, oldest + 1):
            self._batcher.delete(self._lease, self._event_key(stream, gone))
        self._trimmed_to[stream] = oldest
        if stream == STANDALONE and last_read is not None:
            self._last_delivered_live = number
            self._write_position(last_read)
        return number

    def mark_delivered(self, stream: int, number: int) -> None:
        """Somebody has been given all up to a number. Of an event that was waited for, that is written down with the
        next one: should the process die before, who comes without a position is given it rather twice than never."""
        if stream == STANDALONE and number > self._last_delivered_live:
            self._write_position(number)

    def _write_position(self, number: int) -> None:
        if number > self._delivered:
            self._delivered = number
            if not self._closed:
                self._batcher.put(
                    self._lease, f"{self._key_prefix}/position", codec.to_json(number), self._expires_at()
                )

    def end(self, stream: int) -> None:
        """The requests of a stream have been answered."""
        self._write(f"{self._key_prefix}/streams/{stream:08}", _ENDED_STREAM, stream, self._memory.bounds(stream)[1])

    def drop(self, stream: int) -> None:
        """Forgets a stream."""
        if stream in self._unloaded:
            task = asyncio.get_running_loop().create_task(self._load_and_drop(stream))
            self._drop_tasks.add(task)
            task.add_done_callback(self._drop_tasks.discard)
            return
        oldest, last = self._memory.bounds(stream)
        for number in range(oldest + 1, last + 1):
            self._batcher.delete(self._lease, self._event_key(stream, number))
        self._batcher.delete(self._lease, f"{self._key_prefix}/streams/{stream:08}")
        self._memory.drop(stream)
        self._trimmed_to.pop(stream, None)

    async def _load_and_drop(self, stream: int) -> None:
        with contextlib.suppress(StoreError):  # then it expires
            await self.load_stream(stream)
            self.drop(stream)

    def _event_key(self, stream: int, number: int) -> str:
        return f"{self._key_prefix}/events/{stream:08}/{number:012}"

    def _write(self, key: str, value: bytes, stream: int, number: int) -> None:
        """Keeps something of a stream, of which `number` is the newest event then. What belongs to no request is kept
        before anybody is answered: an answer may be what it was about."""
        if self._closed:
            if self._fenced:
                self._unwritten.setdefault(stream, _WriteProgress(number - 1))  # nobody is given it
            return
        done = self._batcher.put(self._lease, key, value, self._expires_at(), urgent=stream == STANDALONE)
        if done is not self._batch_done:
            self._batch_done, self._batch_streams = done, {}
            done.add_done_callback(partial(self._finish_batch, self._batch_streams))
        unsafe = self._unwritten.get(stream)
        if unsafe is None:
            unsafe = self._unwritten[stream] = _WriteProgress(number - 1)
        unsafe.pending_writes += 1
        self._batch_streams[stream] = (number, unsafe.pending_writes)

    def _finish_batch(self, batch: dict[int, tuple[int, int]], _: "asyncio.Future[None]") -> None:
        """A round has been written, or never will be: more of some streams can be sent. What was refused is not."""
        if self._fenced:
            return
        for stream, (number, writes) in batch.items():
            unsafe = self._unwritten[stream]
            unsafe.last_written = number
            if unsafe.pending_writes == writes:
                del self._unwritten[stream]
            if self._on_written is not None:
                self._on_written(stream)

    def close(self) -> None:
        """Keeps nothing more."""
        self._closed = True

    def fence(self) -> None:
        """Another process goes on with them. What is not known to be kept by now is never there to be read."""
        self._closed = self._fenced = True

    # --- reading -------------------------------------------------------------------------------

    def is_committed(self, stream: int) -> bool:
        """Whether all that was appended is kept."""
        return stream not in self._unwritten

    def size(self, stream: int) -> int:
        """Bytes of a stream that this process holds beside the store."""
        return self._memory.size(stream)

    def read_after(self, stream: int, number: int) -> Sequence[tuple[int, bytes]] | None:
        """What came after a number and is kept; None if that is no longer known."""
        found = self._memory.read_after(stream, number)
        unsafe = self._unwritten.get(stream)
        return found if unsafe is None or not found else [event for event in found if event[0] <= unsafe.last_written]

    # --- going on ------------------------------------------------------------------------------

    async def load(self, newest_stream: int, last_event: int) -> tuple[list[int], dict[int, Sequence[RequestId]]]:
        """Takes over what an earlier process has kept: the numbers of all streams but the one of what belongs to no
        request, and the requests of those that were not answered. Numbers go on above those that are given."""
        pending: dict[int, Sequence[RequestId]] = {}
        for item in await self._scan_all("streams"):
            stream = int(item.key.rpartition("/")[2])
            self._unloaded.add(stream)
            if requests := read_stream(item.value).pending:
                pending[stream] = requests
        streams = sorted(self._unloaded)
        self.newest_stream = max([newest_stream, *streams])
        self._unloaded.add(STANDALONE)
        await self.load_stream(STANDALONE)
        if self.last_event < last_event:
            self._memory.restore(STANDALONE, last_event, ())
        position = await self._store.get(f"{self._key_prefix}/position")
        self._delivered = min(self.last_event, 0 if position is None else read_number(position.value))
        return streams, pending

    @property
    def delivered(self) -> int:
        """Up to where what belongs to no request was given to somebody."""
        return max(self._delivered, self._memory.bounds(STANDALONE)[0])

    async def load_stream(self, stream: int) -> None:
        """Gets what an earlier process has kept of a stream."""
        if stream not in self._unloaded:
            return
        items = await self._scan_all(f"events/{stream:08}")
        if stream not in self._unloaded:
            return  # somebody else was faster
        self._unloaded.discard(stream)
        if items:
            first = int(items[0].key.rpartition("/")[2]) - 1
            self._memory.restore(stream, first, [item.value for item in items])
            self._trimmed_to[stream] = first

    async def _scan_all(self, part: str) -> list[Item]:
        prefix, found = f"{self._key_prefix}/{part}/", list[Item]()
        while page := await self._store.scan(prefix, after=found[-1].key if found else "", limit=_PAGE_SIZE):
            found += page
        return found
